"""docker's adapter: what becomes of the whole daemon.json, and what is made of dockerd's answer and process."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import ABSENT, Set, is_same, lookup
from toolkit_installer.engines.api import DesiredState, EngineFile, Inspection, RecordedFile, Reload
from toolkit_installer.engines.docker import client
from toolkit_installer.engines.docker import config as docker_config
from toolkit_installer.engines.docker.config import DockerLiveState
from toolkit_installer.engines.docker.engine import CONFIG, ROLE, Docker
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

FOLDER = "/usr/local/nvidia/toolkit"


HANDLERS = tuple(
    Handler(name, f"{FOLDER}/nvidia-container-runtime{end}")
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)


TEXTS = st.text('abn"\\é ', max_size=5)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def with_us(base: bytes, default: str | None = "nvidia") -> tuple[bytes, Ownership]:
    return docker_config.add_handlers(base, HANDLERS, default)


def file(content: bytes | None) -> EngineFile:
    found = (
        None if content is None else Found("/etc/d.json", content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    )
    return EngineFile("daemon.json", "/etc/d.json", found)


def base_of(content: bytes | None, remembered: RecordedFile) -> bytes | None:
    return Docker().remove_ours(file(content), remembered, FOLDER).base


def test_an_untouched_file_gives_the_very_bytes_back() -> None:
    before = b'{ "log-driver":"x"  }'
    text, ownership = with_us(before)
    assert base_of(text, RecordedFile(before, frozenset({digest_of(text)}), ownership)) == before


def test_a_file_made_for_us_goes_again_unless_somebody_put_something_in() -> None:
    text, ownership = with_us(b"")
    remembered = RecordedFile(None, frozenset({digest_of(text)}), ownership)
    assert base_of(text, remembered) is None
    assert base_of(text + b"\n", remembered) is None
    edited = json_document.edit(text, [Set(("debug",), value=True)])
    assert json_document.parse(base_of(edited, remembered) or b"") == {"debug": True}


def test_a_file_that_the_operator_removed_meanwhile_is_not_brought_back() -> None:
    assert base_of(None, RecordedFile(b"{}", frozenset({digest_of(b"x")}), Ownership())) is None


def test_an_empty_file_of_the_operators_stays_an_empty_file() -> None:
    assert base_of(b"", RecordedFile()) == b""


def test_what_should_be_served_is_what_was_registered() -> None:
    goals = Docker().build_desired_state(
        Inspection("/s", (file(None),), None), Request(EngineTarget(EngineName.DOCKER), HANDLERS, "nvidia", FOLDER), {}
    )
    assert goals.served == {handler.name: handler.executable for handler in HANDLERS}
    assert goals.default == "nvidia"
    (goal,) = goals.files
    assert (goal.base, json_document.parse(goal.target or b"")["default-runtime"]) == (None, "nvidia")
    assert (
        Docker()
        .build_desired_state(
            Inspection("/s", (file(b"{}"),), None), Request(EngineTarget(EngineName.DOCKER), HANDLERS, None, FOLDER), {}
        )
        .default
        is None
    )


@settings(max_examples=60)
@given(VALUES)
def test_values_survive_being_written_down(value: Any) -> None:
    docker = Docker()
    assert is_same(docker.read_value(docker.write_value(value)), value)
    assert lookup(json_document.parse(docker.write_value(value).encode()), ("value",)) is not ABSENT


FIELDS = ("CDISpecDirs", "ContainersRunning", "DefaultRuntime", "LiveRestoreEnabled", "OperatingSystem", "Runtimes")


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 1.5, "text", [], [[]], [1], {}, {"nvidia": "text"}, {"nvidia": {"path": 1}}],
    ids=str,
)
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


# --- what a run asks for ---


def desired(content: bytes | None, live: DockerLiveState | None = None, **asked: Any) -> DesiredState:
    target = EngineTarget(EngineName.DOCKER, EngineSettings(**asked))
    request = Request(target, HANDLERS, None, FOLDER)
    return Docker().build_desired_state(Inspection("/s", (file(content),), live), request, {})


def test_a_source_of_settings_that_docker_has_not_is_spoken_of() -> None:
    assert desired(b"{}", config_sources=("file",)).notes == ()
    (note,) = desired(b"{}", config_sources=("command", "file")).notes
    assert note.startswith("--config-source command: not for docker")


@pytest.mark.parametrize("version, warned", [("20.10.7", True), ("28.0.1", False)])
def test_a_dockerd_that_a_signal_of_somebody_elses_would_end_is_warned_of(version: str, *, warned: bool) -> None:
    notes = desired(b'{"default-runtime": "io.containerd.runc.v2"}', DockerLiveState(version, {}, "runc")).notes
    assert any("dies of a SIGHUP" in note for note in notes) is warned


def test_an_edit_that_dockerd_would_not_start_with_is_refused_with_its_file() -> None:
    with pytest.raises(ConfigurationError) as refused:
        desired(b'{"default-runtime": "gone"}')
    assert refused.value.path == "/etc/d.json"


def test_a_restart_needs_the_users_consent_and_a_signal_does_not() -> None:
    node: Any = SimpleNamespace(services=SimpleNamespace(knows=lambda unit: unit == "docker.service"))

    def choose(mode: ReloadMode | None, *, consent: bool) -> Reload:
        settings = EngineSettings(reload_mode=mode, allow_restart=consent)
        return Docker().choose_reload(node, Inspection("/s", (file(b"{}"),), dockerd()), settings)

    assert choose(None, consent=False).mode is ReloadMode.SIGNAL
    assert choose(ReloadMode.SYSTEMD, consent=True) == Reload(ReloadMode.SYSTEMD, "docker.service", restarts=True)
    with pytest.raises(ConfigurationError, match="--allow-restart"):
        choose(ReloadMode.SYSTEMD, consent=False)


@pytest.mark.parametrize(
    "content, signalled_on",
    [
        (None, {"runtimes": {}, "default-runtime": "runc"}),
        (b'{"debug": true}', {"debug": True, "runtimes": {}, "default-runtime": "runc"}),
        (b'{"runtimes": {}, "default-runtime": "runc"}', None),
    ],
    ids=["no file", "neither key", "both"],
)
def test_docker_is_signalled_on_both_keys_whatever_stays_there(
    content: bytes | None, signalled_on: dict[str, Any] | None
) -> None:
    text = Docker().build_transitional_content(content)
    assert (None if text is None else json_document.parse(text)) == signalled_on


# --- the live dockerd ---


def dockerd(*flags: str, name: str = "dockerd") -> DockerLiveState:
    """Return the answer of a dockerd, which is this process, started with `flags`."""
    process = Process(os.getpid(), name, f"/usr/bin/{name}", (f"/usr/bin/{name}", *flags), 0.0, "docker.service")
    return DockerLiveState("28.5.2", {}, "runc", process)


def test_the_file_that_dockerd_reads_in_place_of_ours_is_named(tmp_path: Path) -> None:
    node, ours, theirs = Node("/"), tmp_path / "daemon.json", tmp_path / "other.json"
    for place in (ours, theirs):
        place.write_text("{}")

    def named(live: DockerLiveState, role: str = ROLE) -> str:
        return Docker().find_other_config(node, live, {role: str(ours)})

    assert named(dockerd("--config-file", str(theirs))) == str(theirs)
    assert named(dockerd("--config-file", str(theirs)), "another role") == ""
    assert named(dockerd("--config-file", str(ours))) == ""
    assert named(dockerd()) == CONFIG
    assert named(dockerd("--config-file", str(theirs), name="podman")) == "", "it is no dockerd"
    assert named(DockerLiveState("28.5.2", {}, "runc", None)) == "", "it is not seen"


@pytest.mark.parametrize(
    "content, reason",
    [(None, None), (b"{}", None), (b"{", "JSON"), (b'{"hosts": ["fd://"]}', "hosts")],
    ids=["none", "good", "broken", "a flag too"],
)
def test_a_restart_is_refused_by_the_file_that_dockerd_would_read(
    tmp_path: Path, content: bytes | None, reason: str | None
) -> None:
    place = tmp_path / "daemon.json"
    if content is not None:
        place.write_bytes(content)
    process = dockerd("-H", "unix:///run/x.sock", "--config-file", str(place)).process
    assert process is not None
    said = Docker().find_restart_obstacle(Node(str(tmp_path)), process)
    assert (said is None) if reason is None else (said is not None and reason in said)
    hidden = msgspec.structs.replace(process, hidden=True)
    assert Docker().find_restart_obstacle(Node(str(tmp_path)), hidden) is None


@pytest.mark.parametrize(
    "content, stops", [("{", True), ('{"debug": true, "debug": false}', False), ("{}", None)], ids=repr
)
def test_a_file_that_dockerd_refuses_is_a_fault_unless_it_is_as_we_checked_it(
    tmp_path: Path, content: str, *, stops: bool | None
) -> None:
    node, place = Node(str(tmp_path)), tmp_path / "d.json"
    place.write_text(content)

    def faults(files: dict[str, str], *, as_written: bool = False) -> list[tuple[str, bool]]:
        found = Docker().find_faults(node, "/s", None, files, as_written=as_written)
        return [(fault.path, fault.stops) for fault in found]

    assert faults({ROLE: "/d.json"}) == ([] if stops is None else [("/d.json", stops)])
    assert faults({ROLE: "/d.json"}, as_written=True) == []
    assert faults({}) == []
    place.unlink()
    place.mkdir()
    assert faults({ROLE: "/d.json"}) == [], "the status of the file itself says that"


def test_a_file_of_docker_is_one_with_its_role_and_ending() -> None:
    docker = Docker()
    assert docker.allows_name(ROLE, "daemon.json")
    assert docker.allows_name(ROLE, "daemon.json.backup")
    assert not docker.allows_name(ROLE, "shadow")
    assert not docker.allows_name("config.toml", "daemon.json")
