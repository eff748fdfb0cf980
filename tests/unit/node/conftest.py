"""What tests of the node's own modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.noted_calls import Calls
from toolkit_installer.node.files import Files
from toolkit_installer.node.root import Root


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def files(tmp_path: Path, calls: Calls) -> Files:
    """The files of a node whose /etc is empty (etc_folder.py)."""
    (tmp_path / "etc").mkdir()
    return Files(Root(str(tmp_path)), calls)
