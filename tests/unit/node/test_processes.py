"""The process behind a socket, and signals to it and to no other."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes, trust
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.processes import ProcessGoneError
from toolkit_installer.node.root import Root
from toolkit_installer.node.trust import TrustLevel


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-I", "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_process_is_seen_with_what_tells_it_from_others(sleeper: subprocess.Popen[bytes]) -> None:
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    assert seen.executable == os.path.realpath(sys.executable)
    assert seen.arguments[1:4] == ("-I", "-S", "-c")
    assert seen == processes.inspect_process(sleeper.pid)


def test_a_dead_process_is_none_even_before_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie still
    assert processes.inspect_process(sleeper.pid) is None
    sleeper.wait()
    assert processes.inspect_process(sleeper.pid) is None


class Signals(SystemCalls):
    """Sends nothing."""

    def __init__(self) -> None:
        self.sent: list[signal.Signals] = []

    def signal(self, pidfd: int, number: signal.Signals) -> None:
        del pidfd
        self.sent.append(number)


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_no_process_group_and_no_init_is_ever_signalled(pid: int) -> None:
    calls = Signals()
    process = processes.Process(pid, "dockerd", "/usr/bin/dockerd", (), 0.0, None)
    with pytest.raises(ConfigurationError, match="never signalled"):
        processes.send_signal(calls, process, signal.SIGHUP)
    assert calls.sent == []


def test_a_pid_that_was_given_to_another_process_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    calls = Signals()
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    earlier = msgspec.structs.replace(seen, started=seen.started - 100)
    with pytest.raises(ProcessGoneError, match="is gone"):
        processes.send_signal(calls, earlier, signal.SIGHUP)
    assert calls.sent == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Set the wall clock by so many seconds, as far as the kernel tells of it when it was booted."""
    real = psutil.boot_time()
    processes._read_boot_time.cache_clear()
    yield lambda seconds: monkeypatch.setattr(psutil, "boot_time", lambda: real + seconds)
    processes._read_boot_time.cache_clear()


def test_a_process_is_the_same_after_somebody_has_set_the_clock(
    sleeper: subprocess.Popen[bytes], clock: Callable[[float], None]
) -> None:
    clock(-3600)  # as a node starts whose own clock is off, and which has asked nobody yet
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    clock(0)
    assert processes.inspect_process(sleeper.pid) == seen
    processes.send_signal(SystemCalls(), seen, signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM


def test_a_process_starts_when_the_clock_says_so(sleeper: subprocess.Popen[bytes]) -> None:
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    assert seen.started == pytest.approx(psutil.Process(sleeper.pid).create_time(), abs=2)


RENAMED = """
import ctypes, sys
print(flush=True)
for name in sys.stdin.buffer:
    ctypes.CDLL(None).prctl(15, name.strip(), 0, 0, 0)
    print(flush=True)
"""


@pytest.mark.parametrize("changes, found", [(1, "program-1"), (2, "program-2"), (1000, None)])
def test_a_process_that_becomes_another_program_is_inspected_until_it_is_stable(
    changes: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-I", "-S", "-c", RENAMED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        told, heard = child.stdin, child.stdout
        assert told is not None
        assert heard is not None
        heard.readline()
        real, looks = trust.find_pinned_trust_level, itertools.count()

        def becoming(folder: int, pid: int) -> TrustLevel:
            if 0 < (number := next(looks)) <= changes:
                told.write(f"program-{number}\n".encode())
                heard.readline()
            return real(folder, pid)

        monkeypatch.setattr(trust, "find_pinned_trust_level", becoming)
        seen = processes.inspect_process(child.pid)
        assert (seen.name if seen is not None else None) == found
        child.kill()


def test_a_process_that_is_gone_is_an_error_with_its_pid(sleeper: subprocess.Popen[bytes]) -> None:
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(ProcessGoneError, match=str(sleeper.pid)):
        processes.send_signal(SystemCalls(), seen, signal.SIGTERM)


def test_a_process_belongs_to_the_node_whose_root_it_sees(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    assert processes.has_root(seen, Root("/"))
    assert not processes.has_root(seen, Root(str(tmp_path)))
    assert processes.root_of(seen).canonical(str(tmp_path)) == os.path.realpath(tmp_path)
    sleeper.kill()
    sleeper.wait()
    assert not processes.has_root(seen, Root("/"))


def test_the_right_process_gets_the_signal(sleeper: subprocess.Popen[bytes]) -> None:
    seen = processes.inspect_process(sleeper.pid)
    assert seen is not None
    processes.send_signal(SystemCalls(), seen, signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


# --- command lines that are wiped ---

WORDS = st.lists(st.binary(min_size=1).filter(lambda word: b"\0" not in word), min_size=1)


def words_of(said: bytes) -> list[bytes]:
    return said.removesuffix(b"\0").split(b"\0")


@given(words=WORDS, empty=st.integers(0, 3))
def test_a_command_line_with_an_argument_that_is_seen_is_whole(words: list[bytes], empty: int) -> None:
    said = b"".join(word + b"\0" for word in [*words, *[b""] * (empty if len(words) > 1 else 0)])
    assert not processes.is_wiped(said, words_of(said), len(said))
    assert not processes.is_wiped(said, words_of(said), None), "the kernel does not tell everybody how long it was"


@given(words=WORDS, arguments=WORDS)
def test_a_command_line_of_which_only_a_name_is_left_is_wiped(words: list[bytes], arguments: list[bytes]) -> None:
    title = b" ".join(words)
    given = len(title) + sum(len(word) + 1 for word in arguments)
    zeros = title.ljust(given, b"\0")
    assert processes.is_wiped(zeros, words_of(zeros), None) or zeros.count(b"\0") == 1
    assert processes.is_wiped(title + b"\0", words_of(title + b"\0"), given + 1)
    assert processes.is_wiped(b"", [b""], None)


def test_a_process_that_ends_while_its_name_is_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    real = os.read

    def read(fd: int, count: int) -> bytes:
        if not ended:
            ended.append(fd)
            raise ProcessLookupError
        return real(fd, count)

    monkeypatch.setattr(processes, "list_pids", lambda: [os.getppid(), os.getpid()])
    monkeypatch.setattr(os, "read", read)
    assert [pid for pid, _ in processes.names()] == [os.getpid()]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(ended[0])


def test_a_process_that_ends_before_its_name_is_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "list_pids", lambda: [2**22 + 1, os.getpid()])
    assert [pid for pid, _ in processes.names()] == [os.getpid()]


@contextlib.contextmanager
def sleeping() -> Iterator[int]:
    """Start a process; yield its PID."""
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        try:
            # its parent goes on before the kernel shows it as the program that it has become
            while Path(f"/proc/{child.pid}/cmdline").read_bytes() != b"/bin/sleep\x0060\x00":
                time.sleep(0.001)
            yield child.pid
        finally:
            child.kill()


def named_sleep() -> list[int]:
    return [process.pid for process in processes.find_by_name(frozenset({"sleep"}))]


def test_all_processes_are_seen_as_psutil_sees_them() -> None:
    with sleeping() as pid:
        seen, known = set(processes.list_pids()), set(psutil.pids())
        assert {pid, os.getpid(), 1} <= seen & known


def test_within_one_scan_names_are_read_once_and_again_after_a_possible_start() -> None:
    with processes.cache_names():
        assert os.getpid() in dict(processes.names())
        with sleeping() as pid:
            assert pid not in named_sleep()
            processes.clear_cached_names()
            assert pid in named_sleep()
        assert pid in dict(processes.names())
        assert pid not in named_sleep(), "one that has ended is not taken for running"


def test_what_was_seen_in_a_look_is_not_known_after_it() -> None:
    with processes.cache_names():
        with processes.cache_names():
            processes.names()
        with sleeping() as pid:
            assert pid not in named_sleep()
    with sleeping() as pid:
        assert pid in named_sleep()


def test_a_look_that_fails_leaves_nothing_behind() -> None:
    with contextlib.suppress(ConfigurationError), processes.cache_names():
        processes.names()
        raise ConfigurationError("it failed")
    with sleeping() as pid:
        assert pid in named_sleep()
