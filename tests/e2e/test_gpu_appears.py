"""NVIDIA's own runtime, installed by us, puts a GPU into containers: on every engine, and where it was asked for alone.

The GPU and its driver are made up (tests/e2e/hosts/gpu.py). The C parts of the toolkit are stand-ins that are copied
and never run (tests/support/built/real_payload.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import gpu, gpu_nodes
from tests.e2e.hosts.gpu import Driver
from tests.e2e.hosts.gpu_nodes import KINDS, NOTHING, THE_GPU, Engines, GpuNode, Kind
from tests.support.built import go_tools, real_payload
from tests.support.engines import containers as support
from tests.support.engines.containers import ContainerError
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import PATH, DockerEngine
from toolkit_installer.toolkit import wrappers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.program import Installer
    from tests.support.built.go_tools import Tool
    from tests.support.built.releases import Release, Suite

ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
BY_NAME = {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"}
BY_ANNOTATION = {"cdi.k8s.io/test": "nvidia.com/gpu=0"}
MODE_CDI = ("--nvidia-container-runtime.mode", "cdi")


@pytest.fixture
def driver(folder: Path) -> Iterator[Driver]:
    missing = [name for name in gpu.PROGRAMS if shutil.which(name, path=PATH) is None] + support.missing()
    missing += [name for kind in (DockerEngine, CrioEngine) for name in kind.missing()]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    with Driver(folder / "driver") as made:
        yield made


@pytest.fixture
def payload(folder: Path, driver: Driver, go_tool: Callable[[Tool], Path]) -> Path:
    return real_payload.build(folder / "payload", go_tool(go_tools.TOOLKIT), driver.specifications)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def engine(
    kind: Kind,
    folder: Path,
    driver: Driver,
    release: Callable[[Suite], Release],
    go_tool: Callable[[Tool], Path],
) -> Iterator[Engines]:
    with gpu_nodes.engine(kind, folder / "engine", driver, release, go_tool) as made:
        made.start()
        yield made


@pytest.fixture
def node(
    kind: Kind, folder: Path, driver: Driver, payload: Path, engine: Engines, cgroup: str, installer: Installer
) -> Iterator[GpuNode]:
    """Yield a node with each of the engines, on which nothing is installed."""
    flags: list[object] = [
        *gpu_nodes.places(kind, folder, engine),
        *("--toolkit-source-root", payload, "--driver-root", "/"),
    ]
    with gpu_nodes.containers(engine, cgroup) as containers:
        yield GpuNode(kind, engine, containers, driver, installer, flags)


of_the_cri = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.cri], ids=str)
one_of_each = pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], KINDS[-1]], ids=str)
the_newest = pytest.mark.parametrize("kind", [KINDS[2], *KINDS[-2:]], ids=str)


def test_a_container_that_asks_for_the_gpu_sees_it_through_our_handlers_alone(node: GpuNode) -> None:
    node.driver.load()
    node.install(*MODE_CDI)
    assert node.seen("nvidia", environment=ALL) == THE_GPU
    assert node.seen("", environment=ALL) == THE_GPU, "the default is ours"
    assert node.seen("nvidia-cdi", environment=ALL) == THE_GPU
    assert node.seen("nvidia") == NOTHING
    assert node.seen("runc", environment=ALL) == NOTHING
    assert "mode 'cdi'" in node.debug_log.read_text()
    node.driver.unload()
    assert node.seen("nvidia", environment=ALL) == NOTHING

    node.uninstall()
    assert node.seen("", environment=ALL) == NOTHING
    for handler in ("nvidia", "nvidia-cdi"):
        with pytest.raises(ContainerError, match=handler):
            node.seen(handler)


@one_of_each
def test_without_the_driver_ordinary_containers_run_through_our_handlers(node: GpuNode) -> None:
    node.install(*MODE_CDI)
    for handler in ("", "nvidia", "nvidia-cdi", "nvidia-legacy"):
        assert node.seen(handler, environment=ALL) == NOTHING
    assert not node.debug_log.exists(), "NVIDIA's runtime was run"
    # the driver comes, and nobody has to do anything
    node.driver.load()
    assert node.seen("", environment=ALL) == THE_GPU
    assert node.debug_log.exists()
    node.driver.unload()
    assert node.seen("", environment=ALL) == NOTHING


@the_newest
def test_a_container_that_names_its_gpu_as_cdi_does_gets_it_in_the_default_mode(node: GpuNode) -> None:
    node.driver.load()
    node.install()
    assert node.seen("nvidia", environment=BY_NAME) == THE_GPU
    assert node.seen("nvidia-cdi", environment=BY_NAME) == THE_GPU
    assert node.seen("runc", environment=BY_NAME) == NOTHING


@of_the_cri
def test_a_container_gets_the_gpu_by_an_annotation(node: GpuNode) -> None:
    node.driver.load()
    prefixes = ("--nvidia-container-runtime-modes.cdi.annotation-prefixes", "cdi.k8s.io/")
    node.install(*MODE_CDI, *prefixes)
    assert node.seen("nvidia", annotations=BY_ANNOTATION) == THE_GPU


with_crun = pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], *KINDS[3:]], ids=str)


def low_level_runtimes(node: GpuNode) -> list[str]:
    """Return what NVIDIA's runtime is told to look for, best first."""
    config = node.engine.folder.parent / "nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    found: list[str] = tomllib.loads(config.read_text())["nvidia-container-runtime"]["runtimes"]
    return found


@with_crun
def test_a_crun_handler_beside_the_engines_own_runc_runs_no_container_of_ours(node: GpuNode) -> None:
    # as k3s registers one by itself where it finds it; an old crun refuses what a newer engine makes for runc
    gpu_nodes.offer_crun(node.kind, node.engine.config, default=False)
    node.engine.restart()
    node.driver.load()
    node.install(*MODE_CDI, "--nvidia-container-runtime.log-level", "debug")
    assert node.seen("nvidia", environment=ALL) == THE_GPU
    said = node.debug_log.read_text()
    assert "/runc" in said
    assert gpu_nodes.CRUN not in said
    assert low_level_runtimes(node)[0].endswith("/runc")
    node.driver.unload()  # now it is our own script that runs it
    assert node.seen("nvidia", environment=ALL) == NOTHING


@with_crun
def test_where_crun_is_the_default_runtime_it_runs_ours_as_well(node: GpuNode) -> None:
    gpu_nodes.offer_crun(node.kind, node.engine.config, default=True)
    node.engine.restart()
    node.install(*MODE_CDI, "--set-as-default=false")
    assert low_level_runtimes(node)[0] == gpu_nodes.CRUN


one_of_each_series = pytest.mark.parametrize("kind", [KINDS[2], *KINDS[4:6], KINDS[7]], ids=str)


@one_of_each_series
def test_containers_live_on_when_the_engine_restarts_whatever_became_of_the_driver(node: GpuNode) -> None:
    """A containerd that cannot parse what a runtime prints kills the container when it starts again."""
    if isinstance(node.engine, DockerEngine):
        node.engine.config.write_text('{"live-restore": true}\n')
        node.engine.restart()
    node.driver.load()
    node.install(*MODE_CDI)
    handlers = ("", "nvidia", "nvidia-cdi", "nvidia-legacy")
    running = [node.start(f"loaded-{handler}", handler) for handler in handlers]
    node.driver.unload()
    running += [node.start(f"unloaded-{handler}", handler) for handler in handlers]
    restart(node.engine)
    assert not node.dead(running)
    node.driver.load()
    restart(node.engine)
    assert not node.dead(running)
    assert {node.containers.enter(name) for name in running} == {"busybox"}

    node.driver.unload()
    if isinstance(node.engine, CrioEngine):  # which needs the handlers to stop these containers
        assert "delete these pods" in node.uninstall(exits=3)
    else:
        assert "still needed" in node.uninstall()
        assert "nvidia" not in node.engine.handlers()
    assert not node.dead(running)
    for name in running:
        assert node.containers.stop(name) == 0
        node.containers.delete(name)
    node.uninstall()
    if isinstance(node.engine, CrioEngine):  # which was restarted only now, and has forgotten the handlers
        node.uninstall()
    assert not (node.engine.folder.parent / "nvidia").exists()


def restart(engine: Engines) -> None:
    """Restart an engine, and what is below it."""
    if isinstance(engine, DockerEngine):
        engine.containerd.restart()
    engine.restart()


COMMANDS = (
    *("--version", "features", "list", "--root {} list --format json", "--root={} state gone", "state create"),
    *("--log {}/log --log-format json --root {} state gone", "--systemd-cgroup --root {} delete run", "kill gone 9"),
    *("exec gone true", "no-such-command", "--no-such-flag state gone", "--debug --root {} state gone", "--help", ""),
    "ps run",
)


@pytest.mark.parametrize("name", ["runc", "crun"])
def test_what_starts_no_container_prints_what_the_low_level_runtime_prints(name: str, folder: Path) -> None:
    wrapper = folder / "nvidia-container-runtime"
    low_level = shutil.which(name, path=PATH)
    if low_level is None:
        pytest.skip(f"not installed: {name}")
    wrapper.write_text(wrappers.build_wrapper(wrapper.name, folder=str(folder), low_level=[low_level], modules="/none"))
    wrapper.chmod(0o755)
    for command in COMMANDS:
        words = command.replace("{}", str(folder / "root")).split()
        ours, theirs = (
            subprocess.run([program, *words], check=False, capture_output=True, timeout=60)
            for program in (wrapper, low_level)
        )
        assert ours.returncode == theirs.returncode, command
        assert timeless(ours.stdout) == timeless(theirs.stdout), command
        assert timeless(ours.stderr) == timeless(theirs.stderr), command
    started = subprocess.run([wrapper, "--root", folder / "root", "create", "x"], check=False, capture_output=True)
    assert b"the NVIDIA driver is not loaded" in started.stderr


def timeless(text: bytes) -> bytes:
    """Return what a runtime printed without the times in its log."""
    return re.sub(rb"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-][\d:]+)?", b"", text)
