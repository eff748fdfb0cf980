"""What the last inspection of the node by a waiting run came to, saved for the command `refresh`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import clock

_MOST_LINES = 40
_LONGEST = 1000
"""Characters of a text: an engine may have printed much."""
_LEFT_OUT = frozenset({"waiting", "looking-again", "failed-to-converge"})
"""Events that do not say what was done; the last one repeats the failure."""


class LookFailedError(InstallerError):
    """A waiting run has inspected the node, and failed; its exit code is that of the failure."""


class LookOutcome(msgspec.Struct, frozen=True):
    """When an inspection began, the lines that it logged, and how it failed. Secrets are masked in all texts."""

    began: float
    """Seconds since the boot (CLOCK_BOOTTIME): nobody can set that clock."""
    exit_code: int = ExitCode.DONE
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
        error.exit_code = ExitCode(self.exit_code)
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
        self.outcome = LookOutcome(clock.boot_seconds())

    def fail(self, error: InstallerError) -> None:
        """Record why the inspection did not bring the node to where it should be."""
        if self.outcome is None:
            return
        from toolkit_installer import foreign_words  # noqa: PLC0415  # of failures alone

        self.outcome = msgspec.structs.replace(
            self.outcome,
            exit_code=int(error.exit_code),
            reason=foreign_words.own(error.reason)[:_LONGEST],
            file=error.path,
            line=error.line,
            remedy=foreign_words.own(error.hint)[:_LONGEST] if error.hint else None,
        )

    def plain(self) -> Mapping[str, Any]:
        """Return the outcome as values that JSON has, {} before the first inspection."""
        if self.outcome is None:
            return {}
        return msgspec.to_builtins(msgspec.structs.replace(self.outcome, lines=tuple(self._lines)))  # type: ignore[no-any-return]

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up the outcome that the process before the idle one saved."""
        self.outcome = parsed(saved)
        self._lines = list(self.outcome.lines) if self.outcome is not None else []

    def _overheard(self, line: Mapping[str, Any]) -> None:
        if self.outcome is None or line.get("event") in _LEFT_OUT or len(self._lines) >= _MOST_LINES:
            return
        place = ", ".join(str(line[key]) for key in ("engine", "file") if line.get(key))
        why = line.get("reason") or line.get("why")
        words = f"{line['msg']}{f' ({place})' if place else ''}{f': {why}' if why else ''}"
        self._lines.append(words[:_LONGEST])


def parsed(saved: Any) -> LookOutcome | None:
    """Return an outcome that was saved as plain values; None for none, or one that is not understood. Pure."""
    if not isinstance(saved, Mapping) or not saved:
        return None
    try:
        outcome = msgspec.convert(dict(saved), LookOutcome)
        ExitCode(outcome.exit_code)
    except (msgspec.ValidationError, ValueError):
        return None
    return outcome
