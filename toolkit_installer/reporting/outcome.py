"""What a run came to that failed and is over: kept for `status` until a run, or an uninstall, succeeds.

Where an engine was reloaded, the record lies beside the PID file, where the reloads are counted too: on a node's /run,
which a boot empties. Any other run that fails leaves the node as it was, and nothing new there: its record lies beside
the ready file, which is the installer's own. In a pod that is a volume which goes with the pod, and not with the
container.

What the last inspection of the node by a waiting run came to, saved for the command `refresh`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node import locks, machine, owners
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.owners import refuse_if_others_write
from toolkit_installer.node.root import Root, attempt
from toolkit_installer.node.writing import own_metadata

FILE = "toolkit-installer.last-run"
_MODE = 0o600
_FORM = 1
"""Of the record: one with a higher number is another version's, and is not understood."""
_LIMIT = 64 * 1024
"""Bytes, of a record that is read."""
_LONGEST_REASON = 4000
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
            body = {"form": _FORM, "boot": machine.boot_id(), **msgspec.structs.asdict(ended)}
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
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


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
    return None if found is None else _understood(found.content, path, machine.boot_id())


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


_MOST_LINES = 40
_LONGEST_TEXT = 1000
"""Characters of a text: an engine may have printed much."""
_LEFT_OUT = frozenset({"waiting", "looking-again", "failed-to-converge"})
"""Events that do not say what was done; the last one repeats the failure."""


class LookFailedError(InstallerError):
    """A waiting run has inspected the node, and failed; its exit code is that of the failure."""


class LookOutcome(msgspec.Struct, frozen=True):
    """When an inspection began, the lines that it logged, and how it failed. Secrets are masked in all texts."""

    began: float
    """Seconds since the boot (CLOCK_BOOTTIME): nobody can set that clock."""
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
        error = LookFailedError(self.reason, path=self.file, line=self.line, hint=self.remedy)
        error.exit_code = self.exit_code
        return error


class LookRecorder:
    """Records what the inspection comes to that a run makes now: its log lines, and its failure."""

    def __init__(self) -> None:
        self.outcome: LookOutcome | None = None
        self._lines: list[str] = []
        log.overhear(self._overheard)

    def begin(self) -> None:
        """Start the record of a new inspection: whatever is requested from here on needs another one."""
        self._lines = []
        self.outcome = LookOutcome(machine.boot_seconds())

    def fail(self, error: InstallerError) -> None:
        """Record why the inspection did not bring the node to where it should be."""
        if self.outcome is None:
            return
        from toolkit_installer import foreign_words  # noqa: PLC0415  # of failures alone

        self.outcome = msgspec.structs.replace(
            self.outcome,
            exit_code=error.exit_code,
            reason=foreign_words.own(error.reason)[:_LONGEST_TEXT],
            file=error.path,
            line=error.line,
            remedy=foreign_words.own(error.hint)[:_LONGEST_TEXT] if error.hint else None,
        )

    @property
    def recorded(self) -> LookOutcome | None:
        """The outcome with the lines so far, None before the first inspection."""
        return msgspec.structs.replace(self.outcome, lines=tuple(self._lines)) if self.outcome is not None else None

    def restore(self, outcome: LookOutcome | None) -> None:
        """Take up the outcome that the process before the idle one saved."""
        self.outcome = outcome
        self._lines = list(outcome.lines) if outcome is not None else []

    def _overheard(self, line: Mapping[str, Any]) -> None:
        if self.outcome is None or line.get("event") in _LEFT_OUT or len(self._lines) >= _MOST_LINES:
            return
        place = ", ".join(str(line[key]) for key in ("engine", "file") if line.get(key))
        why = line.get("reason") or line.get("why")
        words = f"{line['msg']}{f' ({place})' if place else ''}{f': {why}' if why else ''}"
        self._lines.append(words[:_LONGEST_TEXT])
