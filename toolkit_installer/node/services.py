"""Units of the node's systemd, managed through the node's own systemctl, and reports to our own service manager.

Never daemon-reload: running GPU pods lose devices. `report_ready` reports to the service manager that started this
process (sd_notify(3)), if there is one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from toolkit_installer.node import programs
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import ProgramError, Programs

_VARIABLE: Final = "NOTIFY_SOCKET"


def report_ready(status: str) -> None:
    """Report that the service is up, with a status of one line. A service manager that is gone is no error."""
    address = os.environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    # an abstract name begins with a NUL (unix(7)), which the variable has as @
    name = f"\0{address.removeprefix('@')}" if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection,
    ):
        connection.settimeout(1)
        connection.sendto(f"READY=1\nSTATUS={status}".encode(), name)


LOG_INTRODUCTION = "; its log says: "
_LOG_LINES = 8
_READ_LINES = 400
_HARMLESS_LINES = r"\blevel=(info|debug|trace)\b|^(Starting|Started|Stopping|Stopped) |: Deactivated successfully"
"""Log lines without trouble: the engines' harmless levels, and systemd's own progress."""

_OWN_LINES = ("_TRANSPORT=stdout", "+", "_PID=1", "+", "SYSLOG_IDENTIFIER=systemd-coredump")
"""journalctl's matches for the output of a unit's programs, and for systemd's lines about the unit.

dockerd itself writes the lines of containers with the log drivers journald and syslog, under its own unit.
"""


class Services:
    """The node's systemd."""

    def __init__(self, programs: Programs, calls: SystemCalls) -> None:
        self.programs = programs
        self.calls = calls

    def knows(self, unit: str) -> bool:
        """Return whether systemd can be reached and has this unit loaded."""
        return self.property(unit, "LoadState") == "loaded"

    def property(self, unit: str, name: str) -> str | None:
        """Return a unit's property, such as `Restart`, or None if systemd does not report it."""
        systemctl = self.programs.find_program("systemctl")
        if systemctl is None:
            return None
        try:
            shown = self.programs.run([systemctl, "show", f"--property={name}", unit], seconds=10)
        except ProgramError:
            return None  # systemd cannot be reached
        text = shown.output.decode(errors="replace").strip()
        return text.removeprefix(f"{name}=") if shown.status == 0 and text else None

    def properties(self, units: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]] | None:
        """Return properties of several units, by unit; None if systemd does not report each unit.

        A systemd that is older than a property leaves it out.
        """
        systemctl = self.programs.find_program("systemctl")
        if systemctl is None:
            return None
        try:
            shown = self.programs.run([systemctl, "show", f"--property={','.join(names)}", "--", *units], seconds=10)
        except ProgramError:
            return None  # as above
        # in the order of the command line, with an empty line between units (systemctl(1), show)
        blocks = shown.output.decode(errors="replace").strip().split("\n\n")
        told = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks]
        if shown.status != 0 or len(told) != len(units) or not all(told):
            return None
        return dict(zip(units, told, strict=True))

    def is_stopping(self) -> bool:
        """Return whether the node is shutting down, according to systemd or its login manager.

        systemd reports it once it stops units (systemctl(1), is-system-running). Before that the login manager does,
        while a kubelet that requested a delay ends the node's pods (org.freedesktop.login1(5), PreparingForShutdown).
        """
        return any(
            (program := self.programs.find_program(name)) is not None and self._says([program, *words], said)
            for name, words, said in (
                ("systemctl", ("is-system-running",), b"stopping"),
                ("loginctl", ("show-session", "--property=PreparingForShutdown"), b"PreparingForShutdown=yes"),
            )
        )

    def _says(self, command: list[str], said: bytes) -> bool:
        try:
            return self.programs.run(command, seconds=10).output.strip() == said
        except ProgramError:
            return False  # it cannot be reached, and so has not reported it

    def restart(self, unit: str, *, seconds: float, meanwhile: Callable[[], None] | None = None) -> None:
        """Restart the unit and wait for it, even if earlier attempts have used up its start limit.

        `meanwhile` is called repeatedly after the request to systemd, and may raise Stopped: systemd completes the
        restart whether or not this process waits. Raises ProgramError with systemd's own error and the last lines of
        the unit's log; Stopped.
        """
        systemctl = self.programs.find_program("systemctl")
        if systemctl is None:
            raise ProgramError("the node has no systemctl", hint="use --restart-mode signal or none")
        command = [systemctl, "restart", unit]
        self.calls.restart_unit(command)
        began = time.time()
        # without this, a unit that failed a few times is not started again, though its files are good by now
        self.programs.run([systemctl, "reset-failed", unit], seconds=seconds)
        with programs.report_progress(meanwhile) if meanwhile is not None else contextlib.nullcontext():
            done = self.programs.run(command, seconds=seconds)
        if done.status != 0:
            words = self.last_words(unit, began)
            log = f"{LOG_INTRODUCTION}{words}" if words else ""
            raise ProgramError(f"{' '.join(command)} ended with {done.status}: {done.errors}{log}")

    def last_words(self, unit: str, since: float) -> str:
        """Return in one line the last log lines of the unit that may show a problem, else its last lines.

        `since` is in seconds since the epoch. Empty without journalctl; the error if it fails.
        """
        # systemd counts whole seconds here, and writes "@" before them (systemd.time(7))
        return " | ".join(self.trouble(unit, f"@{int(since)}", _LOG_LINES))

    def trouble(self, unit: str, since: str, count: int) -> list[str]:
        """Return the last `count` log lines of the unit that may show a problem, else its last lines.

        `since` is a time in systemd's format (systemd.time(7)). Empty without journalctl; the error if it fails.
        """
        journalctl = self.programs.find_program("journalctl")
        if journalctl is None:
            return []
        command = [journalctl, f"--unit={unit}", f"--since={since}", f"--lines={_READ_LINES}"]
        try:
            shown = self.programs.run([*command, "--output=cat", "--no-pager", "--quiet", *_OWN_LINES], seconds=10)
        except ProgramError as error:
            return [f"({error})"]
        lines = [line for line in shown.output.decode(errors="replace").split("\n") if line.strip()]
        return ([line for line in lines if not re.search(_HARMLESS_LINES, line)] or lines)[-count:]

    def log(self, unit: str, lines: int) -> str | None:
        """Return the last lines of a unit's own log, each with its time; None if there are none, or no journal."""
        journalctl = self.programs.find_program("journalctl")
        if journalctl is None:
            return None
        command = [journalctl, f"--unit={unit}", f"--lines={lines}", "--output=short-iso", "--no-pager", "--quiet"]
        try:
            shown = self.programs.run([*command, *_OWN_LINES], seconds=10)
        except ProgramError as error:
            return f"({error})\n"
        return shown.output.decode(errors="backslashreplace") or None
