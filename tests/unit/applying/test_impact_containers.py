"""The containers of an engine that run, by played shims and conmons; what is another engine's counts nowhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.started import Started
from toolkit_installer.applying import impact
from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.engines.api import Inspection, LiveState
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.settings import EngineName

TASKS = "io.containerd.runtime.v2.task"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """No other processes are seen: tests that run beside this one have shims and conmons of their own."""
    real = processes.inspect_process
    with contextlib.closing(Started(tmp_path)) as started:
        monkeypatch.setattr(processes, "inspect_process", lambda pid: real(pid) if pid in started.pids else None)
        yield started


class Played:
    """An engine, the shims and bundles of its containers, and a toolkit."""

    def __init__(self, start: Started, folder: Path) -> None:
        self.start = start
        self.folder = folder
        self.socket = folder / "containerd.sock"
        self.toolkit = folder / "toolkit"
        self.runtime = self.toolkit / "nvidia-container-runtime"
        self.toolkit.mkdir()
        self.runtime.write_text("")
        self.namespace = "dockers"

    def bundle(self, name: str, runtime: object, kind: str = "container", namespace: str = "k8s.io") -> Path:
        place = self.folder / TASKS / namespace / name
        place.mkdir(parents=True)
        annotations = {
            "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.sandbox-name": name,
            "io.kubernetes.cri.sandbox-namespace": "ml",
        }
        (place / "config.json").write_text(json.dumps({"annotations": annotations}))
        if runtime is not None:
            (place / "runtime").write_text(str(runtime))
        return place

    def shim(self, place: Path, *, socket: Path | None = None) -> int:
        words = ("-namespace", place.parent.name, "-id", place.name, "-address", str(socket or self.socket))
        return self.start("containerd-shim-runc-v2", *words, folder=place)

    def found(self, name: EngineName, told: int | None = None, *flags: str) -> RunningContainers:
        process = processes.inspect_process(self.start("engine", *flags))
        assert process is not None
        inspection = Inspection(str(self.socket), (), LiveState("2.1.4", {}, None, process, running=told))
        return impact.find_running_containers(Node("/"), name, inspection, str(self.toolkit))


@pytest.fixture
def played(start: Started, tmp_path: Path) -> Played:
    return Played(start, tmp_path)


def test_an_engine_without_containers_has_none(played: Played) -> None:
    assert played.found(EngineName.CONTAINERD) == RunningContainers(0, 0)
    assert played.found(EngineName.DOCKER, 0, f"--containerd-namespace={played.namespace}") == RunningContainers(0, 0)


def test_containers_are_counted_with_those_of_our_handlers_by_their_pods(played: Played) -> None:
    played.shim(played.bundle("pause", played.runtime, "sandbox"))  # one shim has the whole pod
    played.bundle("train-0", played.runtime)
    played.bundle("web", "/usr/bin/runc")
    played.bundle("boxed", None)  # a kind of shim that names no executable, such as Kata's
    assert played.found(EngineName.CONTAINERD) == RunningContainers(3, 1, ("ml/train-0",))


def test_a_bundle_that_is_not_filled_yet_is_no_container(played: Played) -> None:
    played.shim(played.bundle("web", "/usr/bin/runc"))
    (played.folder / TASKS / "k8s.io" / "soon").mkdir()
    assert played.found(EngineName.CONTAINERD).total == 1


def test_a_shim_of_another_containerd_counts_nowhere(played: Played, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    played.shim(played.bundle("web", played.runtime), socket=tmp_path / "other" / "containerd.sock")
    assert played.found(EngineName.CONTAINERD) == RunningContainers(0, 0)


def test_a_shim_of_a_containerd_in_a_container_counts_nowhere(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played.shim(played.bundle("web", played.runtime))
    monkeypatch.setattr(processes, "has_root", lambda _process, _root: False)
    assert played.found(EngineName.CONTAINERD) == RunningContainers(0, 0)


def test_docker_says_itself_how_many_run_and_its_namespace_tells_its_shims(played: Played) -> None:
    played.shim(played.bundle("a", played.runtime, namespace=played.namespace))
    played.bundle("b", "/usr/bin/runc", namespace=played.namespace)
    played.shim(played.bundle("c", played.runtime))  # of the same containerd, and not docker's
    flags = ("--containerd-namespace", played.namespace)
    assert played.found(EngineName.DOCKER, 2, *flags) == RunningContainers(2, 1, ("ml/a",))


def test_containers_that_only_docker_counts_are_not_taken_for_other_engines(played: Played) -> None:
    found = played.found(EngineName.DOCKER, 2, "--containerd-namespace", played.namespace)
    assert found == RunningContainers(2, unknown="2 containers run, and 0 of them are seen from here")


def test_a_shim_of_old_that_does_not_tell_its_runtime_leaves_it_unknown(played: Played) -> None:
    words = ("-namespace", played.namespace, "-workdir", "/var/lib/c0ffee", "-address", str(played.socket))
    played.start("containerd-shim", *words)
    found = played.found(EngineName.CONTAINERD)
    assert (found.total, found.ours) == (1, None)
    assert found.unknown == "what 1 of the containers run through is not told by their shims"


def test_a_runtime_of_that_path_that_is_another_file_is_none_of_ours(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.shim(played.bundle("train-0", played.runtime))
    monkeypatch.setattr(impact, "is_same_file", lambda _node, _pid, _path: False)
    assert played.found(EngineName.CONTAINERD) == RunningContainers(1, 0)


def test_a_shim_whose_command_line_is_wiped_leaves_it_unknown(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = played.shim(played.bundle("web", "/usr/bin/runc"))
    real = processes.inspect_process

    def wiped(asked: int) -> processes.Process | None:
        seen = real(asked)
        return msgspec.structs.replace(seen, hidden=True) if seen is not None and asked == pid else seen

    monkeypatch.setattr(processes, "inspect_process", wiped)
    found = played.found(EngineName.CONTAINERD)
    assert (found.total, found.ours) == (None, None)
    assert f"the process {pid} (containerd-shim) has wiped its command line" in found.unknown


def test_a_shim_that_this_user_may_not_look_at_leaves_it_unknown(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "find_matching", lambda _wanted: iter([(7, "containerd-shim", TrustLevel.UNSEEN)]))
    found = played.found(EngineName.CONTAINERD)
    assert found == RunningContainers(unknown="this user may not look at the process 7 (containerd-shim), root may")


def monitor(played: Played, name: str, runtime: object, *more: str, kind: str = "container") -> int:
    bundle = played.folder / name
    bundle.mkdir()
    annotations = {
        "io.kubernetes.cri-o.ContainerType": kind,
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": "ml",
    }
    (bundle / "config.json").write_text(json.dumps({"annotations": annotations}))
    return played.start("conmon", "-b", str(bundle), "-c", name, "-r", str(runtime), *more)


def test_containers_of_crio_are_those_of_its_conmons_and_not_podmans(played: Played) -> None:
    monitor(played, "pause", played.runtime, kind="sandbox")
    monitor(played, "train-0", played.runtime)
    monitor(played, "web", "/usr/bin/crun")
    monitor(played, "podmans", played.runtime, "--exit-command", "/usr/bin/podman")
    assert played.found(EngineName.CRIO) == RunningContainers(2, 1, ("ml/train-0",))


def test_containers_of_conmonrs_are_not_told(played: Played) -> None:
    played.start("conmonrs")
    assert played.found(EngineName.CRIO) == RunningContainers(unknown="conmonrs does not tell its containers")


def test_what_cannot_be_read_stops_nothing(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> RunningContainers:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(impact, "find_running_containers", refused)
    inspection = Inspection(str(played.socket), (), None)
    found = impact._find_running(Node("/"), EngineName.CONTAINERD, inspection, str(played.toolkit))
    assert msgspec.structs.replace(found, unknown="") == RunningContainers()
    assert "Permission denied" in found.unknown
