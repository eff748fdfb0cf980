"""The canary of a CRI as the engine sees it: what is made, what is said of it, and that nothing is left behind."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, cast

import grpc
import pytest

from tests.unit.engines.common.cri_channel import Channel, Refusal
from toolkit_installer.engines.common import canaries, cri_canary, cri_child
from toolkit_installer.engines.common import cri_pb2 as cri

PAUSE = "registry.example/pause:3.10"
NAME = "toolkit-installer-canary"
DONE = {"faults": {}, "unknown": ""}


class Runtime(Channel):
    """A CRI with pods and containers; `pause` is told of each pod, as containerd does, or of itself, as CRI-O does."""

    def __init__(self, *, of_pods: bool) -> None:
        super().__init__()
        self.of_pods = of_pods
        self.pause: object = PAUSE
        self.pods: dict[str, Any] = {}
        self.run: list[Any] = []
        """Requests for pods, in their order."""
        self.made: list[Any] = []
        """Requests for containers."""
        self.started: list[str] = []
        self.exited: tuple[int, str] | None = None
        """The status and the words with which containers end at once."""
        self._numbers = itertools.count(1)

    def list_pod_sandbox(self, request: Any) -> Any:
        wanted = dict(request.filter.label_selector)
        items = [
            cri.PodSandbox(id=name, metadata=config.metadata)
            for name, config in self.pods.items()
            if wanted.items() <= dict(config.labels).items()
        ]
        return cri.ListPodSandboxResponse(items=items)

    def run_pod_sandbox(self, request: Any) -> Any:
        self.run.append(request)
        name = f"pod{next(self._numbers)}"
        self.pods[name] = request.config
        return cri.RunPodSandboxResponse(pod_sandbox_id=name)

    def pod_sandbox_status(self, request: Any) -> Any:
        told = {"info": json.dumps({"image": self.pause})} if request.verbose and self.of_pods else {}
        return cri.PodSandboxStatusResponse(info=told)

    def status(self, request: Any) -> Any:
        told = {"config": json.dumps({"sandboxImage": self.pause})} if request.verbose and not self.of_pods else {}
        return cri.StatusResponse(info=told)

    def create_container(self, request: Any) -> Any:
        assert request.pod_sandbox_id in self.pods
        assert request.sandbox_config == self.pods[request.pod_sandbox_id]
        self.made.append(request)
        return cri.CreateContainerResponse(container_id=f"of {request.pod_sandbox_id}")

    def start_container(self, request: Any) -> Any:
        self.started.append(request.container_id)
        return cri.Nothing()

    def container_status(self, request: Any) -> Any:
        code, words = self.exited or (0, "")
        state = cri.CONTAINER_RUNNING if self.exited is None else cri.CONTAINER_EXITED
        status = cri.ContainerStatus(state=state, exit_code=code, message=words)
        return cri.ContainerStatusResponse(status=status, info={"info": '{"pid": 7}'} if request.verbose else {})

    def stop_pod_sandbox(self, request: Any) -> Any:
        if request.pod_sandbox_id not in self.pods:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no such pod")
        return cri.Nothing()

    def remove_pod_sandbox(self, request: Any) -> Any:
        del self.pods[request.pod_sandbox_id]
        return cri.Nothing()


@pytest.fixture(params=[True, False], ids=["containerd", "crio"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return Runtime(of_pods=request.param)


def tried(runtime: Runtime, **handlers: bool) -> dict[str, Any]:
    return cri_canary.try_handlers(
        functools.partial(cri_child.send_request, cast("grpc.Channel", runtime)), 30.0, handlers
    )


def refusing(method: str, code: grpc.StatusCode, details: str, times: int = 99) -> Callable[[str, Any], Refusal | None]:
    left = itertools.count(times, -1)
    return lambda asked, _request: Refusal(code, details) if asked == method and next(left) > 0 else None


def test_each_handler_gets_a_pod_in_the_nodes_network_and_nothing_is_left(runtime: Runtime) -> None:
    assert tried(runtime, nvidia=False, plain=False) == DONE
    assert [each.runtime_handler for each in runtime.run] == ["nvidia", "plain"]
    assert [each.config.linux.security_context.namespace_options.network for each in runtime.run] == [cri.NODE] * 2
    assert len({each.config.metadata.uid for each in runtime.run}) == 2
    assert (runtime.started, runtime.pods) == (["of pod1", "of pod2"], {})


def test_the_container_is_of_the_image_that_keeps_the_namespaces(runtime: Runtime) -> None:
    tried(runtime, nvidia=False)
    assert [each.config.image.image for each in runtime.made] == [PAUSE]


@pytest.mark.parametrize("told", ["", None, 7, ["x"]], ids=repr)
def test_an_engine_that_names_no_image_leaves_all_unknown_and_no_pod(runtime: Runtime, told: object) -> None:
    runtime.pause = told
    said = tried(runtime, nvidia=False)
    assert said == {"faults": {}, "unknown": "the engine does not tell which image it keeps pods' namespaces with"}
    assert (runtime.made, runtime.pods) == ([], {})


def test_only_handlers_that_should_show_gpus_are_tried_for_them(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "describe_missing_gpus", lambda pid: f"the process {pid} has none")
    assert tried(runtime, nvidia=True, plain=False) == DONE | {"faults": {"nvidia": "the process 7 has none"}}
    variables = [[(each.key, each.value) for each in made.config.envs] for made in runtime.made]
    assert variables == [[("NVIDIA_VISIBLE_DEVICES", "all")], [("NVIDIA_VISIBLE_DEVICES", "void")]]


def test_a_handler_that_the_engine_cannot_start_is_quoted_and_the_next_is_tried(runtime: Runtime) -> None:
    words = 'no runtime for "broken" is configured'
    runtime.refuses = lambda method, request: (
        Refusal(grpc.StatusCode.UNKNOWN, words)
        if method == "RunPodSandbox" and request.runtime_handler == "broken"
        else None
    )
    assert tried(runtime, broken=False, nvidia=False) == DONE | {"faults": {"broken": words}}
    assert [each.runtime_handler for each in runtime.run] == ["nvidia"]


def test_a_handler_that_the_engine_does_not_find_is_no_canary_that_somebody_took(runtime: Runtime) -> None:
    words = "runtime handler nvidia not found"
    runtime.refuses = refusing("RunPodSandbox", grpc.StatusCode.NOT_FOUND, words)
    assert tried(runtime, nvidia=False) == DONE | {"faults": {"nvidia": words}}


@pytest.mark.parametrize("words, told", [("", ""), ("OCI runtime error", ": OCI runtime error")])
def test_a_container_that_ends_at_once_is_a_fault(runtime: Runtime, words: str, told: str) -> None:
    runtime.exited = (3, words)
    fault = f"the container ended at once, with status 3{told}"
    assert tried(runtime, nvidia=False) == DONE | {"faults": {"nvidia": fault}}
    assert runtime.pods == {}


def test_where_the_default_control_group_is_refused_systemds_is_taken(runtime: Runtime) -> None:
    runtime.refuses = lambda method, request: (
        Refusal(grpc.StatusCode.UNKNOWN, "expected cgroupsPath to be of format slice:prefix:name")
        if method == "RunPodSandbox" and not request.config.linux.cgroup_parent
        else None
    )
    assert tried(runtime, nvidia=False) == DONE
    assert [each.config.linux.cgroup_parent for each in runtime.run] == ["system.slice"]


@pytest.mark.parametrize("times, unknown", [(2, ""), (3, "somebody, such as a kubelet, deletes the canary each time")])
def test_a_canary_that_somebody_deletes_is_made_again_twice(runtime: Runtime, times: int, unknown: str) -> None:
    runtime.refuses = refusing("StartContainer", grpc.StatusCode.NOT_FOUND, "no such container", times)
    assert tried(runtime, nvidia=False) == {"faults": {}, "unknown": unknown}
    assert len(runtime.run) == 3
    assert runtime.pods == {}


def test_what_a_killed_run_left_is_removed_and_pods_of_others_stay(runtime: Runtime) -> None:
    labels = {"toolkit-installer/canary": "true"}
    runtime.pods = {
        "old": cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name=NAME, namespace=NAME), labels=labels),
        "theirs": cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name=NAME, namespace="default"), labels=labels),
        "plain": cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name=NAME, namespace=NAME)),
    }
    assert tried(runtime) == DONE
    assert list(runtime.pods) == ["theirs", "plain"]


def test_a_pod_that_is_kept_though_it_could_not_be_started_is_removed_at_the_end(runtime: Runtime) -> None:
    def kept(method: str, request: Any) -> Refusal | None:
        if method != "RunPodSandbox":
            return None
        runtime.pods["kept"] = request.config
        return Refusal(grpc.StatusCode.UNKNOWN, "exec format error")

    runtime.refuses = kept
    assert tried(runtime, nvidia=False) == DONE | {"faults": {"nvidia": "exec format error"}}
    assert runtime.pods == {}


def test_what_cannot_be_removed_leaves_all_unknown_in_the_engines_words(runtime: Runtime) -> None:
    runtime.refuses = refusing("RemovePodSandbox", grpc.StatusCode.INTERNAL, "device or resource busy")
    runtime.pods["old"] = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=NAME, namespace=NAME), labels={"toolkit-installer/canary": "true"}
    )
    assert tried(runtime, nvidia=False) == {"faults": {}, "unknown": "INTERNAL: device or resource busy"}


@pytest.mark.parametrize("method", ["ListPodSandbox", "RunPodSandbox", "StartContainer"])
def test_an_engine_that_goes_away_meanwhile_is_no_fault_of_a_handler(runtime: Runtime, method: str) -> None:
    runtime.refuses = refusing(method, grpc.StatusCode.UNAVAILABLE, "connection refused")
    with pytest.raises(grpc.RpcError):
        tried(runtime, nvidia=False)
