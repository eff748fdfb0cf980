"""How often the engine may be reloaded for installing: a crash-looping pod must not take it down with it.

The times are kept in a small file of the node beside the PID file. It survives cleanup, which is what a crash loop
does each time, and it expires by itself: with the boot, and with the time that the budget speaks of.

An install that was done and served, and was then taken back on purpose (by `uninstall`, or because the DaemonSet is
gone), was no part of such a loop: its reloads count no more, so that whoever tries something out is not stopped. They
are remembered all the same, as a label that comes and goes makes a loop of such installs, too: of them there may be
four times as many. A cleanup for any other reason, such as a TERM, forgives nothing: it may be the reload that caused
it.

A run that a person starts in a shell is no part of a loop either: its reloads are remembered with these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import msgspec

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import machine, terminal
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.writing import own_metadata

FILE = "toolkit-installer.reloads"
_MODE = 0o644
_COUNTING, _FORGIVEN = "reloads", "taken_back"
"""The keys of the file. Packages that know the first alone forget the others when they write it."""
_WITH_FORGIVEN = 4
"""How many times the budget the sum of counted and forgiven reloads may be."""


class Reloads(msgspec.Struct, frozen=True):
    """Seconds since the boot at which reloads for installing were made: those that count, and the others."""

    counting: tuple[float, ...] = ()
    forgiven: tuple[float, ...] = ()


def remembered(content: bytes, boot: str, now: float, seconds: float) -> Reloads:
    """Return the times of this boot that are not over. What cannot be read is nothing. Pure."""
    return Reloads(*(recent(content, boot, now, seconds, key) for key in (_COUNTING, _FORGIVEN)))


def recent(content: bytes, boot: str, now: float, seconds: float, key: str = _COUNTING) -> tuple[float, ...]:
    """Return one list of times, as `remembered` does. Pure."""
    try:
        body = json.loads(content)
        if body["boot"] != boot:
            return ()
        return tuple(float(time) for time in body[key] if now - seconds < time <= now)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def refusal(times: Sequence[float], now: float, budget: tuple[int, float], why: str = "") -> str | None:
    """Return why another reload is refused, None if it is not. Pure."""
    count, seconds = budget
    if len(times) < count:
        return None
    wait = sorted(times)[-count] + seconds - now
    return (
        f"the engine was reloaded {len(times)} times for installing within {seconds:g} s{why}, which is the limit: "
        f"the next one is possible in {wait:.0f} s"
    )


def refusal_of_any(reloads: Reloads, now: float, budget: tuple[int, float]) -> str | None:
    """Return why another reload is refused, be it for those that count or for all, None if it is not. Pure."""
    count, seconds = budget
    every = (*reloads.counting, *reloads.forgiven)
    why = ", and what was installed was taken back each time"
    return refusal(reloads.counting, now, budget) or refusal(every, now, (count * _WITH_FORGIVEN, seconds), why)


class ReloadBudget:
    """The budget of one node."""

    def __init__(self, files: Files, pid_path: str, budget: tuple[int, float]) -> None:
        self.files = files
        self.path = os.path.join(os.path.dirname(files.in_folder(pid_path)), FILE)
        self.budget = budget

    def tidy(self) -> None:
        """Remove what a killed run left half written beside the file. Raises NodeError."""
        self.files.sweep(self.path)

    def require_reload(self) -> None:
        """Raise ConfigurationError if the budget is used up."""
        reason = refusal_of_any(self._reloads(), machine.boot_seconds(), self.budget)
        if reason is not None:
            raise ConfigurationError(
                reason,
                path=self.path,
                hint="something makes the installer start over and over: look at why it ends; nothing was changed; "
                "--reload-budget N/SECONDS sets another limit, removing the file forgets the past",
            )

    def spend(self) -> None:
        """Record a reload that is about to be made. Raises NodeError."""
        reloads, now = self._reloads(), machine.boot_seconds()
        if terminal.is_a_persons():
            self._write(Reloads(reloads.counting, (*reloads.forgiven, now)))
        else:
            self._write(Reloads((*reloads.counting, now), reloads.forgiven))

    def forgive(self) -> None:
        """Stop counting the reloads of a change that was served, and has been reverted on purpose. Raises NodeError."""
        # it is written whatever it says: what is done to the node must not depend on how long ago the reloads were
        if self.files.read_file(self.path) is not None:
            reloads = self._reloads()
            self._write(Reloads((), (*reloads.forgiven, *reloads.counting)))

    def _write(self, reloads: Reloads) -> None:
        times = {_COUNTING: reloads.counting, _FORGIVEN: reloads.forgiven}
        body = {"boot": machine.boot_id()} | {
            key: list(each) for key, each in times.items() if each or key == _COUNTING
        }
        self.files.overwrite(self.path, json.dumps(body).encode() + b"\n", own_metadata(_MODE))

    def _reloads(self) -> Reloads:
        content = self.files.content(self.path)
        return remembered(content or b"", machine.boot_id(), machine.boot_seconds(), self.budget[1])
