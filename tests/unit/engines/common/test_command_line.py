"""What a running engine reads by its command line, and where it looks for runtimes that are named without a path."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.started import wait_until_it_shows
from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.common import command_line, serving
from toolkit_installer.engines.containerd import config_files
from toolkit_installer.engines.crio import places as crio_places
from toolkit_installer.engines.crio.places import CrioLiveState
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import NodeError
from toolkit_installer.settings import EngineName, EngineSettings

FLAG = "--config-file"
WORDS = st.text("abc/.", min_size=1)
PLAYER = """
import os, sys
os.chroot(sys.argv[1])
os.chdir(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def player(root: str, folder: str, *arguments: str) -> Iterator[Process]:
    """Play a process with that root and working folder."""
    script = PLAYER if root != "/" else PLAYER.replace("os.chroot(sys.argv[1])\n", "")
    command = [sys.executable, "-I", "-c", script, root, folder, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"ready\n"
            seen = processes.inspect_process(started.pid)
            assert seen is not None
            yield seen
        finally:
            started.kill()


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4))
def test_of_a_flag_that_is_given_several_times_the_last_one_counts(values: list[str], joined: list[bool]) -> None:
    words = [[f"{FLAG}={value}"] if equals else [FLAG, value] for value, equals in zip(values, joined, strict=False)]
    assert (
        command_line.last_flag_value(["dockerd", *(word for each in words for word in each), "--debug"], FLAG)
        == values[len(words) - 1]
    )


@pytest.mark.parametrize("arguments", [[], ["dockerd"], ["dockerd", "--debug"], ["dockerd", FLAG], ["dockerd", "-c"]])
def test_a_flag_that_is_not_given_tells_nothing(arguments: list[str]) -> None:
    assert command_line.last_flag_value(arguments, FLAG) is None


def test_a_relative_path_is_relative_to_the_daemons_own_folder_and_not_to_ours(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with player("/", str(tmp_path), FLAG, "etc/daemon.json") as process:
        assert command_line.path(process, FLAG) == f"{tmp_path}/etc/daemon.json"
        assert command_line.place(process, "../daemon.json") == f"{tmp_path}/../daemon.json"
        assert command_line.path(process, "--other") is None
    assert Path.cwd() != tmp_path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot")
def test_below_another_root_a_relative_path_is_the_daemons_own(tmp_path: Path) -> None:
    (tmp_path / "srv" / "docker").mkdir(parents=True)
    (tmp_path / "srv" / "docker" / "daemon.json").write_text("{}")
    with player(str(tmp_path), "/srv/docker", FLAG, "daemon.json") as process:
        assert command_line.path(process, FLAG) == "/srv/docker/daemon.json"
        assert processes.read_as(process, str(command_line.path(process, FLAG))) == b"{}"


def test_a_daemon_whose_folder_is_gone_is_not_taken_to_read_from_another_one(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with player("/", str(gone), FLAG, "daemon.json") as process:
        gone.rmdir()
        with pytest.raises(NodeError, match="its working folder cannot be told") as caught:
            command_line.path(process, FLAG)
        assert caught.value.path == "daemon.json"
        assert command_line.place(process, "/etc/docker/daemon.json") == "/etc/docker/daemon.json"


@pytest.mark.parametrize("words", [["--config", "c.toml"], ["-c", "c.toml"], ["--config=c.toml"], ["-config=c.toml"]])
def test_a_containerds_relative_file_is_the_one_in_its_own_folder(tmp_path: Path, words: list[str]) -> None:
    socket = tmp_path / "x.sock"
    (tmp_path / "c.toml").write_text(f'[grpc]\naddress = "{socket}"\n')
    with player("/", str(tmp_path), *words) as process:
        assert config_files.find_config(process) == f"{tmp_path}/c.toml"
        assert serving._read_configured_sockets(process) == [str(socket)]


def test_a_crios_relative_files_are_those_in_its_own_folder(tmp_path: Path) -> None:
    with player("/", str(tmp_path), "--config", "crio.conf") as process:
        live = CrioLiveState("1.34.0", {}, None, process, variables={"CONTAINER_CONFIG_DIR": "crio.d"})
        places = crio_places.locate_files(Node("/", whole=False), EngineTarget(EngineName.CRIO), live)
        assert (places.config, places.folder) == (f"{tmp_path}/crio.conf", f"{tmp_path}/crio.d")


@pytest.fixture
def me() -> Process:
    seen = processes.inspect_process(os.getpid())
    assert seen is not None
    return seen


HERE = Node("/", whole=False)


@pytest.mark.parametrize("made", [True, False], ids=["a file", "no file yet"])
@pytest.mark.parametrize("folder", [True, False], ids=["a folder", "no folder yet"])
def test_a_file_is_the_daemons_own_by_whatever_name_its_folder_is_seen(
    tmp_path: Path, me: Process, *, made: bool, folder: bool
) -> None:
    etc = tmp_path / "etc"
    if made or folder:
        (etc / "docker").mkdir(parents=True)
    etc.mkdir(exist_ok=True)
    if made:
        (etc / "docker" / "daemon.json").touch()
    (tmp_path / "mounted").symlink_to(etc)
    theirs = f"{etc}/docker/daemon.json"
    assert command_line.is_same_file(HERE, me, theirs, f"{tmp_path}/mounted/docker/daemon.json") is True
    assert command_line.is_same_file(HERE, me, theirs, theirs) is True
    for other in ("docker/deamon.json", "dokcer/daemon.json", "daemon.json", ""):
        assert command_line.is_same_file(HERE, me, theirs, f"{tmp_path}/mounted/{other}") is False, other


def test_a_single_file_that_is_mounted_is_the_daemons_own_under_any_name(tmp_path: Path, me: Process) -> None:
    theirs, ours = tmp_path / "daemon.json", tmp_path / "runtime-config"
    theirs.write_text("{}")
    os.link(theirs, ours)  # one file with two names, as a mount of it is
    assert command_line.is_same_file(HERE, me, str(theirs), str(ours)) is True
    ours.unlink()
    ours.write_text("{}")
    assert command_line.is_same_file(HERE, me, str(theirs), str(ours)) is False


def test_a_daemon_that_is_gone_or_lives_on_another_node_says_nothing(tmp_path: Path, me: Process) -> None:
    gone = Process(2**22 + 1, "dockerd", "/usr/bin/dockerd", (), 1.0, None)
    assert command_line.is_same_file(HERE, gone, "/etc/docker/daemon.json", "/etc/docker/deamon.json") is None
    assert (
        command_line.is_same_file(Node(str(tmp_path)), me, "/etc/docker/daemon.json", "/etc/docker/deamon.json") is None
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_daemon_that_may_not_be_looked_at_says_nothing(me: Process) -> None:
    child = os.fork()
    if child == 0:  # another user, who may not look through /proc/PID/root
        os.setresuid(65534, 65534, 65534)
        os._exit(
            0
            if command_line.is_same_file(HERE, me, "/etc/docker/daemon.json", "/etc/docker/deamon.json") is None
            else 1
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_root_file_that_crio_ignores_and_whose_folder_has_no_effect_is_detected(tmp_path: Path, me: Process) -> None:
    for name in ("etc/crio.conf.d", "typo"):
        (tmp_path / name).mkdir(parents=True)
    arguments = ("crio", "--config", f"{tmp_path}/etc/crio.conf", "--config-dir", f"{tmp_path}/etc/crio.conf.d")
    live = LiveState("1.34.0", {}, None, Process(me.pid, "crio", me.executable, arguments, me.started, None))

    def elsewhere(**named: str) -> str:
        target = EngineTarget(EngineName.CRIO, EngineSettings(**named))  # type: ignore[arg-type]
        return crio_places.locate_files(HERE, target, live).elsewhere

    assert elsewhere() == elsewhere(config=f"{tmp_path}/etc/crio.conf") == ""
    # nothing is written to the root file: what lies beside it is what counts
    assert elsewhere(config=f"{tmp_path}/etc/config.toml") == ""
    assert elsewhere(config=f"{tmp_path}/typo/crio.conf", drop_in=f"{tmp_path}/etc/crio.conf.d/9.conf") == ""
    assert elsewhere(config=f"{tmp_path}/typo/crio.conf") == f"{tmp_path}/etc/crio.conf"


FOLDER = "/usr/local/nvidia/toolkit"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("runc", "youki"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(0o755)
    return tmp_path


def test_the_engines_own_search_path_counts(place: Path) -> None:
    # as a distribution starts its engine, which brings a runc along
    with subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"relative:{place}/none:{place}/bin:/usr/bin"}) as engine:
        try:
            wait_until_it_shows(engine.pid, "sleep")
            process = processes.inspect_process(engine.pid)
            assert process is not None
            found = command_line.locate_low_level_runtimes(Node("/"), ("youki", "/opt/own", "gone"), FOLDER, process)
        finally:
            engine.kill()
    assert found[:4] == (f"{place}/bin/youki", "/opt/own", "gone", f"{place}/bin/runc")


def test_without_a_process_the_nodes_usual_folders_count(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "sbin" / "runc"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert command_line.locate_low_level_runtimes(Node(str(tmp_path)), (), FOLDER, None) == ("/usr/sbin/runc",)


def test_a_process_that_is_gone_is_no_error(tmp_path: Path) -> None:
    gone = processes.Process(2**22 + 1, "dockerd", "/usr/bin/dockerd", (), 1.0, None)
    assert not os.path.exists(f"/proc/{gone.pid}")
    assert command_line.locate_low_level_runtimes(Node(str(tmp_path)), ("own",), FOLDER, gone) == ("own",)
