"""Records of how a run ended: a failed run's for `status`, and a waiting run's last inspection for `refresh`.

The record of a failed run is kept until a run, or an uninstall, succeeds. If an engine was reloaded, the record is next
to the PID file, where the reloads are counted too: on a node's /run, which a boot empties. Any other failed run leaves
the node as it was, with no new file there: its record is next to the ready file, which is the installer's own. In a pod
that is a volume which goes with the pod, and not with the container.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node import locks, machine
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError, Root, attempt, find_ownership_defect, refuse_if_others_write
from toolkit_installer.node.writing import own_metadata

FILE = "toolkit-installer.last-run"
_MODE = 0o600
_FORM = 1
"""The record's version; a higher one is another release's, and is not read."""
_LIMIT = 64 * 1024
"""The limit for reading a record, in bytes."""
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors of a caller who may not write to the node: the command changed nothing, and has reported that."""
_LONGEST_REASON = 4000
"""The limit of a text in the record, in characters: an engine may have printed much."""


class LastRun(msgspec.Struct, frozen=True):
    """The end of a command that changes the node: `reason` is the failure, `remedy` what to do about it.

    Secrets are masked in both.
    """

    command: str
    """run, or uninstall."""
    version: str
    """The version of the program that ran."""
    exit_code: int
    event: str
    """The exit code's name, as in the log."""
    ended: str
    """RFC 3339, UTC."""
    reason: str
    file: str | None
    line: int | None
    remedy: str | None


def save_failure(
    error: InstallerError, command: str, roots: tuple[str | None, str], pid_path: str, ready_file: str | None
) -> None:
    """Save how the command ended; a failure to save is only logged. `roots`: Node.open's arguments."""
    from toolkit_installer import foreign_words  # noqa: PLC0415  # for failures only

    code = error.exit_code
    ended = LastRun(
        command=command,
        version=__version__,
        exit_code=int(code),
        event=code.event,
        ended=machine.text(machine.now()),
        reason=_truncate_reason(foreign_words.mask_own_text(error.reason)),
        file=error.path,
        line=error.line,
        remedy=_truncate_reason(foreign_words.mask_own_text(error.hint)) if error.hint else None,
    )
    try:
        save_record(Node.open(*roots), pid_path, ready_file, ended, reloaded=error.reloaded)
    except Exception as failure:  # noqa: BLE001  # whatever fails here, the original error must be reported
        if not (isinstance(failure, NodeError) and failure.number in _UNWRITABLE):
            log.get().warning(
                "How this ended cannot be kept: `status` will not know of it",
                key="result-not-kept",
                reason=str(failure),
            )


def save_record(node: Node, pid_path: str, ready_file: str | None, ended: LastRun, *, reloaded: bool) -> None:
    """Replace the record atomically; do nothing while another instance is running.

    `reloaded`: an engine was reloaded; if not, nothing is written to the node. Raises NodeError, ConfigurationError.
    """
    if locks.find_instance(node.files, pid_path) is not None:
        return  # the end of that instance counts instead
    for files, folder in _list_record_folders(node, [pid_path] if reloaded else [], ready_file):
        status = files.own_status(folder)
        if status is not None and stat.S_ISDIR(status.st_mode):
            body = {"form": _FORM, "boot": machine.boot_id(), **msgspec.structs.asdict(ended)}
            files.overwrite(f"{folder}/{FILE}", json.dumps(body).encode() + b"\n", own_metadata(_MODE))
            return


def remove_record(node: Node, pid_path: str, ready_file: str | None) -> None:
    """Remove the record, and a killed run's leftovers of one, after a run succeeded; a failure is logged."""
    try:
        for files, folder in _list_record_folders(node, [pid_path], ready_file):
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


def load_record(node: Node, pid_paths: Iterable[str], ready_file: str | None) -> LastRun | None:
    """Return the newest record of this boot, None if there is none; a record that is not trusted is logged.

    Raises NodeError.
    """
    found: list[LastRun] = []
    for files, folder in _list_record_folders(node, pid_paths, ready_file):
        try:
            record = _read_record(files, f"{folder}/{FILE}")
        except InstallerError as error:
            log.get().warning("What the last run came to is not known", key="last-run-unread", reason=str(error))
            continue
        found += [record] if record is not None else []
    return max(found, key=lambda record: record.ended, default=None)


def _truncate_reason(text: str) -> str:
    """Return the text, cut to the record's limit. Pure."""
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def _list_record_folders(node: Node, pid_paths: Iterable[str], ready_file: str | None) -> list[tuple[Files, str]]:
    """Return the folders that may have the record, the preferred first. Raises NodeError."""
    found = [(node.files, os.path.dirname(node.files.in_folder(path))) for path in pid_paths]
    if ready_file is not None:
        own = Files(Root("/"), node.calls)
        found.append((own, os.path.dirname(own.in_folder(ready_file))))
    return found


def _read_record(files: Files, path: str) -> LastRun | None:
    """Return the record at the canonical `path`, None if there is none of this boot.

    Raises NodeError, ConfigurationError.
    """
    status = files.own_status(path)
    if status is None:
        return None
    wrong = find_ownership_defect(status)
    if wrong is not None:
        raise _record_error(wrong, path)
    with attempt("look at its folder", path), files.root.parent(path) as (folder, _):
        refuse_if_others_write(folder, path)
    found = files.read_file(path, _LIMIT)
    return None if found is None else _parse_record(found.content, path, machine.boot_id())


def _parse_record(content: bytes, path: str, boot: str) -> LastRun | None:
    """Return the parsed record, None if it is of another boot. Pure. Raises ConfigurationError."""
    try:
        body = json.loads(content)
        form = body.pop("form")
        if body.pop("boot") != boot:
            return None
        if form != _FORM:
            raise _record_error(f"is of the form {form!r}, which this version does not know", path)
        return msgspec.convert({name: body.get(name) for name in LastRun.__struct_fields__}, LastRun)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise _record_error("is no record of a run", path) from error


def _record_error(why: str, path: str) -> ConfigurationError:
    return ConfigurationError(f"the record of the last run {why}", path=path, hint="look at who made it, and remove it")


_MOST_LINES = 40
_LONGEST_TEXT = 1000
"""The limit of a text, in characters: an engine may have printed much."""
_OMITTED = frozenset({"waiting", "looking-again", "failed-to-converge"})
"""Events that do not describe the work; the last one repeats the failure."""


class InspectionFailedError(InstallerError):
    """A waiting run's inspection of the node failed; the exit code is that of the failure."""


class InspectionOutcome(msgspec.Struct, frozen=True):
    """The outcome of an inspection: its start, its log lines and its failure, with all secrets masked."""

    began: float
    """Seconds since the boot (CLOCK_BOOTTIME), a clock that cannot be set."""
    exit_code: ExitCode = ExitCode.DONE
    reason: str = ""
    """Why it failed, empty if it did not."""
    file: str | None = None
    line: int | None = None
    remedy: str | None = None
    lines: tuple[str, ...] = ()

    @property
    def error(self) -> InstallerError | None:
        """The failure as an error with its exit code, None for success."""
        if self.exit_code == ExitCode.DONE:
            return None
        error = InspectionFailedError(self.reason, path=self.file, line=self.line, hint=self.remedy)
        error.exit_code = self.exit_code
        return error


class InspectionRecorder:
    """A recorder of the log lines and the failure of the inspection in progress."""

    def __init__(self) -> None:
        self.outcome: InspectionOutcome | None = None
        self._lines: list[str] = []
        log.add_listener(self._on_log_line)

    def begin(self) -> None:
        """Start the record of a new inspection: a later request needs another inspection."""
        self._lines = []
        self.outcome = InspectionOutcome(machine.boot_seconds())

    def fail(self, error: InstallerError) -> None:
        """Record why the inspection did not complete the node."""
        if self.outcome is None:
            return
        from toolkit_installer import foreign_words  # noqa: PLC0415  # only for failures

        self.outcome = msgspec.structs.replace(
            self.outcome,
            exit_code=error.exit_code,
            reason=foreign_words.mask_own_text(error.reason)[:_LONGEST_TEXT],
            file=error.path,
            line=error.line,
            remedy=foreign_words.mask_own_text(error.hint)[:_LONGEST_TEXT] if error.hint else None,
        )

    @property
    def recorded(self) -> InspectionOutcome | None:
        """The outcome with the lines so far, None before the first inspection."""
        return msgspec.structs.replace(self.outcome, lines=tuple(self._lines)) if self.outcome is not None else None

    def restore(self, outcome: InspectionOutcome | None) -> None:
        """Restore the outcome that the process before the idle process saved."""
        self.outcome = outcome
        self._lines = list(outcome.lines) if outcome is not None else []

    def _on_log_line(self, line: Mapping[str, Any]) -> None:
        if self.outcome is None or line.get("event") in _OMITTED or len(self._lines) >= _MOST_LINES:
            return
        place = ", ".join(str(line[key]) for key in ("engine", "file") if line.get(key))
        why = line.get("reason") or line.get("why")
        words = f"{line['msg']}{f' ({place})' if place else ''}{f': {why}' if why else ''}"
        self._lines.append(words[:_LONGEST_TEXT])
