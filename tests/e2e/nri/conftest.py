"""Live engines with NRI, and containers on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.nri import made
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.engines.containers import PodContainers
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.built.releases import Release, Suite


@pytest.fixture
def containerd(
    folder: Path,
    go_tool: Callable[[Tool], Path],
    release: Callable[[Suite], Release],
    request: pytest.FixtureRequest,
) -> Iterator[ContainerdEngine]:
    """Yield the newest containerd, or the parameter's: one that Go builds, or that of one of Debian's suites."""
    wanted: Suite | Tool = getattr(request, "param", None) or go_tools.CONTAINERD
    of_debian = release(wanted) if not isinstance(wanted, Tool) else None
    programs = go_tool(wanted) if isinstance(wanted, Tool) else None
    with ContainerdEngine(folder / "engine", of_debian, programs) as engine:
        engine.folder.mkdir(mode=0o700)
        made.specify(engine.folder / "cdi")
        engine.config.write_text(made.CONTAINERD.replace("@FOLDER@", str(engine.folder)))
        engine.start()
        yield engine


@pytest.fixture
def crio(folder: Path, go_tool: Callable[[Tool], Path]) -> Iterator[CrioEngine]:
    with CrioEngine(folder / "engine", go_tool(go_tools.CRIO), nri=True) as engine:
        engine.folder.mkdir(mode=0o700)
        made.specify(engine.folder / "cdi")
        engine.config.write_text(made.CRIO.replace("@FOLDER@", str(engine.folder)))
        engine.start()
        yield engine


@pytest.fixture
def pods(request: pytest.FixtureRequest, cgroup: str) -> Iterator[PodContainers]:
    engine = request.getfixturevalue("crio" if "crio" in request.fixturenames else "containerd")
    with PodContainers(engine, cgroup) as containers:
        yield containers
        containers.clear()
