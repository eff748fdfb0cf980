"""The child that queries CRIs: what it makes of an engine's answers, and of requests that fail."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engines.common.cri_channel import Channel, Refusal
from toolkit_installer.engines.common import cri_child
from toolkit_installer.engines.common import cri_pb2 as cri

SPECIFICATION = {"runtimeSpec": {"annotations": {"a": "1", "b": 2}}}


class Runtime(Channel):
    """A CRI with pods, each with the state and the `info` of its own, and the pods that have containers left."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, tuple[cri.PodSandboxState, str]] = {}
        self.inhabited: list[str] = []

    def version(self, _request: Any) -> Any:
        return cri.VersionResponse(runtime_name="containerd", runtime_version="v2.1.4")

    def status(self, request: Any) -> Any:
        assert request.verbose, "without it no configuration is shown"
        handlers = [cri.RuntimeHandler(name=name) for name in ("", "nvidia")]
        return cri.StatusResponse(runtime_handlers=handlers, info={"config": "{}"})

    def list_pod_sandbox(self, _request: Any) -> Any:
        items = [
            cri.PodSandbox(id=name, metadata=cri.PodSandboxMetadata(name=f"{name}-name", namespace="ns"), state=state)
            for name, (state, _) in self.pods.items()
        ]
        return cri.ListPodSandboxResponse(items=items)

    def list_containers(self, _request: Any) -> Any:
        return cri.ListContainersResponse(containers=[cri.Container(pod_sandbox_id=name) for name in self.inhabited])

    def pod_sandbox_status(self, request: Any) -> Any:
        assert request.verbose
        _, info = self.pods[request.pod_sandbox_id]
        return cri.PodSandboxStatusResponse(info={"info": info} if info else {})


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


def pods(runtime: Runtime) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cri_child.query_pods(cast("grpc.Channel", runtime), 20.0)["pods"]
    return found


def test_the_status_is_told_with_the_handlers_names_and_the_verbose_part(runtime: Runtime) -> None:
    assert cri_child.query_status(cast("grpc.Channel", runtime), 20.0) == {
        "name": "containerd",
        "version": "v2.1.4",
        "handlers": ["", "nvidia"],
        "info": {"config": "{}"},
    }


def test_a_stopped_pod_counts_only_as_long_as_containers_are_left(runtime: Runtime) -> None:
    runtime.pods = {
        "runs": (cri.SANDBOX_READY, ""),
        "ended": (cri.SANDBOX_NOTREADY, ""),
        "ends": (cri.SANDBOX_NOTREADY, ""),
    }
    runtime.inhabited = ["ends"]
    assert [pod["id"] for pod in pods(runtime)] == ["runs", "ends"]


def test_a_pod_is_told_with_the_annotations_of_its_specification(runtime: Runtime) -> None:
    runtime.pods = {"a": (cri.SANDBOX_READY, json.dumps(SPECIFICATION))}
    annotations = {"a": "1", "b": "2"}
    assert pods(runtime) == [{"id": "a", "namespace": "ns", "name": "a-name", "annotations": annotations}]


@pytest.mark.parametrize(
    "info", ["", "{", "[]", "5", "{}", '{"runtimeSpec": null}', '{"runtimeSpec": {"annotations": []}}', "[" * 9999]
)
def test_annotations_that_are_not_shown_are_unknown_and_not_none(runtime: Runtime, info: str) -> None:
    runtime.pods = {"a": (cri.SANDBOX_READY, info)}
    assert [pod["annotations"] for pod in pods(runtime)] == [None]


TEXTS = st.text("ab", max_size=2)


@settings(max_examples=50)
@given(st.recursive(st.none() | st.integers() | TEXTS, lambda inner: st.dictionaries(TEXTS, inner), max_leaves=3))
def test_whatever_an_engine_shows_of_a_pod_annotations_are_texts_or_unknown(value: object) -> None:
    runtime = Runtime()
    for shown in (value, {"runtimeSpec": value}, {"runtimeSpec": {"annotations": value}}):
        runtime.pods = {"a": (cri.SANDBOX_READY, json.dumps(shown))}
        ((annotations),) = (pod["annotations"] for pod in pods(runtime))
        assert annotations is None or all(isinstance(each, str) for each in annotations.values())


def test_a_pod_that_is_deleted_meanwhile_is_left_out_and_another_error_is_not(runtime: Runtime) -> None:
    runtime.pods = {"gone": (cri.SANDBOX_READY, ""), "there": (cri.SANDBOX_READY, "")}
    code = [grpc.StatusCode.NOT_FOUND]
    runtime.refuses = lambda method, request: (
        Refusal(code[0], "no such pod") if method == "PodSandboxStatus" and request.pod_sandbox_id == "gone" else None
    )
    assert [pod["id"] for pod in pods(runtime)] == ["there"]
    code[0] = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError):
        pods(runtime)


# --- requests ---


@pytest.fixture
def _back() -> Iterator[None]:
    """Return to this folder: a request leaves the child in `/`."""
    before = os.getcwd()
    yield
    os.chdir(before)


def ask(folder: Path, what: str = "status") -> dict[str, Any]:
    return cri_child.answer_request(
        {"what": what, "folder": str(folder), "name": "it.sock", "seconds": 1, "handlers": None}
    )


@pytest.mark.usefixtures("_back")
def test_no_request_keeps_a_folder_from_being_unmounted(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        os.chdir(tmp_path)
        assert "said" in ask(folder)
        assert os.getcwd() == "/"


@pytest.mark.usefixtures("_back")
def test_an_absent_socket_is_said_in_grpcs_words_a_missing_folder_in_the_systems(tmp_path: Path) -> None:
    assert ask(tmp_path)["said"].startswith("UNAVAILABLE: ")
    assert ask(tmp_path / "gone") == {"said": "No such file or directory"}


@pytest.mark.usefixtures("_back")
def test_an_unknown_request_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        ask(tmp_path, "anything")
