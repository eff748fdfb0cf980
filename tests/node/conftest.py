"""Fake nodes for the whole program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import payloads
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
