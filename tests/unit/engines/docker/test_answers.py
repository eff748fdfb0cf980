"""Whatever types the fields of dockerd's answer have: what is not of the API's type counts as not given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines.docker import client
from toolkit_installer.engines.docker.config import DockerLiveState
from toolkit_installer.engines.docker.engine import Docker
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node

FIELDS = ("CDISpecDirs", "ContainersRunning", "DefaultRuntime", "LiveRestoreEnabled", "OperatingSystem", "Runtimes")
VALUES: tuple[Any, ...] = (None, True, -1, 1.5, "text", [], [[]], [1], {}, {"nvidia": "text"}, {"nvidia": {"path": 1}})


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("field", [*FIELDS, "SecurityOptions", "ServerVersion"])
def test_a_field_of_another_type_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    monkeypatch.setattr(client, "query_info", lambda *_: {field: value})
    monkeypatch.setattr(sockets, "find_responding_process", lambda *_: None)
    live = Docker().ask(Node(str(tmp_path)), "/run/docker.sock", 1)
    assert isinstance(live, DockerLiveState)
    assert all(path is None or isinstance(path, str) for path in live.handlers.values())
    assert live.default is None or isinstance(live.default, str)
    assert all(isinstance(folder, str) for folder in live.cdi_folders or ())
