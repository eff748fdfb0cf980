"""The installed program, stopped after each change that it makes to the node, so that the node can be looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from tests.e2e.program import SCRIPTS, ProgramError
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGES = "renameat,renameat2,unlinkat,pidfd_send_signal"
"""The system calls by which a change takes effect: a file is in its place, or gone; an engine is signalled."""
_STOPPED = "--- stopped by SIGSTOP ---"
"""What strace says of a program that stopped."""
_POLL = 0.01


class Stepped:
    """A program below strace, which sends it SIGSTOP with each of CHANGES."""

    def __init__(self, folder: Path, name: str, *arguments: object) -> None:
        number = len(list(folder.glob("stepped-*.log")))
        self._output = folder / f"stepped-{number}.log"
        self._trace = folder / f"stepped-{number}.trace"
        inject = ("-e", f"trace={CHANGES}", "-e", f"inject={CHANGES}:signal=SIGSTOP")
        self._stopped: int | None = None
        # followed no further than to itself: what it asks, the daemon's own binary included, changes nothing
        program = [str(SCRIPTS / name), *map(str, arguments)]
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(
                ["strace", "-o", str(self._trace), *inject, "--", *program],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"PATH": PATH, "LANG": "C.UTF-8"},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill both where a failed test left them."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def output(self) -> str:
        """All that the program said so far."""
        return self._output.read_text(errors="replace")

    @property
    def trace(self) -> str:
        """The changes that it made so far, as strace says them."""
        return self._trace.read_text(errors="replace") if self._trace.exists() else ""

    def moments(self, *, within: float = 60.0) -> Iterator[str]:
        """Yield after each change, with the program stopped, what was changed; then let it go on.

        Raises ProgramError when it neither stops nor ends in time.
        """
        seen = 0
        while (stop := self._next(seen, within)) is not None:
            seen += 1
            self._stopped, change = stop
            yield change
            if self._stopped is not None:
                os.kill(self._stopped, signal.SIGCONT)

    def finish(self, *, within: float = 60.0) -> int:
        """Return its exit code; negative: the signal that it died of."""
        return self._process.wait(within)

    def terminate(self) -> None:
        """Ask the stopped program to leave: it finds the signal when it goes on."""
        if self._stopped is None:
            raise ProgramError(f"nothing is stopped:\n{self.output}")
        os.kill(self._stopped, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the stopped program, as the kernel does when memory runs out."""
        if self._stopped is None:
            raise ProgramError(f"nothing is stopped:\n{self.output}")
        os.kill(self._stopped, signal.SIGKILL)
        self._stopped = None
        self._process.wait(60)

    def _next(self, seen: int, within: float) -> tuple[int, str] | None:
        """Wait for the next stop; return the program's PID and the call before it, None when the program has ended."""
        deadline = time.monotonic() + within
        while True:
            ended = self._process.poll() is not None  # looked at first: what it said before its end is then all there
            lines = self.trace.splitlines()
            stops = [index for index, line in enumerate(lines) if line == _STOPPED]
            if len(stops) > seen:
                (program,) = psutil.Process(self._process.pid).children()
                return program.pid, next(line for line in reversed(lines[: stops[seen]]) if not line.startswith("---"))
            if ended:
                return None
            if time.monotonic() > deadline:
                raise ProgramError(f"it neither stops nor ends within {within:g} s:\n{self.output}")
            time.sleep(_POLL)
