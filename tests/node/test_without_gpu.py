"""A node that shows no NVIDIA GPU, under `--without-gpu idle`: nothing is changed, nothing hangs, and one that comes is
seen."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node import fake_gpus
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.fake_gpus import GPU, H100
from tests.node.instants import stopping
from tests.node.test_wait_driver_command import start
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, install
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
IDLE = ("--without-gpu", "idle", "--driver-root", "auto")
NONE = "This node shows no NVIDIA GPU: nothing is changed here"
NO_WAIT = "This node shows no NVIDIA GPU: no driver is waited for"


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


def devices(*names: str) -> Callable[[FakeNode], None]:
    def put(node: FakeNode) -> None:
        for name in names:
            node.write(name, "")

    return put


def compatible(*names: str) -> Callable[[FakeNode], None]:
    return lambda node: node.write("/sys/firmware/devicetree/base/compatible", "\0".join((*names, "")))


def plugged(vendor: str, kind: str, driver: str | None = None) -> Callable[[FakeNode], None]:
    return lambda node: fake_gpus.show(node, GPU, (vendor, kind, "0x1234"), driver)


OURS = {
    "a GPU with an output": plugged("0x10de", "0x030000", "nouveau"),
    "a GPU without one": plugged("0x10de", "0x030200"),
    "an accelerator": plugged("0x10de", "0x120000"),
    "a virtual function": plugged("0x10de", "0x030200", "nvidia"),
    "the driver's device": devices("/dev/nvidia0"),
    "the driver's control device": devices("/dev/nvidiactl"),
    "a GPU of many": devices("/dev/nvidia15"),
    "WSL 2": devices("/dev/dxg", "/usr/lib/wsl/lib/libnvidia-ml.so.1"),
    "a Tegra": compatible("nvidia,p3701-0000", "nvidia,tegra234"),
    "a Tegra's device": devices("/dev/nvhost-gpu"),
}
OTHERS = {
    "nothing": lambda _: None,
    "a GPU of somebody else's": plugged("0x1002", "0x030000"),
    "the sound of a card": plugged("0x10de", "0x040300"),
    "the USB of a card": plugged("0x10de", "0x0c0330"),
    "an NVSwitch": plugged("0x10de", "0x068000"),
    "an old chipset's network": plugged("0x10de", "0x020000"),
    "a memory stick of that name": devices("/dev/nvidia-fs0", "/dev/nvme0"),
    "WSL 2 with somebody else's GPU": devices("/dev/dxg"),
    "another board": compatible("brcm,bcm2711"),
    "a GPU for virtual machines": plugged("0x10de", "0x030200", "vfio-pci"),
    "one of a variant's": plugged("0x10de", "0x030200", "nvgrace_gpu_vfio_pci"),
    "one that Xen gives away": plugged("0x10de", "0x030200", "pciback"),
}


@pytest.mark.parametrize("put", OTHERS.values(), ids=OTHERS)
def test_no_driver_is_waited_for_where_no_gpu_is(node: FakeNode, put: Callable[[FakeNode], None]) -> None:
    fake_gpus.show_sysfs(node)
    put(node)
    before = node.snapshot()
    waiting = start(node, "--without-gpu", "idle")
    assert waiting.finish() == 0
    assert NO_WAIT in waiting.output
    assert node.snapshot() == before


@pytest.mark.parametrize("put", OURS.values(), ids=OURS)
def test_a_gpu_without_a_driver_is_waited_for(node: FakeNode, put: Callable[[FakeNode], None]) -> None:
    fake_gpus.show_sysfs(node)
    put(node)
    waiting = start(node, "--without-gpu", "idle", "--timeout", "0.1")
    assert waiting.finish() == 8
    assert NO_WAIT not in waiting.output


def test_a_node_whose_sysfs_is_not_seen_is_waited_for(node: FakeNode) -> None:
    """Nothing to be seen is no proof that there is nothing."""
    waiting = start(node, "--without-gpu", "idle", "--timeout", "0.1")
    assert waiting.finish() == 8


def test_without_the_flag_a_node_without_a_gpu_is_waited_for_and_configured_as_ever(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    assert start(node, "--timeout", "0.1").finish() == 8
    run = node.do("run", "--no-daemon")
    assert run.process.returncode == 0, run.output
    assert node.exists(TOOLKIT)


def test_a_gpu_that_is_unplugged_ends_the_wait_for_its_driver(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    fake_gpus.show(node)
    waiting = start(node, "--without-gpu", "idle")
    waiting.wait_for("Waiting for the driver")
    fake_gpus.unplug(node)
    assert waiting.finish() == 0
    assert NO_WAIT in waiting.output


def test_the_run_is_ready_and_idle_and_says_why_once(node: FakeNode, ready: Path) -> None:
    fake_gpus.show_sysfs(node)
    node.write(DAEMON_JSON, "{}")
    before = node.snapshot()
    with stopping(node, "never", "run", *IDLE, "--ready-file", str(ready), woken=True) as run:
        run.wait_for(WAITING)
        assert "no NVIDIA GPU" in ready.read_text()
        # another device comes: it is looked at, and nothing is said of it
        fake_gpus.show(node, "0000:5e:00.0", fake_gpus.ETHERNET)
        run.wait_for(WAITING)
        fake_gpus.unplug(node, "0000:5e:00.0")
        run.wait_for(WAITING)
        assert run.output.count(NONE) == 1
        assert ready.exists()
        assert (node.read(DAEMON_JSON), node.exists(TOOLKIT)) == (b"{}", False)
        assert run.stop() == 0, run.output
    assert not ready.exists()
    assert node.snapshot() == before


def test_a_run_that_is_not_to_wait_leaves_such_a_node_alone(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    before = node.snapshot()
    run = node.do("run", "--no-daemon", *IDLE)
    assert run.process.returncode == 0, run.output
    assert NONE in run.output
    assert node.snapshot() == before


@runs_drivers
@pytest.mark.parametrize("first", ["the GPU", "the driver"])
def test_a_gpu_that_comes_is_seen_and_its_driver_is_waited_for(node: FakeNode, ready: Path, first: str) -> None:
    fake_gpus.show_sysfs(node)
    dockerd = FakeDockerd(node)
    try:
        flags = (*IDLE, "--ready-file", str(ready), "--socket", SOCKET)
        with stopping(node, "never", "run", *flags, woken=True) as run:
            run.wait_for(WAITING)
            if first == "the GPU":
                fake_gpus.show(node)
                run.wait_for("The node shows an NVIDIA GPU now")
                run.wait_for("No driver is usable yet")
                run.wait_for(WAITING)
                assert not ready.exists(), "pods of that node must not be told that it is done"
                install(node.place(CONTAINER))
            else:  # a driver that works is proof enough
                install(node.place(HOST))
            run.wait_for("The node is configured")
            run.wait_for(WAITING)
            assert ready.read_text() == "docker nvidia nvidia-cdi nvidia-legacy\n"
            assert run.stop() == 0, run.output
        assert not node.exists(TOOLKIT)
    finally:
        dockerd.close()


@runs_drivers
def test_a_gpu_that_goes_before_its_driver_came_leaves_the_node_idle(node: FakeNode, ready: Path) -> None:
    fake_gpus.show_sysfs(node)
    fake_gpus.show(node)
    with stopping(node, "never", "run", *IDLE, "--ready-file", str(ready), woken=True) as run:
        run.wait_for("No driver is usable yet")
        run.wait_for(WAITING)
        assert not ready.exists()
        fake_gpus.unplug(node)
        run.wait_for(NONE)
        run.wait_for("Wrote the ready file")
        run.wait_for(WAITING)
        assert run.stop() == 0, run.output


def test_a_gpu_that_virtual_machines_give_back_is_seen(node: FakeNode, ready: Path) -> None:
    fake_gpus.show_sysfs(node)
    fake_gpus.show(node, GPU, H100, "vfio-pci")
    with stopping(node, "never", "run", *IDLE, "--ready-file", str(ready), woken=True) as run:
        run.wait_for("kept for virtual machines")
        run.wait_for(WAITING)
        fake_gpus.bind(node, GPU, None)
        run.wait_for("No driver is usable yet")
        assert run.stop() == 0, run.output


@runs_drivers
def test_a_configured_node_whose_gpu_goes_stays_configured(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    fake_gpus.show(node)
    program = install(node.place(HOST), devices=False)
    assert node.do("run", "--no-daemon", *IDLE).process.returncode == 0
    assert node.exists(TOOLKIT)
    fake_gpus.unplug(node)
    program.unlink()
    before = node.snapshot()
    run = node.do("run", "--no-daemon", *IDLE)
    assert run.process.returncode == 0, run.output
    assert NOTHING_TO_DO in run.output
    assert node.snapshot() == before
    undone = node.do("uninstall")
    assert undone.process.returncode == 0, undone.output
    assert not node.exists(TOOLKIT)


def test_plan_status_and_detect_say_what_was_seen(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    node.write(DAEMON_JSON, "{}")
    assert "Nothing to do: the node is to be left alone without a GPU" in node.do("plan", *IDLE).output
    assert "GPUs of the node: none is seen" in node.do("plan").output
    assert "GPU:     none is seen" in node.do("status").output
    assert "GPUs:\n  none is seen" in node.do("detect").output
    fake_gpus.show(node, GPU, H100, "nvidia")
    fake_gpus.show(node, "0000:5e:00.0", H100, "vfio-pci")
    seen = [f"PCI {GPU} (10de:2330, nvidia)", "PCI 0000:5e:00.0 (10de:2330, vfio-pci), kept for virtual machines"]
    for command in ("status", "detect"):
        said = node.do(command, "--json").output
        assert json.loads(said[said.index("{") : said.rindex("}") + 1])["gpus"] == seen
    assert f"GPUs of the node: {'; '.join(seen)}" in node.do("plan").output
    assert f"GPU:     {seen[0]}\nGPU:     {seen[1]}" in node.do("status").output


def test_a_hup_has_an_idle_run_look_at_once(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    run = node.start(*IDLE)
    run.wait_for(WAITING)
    fake_gpus.show(node)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("No driver is usable yet")
    assert run.stop() == 0, run.output
