"""Saves on the node how a failed command that changes it ended, for `status`."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from toolkit_installer import __version__, foreign_words, log
from toolkit_installer.cli import tree
from toolkit_installer.cli.options.build import find_place
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import machine
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError
from toolkit_installer.reporting import outcome
from toolkit_installer.reporting.outcome import LastRun
from toolkit_installer.settings import Program

_CHANGING = frozenset({"run", "uninstall"})
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a caller who may not write to the node: the command changed nothing, and has reported that."""


def save_result(
    error: InstallerError,
    program: Program,
    arguments: Sequence[str],
    given: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
) -> None:
    """Save how the command ended; a failure to save is only logged.

    `given` are the options of a command line that may be invalid as a whole: if they do not even name the node, nothing
    is saved. Nor is a run that found another instance running: the node's state is not its result.
    """
    command = _command(program, arguments)
    where = find_place(given, environment, program)
    if command is None or where is None or error.exit_code is ExitCode.ALREADY_RUNNING:
        return
    code = error.exit_code
    ended = LastRun(
        command=command,
        version=__version__,
        exit_code=int(code),
        event=code.event,
        ended=machine.text(machine.now()),
        reason=outcome.truncate_reason(foreign_words.mask_own_text(error.reason)),
        file=error.path,
        line=error.line,
        remedy=outcome.truncate_reason(foreign_words.mask_own_text(error.hint)) if error.hint else None,
    )
    try:
        node = Node.open(where.node_root, where.host_root)
        outcome.save_record(node, where.pid_file, where.ready_file, ended, reloaded=error.reloaded)
    except Exception as failure:  # noqa: BLE001  # whatever fails here, the original error must be reported
        if not (isinstance(failure, NodeError) and failure.number in _UNWRITABLE):
            log.get().warning(
                "How this ended cannot be kept: `status` will not know of it",
                key="result-not-kept",
                reason=str(failure),
            )


def _command(program: Program, arguments: Sequence[str]) -> str | None:
    """Return the name of the command, None if it does not change the node."""
    if program is not Program.TOOLKIT_INSTALLER:
        return "run"
    word = arguments[0] if arguments else ""
    command = tree.ALIASES.get(word, word)
    return command if command in _CHANGING else None
