"""The command that packs into one file what somebody needs who is to find out what is wrong with a node."""

from __future__ import annotations

import json
from functools import partial

from toolkit_installer import log
from toolkit_installer.cli import new_file, output, show_detect, show_diagnose, show_plan, show_status
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import clock
from toolkit_installer.node.node import Node
from toolkit_installer.planning.prepare import prepare
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import diagnosis, status, status_verdict, support_bundle
from toolkit_installer.settings import Settings


def make(node: Node, settings: Settings, looking: Settings, path: str) -> None:
    """Write the report to `path`, a new file of the installer's own file system, or to stdout for "-".

    `settings` are those that `run` would have, `looking` those of `status`. Raises UsageError, OutputError.
    """
    new_file.require(path)
    store = ReceiptStore(node, settings.toolkit.install_dir)
    gathering = support_bundle.Gathering()
    gathering.add("status.json", support_bundle.Part.OWN, partial(_status, node, looking, store))
    gathering.add("detect.json", support_bundle.Part.OWN, partial(_detect, node, settings, store))
    gathering.add("diagnose.txt", support_bundle.Part.CLEAN, partial(_diagnosis, node, settings))
    gathering.add("plan.txt", support_bundle.Part.OWN, partial(_plan, node, settings, store))
    support_bundle.gather(node, settings, store, gathering)
    for name, why in gathering.missing.items():
        log.get().warning("A part of the report could not be made", key="report-part-missing", part=name, reason=why)
    packed = support_bundle.archive(gathering.finished(), clock.now())
    new_file.write(path, packed)
    log.get().info(
        "Wrote the report: look through it before you hand it on, though values that may be secret are hidden",
        key="report-written",
        file=None if path == new_file.STDOUT else path,
        bytes=len(packed),
    )


def _status(node: Node, settings: Settings, store: ReceiptStore) -> str:
    health = status_verdict.judged(status.look(node, settings, store, trust.load(node, store)))
    return f"{show_status.json_text(health)}\n"


def _detect(node: Node, settings: Settings, store: ReceiptStore) -> str:
    _refuse_starting(node, settings, store)
    facts, _ = show_detect.look(node, settings)
    return f"{json.dumps(facts, indent=2)}\n"


def _diagnosis(node: Node, settings: Settings) -> str:
    own_container.refuse(node, settings, own_container.asked_for(settings))
    return "".join(f"{output.plain(line)}\n" for line in show_diagnose.lines(diagnosis.diagnose(node, settings)))


def _plan(node: Node, settings: Settings, store: ReceiptStore) -> str:
    _refuse_starting(node, settings, store)
    seen = prepare(trust.load(node, store), settings, node, store)
    return "".join(f"{output.plain(line)}\n" for line in show_plan.lines(node, seen))


def _refuse_starting(node: Node, settings: Settings, store: ReceiptStore) -> None:
    """Raise ConfigurationError where an engine would be started by being asked."""
    why = support_bundle.would_be_started(node, settings, trust.load_if_usable(node, store))
    if why is not None:
        raise ConfigurationError(why)
