"""What tests of the node's own modules share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.noted_calls import Calls
from toolkit_installer.node import signals
from toolkit_installer.node.files import Files
from toolkit_installer.node.root import Root


@pytest.fixture
def blocked() -> Iterator[None]:
    """Hold the signals back that the program handles, as it does by itself; none is left pending."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    yield
    while signals.take_signal() is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def files(tmp_path: Path, calls: Calls) -> Files:
    """The files of a node whose /etc is empty (etc_folder.py)."""
    (tmp_path / "etc").mkdir()
    return Files(Root(str(tmp_path)), calls)
