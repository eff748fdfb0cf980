"""The NRI plugin on live engines: containerd 2.x gives a container what a plugin names.

containerd 1.7.24, and CRI-O 1.34.0 as Go's module proxy has it, take the plugin and leave the devices out.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.nri.made import DOMAIN, OWN, devices, nri
from tests.e2e.nri.plugins import Peer, Plugin, Recorder
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.built.releases import Suite
from tests.support.engines.containers import ContainerError, PodContainers
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine
from tests.unit.nri import engine as wire

RECORDED = Path(__file__).parents[2] / "data" / "nri" / "containerd-2.4.2"
"""What containerd and the peer's plugin said to each other; NRI_FILES=write records it anew."""


@pytest.mark.parametrize("containerd", [None, Suite.SID], indirect=True)
def test_a_container_has_the_devices_that_its_pod_asks_for_and_another_has_none(
    containerd: ContainerdEngine, pods: PodContainers
) -> None:
    with Plugin(nri(containerd)) as plugin:
        assert plugin.told()[0] == "PluginConfigured"
        assert plugin.told() == ["Serving"]
        pods.start("plain", "")
        assert devices(pods, "plain") == []
        pods.start("all", "", of_pod={DOMAIN: "example.com/gpu=0,example.com/gpu=1"})
        assert devices(pods, "all") == ["0=example.com/gpu", "1=example.com/gpu"]
        assert plugin.told() == ["Answered", "test/all/all", [["example.com/gpu=0", "example.com/gpu=1"]]]
        pods.start("one", "", of_pod={DOMAIN: "example.com/gpu=0", f"{DOMAIN}/container.one": "example.com/gpu=1"})
        assert devices(pods, "one") == ["1=example.com/gpu"]
        pods.start("other", "", of_pod={f"{DOMAIN}/container.one": "example.com/gpu=1"})
        assert devices(pods, "other") == []
        pods.start("operand", "", of_pod={f"{DOMAIN}/pod": "management.nvidia.com/gpu=all"}, namespace="gpu-operator")
        assert devices(pods, "operand") == ["all=management.nvidia.com/gpu"]
        assert plugin.end() == 0


@pytest.mark.parametrize("containerd", [None, Suite.SID], indirect=True)
@pytest.mark.parametrize("kind", ["management.nvidia.com/gpu", OWN])
def test_management_devices_are_refused_elsewhere_with_words_that_the_kubelet_gets(
    containerd: ContainerdEngine, pods: PodContainers, kind: str
) -> None:
    """An error of CreateContainer is in the pod's events, and what crictl prints."""
    with Plugin(nri(containerd), kinds=OWN) as plugin:
        plugin.until("Serving")
        with pytest.raises(ContainerError, match=f"kind {kind}, which only pods in these namespaces .*gpu-operator"):
            pods.start("thief", "", of_pod={DOMAIN: f"example.com/gpu=0,{kind}=all"})
        pods.start("honest", "", of_pod={DOMAIN: "example.com/gpu=0"})
        assert devices(pods, "honest") == ["0=example.com/gpu"]


@pytest.mark.parametrize("kind", ["management.nvidia.com/gpu", OWN])
def test_under_the_old_names_the_container_starts_without(
    containerd: ContainerdEngine, pods: PodContainers, kind: str
) -> None:
    with Plugin(nri(containerd), "lenient", kinds=OWN) as plugin:
        plugin.until("Serving")
        pods.start("thief", "", of_pod={DOMAIN: f"example.com/gpu=0,{kind}=all"})
        assert devices(pods, "thief") == []


def test_of_a_hundred_containers_created_at_once_none_is_missed(
    containerd: ContainerdEngine, pods: PodContainers
) -> None:
    with Plugin(nri(containerd)) as plugin:
        plugin.until("Serving")
        containers = pods.create_many("crowd", 100, {DOMAIN: "example.com/gpu=0"}, at_once=8)
        for container in containers:
            assert "HAS_0=example.com/gpu" in pods.specification(container)["process"]["env"]
        assert [plugin.told()[0] for _ in containers] == ["Answered"] * 100


def test_an_engine_that_is_started_anew_is_served_again(containerd: ContainerdEngine, pods: PodContainers) -> None:
    with Plugin(nri(containerd)) as plugin:
        plugin.until("Serving")
        for name in ("stopped", "killed"):
            (containerd.stop if name == "stopped" else containerd.kill)()
            containerd.start()
            assert plugin.told() == ["ConnectionLost", "the engine closed the connection"]
            plugin.until("Serving")
            pods.start(name, "", of_pod={DOMAIN: "example.com/gpu=0"})
            assert devices(pods, name) == ["0=example.com/gpu"]
            assert plugin.told()[:2] == ["Answered", f"test/{name}/{name}"]


def test_a_plugin_that_missed_an_answer_and_was_disconnected_is_there_again(
    containerd: ContainerdEngine, pods: PodContainers
) -> None:
    """What is created meanwhile has no devices, and nobody is told: why nothing may delay an answer."""
    with Plugin(nri(containerd)) as plugin:
        plugin.until("Serving")
        plugin.signal(signal.SIGSTOP)
        pods.start("missed", "", of_pod={DOMAIN: "example.com/gpu=0"})
        assert devices(pods, "missed") == []
        plugin.signal(signal.SIGCONT)
        plugin.until("ConnectionLost")
        plugin.until("Serving")
        pods.start("after", "", of_pod={DOMAIN: "example.com/gpu=0"})
        assert devices(pods, "after") == ["0=example.com/gpu"]


def test_the_peers_plugin_and_ours_adjust_the_same_pods_the_same(
    containerd: ContainerdEngine,
    pods: PodContainers,
    folder: Path,
    payload: Path,
    go_tool: Callable[[Tool], Path],
) -> None:
    """What the engine asked the peer, ours is asked as well, byte for byte."""
    asked = {
        "plain": ({}, "default"),
        "bare": ({DOMAIN: "example.com/gpu=0"}, "default"),
        "pod": ({f"{DOMAIN}/pod": "example.com/gpu=1", DOMAIN: "example.com/gpu=0"}, "default"),
        "own": ({f"{DOMAIN}/container.own": "example.com/gpu=0,example.com/gpu=1", DOMAIN: "a.b/c=d"}, "default"),
        "others": ({f"{DOMAIN}/container.own": "example.com/gpu=0"}, "default"),
        "unknown": ({DOMAIN: "example.com/gpu=9"}, "default"),
        "twice": ({DOMAIN: "example.com/gpu=0,example.com/gpu=0"}, "default"),
        "blank": ({DOMAIN: "example.com/gpu=0, example.com/gpu=1"}, "default"),
        "empty": ({DOMAIN: ""}, "default"),
        "thief": ({DOMAIN: "management.nvidia.com/gpu=all"}, "default"),
        "both": ({DOMAIN: "example.com/gpu=0,management.nvidia.com/gpu=all"}, "default"),
        "operand": ({DOMAIN: "management.nvidia.com/gpu=all"}, "gpu-operator"),
    }
    program = go_tool(go_tools.NEWEST_PEER) / "nvidia-ctk-installer"
    with Recorder(nri(containerd), folder / "recorder.sock") as recorder:
        with Peer(program, recorder.path, folder, payload) as peer:
            recorder.wait_for(2)  # Configure and Synchronize
            started = []
            for name, (annotations, namespace) in asked.items():
                try:
                    pods.start(name, "", of_pod=annotations, namespace=namespace)
                except ContainerError:
                    continue
                started.append(name)
            assert [name for name in started if devices(pods, name)] == ["bare", "pod", "own", "operand"], peer.log()
        by_engine, by_peer = bytes(recorder.by_engine), bytes(recorder.by_plugin)
    if os.environ.get("NRI_FILES") == "write":
        record(by_engine, by_peer, folder)
    assert wire.asked(by_engine) == list(asked)
    assert wire.given(by_engine, by_peer) == wire.given(by_engine, wire.ours(by_engine))


def record(by_engine: bytes, by_peer: bytes, folder: Path) -> None:
    """Keep what was said, without the machine's own names: others of the same length are in their place."""
    for word, letter in ((str(folder), "d"), (socket.gethostname(), "n")):
        by_engine = by_engine.replace(word.encode(), letter.encode() * len(word))
    RECORDED.mkdir(parents=True, exist_ok=True)
    (RECORDED / "by-engine").write_bytes(by_engine)
    (RECORDED / "by-peer").write_bytes(by_peer)


@pytest.mark.parametrize("containerd", [Suite.TRIXIE], indirect=True)
def test_a_containerd_that_leaves_the_devices_out_is_refused_with_the_versions(
    containerd: ContainerdEngine, pods: PodContainers
) -> None:
    """Why it is: with the gate open it accepts the plugin's answer, and the container runs without the device."""
    with Plugin(nri(containerd), "ungated") as plugin:
        plugin.until("Serving")
        pods.start("asks", "", of_pod={DOMAIN: "example.com/gpu=0"})
        assert plugin.told()[0] == "Answered"
        assert devices(pods, "asks") == []
    with Plugin(nri(containerd)) as plugin:
        _, said = plugin.until("Unsupported")
        assert plugin.finish()[0] == 3
    assert "containerd 1.7.24" in said
    assert "1.7.30 or 2.1.0" in said


def test_a_crio_that_leaves_the_devices_out_is_refused_with_the_versions(crio: CrioEngine, pods: PodContainers) -> None:
    """Why it is: with the gate open it accepts the plugin's answer, and the container runs without the device."""
    with Plugin(nri(crio), "ungated") as plugin:
        assert plugin.told() == ["PluginConfigured", ["cri-o", "1.34.0"]]
        plugin.until("Serving")
        pods.start("asks", "", of_pod={DOMAIN: "example.com/gpu=0"})
        # without a kubelet's labels this engine does not know a container's name
        assert plugin.told() == ["Answered", "test/asks/", [["example.com/gpu=0"]]]
        assert devices(pods, "asks") == []
        with pytest.raises(ContainerError, match="which only pods in these namespaces may have"):
            pods.start("thief", "", of_pod={DOMAIN: "management.nvidia.com/gpu=all"})
    with Plugin(nri(crio)) as plugin:
        _, said = plugin.until("Unsupported")
        assert plugin.finish()[0] == 3
    assert "cri-o 1.34.0 accepts a plugin's answer and leaves the CDI devices out" in said
    assert "CRI-O 1.34.1 or later" in said
