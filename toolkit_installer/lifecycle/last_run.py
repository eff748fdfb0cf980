"""What a run came to that failed and is over: kept for `status` until a run, or an uninstall, succeeds.

Where an engine was reloaded, the record lies beside the PID file, where the reloads are counted too: on a node's /run,
which a boot empties. Any other run that fails leaves the node as it was, and nothing new there: its record lies beside
the ready file, which is the installer's own. In a pod that is a volume which goes with the pod, and not with the
container.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import clock, locks, owners
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root, attempt
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.node.owners import refuse_if_others_write

FILE = "toolkit-installer.last-run"
_MODE = 0o600
_FORM = 1
"""Of the record: one with a higher number is another version's, and is not understood."""
_LIMIT = 64 * 1024
"""Bytes, of a record that is read."""
_LONGEST = 4000
"""Characters of a text in it: an engine may have said much."""


class LastRun(msgspec.Struct, frozen=True):
    """How a command that changes the node ended: in `reason` what was wrong, in `remedy` what to do about it.

    Secrets are masked in both.
    """

    command: str
    """run, or uninstall."""
    version: str
    """Of the program that ran."""
    exit_code: int
    event: str
    """The exit code's name, as the log has it."""
    ended: str
    """RFC 3339, UTC."""
    reason: str
    file: str | None
    line: int | None
    remedy: str | None


def keep(node: Node, pid_path: str, ready_file: str | None, ended: LastRun, *, reloaded: bool) -> None:
    """Write the record in place of an older one, atomically; not where another instance is at work.

    `reloaded`: an engine was; if not, nothing is written to the node. Raises NodeError, ConfigurationError.
    """
    if locks.holder(node.files, pid_path) is not None:
        return  # how that one ends is what counts
    for files, folder in _places(node, [pid_path] if reloaded else [], ready_file):
        status = files.own_status(folder)
        if status is not None and stat.S_ISDIR(status.st_mode):
            body = {"form": _FORM, "boot": clock.boot_id(), **msgspec.structs.asdict(ended)}
            files.overwrite(f"{folder}/{FILE}", json.dumps(body).encode() + b"\n", own_metadata(_MODE))
            return


def forget(node: Node, pid_path: str, ready_file: str | None) -> None:
    """Remove the record, and what a killed run left of one: a run has succeeded. That it cannot be removed is said."""
    try:
        for files, folder in _places(node, [pid_path], ready_file):
            path = f"{folder}/{FILE}"
            files.sweep(path)
            if files.own_status(path) is not None:
                files.remove(path)
    except InstallerError as error:
        log.get().warning(
            "What an earlier run came to cannot be forgotten: `status` goes on telling of it",
            key="last-run-stays",
            file=error.path,
            reason=error.reason,
        )


def kept(node: Node, pid_paths: Iterable[str], ready_file: str | None) -> LastRun | None:
    """Return the newest record of this boot, None where there is none. One that is not to be believed is said.

    Raises NodeError.
    """
    found: list[LastRun] = []
    for files, folder in _places(node, pid_paths, ready_file):
        try:
            record = _read(files, f"{folder}/{FILE}")
        except InstallerError as error:
            log.get().warning("What the last run came to is not known", key="last-run-unread", reason=str(error))
            continue
        found += [record] if record is not None else []
    return max(found, key=lambda record: record.ended, default=None)


def cut(text: str) -> str:
    """Return a text that is not too long for the record. Pure."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _places(node: Node, pid_paths: Iterable[str], ready_file: str | None) -> list[tuple[Files, str]]:
    """Return the folders in which the record may lie, the better ones first. Raises NodeError."""
    found = [(node.files, os.path.dirname(node.files.in_folder(path))) for path in pid_paths]
    if ready_file is not None:
        own = Files(Root("/"), node.calls)
        found.append((own, os.path.dirname(own.in_folder(ready_file))))
    return found


def _read(files: Files, path: str) -> LastRun | None:
    """Return the record at the canonical `path`, None where there is none of this boot.

    Raises NodeError, ConfigurationError.
    """
    status = files.own_status(path)
    if status is None:
        return None
    wrong = owners.not_ours(status)
    if wrong is not None:
        raise _refused(wrong, path)
    with attempt("look at its folder", path), files.root.parent(path) as (folder, _):
        refuse_if_others_write(folder, path)
    found = files.read_file(path, _LIMIT)
    return None if found is None else _understood(found.content, path, clock.boot_id())


def _understood(content: bytes, path: str, boot: str) -> LastRun | None:
    """Return what a record says, None where it is of another boot. Pure. Raises ConfigurationError."""
    try:
        body = json.loads(content)
        form = body.pop("form")
        if body.pop("boot") != boot:
            return None
        if form != _FORM:
            raise _refused(f"is of the form {form!r}, which this version does not know", path)
        return msgspec.convert({name: body.get(name) for name in LastRun.__struct_fields__}, LastRun)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise _refused("is no record of a run", path) from error


def _refused(why: str, path: str) -> ConfigurationError:
    return ConfigurationError(f"the record of the last run {why}", path=path, hint="look at who made it, and remove it")
