"""The client for a CRI: what of the child's answer is passed on, and in whose words an engine is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines.api import Trials
from toolkit_installer.engines.common import cri
from toolkit_installer.engines.common.cri import CriStatus, Pod
from toolkit_installer.engines.common.serving import SILENCE, NoAnswerError
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.root import Root

PATH = "/run/c.sock"
STATUS: dict[str, Any] = {"name": "containerd", "version": "v2.1.4", "handlers": ["", "nvidia"], "info": {}}


class Child:
    """The child process: it keeps each request, with its time, and answers with the line that the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, Any], float]] = []
        self.line = b""
        self.error: ProgramError | None = None

    def answers(self, answer: object) -> None:
        self.line = json.dumps({"answer": answer}).encode() + b"\n"

    def ask(self, question: bytes, seconds: float) -> bytes:
        assert question.endswith(b"\n")
        self.asked.append((json.loads(question), seconds))
        if self.error is not None:
            raise self.error
        return self.line


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/c.sock").touch()
    return Root(str(tmp_path))


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    made = Child()
    monkeypatch.setattr(cri._CHILD, "ask", made.ask)
    return made


def test_the_child_is_asked_beneath_the_nodes_root_and_gets_more_than_the_engine(root: Root, child: Child) -> None:
    child.answers(STATUS)
    assert cri.query_status(root, PATH, 3.0) == CriStatus("containerd", "v2.1.4", frozenset({"", "nvidia"}), {})
    ((asked, seconds),) = child.asked
    folder = f"{root.folder}/run"
    assert asked == {"what": "status", "folder": folder, "name": "c.sock", "seconds": 3.0, "handlers": None}
    assert seconds == 6.0 + cri._START_SECONDS, "the two calls of a status, and the child's start"


@pytest.mark.parametrize(
    "shown, config",
    [
        ('{"containerd": {"x": 1}}', {"containerd": {"x": 1}}),
        ("", {}),
        ("[crio]\nx = 1\n", {}),
        ("[1]", {}),
        ("[" * 5000, {}),
    ],
    ids=["an object", "nothing", "TOML", "a list", "nested beyond reason"],
)
def test_a_configuration_counts_only_if_it_is_a_json_object(
    root: Root, child: Child, shown: str, config: dict[str, Any]
) -> None:
    child.answers(STATUS | {"info": {"config": shown}})
    assert cri.query_status(root, PATH, 1).config == config


def test_pods_are_told_with_unknown_annotations_as_such(root: Root, child: Child) -> None:
    pods = [Pod("1", "ns", "a", {"x": "y"}), Pod("2", "ns", "b", None)]
    told = [{"id": pod.identity, "namespace": pod.namespace, "name": pod.name} for pod in pods]
    child.answers({"pods": [each | {"annotations": pod.annotations} for each, pod in zip(told, pods, strict=True)]})
    assert cri.query_pods(root, PATH, 1) == pods


def test_each_handler_is_tried_as_it_was_asked_for(root: Root, child: Child) -> None:
    child.answers({"faults": {"nvidia": "no"}, "unknown": ""})
    assert cri.try_handlers(root, PATH, 30, {"nvidia": True}) == Trials({"nvidia": "no"})
    assert child.asked[0][0]["handlers"] == {"nvidia": True}


@pytest.mark.parametrize(
    "query", [cri.query_status, cri.query_pods, lambda root, path, seconds: cri.try_handlers(root, path, seconds, {})]
)
def test_an_engine_is_silent_in_the_words_of_whatever_failed(
    root: Root, child: Child, query: Callable[..., object]
) -> None:
    def reason() -> str:
        with pytest.raises(NoAnswerError) as raised:
            query(root, PATH, 1)
        assert raised.value.path == PATH
        return raised.value.reason

    child.line = json.dumps({"said": "UNIMPLEMENTED: unknown service"}).encode()
    assert reason() == "UNIMPLEMENTED: unknown service"
    child.line = b'{"answer": {"name": "cont'
    assert reason() == "its answer is not whole"
    child.error = ProgramError("cannot start python", path="python")
    assert reason() == "cannot start python"
    Path(root.outside(PATH)).unlink()
    assert reason() == "there is no such socket"
    assert len(child.asked) == 3, "nobody is asked about a socket that is not there"


NOBODY = "UNAVAILABLE: failed to connect to all addresses; last error: UNAVAILABLE: unix:it.sock: "


@pytest.mark.parametrize(
    "said, words",
    [
        (f"{NOBODY}connect failed: addr: unix:it.sock error: Connection refused", "Connection refused"),
        (f"{NOBODY}recvmsg:Connection reset by peer (104)", "Connection reset by peer"),
        ("DEADLINE_EXCEEDED: Deadline Exceeded", SILENCE),
        ("UNAVAILABLE: server is not initialized yet", "UNAVAILABLE: server is not initialized yet"),
        ("UNIMPLEMENTED: unknown service runtime.v1", "UNIMPLEMENTED: unknown service runtime.v1"),
    ],
    ids=["refused", "reset", "too late", "the engine's own", "no CRI"],
)
def test_grpcs_messages_about_a_socket_are_reworded_and_the_engines_are_kept(said: str, words: str) -> None:
    assert cri.simplify_error(said) == words
