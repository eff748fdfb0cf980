"""Asks the CRI behind one of the node's sockets, in a short-lived child."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer import patterns
from toolkit_installer.engines.api import Trials
from toolkit_installer.engines.common.answering import SILENCE, NoAnswerError, place_of_socket
from toolkit_installer.node import interpreter
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.programs import ProgramError, run

_UNREACHABLE = patterns.lazy(r"UNAVAILABLE: failed to connect to all addresses; .*:\s*([^:]+?)(?: \(\d+\))?")
"""What gRPC says of a socket on which nobody answers: a chain of its own layers, and the system's word at the end."""
_START_SECONDS = 20.0
"""What the child gets for starting its interpreter on a busy node, beyond the time for the answer."""


class CriStatus(msgspec.Struct, frozen=True):
    """What the engine says of itself.

    `version` is its own spelling ("v2.1.4", "1.6.20~ds1"); `handlers` is empty where it is too old to list them;
    `config` is the CRI plugin's effective configuration, {} where it shows none.
    """

    name: str
    version: str
    handlers: frozenset[str]
    config: dict[str, Any]


class Pod(msgspec.Struct, frozen=True):
    """A pod that the engine has, running or not; `annotations` are those of its OCI specification, None if unknown."""

    identity: str
    namespace: str
    name: str
    annotations: dict[str, str] | None


def status(root: Root, path: str, seconds: float) -> CriStatus:
    """Ask the CRI on the node's socket `path`. Raises NoAnswerError, Stopped."""
    answer = _asked(root, path, seconds, "main", allowed=seconds * 2)
    config = {}
    with contextlib.suppress(ValueError):  # CRI-O shows TOML there: it is not asked for it
        config = json.loads(answer["info"].get("config") or "{}")
    return CriStatus(
        name=answer["name"],
        version=answer["version"],
        handlers=frozenset(answer["handlers"]),
        config=config if isinstance(config, dict) else {},
    )


def pods(root: Root, path: str, seconds: float) -> list[Pod]:
    """Ask the CRI on the node's socket `path` for all its pods, in `seconds` at most. Raises NoAnswerError, Stopped."""
    answer = _asked(root, path, seconds, "main_of_pods", allowed=seconds)
    return [Pod(pod["id"], pod["namespace"], pod["name"], pod["annotations"]) for pod in answer["pods"]]


def try_handlers(root: Root, path: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
    """Start a short container through each handler, with the CRI on the node's socket `path`.

    All answers together may take `seconds`; canary.tried says the rest. Raises NoAnswerError, Stopped.
    """
    answer = _asked(root, path, seconds, "main", json.dumps(dict(handlers)), module="canary", allowed=seconds)
    return Trials(faults=answer["faults"], unknown=answer["unknown"])


def plain(said: str) -> str:
    """Return what gRPC says in words; what the engine itself says is left as it is. Pure."""
    if said.startswith("DEADLINE_EXCEEDED: "):
        return SILENCE
    unreachable = _UNREACHABLE.fullmatch(said)
    return unreachable[1] if unreachable is not None else said


def _asked(
    root: Root, path: str, seconds: float, function: str, *more: str, allowed: float, module: str = "ask"
) -> dict[str, Any]:
    """Return what one of the child's functions prints, which gets `allowed` seconds for its answer."""
    folder, name = os.path.split(place_of_socket(root, path))
    called = f"toolkit_installer.engines.common.cri.{module}:{function}"
    command = interpreter.calling(called, module, name, f"{seconds:g}", *more)
    try:
        done = run(command, seconds=allowed + _START_SECONDS, folder=folder)
    except ProgramError as error:
        raise NoAnswerError(error.reason, path=path, hint=error.hint) from error
    if done.status != 0:
        said = done.errors.splitlines()[-1] if done.errors else f"no answer ({done.status})"
        raise NoAnswerError(plain(said), path=path)
    try:
        answer: dict[str, Any] = json.loads(done.output)
    except ValueError as error:
        raise NoAnswerError("its answer is not whole", path=path) from error
    return answer
