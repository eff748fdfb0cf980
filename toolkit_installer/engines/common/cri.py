"""A client for the CRI on one of the node's sockets; a child process serves all requests of a run (cri_child.py)."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer.engines.api import Trials
from toolkit_installer.engines.common.serving import SILENCE, NoAnswerError, resolve_socket
from toolkit_installer.node import interpreter
from toolkit_installer.node.programs import Coprocess, ProgramError
from toolkit_installer.node.queries import Query, Secrecy
from toolkit_installer.node.root import Root

_UNREACHABLE = "UNAVAILABLE: failed to connect to all addresses; "
_ERROR_NUMBER = re.compile(r" \(\d+\)\Z")
"""gRPC's error for a socket without a server: a chain of its own layers, with the system's message at the end."""
_START_SECONDS = 20.0
"""Additional seconds for the child to start its interpreter on a busy node."""
_CHILD = Coprocess(interpreter.calling("toolkit_installer.engines.common.cri_child:main", "ask"))


class CriStatus(msgspec.Struct, frozen=True):
    """The status that the engine reports.

    `version` is in its own spelling ("v2.1.4", "1.6.20~ds1"); `handlers` is empty if it is too old to list them;
    `config` is the CRI plugin's effective configuration, {} if it shows none.
    """

    name: str
    version: str
    handlers: frozenset[str]
    config: dict[str, Any]


class Pod(msgspec.Struct, frozen=True):
    """A pod of the engine, running or not; `annotations` are those of its OCI specification, None if unknown."""

    identity: str
    namespace: str
    name: str
    annotations: dict[str, str] | None


@Query(ignored=("seconds",), secrecy=Secrecy.JSON, polled=True)
def query_status(root: Root, path: str, seconds: float) -> CriStatus:
    """Query the status of the CRI on the node's socket `path`. Raises NoAnswerError, Stopped."""
    answer = _query(root, path, seconds, "status", allowed=seconds * 2)
    config = {}
    with contextlib.suppress(ValueError, RecursionError):  # CRI-O shows TOML there, which is not needed
        config = json.loads(answer["info"].get("config") or "{}")
    return CriStatus(
        name=answer["name"],
        version=answer["version"],
        handlers=frozenset(answer["handlers"]),
        config=config if isinstance(config, dict) else {},
    )


@Query(ignored=("seconds",), secrecy=Secrecy.JSON, polled=True)
def query_pods(root: Root, path: str, seconds: float) -> list[Pod]:
    """Return all pods of the CRI on the node's socket `path`, in at most `seconds`. Raises NoAnswerError, Stopped."""
    answer = _query(root, path, seconds, "pods", allowed=seconds)
    return [Pod(pod["id"], pod["namespace"], pod["name"], pod["annotations"]) for pod in answer["pods"]]


def try_handlers(root: Root, path: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
    """Start a short container through each handler, with the CRI on the node's socket `path`.

    All responses together may take `seconds`; see Adapter.try_handlers. Raises NoAnswerError, Stopped.
    """
    answer = _query(root, path, seconds, "try", dict(handlers), allowed=seconds)
    return Trials(faults=answer["faults"], unknown=answer["unknown"])


def simplify_error(said: str) -> str:
    """Return gRPC's own errors in plain words, and the engine's errors unchanged. Pure."""
    if said.startswith("DEADLINE_EXCEEDED: "):
        return SILENCE
    if not said.startswith(_UNREACHABLE):
        return said
    return _ERROR_NUMBER.sub("", said.rpartition(":")[2]).strip() or said


def _query(
    root: Root, path: str, seconds: float, what: str, handlers: Mapping[str, bool] | None = None, *, allowed: float
) -> dict[str, Any]:
    """Return the child's response, for which it gets `allowed` seconds. Raises NoAnswerError, Stopped."""
    folder, name = os.path.split(resolve_socket(root, path))
    question = {"what": what, "folder": folder, "name": name, "seconds": seconds, "handlers": handlers}
    try:
        told = json.loads(_CHILD.ask(json.dumps(question).encode() + b"\n", allowed + _START_SECONDS))
    except ProgramError as error:
        raise NoAnswerError(simplify_error(error.reason), path=path, hint=error.hint) from error
    except ValueError as error:
        raise NoAnswerError("its answer is not whole", path=path) from error
    if "said" in told:
        raise NoAnswerError(simplify_error(told["said"]), path=path)
    answer: dict[str, Any] = told["answer"]
    return answer
