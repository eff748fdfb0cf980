"""A child process of the run: what passes between the two, what it inherits, and how each learns that one ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from toolkit_installer.node import idling
from toolkit_installer.waiting.child_process import ChildProcess

MARK = "child-of-a-test"
SECONDS = 30.0
ECHO = """
import os, signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[2]))
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
words = [str(os.getpgid(0)), *os.listdir("/proc/self/fd"), *(each.name for each in blocked)]
channel.send(" ".join(words).encode())
while packet := channel.recv(1 << 16):
    channel.send(packet.upper())
"""
"""Its first packet: its process group, its descriptors, and the signals that it blocks. Then it echoes."""
SILENT = "import sys, time; time.sleep(60)"
DEAF = """
import socket, sys, time
channel = socket.socket(fileno=int(sys.argv[2]))
channel.send(b"here")
time.sleep(60)
"""
ENDS = ""


def command(code: str, mark: str = MARK) -> Callable[[int], list[str]]:
    return lambda fd: [sys.executable, "-I", "-S", "-c", code, mark, str(fd)]


@pytest.fixture
def process() -> Iterator[ChildProcess]:
    made = ChildProcess(MARK)
    yield made
    made.close()
    made.end_left_over()


def end(process: ChildProcess) -> None:
    """Kill it, and leave it a zombie."""
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def is_lost(process: ChildProcess) -> bool:
    return process.lost


def is_gone(pid: int) -> bool:
    """Wait until a process is no more, not even as a zombie."""
    deadline = time.monotonic() + SECONDS
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}")


def test_packets_arrive_whole_and_in_order(process: ChildProcess) -> None:
    assert is_lost(process)
    assert not process.send(b"to nobody")
    assert process.start(command(ECHO), (), SECONDS)
    assert not is_lost(process)
    assert process.receive_pending() == b""
    for packet in (b"one", b"two" * 999):
        assert process.send(packet)
    assert process.receive(SECONDS) == b"ONE"
    assert process.receive(SECONDS) == b"TWO" * 999


def test_where_nothing_comes_in_time_the_process_stays(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    assert process.receive(0.01) == b""
    assert not is_lost(process)


def test_a_process_that_sends_nothing_is_ended(process: ChildProcess) -> None:
    assert process.start(command(SILENT), (), 0.2) == b""
    assert process.saved is None
    assert is_gone(process.pid)


def test_a_process_that_ends_at_once_is_not_waited_for(process: ChildProcess) -> None:
    begun = time.monotonic()
    assert process.start(command(ENDS), (), SECONDS) == b""
    assert process.saved is None
    assert time.monotonic() - begun < SECONDS


def test_a_program_that_is_not_there_leaves_no_process(process: ChildProcess) -> None:
    with pytest.raises(FileNotFoundError):
        process.start(lambda _fd: ["/no/such/program", MARK], (), SECONDS)
    assert is_lost(process)
    assert process.saved is None


def test_it_inherits_what_it_is_given_and_blocks_the_signals_that_stop_a_run(process: ChildProcess) -> None:
    given, other = os.pipe()
    os.set_inheritable(other, True)  # noqa: FBT003  # its only form
    try:
        group, *words = process.start(command(ECHO), (given,), SECONDS).decode().split()
    finally:
        os.close(given)
        os.close(other)
    descriptors = {int(word) for word in words if word.isdigit()}
    assert given in descriptors
    assert other not in descriptors
    assert {0, 1, 2} <= descriptors
    assert int(group) == process.pid
    assert {signal.Signals(number).name for number in idling.SIGNALS} <= set(words)


def test_a_process_that_ended_is_lost_and_gets_nothing_more(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    end(process)
    assert is_lost(process)
    assert process.receive(SECONDS) == b""
    assert process.receive_pending() == b""
    assert not process.send(b"x")
    assert process.saved is None


def test_a_process_that_was_reaped_is_lost(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert is_lost(process)


def test_the_process_ends_once_the_run_closes_its_channel(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    process.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_lost(process)


def test_a_packet_beyond_the_room_is_not_sent() -> None:
    small = ChildProcess(MARK, room=4096)
    small.start(command(ECHO), (), SECONDS)
    assert small.send(b"x" * 4000)
    assert not small.send(b"x" * (1 << 17))
    small.end_left_over()


def test_a_process_that_takes_nothing_up_is_not_waited_for(process: ChildProcess) -> None:
    assert process.start(command(DEAF), (), SECONDS) == b"here"
    sent = 0
    while process.send(b"x" * 4096):
        sent += 1
    assert sent > 0
    assert process.saved is None


def test_what_is_watched_changes_when_the_process_ends(process: ChildProcess) -> None:
    assert process.watched() == []
    process.start(command(ECHO), (), SECONDS)
    ((event, path, identity),) = process.watched()
    assert event == idling.LATER
    assert idling.identity(path) == identity
    assert process.saved is not None
    assert os.get_inheritable(process.saved[1])  # who watches is another program, after an exec
    end(process)
    assert idling.identity(path) != identity


def test_the_channel_stays_open_over_an_exec_and_is_known_again(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    assert process.saved is not None
    pid, fd = process.saved
    assert not os.get_inheritable(fd)
    process.keep()
    assert os.get_inheritable(fd)
    again = ChildProcess(MARK)
    again.restore((pid, os.dup(fd)))
    process.close()
    assert again.saved is not None
    assert not os.get_inheritable(again.saved[1])
    assert again.send(b"x")
    assert again.receive(SECONDS) == b"X"
    assert not again.lost
    again.close()


def test_a_descriptor_that_is_no_channel_any_more_is_not_taken_up() -> None:
    process = ChildProcess(MARK)
    file = os.open("/dev/null", os.O_RDONLY)
    for fd in (file, 1 << 20, 1 << 70):
        process.restore((1, fd))
        assert process.saved is None
    os.close(file)
    assert process.pid == 0


def test_only_processes_of_its_kind_are_ended_as_left_over(process: ChildProcess) -> None:
    process.start(command(ECHO), (), SECONDS)
    ChildProcess("of another kind").end_left_over()
    assert not is_lost(process)
    ChildProcess(MARK).end_left_over()
    assert is_gone(process.pid)
