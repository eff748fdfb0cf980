"""`--method nri` on live engines: the device arrives by annotation, and the engine is not restarted to give it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.file_states import state_of
from tests.e2e.hosts import gpu_nodes
from tests.e2e.nri.made import DOMAIN, nri
from tests.e2e.program import WAITING, Installer, Program
from tests.support.built import go_tools, real_payload
from tests.support.built.go_tools import Tool
from tests.support.built.releases import Suite
from tests.support.engines.containers import PodContainers
from tests.support.engines.daemons import ContainerdEngine

GPU = {DOMAIN: "management.nvidia.com/gpu=all"}
NEWER = pytest.mark.parametrize("containerd", [None, Suite.SID], indirect=True)


@pytest.fixture
def payload(folder: Path, go_tool: Callable[[Tool], Path]) -> Path:
    return real_payload.build(folder / "payload", go_tool(go_tools.TOOLKIT), folder / "unused")


@pytest.fixture
def root(folder: Path) -> Path:
    return gpu_nodes.driver_root(folder / "root")


class Node:
    """An engine on a machine with a GPU, and the program's own places."""

    def __init__(self, engine: ContainerdEngine, installer: Installer, payload: Path, root: Path, folder: Path) -> None:
        self.engine = engine
        self.installer = installer
        self.files = folder / "nvidia"
        self.specification = engine.folder / "cdi" / "management.nvidia.com-gpu.yaml"
        (engine.folder / "cdi" / "management.nvidia.com-gpu.json").unlink()  # devices of the same names
        self.where: list[object] = [
            *("--toolkit-install-dir", self.files, "--pid-file", folder / "pid" / "toolkit.pid"),
            *("--runtime", "containerd", "--config", engine.config, "--socket", engine.socket),
            *("--restart-mode", "none", "--drop-in-config", engine.folder / "conf.d" / "99-nvidia.toml"),
        ]
        self.asked: list[object] = [
            *("--toolkit-source-root", payload, "--driver-root", root, "--driver-root-ctr-path", root),
            *("--cdi-output-dir", engine.folder / "cdi"),
        ]

    def do(self, command: str, *words: object) -> str:
        """Run a command to its end, which is to be good."""
        started = self.installer.start("toolkit-installer", command, *self.where, *words)
        assert started.finish(within=120) == 0, started.output
        return started.output

    def start(self, *words: object) -> Program:
        """Start a run that is to serve the plugin."""
        return self.installer.start(
            "toolkit-installer",
            *("run", "--method", "nri", *self.where, *self.asked),
            *("--nri-namespace", "gpu-operator", "--nri-socket", nri(self.engine), "--log-format", "logfmt", *words),
        )

    def serve(self, *words: object) -> Program:
        """Serve the plugin, and return the run once it waits."""
        run = self.start(*words)
        run.wait_for(WAITING)
        return run

    def state(self) -> tuple[object, list[object]]:
        """Return which process the engine is, and its files."""
        folder = self.engine.folder / "conf.d"
        drop_ins = sorted(folder.iterdir()) if folder.exists() else []
        return self.process(), [state_of(file) for file in (self.engine.config, *drop_ins)]

    def process(self) -> tuple[int, float]:
        """Return which process the engine is."""
        return self.engine.pid, psutil.Process(self.engine.pid).create_time()


@pytest.fixture
def node(containerd: ContainerdEngine, installer: Installer, payload: Path, root: Path, folder: Path) -> Node:
    return Node(containerd, installer, payload, root, folder)


def given(pods: PodContainers) -> tuple[int, int]:
    """Return how much of the GPU a container sees whose pod asks for it, and one whose pod does not."""
    seen = []
    for name, asking in (("asks", GPU), ("asks-not", {})):
        pods.start(name, "", of_pod=asking, namespace="gpu-operator")
        seen.append(len(pods.execute(name, "sh", "-c", gpu_nodes.LOOK_FOR_ROOT).split()))
        pods.stop(name)
        pods.delete(name)
    return seen[0], seen[1]


@NEWER
def test_a_pod_that_asks_gets_the_device_and_the_engine_is_never_restarted(node: Node, pods: PodContainers) -> None:
    before = node.state()
    run = node.serve()
    assert given(pods) == (3, 0)
    assert node.state() == before
    assert run.terminate() == 0, run.output
    assert not node.files.exists()
    assert not node.specification.exists()
    assert node.state() == before


@NEWER
def test_handlers_leave_the_files_once_the_plugin_is_served_and_return_by_name(node: Node, pods: PodContainers) -> None:
    untouched = state_of(node.engine.config)
    node.do("run", "--no-daemon", "--set-as-default=false", *node.asked)
    configured = node.state()
    node.engine.restart()
    assert "nvidia" in node.engine.handlers()
    process = node.process()
    run = node.serve("--cleanup", "never")
    assert node.process() == process
    assert state_of(node.engine.config) == untouched
    assert not (node.engine.folder / "conf.d").exists()
    assert given(pods) == (3, 0)
    node.engine.restart()  # as one that may be restarted by the run is: to forget the handlers
    assert sorted(node.engine.handlers()) == ["runc"]
    run.wait_for("event=nri-connected", times=2)
    assert given(pods) == (3, 0)
    assert run.terminate() == 0, run.output
    assert node.specification.exists()
    node.do("run", "--no-daemon", "--set-as-default=false", *node.asked)
    assert not node.specification.exists()
    assert node.state()[1] == configured[1]
    node.do("uninstall")
    assert state_of(node.engine.config) == untouched
    assert not node.files.exists()


def refused(node: Node, *words: object) -> str:
    """Start a run that is refused, and must have left everything as it was; return what it said."""
    before = node.state()
    run = node.start(*words)
    assert run.finish(within=60) == 3, run.output
    assert not node.files.exists()
    assert not node.specification.exists()
    assert node.state() == before
    return run.output


@NEWER
def test_nothing_is_written_if_the_engine_reads_other_folders_than_the_plugin_names(node: Node) -> None:
    elsewhere = node.engine.folder / "elsewhere"
    assert f"--cdi-output-dir {node.specification.parent} writes it there" in refused(
        node, "--cdi-output-dir", elsewhere
    )
    assert not elsewhere.exists()


@pytest.mark.parametrize("containerd", [Suite.SID], indirect=True)  # 2.4 has CDI always on, whatever its file says
def test_nothing_is_written_where_cdi_is_off_and_the_plugins_devices_are_not_found(
    node: Node,
) -> None:
    engine = node.engine
    engine.config.write_text(engine.config.read_text().replace("enable_cdi = true", "enable_cdi = false"))
    engine.restart()
    assert "has CDI off" in refused(node)
