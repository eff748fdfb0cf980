"""The installed program as a child process: its log lines, its signals, its exit code, each with a deadline."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.engines import PATH

SCRIPTS = Path(sys.executable).parent
"""Where the installed programs lie: beside the interpreter that runs the tests."""

WAITING = "Waiting for signal"
"""What a run says once the node is configured."""
_POLL = 0.02


class ProgramError(AssertionError):
    """The program did not do in time what the test waits for; the message has all that it said."""


class Program:
    """One run of an installed program, in the background."""

    def __init__(self, name: str, arguments: tuple[str, ...], output: Path, environment: dict[str, str]) -> None:
        command = [str(SCRIPTS / name), *arguments]
        self._output = output
        self._command = command
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"PATH": PATH, "LANG": "C.UTF-8"} | environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self._process.pid

    @property
    def output(self) -> str:
        """All that it said so far, on stdout and stderr."""
        return self._output.read_text(errors="replace")

    def wait_for(self, text: str, *, within: float = 60.0) -> None:
        """Wait until `text` was said. Raises ProgramError when it exits before, or says nothing of it in time."""
        deadline = time.monotonic() + within
        while True:
            ended = self._process.poll()  # looked at first: what it said before its end is then all there
            if text in self.output:
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
        self._process.send_signal(number)

    def terminate(self, *, within: float = 60.0) -> int:
        """Ask it to clean up and leave, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.finish(within=within)

    def close(self) -> None:
        """Kill it if a failed test left it running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _story(self, what: str) -> str:
        return f"{' '.join(self._command)}\n{what}; it said:\n{self.output}"


class Installer:
    """Starts the installed programs, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[Program] = []

    def start(self, name: str, *arguments: object, environment: dict[str, str] | None = None) -> Program:
        """Start a program in the background. It gets PATH, LANG and `environment`, and nothing of this process's."""
        output = self._folder / f"{name}-{len(self._runs)}.log"
        self._runs.append(Program(name, tuple(map(str, arguments)), output, environment or {}))
        return self._runs[-1]

    def close(self) -> None:
        """End what still runs."""
        for run in self._runs:
            run.close()


def missing_programs() -> list[str]:
    """Return which of the installed programs are not there."""
    return [name for name in ("nvidia-toolkit", "toolkit-installer") if not (SCRIPTS / name).exists()]
