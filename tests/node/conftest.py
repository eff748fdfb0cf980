"""Fake nodes for the whole program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import matrix
from tests.support import payloads
from tests.support.drift import Templates
from tests.support.fake_node import FakeNode


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


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return matrix.build_images(tmp_path_factory.mktemp("images"))


# one process for all that is tried on one make: it remembers what each state leads to
MAKES = [pytest.param(make, id=make.name, marks=pytest.mark.xdist_group(make.name)) for make in matrix.MAKES]


@pytest.fixture(scope="session", params=MAKES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: tuple[Path, Path]
) -> Iterator[matrix.Bench]:
    with matrix.bench(tmp_path_factory.mktemp("made"), request.param, images) as ready:
        yield ready


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory, payload: Path) -> Templates:
    return Templates(tmp_path_factory.mktemp("drift"), payload)
