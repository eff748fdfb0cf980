"""Fake nodes for the whole program."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.drift import Templates
from tests.node.engines.live import FakeDockerd
from tests.node.sweeps import matrix
from tests.support import fake_ctk, payloads
from tests.support.api_server import Server, serving
from tests.support.fake_node import DAEMON_JSON, DOCKER, FakeNode


@pytest.fixture(scope="session")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payloads.build(tmp_path_factory.mktemp("payload"))


@pytest.fixture
def node(tmp_path: Path, payload: Path) -> Iterator[FakeNode]:
    root = tmp_path / "node"
    for folder in ("etc/docker", "etc/containerd", "run", "usr/local"):
        (root / folder).mkdir(parents=True)
    made = FakeNode(root, payload)
    yield made
    made.close()


@pytest.fixture
def configured(node: FakeNode) -> None:
    """Give the node a daemon.json."""
    node.write(DAEMON_JSON, DOCKER, 0o600)


@pytest.fixture
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    """A dockerd that serves the node's socket, and reads its daemon.json at a reload."""
    with FakeDockerd(node) as engine:
        yield engine


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """An API server whose cluster has the node and a DaemonSet that wants it."""
    with serving(tmp_path) as serves:
        yield serves


@pytest.fixture(scope="session")
def with_ctk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_ctk.into(payloads.build(tmp_path_factory.mktemp("with-ctk")))


@pytest.fixture
def with_driver(tmp_path: Path, with_ctk: Path) -> Iterator[FakeNode]:
    """A node with a driver in a container's root, where /var/run is what it is everywhere, and no engine."""
    root = tmp_path / "node"
    for folder in ("etc/docker", "etc/containerd", "run", "usr/local", "var"):
        (root / folder).mkdir(parents=True)
    (root / "var/run").symlink_to("/run")
    fake_ctk.driver(root / fake_ctk.DRIVER.lstrip("/"))
    made = FakeNode(root, with_ctk)
    yield made
    made.close()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return matrix.build_images(tmp_path_factory.mktemp("images"))


@contextlib.contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """Yield a folder in memory, where flushing costs nothing; `otherwise` where none can do what a node's can."""
    shared = Path("/dev/shm")  # noqa: S108  # a folder of its own is made in it
    try:
        with tempfile.TemporaryDirectory(prefix="made-", dir=shared) as name:
            os.setxattr(name, "user.tried", b"1")
            os.removexattr(name, "user.tried")
            os.close(os.open(name, os.O_RDWR | os.O_TMPFILE))
            room = shutil.disk_usage(name).free > _ROOM
    except OSError:
        room = False
    if not room:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="made-", dir=shared) as name:
        yield Path(name)


_ROOM = 512 * 1024**2
"""Bytes. Far more than a made node takes."""


# one process for all that is tried on one make: it remembers what each state leads to
MAKES = [pytest.param(make, id=make.name, marks=pytest.mark.xdist_group(make.name)) for make in matrix.MAKES]


@pytest.fixture(scope="session", params=MAKES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: tuple[Path, Path]
) -> Iterator[matrix.Bench]:
    with in_memory(tmp_path_factory.mktemp("made")) as folder, matrix.bench(folder, request.param, images) as ready:
        yield ready


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory, payload: Path) -> Templates:
    return Templates(tmp_path_factory.mktemp("drift"), payload)
