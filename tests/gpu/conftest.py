"""Fixtures of the tests for a machine with a GPU. What such a machine has to have fails the test if it is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.program import Installer, missing_programs
from tests.gpu import kit
from tests.support.built.go_tools import GoToolError
from tests.support.engines import cgroups
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/nvidiactl")


@pytest.fixture
def nvidia_smi() -> Path:
    """Return the machine's own nvidia-smi."""
    if os.geteuid() != 0:
        pytest.fail("an engine is started as root: run this as root", pytrace=False)
    found = shutil.which("nvidia-smi", path=PATH)
    if found is None or not CONTROL.exists():
        pytest.fail(f"no GPU with a driver here: nvidia-smi is at {found}, {CONTROL} is missing", pytrace=False)
    return Path(found)


@pytest.fixture
def programs() -> Path:
    """Return the folder of the programs that are brought along."""
    try:
        return kit.gather()
    except GoToolError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty folder with a short name: a socket's path has 107 bytes at most."""
    return tmp_path_factory.mktemp("g")


@pytest.fixture
def installer(folder: Path) -> Iterator[Installer]:
    """Yield the means to run the installed programs; what is left running is killed."""
    if missing := missing_programs():
        pytest.fail(f"not installed: {', '.join(missing)} (make .venv/installed)", pytrace=False)
    logs = folder / "logs"
    logs.mkdir()
    installer = Installer(logs)
    yield installer
    installer.close()


@pytest.fixture
def cgroup() -> Iterator[str]:
    """Yield a control group for the containers; it goes at the end, and with it what a failed test left running."""
    with cgroups.group() as group:
        yield group
