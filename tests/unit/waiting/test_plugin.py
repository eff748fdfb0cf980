"""The plugin's process, as the run has it: begun, lost, replaced, known again; and what it writes into the log."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.capabilities import may_set_priority
from tests.unit.nri.nri_engine import SECONDS, NriEngine
from toolkit_installer.node import signals
from toolkit_installer.node.node import Node
from toolkit_installer.nri.decision import DOMAIN, MANAGEMENT
from toolkit_installer.settings import CdiSettings, LogFormat, NriSettings, Program, Settings, ToolkitSettings
from toolkit_installer.waiting import plugin_process, plugin_protocol
from toolkit_installer.waiting.child_process import ChildProcess
from toolkit_installer.waiting.plugin import FUNCTION, CannotStartError, PluginWatch, UnsupportedEngineError
from toolkit_installer.waiting.plugin_process import LineWriter
from toolkit_installer.waiting.plugin_protocol import PluginState, PluginStatus, build_settings

SOCKET = "/run/nri/nri.sock"
PLACE = SOCKET[1:]
NRI = NriSettings(("gpu-operator", "other"), SOCKET, 7)
SETTINGS = Settings(nri=NRI, toolkit=ToolkitSettings(cdi=CdiSettings(kind="example.com/mgmt")))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[NriEngine]:
    with NriEngine(tmp_path / PLACE) as made:
        yield made


class Clock:
    """A monotonic clock that a test may set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def process() -> ChildProcess:
    return ChildProcess(FUNCTION)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(tmp_path: Path, process: ChildProcess, clock: Clock) -> Iterator[PluginWatch]:
    made = watch_of(tmp_path, process, clock=clock)
    yield made
    made.stop()
    process.end_left_over()
    signals.unblock_child_signal()


def watch_of(
    folder: Path, process: ChildProcess, settings: Settings = SETTINGS, clock: Callable[[], float] = time.monotonic
) -> PluginWatch:
    assert settings.nri is not None
    return PluginWatch(Node(str(folder)), build_settings(settings, settings.nri, str(folder)), process, clock)


def until(watch: PluginWatch, *, connected: bool) -> PluginStatus:
    """Look until the plugin stands so."""
    deadline = time.monotonic() + SECONDS
    while watch.status.connected is not connected:
        assert time.monotonic() < deadline, watch.status
        time.sleep(0.01)
        watch.update()
    return watch.status


def is_connected(watch: PluginWatch) -> bool:
    return watch.status.connected


def is_owed(watch: PluginWatch) -> bool:
    return watch.needs_restart


def killed(process: ChildProcess) -> int:
    """End the process, and return which it was; nobody has waited for it yet."""
    pid = process.pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_it_registers_under_the_programs_name_and_answers(engine: NriEngine, watch: PluginWatch) -> None:
    watch.begin()
    assert watch.status == PluginStatus(connected=True, engine="containerd v2.1.4", reason="")
    assert engine.plugins == ["07-toolkit-installer"]
    assert engine.ask("default", {DOMAIN: "nvidia.com/gpu=0"}).devices == ("nvidia.com/gpu=0",)
    assert engine.ask("default", {}).devices == ()


@pytest.mark.parametrize("kind", [MANAGEMENT, "example.com/mgmt"])
def test_management_devices_are_for_the_namespaces_that_were_given(
    engine: NriEngine, watch: PluginWatch, kind: str
) -> None:
    watch.begin()
    for namespace in NRI.namespaces:
        assert engine.ask(namespace, {DOMAIN: f"{kind}=all"}).devices == (f"{kind}=all",)
    refused = engine.ask("default", {DOMAIN: f"{kind}=all"})
    assert refused.code
    assert "gpu-operator, other" in refused.words


def test_where_nothing_is_refused_the_peers_rule_holds(engine: NriEngine, tmp_path: Path) -> None:
    """The peer starts the container without, and looks for one kind alone."""
    lenient = Settings(
        program=Program.NVIDIA_TOOLKIT,
        nri=NriSettings(("gpu-operator",), SOCKET, strict=False),
        toolkit=SETTINGS.toolkit,
    )
    watch = watch_of(tmp_path, ChildProcess(FUNCTION), lenient)
    watch.begin()
    try:
        assert engine.plugins == ["10-nvidia-toolkit"]
        assert engine.ask("default", {DOMAIN: f"{MANAGEMENT}=all"}) == (0, "", ())
        assert engine.ask("default", {DOMAIN: "example.com/mgmt=all"}).devices == ("example.com/mgmt=all",)
    finally:
        watch.stop()


def test_without_an_engine_it_cannot_start_and_leaves_no_process(watch: PluginWatch, process: ChildProcess) -> None:
    with pytest.raises(CannotStartError, match=re.escape(SOCKET)) as no:
        watch.begin()
    assert no.value.exit_code == 3
    assert "--nri-socket" in str(no.value)
    os.waitpid(process.pid, 0)
    assert not watch.needs_restart


def test_an_engine_that_leaves_the_devices_out_is_refused_with_the_versions(
    engine: NriEngine, watch: PluginWatch
) -> None:
    engine.version = "1.7.24~ds1"
    with pytest.raises(UnsupportedEngineError, match=r"1\.7\.24~ds1.*1\.7\.30") as no:
        watch.begin()
    assert no.value.exit_code == 3


def test_what_cannot_be_started_is_a_refusal(watch: PluginWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "posix_spawn", no_more)
    with pytest.raises(CannotStartError, match="Too many open files"):
        watch.begin()


def test_a_process_that_says_nothing_is_a_refusal(watch: PluginWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "toolkit_installer.waiting.plugin.FUNCTION"
    monkeypatch.setattr(name, "toolkit_installer.waiting.plugin_process:absent")
    with pytest.raises(CannotStartError, match="did not begin"):
        watch.begin()


def test_an_engine_that_is_started_anew_is_served_again_and_the_run_is_told(
    engine: NriEngine, watch: PluginWatch
) -> None:
    watch.begin()
    signals.block_child_signal()
    engine.stop()
    signal.sigtimedwait([signal.SIGCHLD], SECONDS)
    lost = until(watch, connected=False)
    assert lost.engine == "containerd v2.1.4"
    assert lost.reason
    engine.version = "v2.1.5"
    engine.start()
    signal.sigtimedwait([signal.SIGCHLD], SECONDS)
    assert until(watch, connected=True).engine == "containerd v2.1.5"
    assert engine.ask("default", {DOMAIN: "nvidia.com/gpu=0"}).devices == ("nvidia.com/gpu=0",)


def test_an_engine_that_becomes_one_that_leaves_the_devices_out_is_not_served(
    engine: NriEngine, watch: PluginWatch
) -> None:
    watch.begin()
    engine.stop()
    engine.version = "v2.0.7"
    engine.start()
    deadline = time.monotonic() + SECONDS
    while not watch.status.unsupported:
        assert time.monotonic() < deadline, watch.status
        time.sleep(0.01)
        watch.update()
    assert not watch.status.connected
    assert "2.0.7" in watch.status.reason


def test_a_process_that_ended_is_replaced_once_and_then_later(
    engine: NriEngine, watch: PluginWatch, process: ChildProcess, clock: Clock
) -> None:
    watch.begin()
    first = killed(process)
    watch.update()
    assert process.pid != first
    assert is_connected(watch)
    assert not is_owed(watch)
    engine.hang_up()
    killed(process)
    watch.update()
    assert is_owed(watch)
    assert not is_connected(watch)
    clock.ahead += 60
    watch.update()
    assert not is_owed(watch)
    assert engine.ask("default", {DOMAIN: "nvidia.com/gpu=0"}).devices == ("nvidia.com/gpu=0",)


@pytest.mark.parametrize("ran, again", [(0.0, False), (9.9, False), (10.0, True), (3600.0, True)])
def test_one_that_ends_within_ten_seconds_is_not_started_again_at_once(
    tmp_path: Path, ran: float, *, again: bool
) -> None:
    class Ended(ChildProcess):
        """A process that has ended, and begins again when it is started."""

        started = 0

        def start(self, *_: object) -> bytes:
            self.started += 1
            return plugin_protocol.pack_status(PluginStatus())

    process = Ended(FUNCTION)
    watch = watch_of(tmp_path, process, clock=lambda: 1000.0 + ran)
    watch.restore(PluginState(None, 1000.0, PluginStatus()))
    watch.update()
    assert process.started == again
    assert (watch.status.reason == "its process ended again, right after it was started") is not again


def test_one_that_cannot_be_replaced_is_owed_and_fails_nothing(
    engine: NriEngine, watch: PluginWatch, process: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.begin()

    def no_more(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    killed(process)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_spawn", no_more)
        watch.update()
    assert watch.needs_restart
    assert watch.status == PluginStatus(reason="Too many open files")
    assert engine.plugins == ["07-toolkit-installer"]


def test_what_is_said_before_a_sleep_is_heard_before_it(engine: NriEngine, watch: PluginWatch) -> None:
    watch.begin()
    assert watch.settle()
    assert signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    engine.stop()
    assert signal.sigtimedwait([signal.SIGCHLD], SECONDS) is not None
    deadline = time.monotonic() + SECONDS
    while watch.settle():  # a signal may be late that was for what was heard before
        assert time.monotonic() < deadline, "nothing is heard"
    assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert watch.settle()


def test_after_a_sleep_it_is_known_again(
    engine: NriEngine, watch: PluginWatch, process: ChildProcess, tmp_path: Path
) -> None:
    assert watch.save() is None
    watch.begin()
    saved = watch.save()
    assert saved is not None
    assert saved.process is not None
    other = watch_of(tmp_path, found := ChildProcess(FUNCTION))
    other.restore(saved._replace(process=(process.pid, os.dup(saved.process[1]))))
    assert other.status == watch.status
    assert found.pid == process.pid
    assert not other.needs_restart
    other.begin()
    assert engine.plugins == ["07-toolkit-installer"], "it was begun twice"
    found.close()


@pytest.mark.parametrize("saved", [None, (1, 9999), (1, -1)])
def test_a_process_whose_channel_is_gone_is_started_again(watch: PluginWatch, saved: tuple[int, int] | None) -> None:
    watch.restore(PluginState(saved, 0.0, PluginStatus()))
    assert watch.needs_restart
    assert not watch.status.connected


def test_without_a_plugin_nothing_is_saved_or_pending(watch: PluginWatch) -> None:
    watch.update()
    assert not watch.needs_restart
    assert watch.save() is None


def test_the_run_holds_nothing_of_what_the_process_is_made_of(
    engine: NriEngine, watch: PluginWatch, process: ChildProcess
) -> None:
    """And the process nothing of the run's: it is small, and has one thread."""
    watch.begin()
    place = Path(f"/proc/{process.pid}")
    assert len(list((place / "task").iterdir())) == 1
    maps = (place / "maps").read_text()
    assert not re.search(r"msgspec|psutil|grpc|_ssl|_ctypes", maps)
    assert engine.plugins


@pytest.mark.skipif(not may_set_priority(), reason="without CAP_SYS_NICE nobody may")
def test_it_answers_before_ordinary_work_and_the_run_does_not(
    engine: NriEngine, watch: PluginWatch, process: ChildProcess
) -> None:
    watch.begin()
    assert os.sched_getscheduler(process.pid) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert engine.ask("default", {}).devices == ()


def test_where_it_may_not_it_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seconds: float) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(seconds))

    reader, writer = os.pipe()
    monkeypatch.setattr(plugin_process, "_run_before_ordinary_work", refuse)
    monkeypatch.setattr(plugin_process._CurrentLog, "lines", LineWriter("logfmt", writer))
    plugin_process._try_real_time_priority()
    assert 'event=nri-in-turn reason="Operation not permitted"' in os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)


# --- what it is told, and what it tells ---


@pytest.mark.parametrize("log_format", [None, LogFormat.JSON])
def test_what_is_handed_over_arrives(log_format: LogFormat | None) -> None:
    given = build_settings(Settings(nri=NRI, log_format=log_format), NRI, "/host")
    assert plugin_protocol.parse_settings(plugin_protocol.pack_settings(given)) == given
    assert (given.root, given.socket, given.place, given.kinds) == ("/host", SOCKET, 7, (MANAGEMENT,))
    assert given.log_format == ("" if log_format is None else "json")


def test_how_it_stands_arrives() -> None:
    stands = PluginStatus(connected=False, engine="containerd v2.0.1", reason="it would not", unsupported=True)
    assert plugin_protocol.parse_packet(plugin_protocol.pack_status(stands)) == stands
    for packet in (b'{"connected": true}', b"[true]", b'["x", "y", "z", true]', b"7"):
        assert not plugin_protocol.parse_packet(packet).connected


def test_a_line_is_written_as_the_run_writes_it() -> None:
    reader, writer = os.pipe()
    lines = LineWriter("logfmt", writer)
    lines.warning("Something", key="some-thing", reason="a b", devices=("x/y=0", "x/y=1"))
    said = os.read(reader, 4096).decode()
    assert re.fullmatch(
        r'time="[0-9T:-]+Z" level=warning msg="Something" event=some-thing reason="a b" devices="x/y=0,x/y=1"\n', said
    )
    os.close(reader)
    lines.info("Nobody reads", key="nobody")
    os.close(writer)


def test_a_reader_that_is_slow_delays_nothing_and_gets_whole_lines() -> None:
    reader, writer = os.pipe()
    lines = LineWriter("logfmt", writer)
    for _ in range(3000):  # a pipe has room for 64 KiB
        lines.info("Something", key="some-thing", reason="x" * 5000)
    assert os.get_blocking(writer), "the run's own descriptor does not wait any more"
    os.set_blocking(reader, False)
    data = b""
    while True:
        try:
            data += os.read(reader, 1 << 16)
        except BlockingIOError:
            break
    whole = data.split(b"\n")
    assert whole.pop() == b""
    assert whole
    assert {len(line) for line in whole} == {4095}
    os.close(reader)
    os.close(writer)


def test_a_socket_and_a_file_are_written_to_as_well(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        LineWriter("json", ours.fileno()).info("Said", key="said")
        assert b'"msg": "Said"' in theirs.recv(4096)
    file = tmp_path / "log"
    with file.open("w") as stream:
        stream.write("before\n")
        stream.flush()
        LineWriter("logfmt", stream.fileno()).info("Said", key="said")
        stream.write("after\n")
    before, said, after = file.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert "Said" in said
