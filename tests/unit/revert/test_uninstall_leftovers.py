"""What an installer left is looked for where an engine usually has its files, if nothing says where it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines import registry
from toolkit_installer.engines.api import get_adapter
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.revert import uninstall
from toolkit_installer.settings import EngineName, EngineSettings, Settings


@pytest.mark.parametrize("name", registry.names())
def test_an_engine_of_an_unknown_distribution_is_cleaned_up_by_the_given_settings(
    name: EngineName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise ConfigurationError("two distributions run here")

    monkeypatch.setattr(decide, "locate_engines", refuse)
    asked = EngineSettings(socket="/run/asked.sock")
    settings = Settings(engine_of=((name, asked),))
    target = uninstall._find_target(Node.open(str(tmp_path), "/host"), settings, get_adapter(name))
    assert target == EngineTarget(name, asked)
