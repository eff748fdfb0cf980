"""The command that keeps in one file what a node shows, so that it can be planned against anywhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from toolkit_installer import __version__, log
from toolkit_installer.cli import new_file, show_plan
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.errors import UsageError
from toolkit_installer.fleet import archive, record, seams
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.masking import Hiding
from toolkit_installer.fleet.record import Recorder
from toolkit_installer.node import machine
from toolkit_installer.node.node import Node
from toolkit_installer.run.dry_run import Foreseen
from toolkit_installer.settings import Settings

_KEY_BYTES = 32
_LONGEST_KEY = 4096
_NODE_NAME = "NODE_NAME"


def make(
    node: Node,
    settings: Settings,
    path: str,
    given: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    *,
    keep_secrets: bool,
    key_file: str | None,
) -> None:
    """Write the capture to `path`, a new file of the installer's own file system, or to stdout for "-".

    `given` are the texts of the options that the settings are made of, `key_file` a file with the key for stand-ins.
    Raises UsageError, OutputError, and ConfigurationError where an engine would be started by being asked.
    """
    hiding = None if keep_secrets else Hiding(_key(key_file))
    new_file.require(path)
    recorder = Recorder()
    with log.unheard(), record.recorded_by(recorder):
        seams.observe(node, settings, _show)
    for place, why in recorder.unread.items():
        log.get().warning(
            "A part of the node could not be captured", key="capture-part-missing", file=place, reason=why
        )
    answers, digests = recorder.recorded(hiding, node.root.folder)
    known = {variable for option in OPTIONS for variable in option.variables}
    head = Archive(
        schema=archive.SCHEMA,
        version=__version__,
        node=environment.get(_NODE_NAME) or machine.name(),
        given={name: tuple(texts) for name, texts in sorted(given.items())},
        environment={name: value for name, value in sorted(environment.items()) if name in known},
        root=node.root.folder,
        programs_root=node.programs.root.folder,
        whole=node.whole,
        digests=digests,
        unread=recorder.unread,
        secrets_kept=keep_secrets,
        answers={},
        key="" if hiding is None else hiding.name,
    )
    packed = archive.packed(head, answers)
    new_file.write(path, packed)
    log.get().info(
        "Wrote the capture of this node",
        key="capture-written",
        file=None if path == new_file.STDOUT else path,
        bytes=len(packed),
        answers=sum(map(len, answers.values())),
        secrets="kept" if keep_secrets else "hidden",
    )


def _key(path: str | None) -> bytes:
    """Return the key in a file, or a new one. Raises UsageError."""
    if path is None:
        return os.urandom(_KEY_BYTES)
    try:
        with open(path, "rb") as file:
            key = file.read(_LONGEST_KEY)
    except OSError as error:
        raise UsageError(f"--key-file {path}: {error.strerror}") from error
    if len(key) < _KEY_BYTES:
        raise UsageError(
            f"--key-file {path} has {len(key)} bytes, and a key has at least {_KEY_BYTES}",
            hint=f"make one with `head -c {_KEY_BYTES} /dev/urandom >FILE`",
        )
    return key


def _show(node: Node, settings: Settings, found: Foreseen) -> None:
    """Make what `plan` shows: that asks the node as well."""
    show_plan.as_value(node, settings, found.seen, found.stops)
