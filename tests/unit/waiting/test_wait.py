"""What the idle process is told, and what the installer is told once it is woken."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import os
import posix
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.node import idling, signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.waiting import wait

STATE = {"driver": [["/a\nb", "1 2 3"]], "tries": 2, "failure": "an odd name: \udcff"}
COMMAND = ["/usr/bin/python3", "-I", "/usr/local/bin/nvidia-toolkit", "run", "--no-daemon=false"]


class Replaced(Exception):  # noqa: N818  # it stands for an exec, which is no error
    """The program was replaced; the words of the new one."""


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fields]:
    def execute(_path: str, words: list[str]) -> None:
        raise Replaced(*words)

    monkeypatch.setattr(os, "execv", execute)
    pid_file = PidFile.acquire(Node.open(str(tmp_path), "/host").files, "/toolkit.pid")
    yield Fields(pid_file)
    pid_file.release()


class Fields:
    """Has a program become the idle one, and says what that is told."""

    def __init__(self, pid_file: PidFile) -> None:
        self.pid_file = pid_file
        self.fd = -1

    def of(
        self,
        state: Any,
        *,
        watched: tuple[tuple[str, str, str], ...] = (),
        seconds: float | None = None,
    ) -> list[str]:
        with pytest.raises(Replaced) as caught:
            wait.wait(self.pid_file, None, watched, wait.list_own_words(), state, seconds=seconds)
        self.fd = int(caught.value.args[-1])
        return os.pread(self.fd, idling.LIMIT, 0).decode().split("\0")  # what reads it in earnest closes it


def waited(
    seconds: float, later: float | None, watched: list[tuple[str, str, str]], before: Callable[[], object] = bool
) -> str:
    """Return what the idle process woke for, in a fork: its timer's signal would end a process that has threads."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            os.write(theirs, idling.wait(seconds, later, watched).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def test_the_state_and_the_locks_are_there_again(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    fields.of(STATE)
    monkeypatch.setenv(idling.RESUME, f"{fields.fd}:DRIFT,DRIVER")
    woken = wait.read_wake_up()
    assert woken is not None
    assert woken.state == STATE
    assert (woken.pid_fd, woken.pid_path) == (fields.pid_file.fd, fields.pid_file.path)
    assert woken.events == {idling.DRIFT, idling.DRIVER}
    assert wait.read_wake_up() is None


@pytest.mark.parametrize(
    "soon, pauses",
    [(False, [30, 60, 120, 240, 480, 600, 600, 600, 600]), (True, [2, 4, 8, 16, 32, 64, 120, 120, 120])],
    ids=["configured", "not configured yet"],
)
def test_what_is_not_known_is_looked_for_less_and_less_often_but_never_given_up(
    soon: bool,  # noqa: FBT001
    pauses: list[float],
) -> None:
    tries = (*range(8), 5000)
    assert wait.seconds_to_wake_up(later=True, tries=-7, soon=soon, within=None) == pauses[0]
    assert [wait.seconds_to_wake_up(later=True, tries=each, soon=soon, within=None) for each in tries] == pauses


@pytest.mark.parametrize(
    "later, within, seconds",
    [(False, 7.5, 7.5), (False, 90_000.0, 600.0), (True, 7.5, 7.5), (True, 90_000.0, 30.0), (False, None, None)],
)
def test_a_time_of_the_clock_is_slept_until_but_not_without_a_look_at_the_clock(
    later: bool,  # noqa: FBT001
    within: float | None,
    seconds: float | None,
) -> None:
    assert wait.seconds_to_wake_up(later=later, tries=0, soon=False, within=within) == seconds


@pytest.mark.parametrize("seconds", [None, 7.5])
def test_the_idle_process_is_told_when_to_wake_the_run(fields: Fields, seconds: float | None) -> None:
    told = idling.IdleState(fields.of(STATE, watched=((idling.DRIFT, "/etc/a", "1"),), seconds=seconds))
    assert told.watched == [(idling.DRIFT, "/etc/a", "1")]
    assert told.later == seconds


def test_all_that_changed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    same = idling.identity(str(file))
    watched = [
        (idling.ENGINE, str(file), same),
        (idling.DRIVER, str(file), "another"),
        (idling.DRIFT, "/absent", "there"),
        (idling.DRIFT, str(file), "another"),
    ]
    assert waited(0.01, None, watched) == "DRIFT,DRIVER"


@pytest.mark.parametrize("seconds", [0.01, 1000.0])
@pytest.mark.parametrize("files", [0, 1])
def test_it_is_woken_in_time_whether_it_looks_at_files_or_not(seconds: float, files: int) -> None:
    unchanged = [(idling.DRIFT, "/absent", idling.identity("/absent"))] * files
    assert waited(seconds, 0.05, unchanged) == idling.LATER


def told_by_a_child() -> None:
    os.kill(os.getpid(), signal.SIGCHLD)


def held_back() -> None:
    signals.block_child_signal()
    told_by_a_child()


@pytest.mark.parametrize("seconds", [0.05, None])
def test_a_childs_message_wakes_a_run_that_blocks_it_and_no_change_is_forgotten(
    seconds: float | None,
) -> None:
    assert waited(1000.0, seconds, [], held_back) == idling.CHILD
    changed = [(idling.DRIVER, "/absent", "there")]
    assert waited(1000.0, seconds, changed, held_back) == f"{idling.CHILD},{idling.DRIVER}"


def test_what_a_child_tells_wakes_nobody_where_it_is_not_held_back() -> None:
    assert waited(1000.0, 0.05, [], told_by_a_child) == idling.LATER


def test_what_a_child_told_before_is_used_up() -> None:
    def late() -> None:
        held_back()
        signals.block_child_signal()

    assert waited(1000.0, 0.05, [], late) == idling.LATER


def test_a_program_that_was_woken_holds_nothing_back(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    fields.of(STATE)
    monkeypatch.setenv(idling.RESUME, f"{fields.fd}:CHILD")
    signals.block_child_signal()
    assert wait.read_wake_up() is not None
    assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


# --- what another release wrote, and what nobody wrote ---


@contextlib.contextmanager
def woken_by(content: bytes, events: str = "SIGTERM") -> Iterator[None]:
    """Have the environment say that a process with this state was woken."""
    fd = os.memfd_create("toolkit-installer-state", 0)
    try:
        os.write(fd, content)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(idling.RESUME, f"{fd}:{events}")
            yield
    finally:
        with contextlib.suppress(OSError):  # what reads it closes it
            os.close(fd)


@contextlib.contextmanager
def locks() -> Iterator[tuple[int, int]]:
    """Open a file and a folder, as the locks are."""
    file, folder = os.open(__file__, os.O_RDONLY), os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    for fd in (file, folder):
        os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
    try:
        yield file, folder
    finally:
        os.close(file)
        os.close(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("pid_fd", "pid_path", "pid_folders", "lock_fd", "others", "folders", "state")
states = st.dictionaries(st.sampled_from(KEYS), json_values)


@given(states.map(json.dumps).map(str.encode) | st.binary(max_size=40))
def test_whatever_a_state_says_the_event_is_told(content: bytes) -> None:
    with woken_by(content, "SIGTERM"):
        woken = wait.read_wake_up()
    assert woken is not None
    assert woken.events == {"SIGTERM"}


@pytest.mark.parametrize("damage", [{"others": 7}, {"folders": ["x"]}, {"command": 1}, {"\ud800": 1}], ids=str)
def test_damage_elsewhere_loses_no_lock(damage: dict[str, Any]) -> None:
    with locks() as (file, folder):
        saved = {"pid_fd": file, "pid_path": "/run/a.pid", "pid_folders": [], "lock_fd": folder}
        with woken_by(json.dumps(saved | damage).encode()):
            woken = wait.read_wake_up()
        assert woken is not None
        assert (woken.pid_fd, woken.lock_fd) == (file, folder)


@given(json_values)
def test_whatever_else_a_state_says_the_locks_are_kept(state: Any) -> None:
    with locks() as (file, folder):
        saved = {"pid_fd": file, "pid_path": "/run/a.pid", "pid_folders": ["/run"], "lock_fd": folder, "state": state}
        with woken_by(json.dumps(saved | {"of another release": 1}).encode(), "SIGTERM,NEWS"):
            woken = wait.read_wake_up()
        assert woken is not None
        assert woken.events == {"SIGTERM", "NEWS"}
        assert (woken.pid_fd, woken.pid_path, woken.pid_folders) == (file, "/run/a.pid", ("/run",))
        assert woken.lock_fd == folder
        assert not os.get_inheritable(file)
        assert not os.get_inheritable(folder)


def test_locks_that_a_state_does_not_tell_of_are_found_by_what_they_lock(tmp_path: Path) -> None:
    file = tmp_path / "toolkit.pid"
    assert wait.find_inherited(str(file)) is None
    file.touch()
    assert wait.find_inherited(str(file)) is None
    fd = os.open(file, os.O_RDWR)
    os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
    assert wait.find_inherited(str(file)) == fd
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("value", ["x:SIGTERM", "-1:SIGTERM", "99999999999999999999:SIGTERM", "5", ":", "٣:SIGTERM"])
def test_a_variable_that_names_no_state_is_a_fresh_start(
    value: str, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    monkeypatch.setenv(idling.RESUME, value)
    assert wait.read_wake_up() is None
    assert "it starts anew" in logged.getvalue()
    assert idling.RESUME not in os.environ


def test_a_variable_that_names_somebody_elses_descriptor_is_a_fresh_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, json.dumps(STATE).encode())
    other = os.memfd_create("another-state", 0)
    for each in (fd, other):
        monkeypatch.setenv(idling.RESUME, f"{each}:SIGTERM")
        assert wait.read_wake_up() is None
        os.fstat(each)  # it is still open, as it is not ours
        os.close(each)


# --- what it becomes ---


def test_the_next_command_is_taken_where_the_first_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(_path: str, words: list[str]) -> None:
        raise Replaced(*words)

    script = tmp_path / "script"
    first, second = ["/bin/python3", "-I", str(script), "run"], ["/bin/python3", "-m", "toolkit_installer"]
    assert str(script) in idling.execute_first([(str(script), first), (str(script), second)])
    monkeypatch.setattr(posix, "execv", execute)
    for expected in (second, first):
        with pytest.raises(Replaced) as caught:
            idling.execute_first([(str(script), first), ("", second)])
        assert list(caught.value.args) == expected
        script.touch()


def test_a_program_of_somebody_elses_is_started_as_it_was(fields: Fields) -> None:
    told = idling.IdleState(fields.of(STATE))  # here it is pytest's
    ((_, command),) = told.commands
    assert command == [sys.executable, *sys.orig_argv[1:]]


def test_a_folder_that_ends_in_a_slash_is_watched_for_the_names_in_it(tmp_path: Path) -> None:
    """The folders of a sysfs have no time of change of their own."""
    place = f"{tmp_path}/"
    seen = [idling.identity(place)]
    for name in ("b", "a"):
        (tmp_path / name).touch()
        seen.append(idling.identity(place))
    os.utime(tmp_path, (1, 1))
    assert idling.identity(place) == seen[-1]
    (tmp_path / "b").unlink()
    (tmp_path / "a").unlink()
    tmp_path.rmdir()
    seen.append(idling.identity(place))
    assert len(set(seen)) == len(seen)
    assert waited(0.0, None, [(idling.GPU, place, seen[0])]) == idling.GPU


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that accepts whoever comes; its path is longer than a name of a socket may be."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as found:
        found.bind("it.sock")
        found.listen()
        yield found


def asked(tmp_path: Path) -> str:
    return f"{tmp_path / ('x' * 100)}/it.sock{idling.PROBE_SUFFIX}"


def test_an_engine_that_accepts_and_says_nothing_does_not_answer(
    engine: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idling, "_ANSWER_SECONDS", 0.05)
    assert engine.getsockname() == "it.sock"
    assert idling.identity(asked(tmp_path)) != idling.ANSWERS
    watched = [(idling.SILENT, asked(tmp_path), idling.ANSWERS)]
    assert waited(0.01, None, watched) == idling.SILENT


@pytest.mark.parametrize("says", [b"HTTP/1.0 200 OK\r\n", b"\0\0\6"], ids=["HTTP", "HTTP/2"])
def test_an_engine_that_says_anything_answers(engine: socket.socket, tmp_path: Path, says: bytes) -> None:
    def answer() -> None:
        connection, _ = engine.accept()
        with connection:
            connection.sendall(says)
            with contextlib.suppress(ConnectionResetError):  # whoever asked has gone with one byte of it
                while connection.recv(64):
                    pass

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer)
        assert idling.identity(asked(tmp_path)) == idling.ANSWERS
        answering.result()


@pytest.mark.usefixtures("engine")
def test_an_engine_whose_process_has_gone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd would start it for whoever asks."""
    monkeypatch.setattr(idling, "_responds", lambda _: pytest.fail("it was asked"))
    watched = [(idling.SILENT, asked(tmp_path), idling.ANSWERS), (idling.ENGINE, "/proc/absent", "there")]
    assert waited(0.01, None, watched) == idling.ENGINE


def test_the_idle_process_imports_nothing_but_what_any_start_of_the_interpreter_does() -> None:
    """It runs for months on each node: whatever it imports more is memory that nobody has."""
    text = (
        "import sys\n"  # not even what `os` puts around the system's calls
        "sys.path.insert(0, sys.argv[1])\n"
        "before = set(sys.modules)\n"
        "import idling\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    folder = os.path.dirname(idling.__file__)
    command = [sys.executable, "-I", "-S", "-c", text, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["idling"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT", "SIGHUP"])
def test_a_signal_wakes_it_by_the_name_that_the_run_knows_it_by(name: str) -> None:
    number = signal.Signals[name]

    def sent() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        os.kill(os.getpid(), number)

    assert waited(1000.0, None, [], sent) == name
