"""Programs of the tests' own that stay, as to start one takes longer than what it is asked: a line for each line."""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_END_SECONDS = 30
_idle: dict[tuple[str, ...], list[Program]] = {}


class Program:
    """A running one, which answers each line on its stdin by a line, both of which are JSON."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: Any) -> Any:
        """Return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.communicate(timeout=_END_SECONDS)


@contextlib.contextmanager
def borrow(*command: str | Path) -> Iterator[Program]:
    """Yield a program that waits for its next question, or a new one where all are being asked.

    One whose user failed is not asked again: its answer may be still to come.
    """
    idle = _idle.setdefault(tuple(map(str, command)), [])
    try:
        program = idle.pop()  # at once, whichever thread else wants one
    except IndexError:
        program = Program(command)
    try:
        yield program
    except BaseException:
        program.close()
        raise
    idle.append(program)


@atexit.register
def _close() -> None:
    for idle in _idle.values():
        while idle:
            idle.pop().close()
