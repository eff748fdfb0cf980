"""The CRI of a live engine, queried by a program of its own: grpc's threads stay out of the test process."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import coprocess

_POLL = 0.05
COMMAND = (sys.executable, str(Path(__file__).with_name("cri_program.py")))
"""The program that queries sockets, and says how in its docstring."""
_BEGINS = "server is not initialized yet"
"""What containerd's CRI says while the rest of it is up already, and systemd takes the unit for started."""
_AWAY = (": UNAVAILABLE: ", _BEGINS)
"""What is in the error of a call that an engine did not answer because it ends, or has only begun."""


class CriStatusError(Exception):
    """A CRI did not answer in time; the message has grpc's words."""


def status(socket: Path, seconds: float) -> dict[str, Any]:
    """Return the verbose Status of the CRI on a socket as cri_program.py tells it. Raises CriStatusError.

    One that has only begun is asked again, for as long as an answer may take.
    """
    deadline = time.monotonic() + seconds
    query = [str(socket), seconds, None]
    with coprocess.borrow(*COMMAND) as program:
        told: dict[str, Any] = program.ask(query)
        while _BEGINS in told.get("error", "") and time.monotonic() < deadline:
            time.sleep(_POLL)
            told = program.ask(query)
    if "error" in told:
        raise CriStatusError(f"{socket}: {told['error']}")
    return told


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
        self._socket, self._seconds = str(socket), seconds
        self._error, self._away = error, away or error
        flags = [f"--container-runtime-endpoint=unix://{socket}"] if as_kubelet else []
        self._caller = coprocess.Program([*enter, *COMMAND, *flags])

    def call(self, method: str, request: dict[int, Any], *way: int) -> dict[str, str]:
        """Return the fields of the message in the answer that `way` leads to (cri_program.py)."""
        return self._fields(self._ask([method, request, way]))

    def together(self, chains: Sequence[Sequence[Any]]) -> list[dict[str, str]]:
        """Begin chains of calls at once, and return what the first call of each answered (cri_program.py)."""
        return [self._fields(answer) for answer in self._ask(chains)] if chains else []

    def _ask(self, what: Any) -> Any:
        return self._caller.ask([self._socket, self._seconds, what])

    def _fields(self, answer: dict[str, Any]) -> dict[str, str]:
        """Return the fields of an answer. Raises what was said to raise."""
        if "error" in answer:
            words = answer["error"]
            raise (self._away if any(sign in words for sign in _AWAY) else self._error)(words)
        fields: dict[str, str] = answer["fields"]
        return fields

    def close(self) -> None:
        """End the program."""
        self._caller.close()
