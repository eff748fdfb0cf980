"""The installed program as a child process: its log lines, its signals, its exit code, each with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.support import warm_start
from tests.support.engines.daemons import PATH
from tests.support.warm_start import SCRIPTS

WAITING = "Waiting for signal"
"""What a run says once the node is configured."""
_POLL = 0.02
_SECONDS = 10.0


class ProgramError(AssertionError):
    """The program did not do in time what the test waits for; the message has all that it said."""


class Program:
    """One run of an installed program, in the background; `enter` is what leads into another machine."""

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...],
        output: Path,
        environment: dict[str, str],
        enter: tuple[str, ...] = (),
        *,
        anew: bool = True,
    ) -> None:
        command = [*enter, str(SCRIPTS / name), *arguments]
        self._output = output
        self._entered = bool(enter)
        self._command = command
        with output.open("wb") as file:
            self._process = warm_start.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"PATH": PATH, "LANG": "C.UTF-8"} | environment,
                start_new_session=True,
                anew=anew,
            )

    @property
    def pid(self) -> int:
        """Its process ID. Raises ProgramError where it has ended, or never started, in another machine."""
        if not self._entered:
            return self._process.pid
        # whoever enters another PID namespace stays outside and has a child in it
        deadline = time.monotonic() + _SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            for child in psutil.Process(self._process.pid).children():
                return child.pid
            time.sleep(_POLL)
        raise ProgramError(self._story("is not there"))

    @property
    def output(self) -> str:
        """All that it said so far, on stdout and stderr."""
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, *, times: int = 1, within: float = 60.0) -> None:
        """Wait until `text` was said so often. Raises ProgramError when it exits before, or does not say it in time."""
        deadline = time.monotonic() + within
        while True:
            ended = self._process.poll()  # looked at first: what it said before its end is then all there
            if self.output.count(text) >= times:
                return
            if ended is not None:
                raise ProgramError(self._story(f"exited {ended} before it said {text!r}"))
            if time.monotonic() > deadline:
                raise ProgramError(self._story(f"did not say {text!r} within {within:g} s"))
            time.sleep(_POLL)

    def finish(self, *, within: float = 60.0) -> int:
        """Return its exit code once it has ended; negative: the signal. Raises ProgramError when it goes on."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise ProgramError(self._story(f"still runs after {within:g} s")) from None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def terminate(self, *, within: float = 60.0) -> int:
        """Ask it to clean up and leave, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.finish(within=within)

    def close(self) -> None:
        """Kill it if a failed test left it running."""
        if self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children() if self._entered else ():
                child.kill()
            self._process.kill()
            self._process.wait()

    def _story(self, what: str) -> str:
        return f"{' '.join(self._command)}\n{what}; it said:\n{self.output}"


class Installer:
    """Starts the installed programs, here or in the machine that `enter` leads into, and ends those that are left.

    Each is started from scratch, or, unless `anew`, warm where that can be.
    """

    def __init__(self, folder: Path, enter: tuple[str, ...] = (), *, anew: bool = True) -> None:
        self._folder = folder
        self._anew = anew
        self._enter = enter
        self._runs: list[Program] = []

    def start(self, name: str, *arguments: object, environment: dict[str, str] | None = None) -> Program:
        """Start a program in the background. It gets PATH, LANG and `environment`, and nothing of this process's."""
        output = self._folder / f"{name}-{len(self._runs)}.log"
        self._runs.append(
            Program(name, tuple(map(str, arguments)), output, environment or {}, self._enter, anew=self._anew)
        )
        return self._runs[-1]

    def close(self) -> None:
        """End what still runs."""
        for run in self._runs:
            run.close()


def missing_programs() -> list[str]:
    """Return which of the installed programs are not there."""
    return [name for name in ("nvidia-toolkit", "toolkit-installer") if not (SCRIPTS / name).exists()]
