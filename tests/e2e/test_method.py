"""`--method cdi` on real engines: a container that asks by CDI gets the device, and the engine is never touched."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.file_states import state_of
from tests.e2e.hosts import gpu_nodes
from tests.e2e.hosts.gpu import Driver
from tests.e2e.hosts.gpu_nodes import KINDS, Engines, Kind
from tests.support.built import go_tools, real_payload
from tests.support.built.releases import Suite
from tests.support.engines import containers as support
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.program import Installer
    from tests.support.built.go_tools import Tool
    from tests.support.built.releases import Release

DEVICE = "management.nvidia.com/gpu=all"
KNOW_NONE = [kind for kind in KINDS if str(kind) in ("docker-20.10", "containerd-1.6")]
CONTAINERD_2_0 = Kind("containerd", "2.0", Suite.SID, go_tools.CONTAINERD_2_0)
READ_CDI = [*(kind for kind in KINDS if kind not in KNOW_NONE), CONTAINERD_2_0]
UNSUPPORTED = 3


@pytest.fixture
def payload(folder: Path, go_tool: Callable[[Tool], Path]) -> Path:
    return real_payload.build(folder / "payload", go_tool(go_tools.TOOLKIT), folder / "driver" / "cdi")


@pytest.fixture
def root(folder: Path) -> Path:
    return gpu_nodes.driver_root(folder / "root")


@pytest.fixture
def driver(folder: Path) -> Iterator[Driver]:
    missing = support.missing() + [name for engine in (DockerEngine, CrioEngine) for name in engine.missing()]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    with Driver(folder / "driver") as made:
        made.load()
        yield made


@pytest.fixture
def engine(
    request: pytest.FixtureRequest,
    folder: Path,
    driver: Driver,
    release: Callable[[Suite], Release],
    go_tool: Callable[[Tool], Path],
) -> Iterator[Engines]:
    """Yield the engine that the test is about, with CDI as the release has it by itself, not started."""
    with gpu_nodes.engine(request.param, folder / "engine", driver, release, go_tool) as made:
        if isinstance(made, DockerEngine):
            made.config.write_text(json.dumps({"cdi-spec-dirs": [str(driver.specifications)]}))
        elif str(request.param) == "containerd-1.7":
            text = made.config.read_text()
            plugin = '[plugins."io.containerd.grpc.v1.cri"]\n'
            made.config.write_text(text.replace(plugin, f'{plugin}cdi_spec_dirs = ["{driver.specifications}"]\n'))
        yield made


def switch_on(engine: Engines) -> None:
    """Have the operator switch CDI on where the release has it off."""
    text = engine.config.read_text()
    if isinstance(engine, DockerEngine):
        engine.config.write_text(json.dumps({**json.loads(text), "features": {"cdi": True}}))
    else:
        engine.config.write_text(text.replace("cdi_spec_dirs", "enable_cdi = true\ncdi_spec_dirs", 1))


def switch_on_where_it_is_off(engine: Engines) -> None:
    """Do so for the releases that have it off: docker's, and containerd 1.7."""
    text = engine.config.read_text()
    if isinstance(engine, DockerEngine) or ("cdi_spec_dirs" in text and "grpc.v1.cri" in text):
        switch_on(engine)


@pytest.fixture
def where(folder: Path, engine: Engines, request: pytest.FixtureRequest) -> list[object]:
    return gpu_nodes.places(request.node.callspec.params["engine"], folder, engine)


@pytest.fixture
def asked(payload: Path, root: Path, driver: Driver) -> list[object]:
    return [
        *("--toolkit-source-root", payload, "--cdi-output-dir", driver.specifications),
        *("--driver-root", root, "--driver-root-ctr-path", root),
    ]


def run(installer: Installer, *words: object, code: int = 0) -> str:
    started = installer.start("toolkit-installer", "run", "--no-daemon", *words)
    assert started.finish(within=120) == code, started.output
    return started.output


def uninstall(installer: Installer, *where: object) -> str:
    started = installer.start("toolkit-installer", "uninstall", *where)
    assert started.finish(within=120) == 0, started.output
    return started.output


def files(engine: Engines) -> dict[str, bytes]:
    """Return what the engine's configuration is: its file, and the drop-ins beside it."""
    folder = engine.config.parent
    places = [engine.config, *folder.glob("conf.d/*")]
    return {str(place): place.read_bytes() for place in places if place.is_file()}


def given(engine: Engines, cgroup: str) -> tuple[int, int]:
    """Return how much of the GPU a container sees that asks for it, and one that does not."""
    with gpu_nodes.containers(engine, cgroup) as containers:
        seen = []
        for name, devices in (("asks", [DEVICE]), ("asks-not", [])):
            containers.start(name, handler="", devices=devices)
            seen.append(len(containers.execute(name, "sh", "-c", gpu_nodes.LOOK_FOR_ROOT).split()))
            containers.stop(name)
            containers.delete(name)
    return seen[0], seen[1]


@pytest.mark.parametrize("engine", READ_CDI, ids=str, indirect=True)
def test_a_container_that_requests_by_cdi_gets_the_device_without_an_engine_restart(
    where: list[object], asked: list[object], engine: Engines, cgroup: str, installer: Installer, folder: Path
) -> None:
    switch_on_where_it_is_off(engine)
    engine.start()
    started, state = psutil.Process(engine.pid).create_time(), state_of(engine.config)
    run(installer, *where, *asked, "--method", "cdi")
    assert "Nothing to do" in run(installer, *where, *asked, "--method", "cdi")
    assert given(engine, cgroup) == (3, 0)
    status = installer.start("toolkit-installer", "status", "--json", *where[:4])
    assert status.finish(within=60) == 0, status.output
    method = json.loads(status.output)["method"]
    assert (method["name"], method["asked_by"].endswith(f"{DEVICE}")) == ("cdi", True)
    uninstall(installer, *where)
    assert not (folder / "nvidia").exists()
    assert state_of(engine.config) == state
    assert not (engine.folder / "conf.d").exists()
    assert engine.alive()
    assert psutil.Process(engine.pid).create_time() == started


@pytest.mark.parametrize("engine", KNOW_NONE, ids=str, indirect=True)
def test_a_release_that_knows_no_cdi_is_refused_and_nothing_is_written(
    where: list[object], asked: list[object], engine: Engines, installer: Installer, folder: Path
) -> None:
    if isinstance(engine, DockerEngine):
        engine.config.write_text("{}")  # it would not start with a key that it does not know
    engine.start()
    state = state_of(engine.config)
    assert "knows no CDI" in run(installer, *where, *asked, "--method", "cdi", code=UNSUPPORTED)
    assert not (folder / "nvidia").exists()
    assert state_of(engine.config) == state


@pytest.mark.parametrize("engine", [KINDS[4]], ids=str, indirect=True)
def test_where_only_cdi_is_off_one_edit_switches_it_on_and_goes_again(
    where: list[object], asked: list[object], engine: Engines, cgroup: str, installer: Installer
) -> None:
    engine.start()
    state, text = state_of(engine.config), engine.config.read_bytes()
    run(installer, *where, *asked, "--method", "cdi")
    edited = engine.config.read_text()
    assert "enable_cdi = true" in edited
    assert "nvidia" not in edited.replace("toolkit-installer", "")
    engine.restart()
    assert given(engine, cgroup) == (3, 0)
    assert "Nothing to do" in run(installer, *where, *asked, "--method", "cdi")
    uninstall(installer, *where)
    assert engine.config.read_bytes() == text
    assert state_of(engine.config) == state


@pytest.mark.parametrize("engine", [KINDS[2]], ids=str, indirect=True)
def test_docker_goes_from_handlers_to_cdi_and_back_without_a_restart(
    where: list[object], asked: list[object], engine: Engines, cgroup: str, installer: Installer
) -> None:
    switch_on(engine)
    engine.start()
    started, text = psutil.Process(engine.pid).create_time(), engine.config.read_bytes()
    run(installer, *where, *asked, "--set-as-default=false")
    assert b"nvidia-container-runtime" in engine.config.read_bytes()
    run(installer, *where, *asked, "--method", "cdi")
    assert engine.config.read_bytes() == text
    assert given(engine, cgroup) == (3, 0)
    run(installer, *where, *asked, "--set-as-default=false")
    assert b"nvidia-container-runtime" in engine.config.read_bytes()
    uninstall(installer, *where)
    assert engine.config.read_bytes() == text
    assert psutil.Process(engine.pid).create_time() == started


@pytest.mark.parametrize("engine", [KINDS[4], KINDS[5], KINDS[6], CONTAINERD_2_0], ids=str, indirect=True)
def test_from_handlers_to_cdi_and_back_each_file_is_as_it_was_to_the_byte(
    where: list[object], asked: list[object], engine: Engines, cgroup: str, installer: Installer
) -> None:
    switch_on_where_it_is_off(engine)
    engine.start()
    before = files(engine)
    run(installer, *where, *asked, "--set-as-default=false")
    configured = files(engine)
    assert configured != before
    engine.restart()
    run(installer, *where, *asked, "--method", "cdi")
    assert files(engine) == before
    engine.restart()
    assert given(engine, cgroup) == (3, 0)
    assert "Nothing to do" in run(installer, *where, *asked, "--method", "cdi")
    run(installer, *where, *asked, "--set-as-default=false")
    assert files(engine) == configured
    engine.restart()
    uninstall(installer, *where)
    assert files(engine) == before
