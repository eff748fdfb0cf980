"""Where CRI-O's files are, and whether the running CRI-O reads what is written there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.support.crio_reading import read
from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.crio import engine as crio
from toolkit_installer.engines.crio import places as crio_places
from toolkit_installer.engines.crio.places import CONFIG, DROP_INS, CrioLiveState, CrioPaths, read_flag
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, EngineSettings


def live(*arguments: str) -> LiveState:
    """Return a running CRI-O that was started with these, and sees the files that the test sees."""
    me = processes.inspect_process(os.getpid())
    assert me is not None
    return LiveState("1.37.0", {}, None, msgspec.structs.replace(me, name="crio", arguments=("crio", *arguments)))


def found(running: LiveState | None = None, node: Node | None = None, /, **settings: str) -> CrioPaths:
    target = EngineTarget(EngineName.CRIO, EngineSettings(**settings))  # type: ignore[arg-type]
    return crio_places.locate_files(node or Node("/", whole=False), target, running)


@pytest.mark.parametrize(
    "settings, places",
    [
        ({}, (CONFIG, DROP_INS, f"{DROP_INS}/99-nvidia.toml")),
        ({"config": "/a/crio.conf"}, ("/a/crio.conf", "/a/crio.conf.d", "/a/crio.conf.d/99-nvidia.toml")),
        ({"drop_in": "/b/9.conf"}, (CONFIG, "/b", "/b/9.conf")),
        ({"config": "/a/crio.conf", "drop_in": "/b/9.conf"}, ("/a/crio.conf", "/b", "/b/9.conf")),
        # below the folder that CRI-O reads, all that it reads counts, not only what lies beside ours
        ({"drop_in": f"{DROP_INS}/gpu/9.conf"}, (CONFIG, DROP_INS, f"{DROP_INS}/gpu/9.conf")),
        # callers of the time before --drop-in-config name the drop-in with --config
        ({"config": f"{DROP_INS}/99-nvidia.conf"}, (CONFIG, DROP_INS, f"{DROP_INS}/99-nvidia.conf")),
        ({"config": "/a/c.d/9.conf", "drop_in": "/b/9.conf"}, ("/a/c.d/9.conf", "/b", "/b/9.conf")),
    ],
)
def test_files_are_where_they_are_asked_for_and_usually_are(
    settings: dict[str, str], places: tuple[str, str, str]
) -> None:
    assert found(**settings) == CrioPaths(*places)


def test_a_running_crio_says_where_its_files_are() -> None:
    running = live("--config", "/c/crio.conf", "--config-dir=/c/d")
    assert found(running) == CrioPaths("/c/crio.conf", "/c/d", "/c/d/99-nvidia.toml")


def test_variables_stand_in_for_flags_that_are_not_given() -> None:
    variables = {"CONTAINER_CONFIG": "/v/crio.conf", "CONTAINER_CONFIG_DIR": "/v/d"}
    running = CrioLiveState("1.37.0", {}, None, live("-d", "/first", "-d", "/c/d").process, variables=variables)
    assert found(running) == CrioPaths("/v/crio.conf", "/c/d", "/c/d/99-nvidia.toml")
    assert read_flag(running, "--default-runtime") is None
    running = CrioLiveState("1.37.0", {}, None, live("--hooks-dir", "/a", "--hooks-dir=/b").process)
    assert read_flag(running, "--hooks-dir") == "/a,/b"


def test_the_folder_beside_the_root_file_is_used_if_it_is_the_one_that_crio_reads(tmp_path: Path) -> None:
    real, mounted = tmp_path / "etc", tmp_path / "mounted"
    (real / "crio.conf.d").mkdir(parents=True)
    mounted.symlink_to(real)
    running = live("--config-dir", f"{real}/crio.conf.d")
    assert found(running, config=f"{mounted}/crio.conf").drop_in == f"{mounted}/crio.conf.d/99-nvidia.toml"
    running = live("--config-dir", f"{real}/other.d")
    assert found(running, config=f"{mounted}/crio.conf").drop_in == f"{real}/other.d/99-nvidia.toml"


def test_where_the_named_root_file_is_not_there_crios_own_in_the_same_folder_is_read(tmp_path: Path) -> None:
    named, own = tmp_path / "config.toml", tmp_path / "crio.conf"
    assert found(config=str(named)).config == str(named)
    own.touch()
    assert found(config=str(named)).config == str(own)
    assert found(config=str(named)).folder == f"{tmp_path}/crio.conf.d"
    assert found(live("--config", "/etc/crio/other.conf"), config=str(named)).config == str(named)
    named.touch()
    assert found(config=str(named)).config == str(named)


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "not mounted"])
@pytest.mark.parametrize("below", [True, False], ids=["below the root", "nowhere"])
def test_a_socket_that_is_not_mounted_is_found_below_the_nodes_root(
    tmp_path: Path, *, mounted: bool, below: bool
) -> None:
    here, host = tmp_path / "here", tmp_path / "host"
    for root, there in ((here, mounted), (host, below)):
        root.mkdir()
        if there:
            (root / "run/crio").mkdir(parents=True)
            (root / "run/crio/crio.sock").touch()
            (root / "var").mkdir()
            (root / "var/run").symlink_to("/run")
    socket = crio.usual_socket(Node(str(here), str(host), whole=False))
    assert socket == (str(host / "run/crio/crio.sock") if below and not mounted else crio.SOCKET)
    assert crio.usual_socket(Node(str(host))) == crio.SOCKET


@pytest.mark.parametrize("made", [True, False], ids=["a folder", "no folder yet"])
def test_a_drop_in_that_crio_does_not_read_is_known(tmp_path: Path, *, made: bool) -> None:
    read, other = tmp_path / "crio.conf.d", tmp_path / "conf.d"
    if made:
        (read / "inner").mkdir(parents=True)
        other.mkdir()
    running = live("--config-dir", str(read))
    for good in (read, read / "inner"):
        assert found(running, drop_in=f"{good}/9.toml").unread == ""
    for bad in (other, tmp_path, other / "inner"):
        unread = found(running, drop_in=f"{bad}/9.toml").unread
        assert str(read) in unread


def test_beneath_a_node_root_that_is_not_crios_nothing_is_said_of_what_it_reads(tmp_path: Path) -> None:
    assert found(live("--config-dir", "/c"), Node(str(tmp_path)), drop_in="/d/9.toml").unread == ""


NAMES = ["10-b", "10-B", "9", ".hidden", "10-b.d/z", "10-b.d/.a", "10-b.d/m/x", "10-b.dx", "10-b-", "ü.toml", "~"]


def test_files_come_in_the_order_in_which_crio_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "etc/crio/crio.conf.d"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "link").symlink_to("10-b")
    (folder / "empty").mkdir()
    found = crio_places.list_drop_ins(Node(str(tmp_path)).files, "/etc/crio/crio.conf.d")
    assert [f"{tmp_path}{path}" for path in found] == read(tmp_path / "none", folder).files
    assert len(found) == len(NAMES) + 1
    assert sorted(found, key=lambda path: crio_places.build_sort_key(path, "/etc/crio/crio.conf.d")) == found


def test_what_a_killed_run_left_is_not_taken_for_somebodys(tmp_path: Path) -> None:
    for name in (".99-nvidia.toml.toolkit-installer.tmp", ".99-nvidia.toml.toolkit-installer.swap"):
        (tmp_path / name).touch()
    kept = tmp_path / "99-nvidia.toml.toolkit-installer.kept"
    kept.touch()
    assert crio_places.list_drop_ins(Node(str(tmp_path)).files, "/") == [f"/{kept.name}"]


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert crio_places.list_drop_ins(Node(str(tmp_path)).files, "/etc/crio/crio.conf.d") == []
