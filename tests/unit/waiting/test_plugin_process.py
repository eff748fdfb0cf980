"""The plugin's process against a hostile engine, and the priority that it takes and gives up."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.support.capabilities import may_set_priority
from tests.unit.nri import engine as wire
from tests.unit.nri.nri_engine import SECONDS, NriEngine
from toolkit_installer.node import signals
from toolkit_installer.node.node import Node
from toolkit_installer.nri.connection import ConnectionLost
from toolkit_installer.nri.decision import DOMAIN, MANAGEMENT
from toolkit_installer.nri.session import Engine, Event, PluginConfigured, Serving, Unsupported
from toolkit_installer.settings import NriSettings, Settings
from toolkit_installer.waiting import plugin_process
from toolkit_installer.waiting.child_process import ChildProcess
from toolkit_installer.waiting.plugin import FUNCTION, CannotStartError, PluginWatch
from toolkit_installer.waiting.plugin_process import PluginReporter
from toolkit_installer.waiting.plugin_protocol import build_settings

PLACE = "run/nri/nri.sock"
SETTINGS = Settings(nri=NriSettings(("gpu-operator",), f"/{PLACE}"))
READ = 1 << 16
LARGEST = 4 << 20
MEMORY = 128 << 20
"""Bytes. A message has 4 MiB at most, and what is made of it takes some times that."""
AMOUNT = 8
"""How many connections the plugin is misled on: more come with longer and longer pauses."""


class Impostor(NriEngine):
    """Takes one plugin as an engine does, and then treats whoever comes as `deed` does."""

    def __init__(self, path: Path, deed: Callable[[socket.socket], None]) -> None:
        super().__init__(path)
        self.deed = deed
        self.met = 0
        """How many connections came since it turned hostile."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def _take(self, listener: socket.socket) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(SECONDS)
                with connection, contextlib.suppress(OSError):
                    self.met += 1
                    self.deed(connection)


def until_it_hangs_up(connection: socket.socket) -> None:
    while connection.recv(READ):
        pass


def is_taken(connection: socket.socket) -> None:
    """Register the plugin, as an engine does."""
    connection.recv(READ)
    connection.sendall(wire.taken() + wire.configure(1))
    connection.recv(READ)
    connection.sendall(wire.synchronize(3))
    connection.recv(READ)


def garbage(connection: socket.socket) -> None:
    connection.sendall(bytes(range(7, 256)) * 4096)


def a_frame_without_an_end(connection: socket.socket) -> None:
    connection.sendall(struct.pack(">II", wire.PLUGIN, 0xFFFFFFFF))
    until_it_hangs_up(connection)


def half_of_the_largest_message(connection: socket.socket) -> None:
    connection.recv(READ)
    connection.sendall(wire.taken() + wire.configure(1))
    header = struct.pack(">IIBB", LARGEST, 5, wire.REQUEST, 0)
    connection.sendall(struct.pack(">II", wire.PLUGIN, LARGEST + 10) + header + bytes(LARGEST - 1))


def nothing(connection: socket.socket) -> None:
    until_it_hangs_up(connection)


def the_end(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def wrong_numbers(connection: socket.socket) -> None:
    connection.recv(READ)
    connection.sendall(wire.frame(wire.RUNTIME, wire.message(7, wire.RESPONSE, b"")))
    connection.sendall(wire.taken(wire.PLUGIN) + wire.frame(9, bytes(READ)) + wire.frame(wire.PLUGIN, b""))
    until_it_hangs_up(connection)


def thousands_of_containers(connection: socket.socket) -> None:
    """Ask about more than the plugin may work on without a pause, and read no answer."""
    is_taken(connection)
    one = b"".join(wire.create(2 * n + 5, "default", {DOMAIN: f"{MANAGEMENT}=all"}) for n in range(2000))
    for _ in range(40):
        connection.sendall(one)


def an_annotation_for_each_byte(connection: socket.socket) -> None:
    is_taken(connection)
    notes = b"".join(wire.field(6, wire.field(1, f"{n:x}") + wire.field(2, "")) for n in range(300_000))
    body = wire.field(1, wire.field(4, "default") + notes) + wire.field(2, wire.field(3, "main"))
    connection.sendall(wire.request(5, "CreateContainer", body))
    connection.recv(READ)


DEEDS = [
    garbage,
    a_frame_without_an_end,
    half_of_the_largest_message,
    the_end,
    wrong_numbers,
    thousands_of_containers,
    an_annotation_for_each_byte,
]


@pytest.fixture
def process() -> ChildProcess:
    return ChildProcess(FUNCTION)


@pytest.fixture
def ahead() -> list[float]:
    """Return the seconds, one number, by which the watch's clock is set forward."""
    return [0.0]


@pytest.fixture
def watch(tmp_path: Path, process: ChildProcess, ahead: list[float]) -> Iterator[PluginWatch]:
    assert SETTINGS.nri is not None
    settings = build_settings(SETTINGS, SETTINGS.nri, str(tmp_path))
    made = PluginWatch(Node(str(tmp_path)), settings, process, lambda: time.monotonic() + ahead[0])
    yield made
    made.stop()
    process.end_left_over()
    signals.unblock_child_signal()


def until_served(watch: PluginWatch, *, connected: bool) -> None:
    deadline = time.monotonic() + SECONDS
    while watch.status.connected is not connected:
        assert time.monotonic() < deadline, watch.status
        time.sleep(0.01)
        watch.update()


def peak(pid: int) -> int:
    """Return the most memory that a process had, in bytes; 0 where it has ended."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().split("\n")
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return 0


@pytest.mark.parametrize("deed", DEEDS)
def test_the_plugin_outlives_a_hostile_peer_and_serves_the_engine_after_it(
    tmp_path: Path, process: ChildProcess, watch: PluginWatch, ahead: list[float], deed: Callable[[socket.socket], None]
) -> None:
    with NriEngine(tmp_path / PLACE):
        watch.begin()
    with Impostor(tmp_path / PLACE, deed) as impostor:
        deadline, most = time.monotonic() + 2, 0
        while time.monotonic() < deadline:
            most = max(most, peak(process.pid))
            watch.update()
            time.sleep(0.02)
        met = impostor.met
    assert 1 <= met <= AMOUNT
    assert 0 < most < MEMORY
    ahead[0] = 60  # a process that the kernel ended may be started again
    with NriEngine(tmp_path / PLACE) as engine:
        engine.wait_for_plugin() if not watch.needs_restart else watch.update()
        until_served(watch, connected=True)
        assert engine.ask("default", {DOMAIN: "nvidia.com/gpu=0"}).devices == ("nvidia.com/gpu=0",)


@pytest.mark.parametrize("deed", [garbage, a_frame_without_an_end, nothing, the_end])
def test_a_run_that_meets_a_hostile_peer_first_is_refused(
    tmp_path: Path, watch: PluginWatch, deed: Callable[[socket.socket], None]
) -> None:
    with Impostor(tmp_path / PLACE, deed), pytest.raises(CannotStartError) as refused:
        watch.begin()
    assert refused.value.exit_code == 3


def test_a_peer_that_is_another_users_hears_no_word(tmp_path: Path, watch: PluginWatch) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    heard: list[bytes] = []
    with Impostor(tmp_path / PLACE, lambda connection: heard.append(connection.recv(READ))) as impostor:
        os.chown(tmp_path / PLACE, 65534, 65534)
        with pytest.raises(CannotStartError, match="it is not believed"):
            watch.begin()
        assert (impostor.met, heard) == (0, [])


# --- reports to the run, each of which wakes it ---


def reports(events: list[tuple[float, Event | ConnectionLost]], seconds: float) -> list[float]:
    """Return when the run is told of something, where these events come over and over."""
    now, told = 0.0, []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0)
    teller = PluginReporter(theirs.detach(), 0, PLACE, lambda: now)
    begin = 1000.0
    while (now := begin) and begin < 1000.0 + seconds:
        for pause, event in events:
            teller.handle_event(event)
            with contextlib.suppress(BlockingIOError):
                while ours.recv(READ):
                    told.append(now - 1000.0)
            now += pause
        begin = now
    ours.close()
    return told


def test_an_engine_that_comes_and_goes_all_the_time_wakes_the_run_seldom() -> None:
    flapping: list[tuple[float, Event | ConnectionLost]] = [
        (0.02, PluginConfigured(Engine("containerd", "v2.1.4"))),
        (0.02, Serving()),
        (0.02, ConnectionLost("the engine closed the connection")),
    ]
    assert len(reports(flapping, 120)) <= 12


def test_an_engine_that_gives_another_version_each_time_wakes_the_run_seldom() -> None:
    changing: list[tuple[float, Event | ConnectionLost]] = [(0.001, Unsupported(f"1.0.{n}")) for n in range(1000)]
    assert len(reports(changing, 60)) <= 10


def test_an_engine_that_is_restarted_now_and_then_is_reported_at_once() -> None:
    restarted: list[tuple[float, Event | ConnectionLost]] = [
        (0.0, PluginConfigured(Engine("containerd", "v2.1.4"))),
        (60.0, Serving()),
        (0.5, ConnectionLost("the engine closed the connection")),
    ]
    told = reports(restarted, 181)
    assert told == [0.0, 60.0, 60.5, 120.5, 121.0, 181.0]


NOBODY = 65534
ALLOWED, REFUSED, OTHER = 0, 3, 4
SPIN = 0.05


def ended(act: Callable[[], int]) -> int:
    """Do it in a process of its own; return its exit code, or the signal's number below zero that ended it."""
    pid = os.fork()
    if not pid:
        code = OTHER
        try:
            code = act()
        except OSError:
            code = REFUSED
        finally:
            os._exit(code)  # pytest is not to go on here
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def taken(*, spinning: bool = False) -> int:
    plugin_process._run_before_ordinary_work(SPIN if spinning else 1.0)
    while spinning:
        pass
    own = os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    children = ended(lambda: os.sched_getscheduler(0))
    return ALLOWED if own and children == os.SCHED_OTHER else OTHER


def refused() -> int:
    """Try as somebody who may not; the scheduler has to be what it was."""
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        plugin_process._run_before_ordinary_work(1.0)
    except PermissionError:
        return REFUSED if os.sched_getscheduler(0) == os.SCHED_OTHER else OTHER
    return ALLOWED


ALLOWED_HERE = pytest.mark.skipif(not may_set_priority(), reason="without CAP_SYS_NICE nobody may")


@ALLOWED_HERE
def test_it_is_before_ordinary_work_and_what_it_starts_is_not() -> None:
    assert ended(taken) == ALLOWED


@ALLOWED_HERE
def test_who_works_without_a_pause_for_longer_than_was_said_is_killed() -> None:
    assert ended(lambda: taken(spinning=True)) == -signal.SIGKILL


def test_who_may_not_have_it_is_told_and_goes_on_as_before() -> None:
    assert ended(refused) == REFUSED


@ALLOWED_HERE
def test_a_limit_that_is_lower_already_stays() -> None:
    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 2000))
        plugin_process._run_before_ordinary_work(1.0)
        return ALLOWED if resource.getrlimit(resource.RLIMIT_RTTIME) == (2000, 2000) else OTHER

    assert ended(limited) == ALLOWED
