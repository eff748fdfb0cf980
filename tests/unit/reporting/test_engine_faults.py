"""What is wrong with an engine beside its answer: the low-level runtime that is gone, and what of ours is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit_installer.engines.api import LiveState
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import Root
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OwnedKey
from toolkit_installer.reporting import engine_faults
from toolkit_installer.settings import EngineName

DAEMON_JSON = "/etc/docker/daemon.json"
KEYS = (
    OwnedKey(("runtimes", "nvidia"), '{"value": {"path": "/t/nvidia-container-runtime"}}', None),
    OwnedKey(("default-runtime",), '{"value": "nvidia"}', None),
)


@pytest.fixture
def engine_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return what an engine's process has for its `/`; its PATH has two folders."""
    monkeypatch.setattr(processes, "root_of", lambda _: Root(str(tmp_path)))
    monkeypatch.setattr(processes, "environment", lambda _: {"PATH": "/opt/bin:/usr/bin:relative"})
    monkeypatch.setattr("toolkit_installer.engines.docker.engine.Docker.find_faults", lambda *_, **__: ())
    (tmp_path / "usr/bin").mkdir(parents=True)
    return tmp_path


def missing(low_level: str) -> list[str]:
    engine = EngineRecord(EngineName.DOCKER, "/run/docker.sock", None, (), None, (), (low_level, "other"))
    process = Process(os.getpid(), "dockerd", "/usr/bin/dockerd", (), 0.0, None)
    live = LiveState("28.5", {"runc": "runc"}, "runc", process)
    return [fault.what for fault in engine_faults.find_faults(Node("/"), engine, live, ()) if fault.stops]


def test_a_runtime_is_looked_for_in_the_path_of_the_engine(engine_root: Path) -> None:
    assert missing("runc") == [
        "its low-level runtime runc is in none of the folders of its PATH: no container starts",
    ]
    (engine_root / "usr/bin/runc").touch()
    assert missing("runc") == []


def test_a_runtime_with_a_path_is_looked_for_there_alone(engine_root: Path) -> None:
    (engine_root / "usr/bin/crun").touch()
    assert missing("/usr/bin/crun") == []
    assert missing("/usr/sbin/crun") == ["its low-level runtime /usr/sbin/crun is not there: no container starts"]
    (engine_root / "usr/bin/link").symlink_to("/usr/sbin/crun")
    assert missing("/usr/bin/link") == ["its low-level runtime /usr/bin/link is not there: no container starts"]


def test_nothing_is_said_where_the_path_of_the_engine_is_hidden(
    engine_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine_root.exists()
    monkeypatch.setattr(processes, "environment", lambda _: {})
    assert missing("runc") == []


@pytest.mark.parametrize(
    "text, lost",
    [
        ('{"runtimes": {"nvidia": {"path": "/t/nvidia-container-runtime"}}, "default-runtime": "nvidia"}', ()),
        ('{"default-runtime": "nvidia"}', ("the handler nvidia is gone",)),
        (
            '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "default-runtime": "runc"}',
            ("the handler nvidia was changed", "the default runtime is no longer nvidia"),
        ),
        ("{}", ("the handler nvidia is gone", "the default runtime is no longer nvidia")),
        ("{", ()),
    ],
)
def test_what_of_ours_is_gone_from_a_file_is_named(tmp_path: Path, text: str, lost: tuple[str, ...]) -> None:
    file = FileRecord("daemon.json", DAEMON_JSON, None, (), KEYS)
    engine = EngineRecord(EngineName.DOCKER, "/run/docker.sock", None, (("nvidia", "/t/n"),), "nvidia", (file,))
    place = tmp_path / DAEMON_JSON.lstrip("/")
    place.parent.mkdir(parents=True)
    assert engine_faults.describe_lost_values(Node(str(tmp_path)), engine, file, ["nvidia"]) == ()
    place.write_text(text)
    assert engine_faults.describe_lost_values(Node(str(tmp_path)), engine, file, ["nvidia"]) == lost
