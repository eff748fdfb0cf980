"""What the tests of the command line share."""

from __future__ import annotations

import sys

import pytest

import toolkit_installer
from tests.unit.cli.fake_actions import Actions


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> Actions:
    fake = Actions()
    monkeypatch.setitem(sys.modules, "toolkit_installer.cli.actions", fake)
    monkeypatch.setattr(toolkit_installer.cli, "actions", fake, raising=False)
    return fake
