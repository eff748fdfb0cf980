"""Fixtures: live engines, the installed program, a payload. What is missing is said, and in CI it is a failure."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import sites
from tests.e2e.cluster import control_plane, kinds, record, tidying
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kept_images import KeptImages
from tests.e2e.cluster.nodes import Node
from tests.e2e.cluster.objects import workload
from tests.e2e.cluster.rollout import BYSTANDER, SECOND, RealCluster
from tests.e2e.containerd_binaries import NEWEST, Binary, found
from tests.e2e.hosts import gpu_host, hardware
from tests.e2e.hosts import host as hosts
from tests.e2e.hosts.host import Host
from tests.e2e.hosts.machine import Machine
from tests.e2e.program import Installer, missing_programs
from tests.e2e.sites import Site
from tests.support import payloads
from tests.support.built import go_tools, installer_image, releases
from tests.support.built.go_tools import GoToolError, Tool
from tests.support.built.installer_image import BuiltImage, ImageBuildError
from tests.support.built.releases import Release, ReleaseError, Suite
from tests.support.engines import cgroups, containers, images
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import PATH, SPARING, ContainerdEngine, DockerEngine, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tests.e2e.cluster.kinds import Kind

DATA = Path(__file__).parent / "data"


_LONGEST = (
    "configured",
    "drivers",
    "told",
    "device_plugin",
    "starting",
    "outages",
    "rollouts",
    "fleet",
    "chart",
    "deletions",
)
"""What the names of those files of tests on a cluster end in whose tests take longest, the longest first."""


_PATIENT = ("test_prometheus", "test_docker_stopped", "test_daemonset", "test_reload_when", "test_systemd_service")
"""Files of other tests that take minutes, in which they do little but wait."""


RARE = (
    *(f"test_matrix.py::*[[]{row}]" for row in ("docker-trixie", "containerd-trixie", "containerd-sid")),
    *(f"test_gpu_appears.py::*[[]*{kind}*]" for kind in ("docker-26", "containerd-1.7", "containerd-2.1")),
    "test_docker_aliases.py::*[[]trixie*]",
    "test_release.py::*",
    "test_image_by_podman.py::*",
)
"""Patterns of tests of engines between an oldest and a newest one, and of those that take minutes; `[[]` is a bracket.

`make compatibility` tries them.
"""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the rare tests, before they are chosen by their marks."""
    if any(fnmatchcase(item.nodeid.rpartition("tests/e2e/")[2], pattern) for pattern in RARE):
        item.add_marker(pytest.mark.rare)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the longest tests begin first.

    Of those on a cluster, a worker that is free takes the next, and none is left alone. Of all others each worker is
    given a row at once, and takes from another's when it is through (pytest-xdist, worksteal): those that wait are
    spread among the beginnings of the rows, so that no worker waits where nobody else is at work any more.
    """
    places = {f"test_cluster_{name}": number for number, name in enumerate(_LONGEST)}
    on_clusters = [item for item in items if item.get_closest_marker("cluster")]
    others = [item for item in items if not item.get_closest_marker("cluster")]
    patient = [item for name in _PATIENT for item in others if item.path.stem == name]
    quick = [item for item in others if item.path.stem not in _PATIENT]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = itertools.chain.from_iterable(_rows(patient, quick, workers))
    items += sorted(on_clusters, key=lambda item: places.get(item.path.stem, len(places)))


def _rows(first: list[pytest.Item], others: list[pytest.Item], count: int) -> Iterator[list[pytest.Item]]:
    """Yield so many rows of the same length, each of which begins with its share of the first."""
    left = iter(others)
    remaining = len(first) + len(others)
    for number in range(count):
        share = first[number::count]
        length = remaining // (count - number)
        row = [*share, *itertools.islice(left, max(0, length - len(share)))]
        remaining -= len(row)
        yield row
    yield list(left)


def skips_are_failures() -> bool:
    """Tell whether this run must not leave anything out."""
    return os.environ.get("CI") == "true" or os.environ.get("E2E_NO_SKIP") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one where nothing may be skipped: a green CI would say more than it knows."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and skips_are_failures():
        report.outcome = "failed"
        report.longrepr = f"skipped, and here a skip is a failure: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped file into a failure likewise."""
    report = yield
    if report.outcome == "skipped" and skips_are_failures():
        report.outcome = "failed"
        report.longrepr = f"skipped, and here a skip is a failure: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _sparing() -> Iterator[None]:
    """Have clients that are written in Go, and what the program asks of engines, be as sparing as the engines are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SPARING.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("engines are started as root: run this as root")


def _needs(engine: type[Engine]) -> None:
    if missing := engine.missing():
        pytest.skip(
            f"not installed: {', '.join(missing)} (Debian's packages docker.io, containerd, runc, conmon, crun)"
        )


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder with a short name: a socket's path has 107 bytes at most."""
    return tmp_path_factory.mktemp("e")


@pytest.fixture
def docker(folder: Path) -> Iterator[DockerEngine]:
    """Yield a live dockerd whose daemon.json has much to lose."""
    _needs(DockerEngine)
    with DockerEngine(folder / "engine") as engine:
        engine.config.write_bytes((DATA / "daemon.json").read_bytes())
        engine.start()
        yield engine


@pytest.fixture
def containerd(folder: Path) -> Iterator[ContainerdEngine]:
    """Yield a live containerd whose config.toml has much to lose."""
    _needs(ContainerdEngine)
    with ContainerdEngine(folder / "engine") as engine:
        text = (DATA / "config.toml").read_text().replace("@FOLDER@", str(engine.folder))
        engine.folder.mkdir(mode=0o700)
        engine.config.write_text(text)
        engine.start()
        yield engine


@pytest.fixture
def crio(folder: Path, go_tool: Callable[[Tool], Path]) -> Iterator[CrioEngine]:
    """Yield a live CRI-O whose crio.conf has much to lose."""
    _needs(CrioEngine)
    with CrioEngine(folder / "engine", go_tool(go_tools.CRIO)) as engine:
        engine.folder.mkdir(mode=0o700)
        engine.config.write_text((DATA / "crio.conf").read_text().replace("@FOLDER@", str(engine.folder)))
        engine.start()
        yield engine


@pytest.fixture
def cgroup() -> Iterator[str]:
    """Yield a control group for the test's containers."""
    with cgroups.group() as group:
        yield group


@pytest.fixture
def installer(folder: Path) -> Iterator[Installer]:
    """Yield the means to run the installed programs; what is left running is killed."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (make .venv/installed)")
    logs = folder / "logs"
    logs.mkdir()
    installer = Installer(logs)
    yield installer
    installer.close()


@pytest.fixture
def payload(folder: Path) -> Path:
    """Return a payload's root."""
    return payloads.build(folder / "payload")


@pytest.fixture(scope="session")
def release() -> Callable[[Suite], Release]:
    """Return what fetches the engines of a newer Debian release, once for all."""

    def fetch(suite: Suite) -> Release:
        try:
            return releases.fetch(suite)
        except ReleaseError as error:
            pytest.skip(str(error))

    return fetch


@pytest.fixture(scope="session")
def go_tool() -> Callable[[Tool], Path]:
    """Return what builds programs by Go, once for all, and tells their folder."""

    def build(tool: Tool) -> Path:
        try:
            return go_tools.build(tool)
        except GoToolError as error:
            pytest.skip(str(error))

    return build


@pytest.fixture(scope="session")
def built_image() -> BuiltImage:
    """Return the image of this working tree, built once for all."""
    try:
        return installer_image.built()
    except (ImageBuildError, GoToolError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def peer(go_tool: Callable[[Tool], Path]) -> Path:
    """Return NVIDIA's own installer."""
    return go_tool(go_tools.PEER) / "nvidia-ctk-installer"


@pytest.fixture(scope="session")
def binaries(release: Callable[[Suite], Release], go_tool: Callable[[Tool], Path]) -> list[Binary]:
    """Return the containerd binaries of every Debian release, and the newest one."""
    for suite in Suite:
        release(suite)
    if not os.environ.get(NEWEST):
        go_tool(go_tools.CONTAINERD)
    assert found()
    return found()


@pytest.fixture
def boot(folder: Path, payload: Path) -> Iterator[Callable[[Release | None], Host]]:
    """Yield what starts a whole machine with systemd, with this machine's engines or a release's."""
    if missing := [program for program in hosts.PROGRAMS if shutil.which(program, path=PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages systemd, util-linux)")
    with contextlib.ExitStack() as stack:
        yield lambda release: stack.enter_context(Host(folder / "host", release=release, shown=[payload]))


@pytest.fixture
def host(boot: Callable[[Release | None], Host]) -> Host:
    """Return a whole machine with systemd, and this machine's engines, none of them started."""
    return boot(None)


@pytest.fixture
def machine(host: Host, folder: Path, payload: Path) -> Iterator[Machine]:
    """Yield the installer on a whole machine with systemd, and this machine's engines."""
    yield from _machine(host, folder, payload)


@pytest.fixture
def newest_machine(
    boot: Callable[[Release | None], Host], release: Callable[[Suite], Release], folder: Path, payload: Path
) -> Iterator[Machine]:
    """Yield the installer on a whole machine with systemd, and the newest engines that there are."""
    yield from _machine(boot(release(Suite.SID)), folder, payload)


def _machine(host: Host, folder: Path, payload: Path) -> Iterator[Machine]:
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (make .venv/installed)")
    logs = folder / "machine-logs"
    logs.mkdir()
    installer = Installer(logs, host.enter)
    yield Machine(host, installer, payload)
    installer.close()


@pytest.fixture(params=["docker", "containerd"])
def site(request: pytest.FixtureRequest, cgroup: str, folder: Path, installer: Installer) -> Iterator[Site]:
    """Yield a node of each kind, with containers."""
    if missing := containers.missing():
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages busybox-static, containerd, strace)")
    with sites.with_containers(folder, request.getfixturevalue(request.param), cgroup, installer) as made:
        yield made


@pytest.fixture(scope="session")
def kubernetes(go_tool: Callable[[Tool], Path]) -> Path:
    """Return the folder of the programs of a real Kubernetes, on a machine that can be all its nodes."""
    if os.geteuid() != 0:
        pytest.skip("a cluster's nodes are started as root: run this as root")
    wanted = {
        *(*control_plane.PROGRAMS, *hardware.PROGRAMS, *hosts.PROGRAMS, *gpu_host.PROGRAMS),
        *("containerd", "ctr", "docker", *CrioEngine.programs),
    }
    missing = [name for name in sorted(wanted) if shutil.which(name, path=PATH) is None]
    if not (bridge := kinds.CNI / "bridge").exists():
        missing.append(str(bridge))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    return go_tool(go_tools.KUBERNETES).resolve()


@pytest.fixture(scope="session")
def join(
    kubernetes: Path, release: Callable[[Suite], Release], go_tool: Callable[[Tool], Path], built_image: BuiltImage
) -> Callable[[contextlib.ExitStack, ControlPlane, Iterable[Kind]], RealCluster]:
    """Return what has a node of each of these kinds join a control plane, each with a driver and the images."""

    def started(stack: contextlib.ExitStack, plane: ControlPlane, wanted: Iterable[Kind]) -> RealCluster:
        ours = [built_image.reference, f"{installer_image.NAME}:{SECOND}"]
        theirs = images.archive()
        kept = KeptImages(" ".join([built_image.archive.name, *ours, hashlib.sha256(theirs).hexdigest()]))

        made = []
        for number, kind in enumerate(wanted, start=1):
            suite = release(kind.suite) if kind.suite is not None else None
            engine = go_tool(kind.tool) if kind.tool is not None else None
            node = Node(number, kind, plane, kubernetes, release=suite, engine=engine, kept=kept)
            made.append(stack.enter_context(node))
        if not all(node.has_images for node in made):
            images.renamed(built_image.archive, plane.images / "ours.tar", *ours)
            (plane.images / "theirs.tar").write_bytes(theirs)

        def bring(node: Node) -> None:
            if not node.has_images:
                node.load(plane.images / "theirs.tar", images.PAUSE, images.IMAGE)
                node.load(plane.images / "ours.tar", *ours)
                if not kept.have(node.kind, node.host):
                    with node.at_rest():
                        kept.keep(node.kind, node.host)
            node.install_driver()

        with ThreadPoolExecutor(len(made)) as pool:
            list(pool.map(bring, made))
        return RealCluster(plane, made)

    return started


@pytest.fixture(scope="session")
def real_cluster(
    tmp_path_factory: pytest.TempPathFactory,
    kubernetes: Path,
    join: Callable[[contextlib.ExitStack, ControlPlane, Iterable[Kind]], RealCluster],
) -> Iterator[RealCluster]:
    """Yield a real Kubernetes with a node of each kind, each with a driver and a workload: one for all its tests."""
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("k") / "control", kubernetes))
        cluster = join(stack, plane, kinds.KINDS)
        cluster.give(workload(BYSTANDER))
        cluster.wait_until_running(BYSTANDER)
        yield cluster


@pytest.fixture
def cluster(real_cluster: RealCluster, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """Yield it with nothing of ours on any node, whatever the test before did."""
    tidying.tidy(real_cluster)
    real_cluster.note()
    with record.recorded(request.node, real_cluster):
        yield real_cluster
