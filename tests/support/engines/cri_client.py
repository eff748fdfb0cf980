"""The CRI of a live engine, asked by a program of its own: grpc's threads stay out of the test process."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("cri_program.py")
_AWAY = (": UNAVAILABLE: ", "server is not initialized yet")
"""What is in the error of a call that an engine did not answer because it ends, or has only begun."""
_END_SECONDS = 30


class CriStatusError(Exception):
    """A CRI did not answer in time; the message has grpc's words."""


def calls_command(socket: str | Path, seconds: float) -> list[str]:
    """Return the command that makes calls, see cri_program.py; one of them may take so long."""
    return [sys.executable, str(_PROGRAM), "calls", str(socket), str(seconds)]


class _Statuses:
    """The program that asks CRI sockets for their verbose Status, and stays."""

    def __init__(self) -> None:
        command = [sys.executable, str(_PROGRAM), "statuses"]
        self._program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, socket: Path, seconds: float) -> dict[str, Any]:
        """Return what it says to a question."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(json.dumps([str(socket), seconds]), file=self._program.stdin, flush=True)
        told: dict[str, Any] = json.loads(self._program.stdout.readline())
        return told

    def close(self) -> None:
        """End it."""
        self._program.terminate()
        self._program.communicate(timeout=_END_SECONDS)


_idle: list[_Statuses] = []


def status(socket: Path, seconds: float) -> dict[str, Any]:
    """Return the verbose Status of the CRI on a socket as cri_program.py tells it. Raises CriStatusError.

    A program asks that stays: to start it takes ten times as long. Threads that ask at once have one each.
    """
    try:
        program = _idle.pop()
    except IndexError:
        program = _Statuses()
    told = program.ask(socket, seconds)
    _idle.append(program)
    if "error" in told:
        raise CriStatusError(f"{socket}: {told['error']}")
    return told


@atexit.register
def _close() -> None:
    while _idle:
        _idle.pop().close()


class CriClient:
    """A CRI socket. `enter` is put before the program, for the socket of another machine."""

    def __init__(
        self,
        socket: str | Path,
        error: type[Exception],
        *,
        away: type[Exception] | None = None,
        enter: Sequence[str] = (),
        seconds: float = 60.0,
        as_kubelet: bool = False,
    ) -> None:
        """`error` is raised for a call that the engine refuses, `away` (else `error`) where it does not answer.

        `seconds`: how long one call may take. `as_kubelet`: who looks for a kubelet and its endpoint finds this.
        """
        self._error, self._away = error, away or error
        flags = [f"--container-runtime-endpoint=unix://{socket}"] if as_kubelet else []
        self._caller = subprocess.Popen(
            [*enter, *calls_command(socket, seconds), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, method: str, request: dict[int, Any], *way: int) -> dict[str, str]:
        """Return the fields of the message in the answer that `way` leads to (cri_program.py)."""
        return self._fields(self._asked([method, request, way]))

    def together(self, chains: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
        """Begin chains of calls at once, and return what the first call of each answered (cri_program.py)."""
        return [self._fields(answer) for answer in self._asked(chains)] if chains else []

    def _asked(self, what: Any) -> Any:
        """Return what the program says to a line."""
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        print(json.dumps(what), file=self._caller.stdin, flush=True)
        return json.loads(self._caller.stdout.readline())

    def _fields(self, answer: dict[str, Any]) -> dict[str, str]:
        """Return the fields of an answer. Raises what was said to raise."""
        if "error" in answer:
            words = answer["error"]
            raise (self._away if any(sign in words for sign in _AWAY) else self._error)(words)
        fields: dict[str, str] = answer["fields"]
        return fields

    def close(self) -> None:
        """End the program."""
        self._caller.terminate()
        self._caller.communicate(timeout=_END_SECONDS)
