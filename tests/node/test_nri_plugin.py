"""`--enable-nri-plugin`: the engine's files stay, pods get devices by annotation, and whoever waits is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import fake_gpus
from tests.support import fake_processes
from tests.support.fake_node import CONFIG_TOML, DEADLINE, NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode, Run
from tests.unit.nri.nri_engine import NriEngine
from toolkit_installer.nri.decision import DOMAIN, MANAGEMENT

CONTAINERD = b"version = 2\n# theirs\n"
GPU = {DOMAIN: "nvidia.com/gpu=0"}
NRI = ("--enable-nri-plugin", "--nri-namespace", "gpu-operator")
LOST, CONNECTED = "The NRI plugin is not connected", "The engine asks the NRI plugin"


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(CONFIG_TOML, CONTAINERD, 0o600)
    node.place("/var").mkdir()
    node.place("/var/run").symlink_to("/run")


@pytest.fixture
def engine(node: FakeNode) -> Iterator[NriEngine]:
    with NriEngine(node.place("/run/nri/nri.sock")) as made:
        yield made


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


def waiting(node: FakeNode, *more: str) -> Run:
    return node.waiting(*NRI, *more, engine="containerd")


def plugin_of(run: Run) -> int:
    """Return the PID of the plugin's process."""
    (pid,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return int(pid)


def status(node: FakeNode) -> dict[str, object]:
    found: dict[str, object] = json.loads(node.do("status", "--json", engine="containerd").output)
    return found


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    deadline = time.monotonic() + DEADLINE
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.usefixtures("engine")
def test_a_second_installation_does_not_serve_the_plugin_as_well(node: FakeNode) -> None:
    before = node.snapshot()
    run = waiting(node)
    second = ("--toolkit-install-dir", "/opt/second", "--pid-file", "/run/second/toolkit.pid")
    served = node.snapshot()
    refused = node.do("run", *second, *NRI, engine="containerd")
    assert refused.process.returncode == 4, refused.output
    assert f"another instance is running with PID {run.pid}, which serves the NRI plugin" in refused.output
    assert "file=/run/nvidia/toolkit-installer.nri.pid" in refused.output
    assert "which serves the NRI plugin" in node.do("plan", *second, *NRI, engine="containerd").output
    assert node.snapshot() == served
    assert run.stop() == 0
    assert node.snapshot() == before


def test_a_run_serves_the_plugin_and_touches_no_file_of_the_engine(
    node: FakeNode, engine: NriEngine, ready: Path
) -> None:
    before = node.snapshot()
    run = waiting(node, "--ready-file", str(ready))
    assert engine.plugins == ["10-toolkit-installer"]
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    run.wait_for("event=nri-granted container=default/train/main")
    assert engine.ask("default", {}).devices == ()
    refused = engine.ask("default", {DOMAIN: f"{MANAGEMENT}=all"})
    assert "only pods in these namespaces may have: gpu-operator" in refused.words
    run.wait_for("event=nri-refused")
    assert engine.ask("gpu-operator", {DOMAIN: f"{MANAGEMENT}=all"}).devices == (f"{MANAGEMENT}=all",)
    assert node.exists(f"{TOOLKIT}/nvidia-ctk")
    assert node.read(CONFIG_TOML) == CONTAINERD
    assert "Reload" not in run.output
    assert ready.read_text() == "NRI plugin of containerd v2.1.4\n"
    process = plugin_of(run)
    assert run.stop() == 0
    assert not ready.exists()
    assert gone(process)
    assert node.snapshot() == before


def test_where_nothing_is_refused_who_may_not_have_them_starts_without(node: FakeNode, engine: NriEngine) -> None:
    run = waiting(node, "--nri-strict=false")
    assert engine.ask("default", {DOMAIN: f"{MANAGEMENT}=all"}) == (0, "", ())
    run.wait_for("event=nri-withheld")
    assert run.stop() == 0


@pytest.mark.parametrize(
    "name, version, words",
    [
        ("containerd", "1.7.24~ds1", "1.7.30 or 2.1.0"),
        ("containerd", "v2.0.7", "1.7.30 or 2.1.0"),
        ("cri-o", "1.34.0", "CRI-O 1.34.1"),
    ],
)
def test_an_engine_that_leaves_the_devices_out_is_refused_before_anything_is_written(
    node: FakeNode, engine: NriEngine, name: str, version: str, words: str
) -> None:
    engine.name, engine.version = name, version
    before = node.stamps()
    run = node.start(*NRI, engine="containerd")
    assert run.finish() == 3
    assert f"{name} {version}" in run.output
    assert words in run.output
    assert node.stamps() == before


def test_without_nri_in_the_engine_a_run_ends_before_anything_is_written(node: FakeNode) -> None:
    before = node.stamps()
    run = node.start(*NRI, engine="containerd")
    assert run.finish() == 3
    assert "/var/run/nri/nri.sock" in run.output
    assert "--nri-socket" in run.output
    assert node.stamps() == before


def test_a_run_that_does_not_wait_serves_no_plugin(node: FakeNode, engine: NriEngine) -> None:
    run = node.start(*NRI, "--no-daemon", engine="containerd")
    assert run.finish() == 0
    assert node.exists(f"{TOOLKIT}/nvidia-ctk")
    assert node.read(CONFIG_TOML) == CONTAINERD
    assert engine.plugins == []


def test_a_node_is_ready_only_while_the_plugin_is_connected_and_everybody_is_told(
    node: FakeNode, engine: NriEngine, ready: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = waiting(node, "--ready-file", str(ready), "--metrics-address", f"127.0.0.1:{port}")
    assert (said(port, "metrics"), said(port, "readyz")[:3]) == ("1", "200")
    told = status(node)
    assert told["verdict"] == "OK", told["reasons"]
    assert told["plugin"] == {"connected": True, "engine": "containerd v2.1.4", "reason": None}
    assert "Plugin:  NRI, connected to containerd v2.1.4" in node.do("status", engine="containerd").output
    engine.stop()
    run.wait_for(LOST)
    run.wait_for("Not ready: the NRI plugin is not connected")
    run.wait_for(WAITING)
    assert not ready.exists()
    assert (said(port, "metrics"), said(port, "readyz")) == ("0", "503 PluginDown: The NRI plugin is not connected: …")
    told = status(node)
    assert told["verdict"] == "BROKEN"
    assert "the NRI plugin is not connected" in str(told["reasons"])
    engine.start()
    run.wait_for(CONNECTED)
    run.wait_for("Wrote the ready file")
    run.wait_for(WAITING)
    assert (said(port, "metrics"), said(port, "readyz")[:3]) == ("1", "200")
    assert status(node)["verdict"] == "OK"
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    assert run.stop() == 0


def said(port: int, path: str) -> str:
    """Return what is said at an address: a metric's value, or the answer's status and words."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=DEADLINE) as answer:
            code, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            code, text = error.code, error.read().decode()
    if path == "metrics":
        name = "toolkit_installer_nri_connected "
        return next(str(line).removeprefix(name) for line in text.splitlines() if line.startswith(name))
    head, _, _ = text.strip().rpartition(": ")
    return f"{code} {head}: …"


def test_a_killed_plugin_is_served_again_and_a_killed_run_leaves_none(node: FakeNode, engine: NriEngine) -> None:
    run = waiting(node)
    first = plugin_of(run)
    engine.hang_up()
    os.kill(first, signal.SIGKILL)
    run.wait_for("The NRI plugin is served again, by a new process")
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    second = plugin_of(run)
    assert second != first
    run.process.kill()
    run.process.wait()
    assert gone(second)
    told = node.do("status", engine="containerd").output
    assert "DEGRADED" in told
    again = waiting(node)
    assert NOTHING_TO_DO in again.output
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    assert again.stop() == 0
    assert not node.exists(TOOLKIT)


def test_a_hup_has_the_node_looked_at_and_the_same_process_goes_on(node: FakeNode, engine: NriEngine) -> None:
    run = waiting(node)
    process = plugin_of(run)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)
    assert plugin_of(run) == process
    assert engine.plugins == ["10-toolkit-installer"]
    assert run.stop() == 0


def test_an_engine_that_is_gone_keeps_no_node_configured(node: FakeNode, engine: NriEngine) -> None:
    before = node.snapshot()
    run = waiting(node)
    engine.stop()
    run.wait_for(LOST)
    assert run.stop() == 0
    after = node.snapshot()
    with contextlib.suppress(KeyError):
        del before["/run/nri/nri.sock"], after["/run/nri/nri.sock"]
    assert after == before


def test_a_node_that_is_left_alone_needs_no_nri_until_a_gpu_comes(node: FakeNode, ready: Path) -> None:
    fake_gpus.show_sysfs(node)
    run = waiting(node, "--without-gpu", "idle", "--ready-file", str(ready))
    assert Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text() == ""
    assert ready.exists()
    with NriEngine(node.place("/run/nri/nri.sock")) as engine:
        node.write("/dev/nvidia0", "")
        run.process.send_signal(signal.SIGHUP)
        run.wait_for(CONNECTED)
        run.wait_for(WAITING)
        assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
        assert run.stop() == 0


def test_plan_says_that_the_plugin_would_be_served_and_the_engine_left_alone(node: FakeNode, engine: NriEngine) -> None:
    said_so = "NRI plugin: served on /var/run/nri/nri.sock while `run` waits; the engine's files stay as they are."
    shown = node.do("plan", *NRI, engine="containerd").output
    assert said_so in shown
    assert "Engine containerd" not in shown
    planned = json.loads(node.do("plan", "--json", *NRI, engine="containerd").output)
    assert (planned["nri_socket"], planned["engines"]) == ("/var/run/nri/nri.sock", [])
    assert engine.plugins == [], "looking is no reason to register"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose kubelet is believed")
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_node_whose_kubelet_uses_docker_is_refused(node: FakeNode, engine: NriEngine, command: str) -> None:
    """docker's own containerd would take the plugin, and never ask."""
    with fake_processes.process(node.root, "kubelet", "--container-runtime-endpoint=unix:///run/cri-dockerd.sock"):
        said_so = node.do(command, *NRI, engine="auto")
    assert said_so.process.returncode == 3
    assert "docker asks no NRI plugin about its containers" in said_so.output
    assert "cri-dockerd.sock" in said_so.output
    assert engine.plugins == []
    assert not node.exists(TOOLKIT)


def test_a_node_without_a_shell_takes_the_plugin_and_no_handler(node: FakeNode, engine: NriEngine) -> None:
    """No container runs through a wrapper then."""
    node.write("/etc/os-release", "NAME=Talos\n")
    shell = node.place("/bin/sh")
    shell.unlink(missing_ok=True)
    refused = node.do("run", "--no-daemon", engine="containerd")
    assert "the node has no shell" in refused.output
    run = waiting(node)
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    assert run.stop() == 0
