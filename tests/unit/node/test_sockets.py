"""Who serves a unix socket, under whatever path, and whether it is trusted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit_installer.node import sockets
from toolkit_installer.node.root import INIT_ROOT, Root
from toolkit_installer.node.sockets import UntrustedProcessError

SOCKET = "/run/engine.sock"


# Listens, says who it is, and hands each connection to a child, as a socket-activated engine gets its own: the child
# answers, so that the socket's creator and the process that speaks are two.
SERVER = """
import os, socket, sys
how, path, user = sys.argv[1:]
os.chdir(os.path.dirname(path))
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.basename(path))
os.setuid(int(user))
listener.listen()
child = os.fork()
if child == 0:
    import ctypes; ctypes.CDLL(None).prctl(1, 9)
    while True:
        connection, _ = listener.accept()
        if how == "greets":
            try:
                connection.sendall(b"hello")
            except BrokenPipeError:
                continue
        elif how == "answers" and connection.recv(100):
            connection.sendall(b"HTTP/1.0 200 OK")
        elif how == "closes":
            connection.recv(100)
            connection.close()
            continue
        connection.recv(100)
print(os.getpid(), child, flush=True)
sys.stdin.read()
os.kill(child, 9)
"""


@pytest.fixture
def root(tmp_path: Path) -> Root:
    folder = tmp_path / ("deep" * 30)  # longer than a socket's address may be
    (folder / "run").mkdir(parents=True)
    return Root(str(folder))


@dataclasses.dataclass(frozen=True)
class Served:
    creator: int
    speaker: int


@pytest.fixture
def served(root: Root, request: pytest.FixtureRequest) -> Iterator[Served]:
    how, user = request.param if isinstance(request.param, tuple) else (request.param, os.geteuid())
    command = [sys.executable, "-I", "-S", "-c", SERVER, how, root.outside(SOCKET), str(user)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        creator, speaker = map(int, server.stdout.readline().split())
        yield Served(creator, speaker)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_ANSWER_SECONDS", 0.2)


@pytest.mark.parametrize("served", ["greets"], indirect=True)
def test_a_greeting_names_who_speaks_and_not_who_made_the_socket(root: Root, served: Served) -> None:
    assert sockets.find_responding_peer(root, SOCKET, b"") == (served.speaker, os.geteuid())


@pytest.mark.parametrize("served", ["answers"], indirect=True)
def test_an_answer_names_who_speaks_and_not_who_made_the_socket(root: Root, served: Served) -> None:
    assert sockets.find_responding_peer(root, SOCKET, b"GET /_ping HTTP/1.0\r\n\r\n") == (served.speaker, os.geteuid())


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("served", ["is silent"], indirect=True)
def test_who_is_silent_by_nature_is_named_by_the_socket(root: Root, served: Served) -> None:
    assert sockets.find_responding_peer(root, SOCKET, b"") == (served.creator, os.geteuid())


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("served", ["is silent"], indirect=True)
def test_who_was_asked_and_is_silent_does_not_serve(root: Root, served: Served) -> None:
    assert served.creator > 0
    assert sockets.find_responding_peer(root, SOCKET, b"GET /_ping HTTP/1.0\r\n\r\n") is None


def test_nobody_is_behind_a_socket_that_is_not_there_or_stale(root: Root) -> None:
    assert sockets.find_responding_peer(root, SOCKET, b"") is None
    Path(root.outside(SOCKET)).write_text("no socket at all")
    assert sockets.find_responding_peer(root, SOCKET, b"") is None


@pytest.mark.parametrize("served", ["closes"], indirect=True)
def test_who_hangs_up_without_an_answer_does_not_serve(root: Root, served: Served) -> None:
    # the socket would name its creator, which is systemd for a socket-activated engine
    assert served.creator > 0
    assert sockets.find_responding_peer(root, SOCKET, b"GET /_ping HTTP/1.0\r\n\r\n") is None


# --- trust ---

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
greets = pytest.mark.parametrize("served", ["greets"], indirect=True)
greets_as_nobody = pytest.mark.parametrize("served", [("greets", NOBODY)], indirect=True)


@greets
@pytest.mark.usefixtures("served")
def test_who_is_trusted_is_connected_to_without_waiting(root: Root) -> None:
    with sockets.connect_to_trusted(root, SOCKET, "--nri-socket") as connection:
        assert not connection.getblocking()
        with contextlib.suppress(BlockingIOError):
            assert connection.recv(5) in (b"hello", b"")
    assert sockets.is_listening(root, SOCKET)
    sockets.refuse_untrusted(root, SOCKET)


@greets
def test_the_process_that_answers_is_described(root: Root, served: Served) -> None:
    process = sockets.find_responding_process(root, SOCKET, b"")
    assert process is not None
    assert process.pid == served.speaker


@as_root
@greets_as_nobody
def test_a_stranger_that_listens_is_refused_by_its_pid_and_user_and_does_not_count(root: Root, served: Served) -> None:
    for ask in (
        lambda: sockets.refuse_untrusted(root, SOCKET),
        lambda: sockets.find_responding_process(root, SOCKET, b""),
        lambda: sockets.connect_to_trusted(root, SOCKET, "--socket"),
    ):
        with pytest.raises(
            UntrustedProcessError, match=rf"PID ({served.creator}|{served.speaker}), user {NOBODY}"
        ) as no:
            ask()
        assert no.value.path == SOCKET
        assert "--socket" in (no.value.hint or "")
    assert not sockets.is_listening(root, SOCKET)


@as_root
@greets
@pytest.mark.usefixtures("served")
def test_a_socket_whose_file_is_a_strangers_is_not_connected_to(root: Root) -> None:
    os.chown(root.outside(SOCKET), NOBODY, NOBODY)
    with pytest.raises(UntrustedProcessError, match=f"the socket is of user {NOBODY}") as refused:
        sockets.connect_to_trusted(root, SOCKET, "--nri-socket")
    assert "--nri-socket" in (refused.value.hint or "")


def test_a_socket_that_nobody_serves_is_no_reason_to_refuse_it(root: Root) -> None:
    sockets.refuse_untrusted(root, SOCKET)
    assert not sockets.is_listening(root, SOCKET)
    with pytest.raises(FileNotFoundError):
        sockets.connect_to_trusted(root, SOCKET, "--nri-socket")
    with sockets.shorten_socket_path(root, SOCKET) as name, socket.socket(socket.AF_UNIX) as bound:
        bound.bind(name)
    sockets.refuse_untrusted(root, SOCKET)
    assert not sockets.is_listening(root, SOCKET)


@pytest.mark.usefixtures("_impatient")
def test_a_busy_engine_counts_by_the_owner_of_its_sockets_file(root: Root) -> None:
    with (
        sockets.shorten_socket_path(root, SOCKET) as name,
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as first,
    ):
        listener.bind(name)
        listener.listen(0)
        first.connect(name)  # the queue is full
        assert sockets.is_listening(root, SOCKET)
        if os.geteuid() == 0:
            os.chown(root.outside(SOCKET), NOBODY, NOBODY)
            assert not sockets.is_listening(root, SOCKET)


# --- paths ---


@pytest.mark.parametrize(
    "folder, path, expected",
    [
        ("/", f"{INIT_ROOT}/run/a.sock", (INIT_ROOT, "/run/a.sock")),
        ("/", "/run/a.sock", ("/", "/run/a.sock")),
        ("/", f"{INIT_ROOT}-not/a.sock", ("/", f"{INIT_ROOT}-not/a.sock")),
        ("/host", f"{INIT_ROOT}/run/a.sock", ("/host", f"{INIT_ROOT}/run/a.sock")),
    ],
)
def test_below_the_root_of_init_a_socket_is_opened_from_there(
    folder: str, path: str, expected: tuple[str, str]
) -> None:
    root, beneath = sockets.find_root_of(Root(folder), path)
    assert (root.folder, beneath) == expected


def test_a_path_of_any_length_is_short_enough_to_connect_to(root: Root) -> None:
    assert len(root.outside(SOCKET)) > 107
    with sockets.shorten_socket_path(root, SOCKET) as name:
        assert len(name) <= 107
        Path(name).touch()
    assert Path(root.outside(SOCKET)).exists()
