"""The end of a run that waited: what it changed is taken back, unless the settings or the DaemonSet want it to stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Attention
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.run import preload
from toolkit_installer.settings import Cleanup, Settings
from toolkit_installer.waiting.ready_file import Marker

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import Question
    from toolkit_installer.reporting.telling import Telling


class Leaving:
    """Cleans up, or says why it does not."""

    def __init__(
        self, settings: Settings, node: Node, store: ReceiptStore, pid_file: PidFile, attention: Attention
    ) -> None:
        self._settings = settings
        self._node = node
        self._store = store
        self._pid_file = pid_file
        self._attention = attention

    def leave(self, question: Question | None, marker: Marker, telling: Telling) -> None:
        """Clean up as the settings, a request of `uninstall`, or the answer to `question` say.

        What the cluster was told is taken back first: the permission to do so goes with the DaemonSet.
        Raises InstallerError where the node is still configured, or half-way.
        """
        telling.leave()
        asked = self._store.take_request() if self._store.exists() else None
        # first of all: whoever deletes the DaemonSet deletes what lets us ask, too
        stays = asked is None and question is not None and self._store.exists() and not question.unwanted()
        marker.clear_before_cleanup()
        receipt = trust.load(self._node, self._store)
        if asked is None and self._settings.cleanup is Cleanup.NEVER:
            log.get().info("Leaving the node configured, as --cleanup never says", key="left-configured-never")
        elif asked is None and not self._settings.daemon:
            log.get().info("Leaving: --no-daemon cleans nothing up", key="left-no-daemon")
        elif stays:
            log.get().info("Leaving the node configured, as --cleanup auto says", key="left-configured-auto")
        else:
            telling.withdraw()
            if receipt is None:
                log.get().info("Nothing to clean up", key="nothing-to-clean-up")
                return
            self._clean_up(receipt, asked, forgive=asked is not None or question is not None)

    def _clean_up(self, receipt: Receipt, asked: bytes | None, *, forgive: bool) -> None:
        """Take back what the receipt records; `asked` is what `uninstall` asked for. Raises InstallerError.

        `forgive`: somebody wants the node reverted, and no crash loop is behind it.
        """
        preload.everything()
        from toolkit_installer.revert import uninstall

        stop = self._attention.stop
        log.get().info("Cleaning up", key="cleaning-up", signal=stop.name if stop else None)
        keep = self._settings.keep_toolkit if asked is None else asked == uninstall.KEEP
        try:
            remainder = uninstall.revert(
                self._settings, self._node, self._store, receipt, self._attention, keep_toolkit=keep
            )
        except InstallerError:
            log.get().error(
                "Cleanup failed: the node is STILL configured, or half-way",
                key="cleanup-failed",
                hint="the next error says why; once that is mended, run `toolkit-installer uninstall`",
            )
            raise
        self._pid_file.adopt_folders(receipt.pid_folders)
        if forgive:
            uninstall.forgive_reloads(self._settings, self._node, receipt)
        uninstall.say_done(receipt, remainder)
