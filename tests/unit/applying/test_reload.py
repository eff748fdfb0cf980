"""Switching an engine over, with an engine that fails on command; real ones are in the end-to-end tests."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import msgspec
import pytest

from tests.support.terminal import CLEARED, Clock, terminal
from toolkit_installer import log
from toolkit_installer.applying import reload
from toolkit_installer.applying.reload import NotServedError, Switch, Switcher, WaitReport
from toolkit_installer.engines.api import (
    DesiredFile,
    Engine,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    Reload,
)
from toolkit_installer.engines.common.serving import EngineBrokenError
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, ProcessGoneError, inspect_process
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.signals import SignalCollector, Stopped
from toolkit_installer.reporting.metrics import MetricsReport
from toolkit_installer.settings import EngineName, LogFormat, ReloadMode

PATH = "/etc/engine.conf"
OLD, NEW = b"old\n", b"new\n"
PROCESS = Process(4711, "engine", "/usr/bin/engine", ("engine",), 1.0, "engine.service")


class MortalLive(LiveState, frozen=True):
    """An engine that dies of a signal on one content of its file."""

    dies_of: bytes | None = None

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        if self.dies_of is not None and content == self.dies_of:
            raise ConfigurationError(f"it would die of {content!r}, not of {seen!r}")


@dataclasses.dataclass
class Player:
    """An engine that reads its file when it is signalled or restarted, and answers with what it read."""

    node: Node
    name: EngineName = EngineName.DOCKER
    folders: tuple[str, ...] = ()
    read: bytes = OLD
    silent: bool = False
    deaf: bool = False
    refuses: str | None = None
    process: Process = PROCESS
    heard: list[bytes] = dataclasses.field(default_factory=list)
    answers_after: int = 0
    broken: bool = False
    goes: bool = False
    dies: bool = False
    """Of the signal: nobody starts it again."""
    crashes: int = 0
    """How often it ends after its first good answer, and is started again as another process."""
    hides: bool = False
    """While it is started again it does not answer."""
    dies_of: bytes | None = None
    """What it must not be signalled on."""
    _answered: bool = False

    def ask(self, _node: Node, socket: str, _seconds: float) -> LiveState:
        if self.broken:
            raise EngineBrokenError("UNIMPLEMENTED", path=socket)
        if self.answers_after:
            self.answers_after -= 1
            raise EngineSilentError("still starting", path=socket)
        if self.silent:
            raise EngineSilentError("connection refused", path=socket)
        if self._answered and self.crashes:
            self.crashes -= 1
            self._answered = False
            self.process = msgspec.structs.replace(self.process, pid=self.process.pid + 1)
            if self.hides:
                raise EngineSilentError("connection refused", path=socket)
        self._answered = self.read != OLD
        return MortalLive("1.0", {self.read.decode(): None}, None, self.process, dies_of=self.dies_of)

    def signal(self, node: Node, _process: Process) -> None:
        if self.goes:
            self.goes = False
            raise ProcessGoneError("the process 4711 is gone")
        if self.answers_after or self.silent:
            raise AssertionError("signalled while it does not answer")
        self.heard.append(node.files.read(PATH))
        self.silent = self.dies
        if not self.deaf:
            self.read = node.files.read(PATH)

    def build_transitional_content(self, content: bytes | None) -> bytes | None:
        return b"explicit " + (content or b"")

    def find_restart_obstacle(self, _node: Node, _process: Process) -> str | None:
        return self.refuses


class Restarts:
    """The node's systemd: restarts the player, or fails so many times."""

    def __init__(self, player: Player, failures: int = 0) -> None:
        self.player = player
        self.failures = failures
        self.calls = 0
        self.waits = False
        """The engine is not restarted before whoever waits for that has left."""
        self.state = "active"
        self.log = ""

    def property(self, _unit: str, name: str) -> str | None:
        return self.state if name == "ActiveState" else None

    def last_words(self, _unit: str, since: float) -> str:
        return self.log if since > 1e9 else "of another time"

    def restart(self, unit: str, *, seconds: float, meanwhile: Callable[[], None] | None = None) -> None:
        self.calls += 1
        if self.waits:
            assert meanwhile is not None
            for _ in range(5):
                meanwhile()
            raise ProgramError(f"{unit} was not restarted within {seconds} s")
        if self.calls <= self.failures:
            self.player.silent = True
            self.state = "failed"
            raise ProgramError(f"{unit} failed after {seconds} s")
        self.player.silent = self.player.broken = False
        self.state = "active"
        self.player.read = self.player.node.files.read(PATH)
        self.player.process = msgspec.structs.replace(PROCESS, pid=PROCESS.pid + self.calls)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "etc").mkdir()
    (tmp_path / PATH[1:]).write_bytes(OLD)
    return Node.open(str(tmp_path), "/host")


@pytest.fixture
def player(node: Node) -> Player:
    return Player(node)


def switch(player: Player, reload: Reload, content: bytes | None = NEW, *, last_resort: bool = False) -> Switch:
    file = EngineFile("conf", PATH, player.node.files.read_file(PATH))

    def wrong(live: LiveState) -> list[str]:
        return [] if (content or b"").decode() in "".join(live.handlers) else ["it lists something else"]

    live = LiveState("1.0", {}, None, player.process)
    inspection = Inspection("/run/engine.sock", (file,), live)
    return Switch(
        cast("Engine", player), inspection, [DesiredFile(file, None, content)], reload, wrong, last_resort=last_resort
    )


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "STEADY_SECONDS", 0.01)


def switcher(node: Node, attention: SignalCollector | None = None, seconds: float = 0.3) -> Switcher:
    return Switcher(node, attention or SignalCollector(), seconds, "/store")


SIGNAL = Reload(ReloadMode.SIGNAL)
SYSTEMD = Reload(ReloadMode.SYSTEMD, "engine.service", restarts=True)


def test_a_signalled_engine_reads_explicit_values_and_the_exact_bytes_follow(node: Node, player: Player) -> None:
    switcher(node).make(switch(player, SIGNAL), interruptible=False)
    assert player.heard == [b"explicit " + NEW]
    assert node.files.read(PATH) == NEW


def test_how_long_an_engine_was_away_is_in_the_line_that_says_that_it_serves(
    node: Node, player: Player, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitReport, "elapsed", lambda _: 1.26)
    switcher(node).make(switch(player, SIGNAL), interruptible=False)
    (line,) = (each for each in logged.getvalue().splitlines() if "event=engine-serves" in each)
    assert line.endswith(' engine=docker away="1.3 s"')


def test_a_reload_whose_log_lines_are_suppressed_as_repeated_is_counted(
    node: Node, player: Player, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitReport, "elapsed", lambda _: 1.26)
    monkeypatch.setattr(log._LoggedLines, "written_digests", {})
    monkeypatch.setattr(log._LoggedLines, "suppressed_digests", frozenset())
    report = MetricsReport(node, None, None, checks_drift=False)
    for _ in range(2):
        switcher(node).make(switch(player, SIGNAL), interruptible=False)
        log.suppress_known_lines(log.get_line_digests())
    assert logged.getvalue().count("event=reloading") == 1
    assert report.counts.reloads == (("docker", "install", 2),)


def test_a_file_that_is_to_go_stays_until_the_signalled_engine_has_forgotten(node: Node, player: Player) -> None:
    switcher(node).make(switch(player, SIGNAL, None), interruptible=False)
    assert player.heard == [b"explicit "]
    assert node.files.read_file(PATH) is None


def test_an_engine_that_ignores_the_signal_is_not_believed(node: Node, player: Player) -> None:
    player.deaf = True
    with pytest.raises(NotServedError, match="it lists something else") as caught:
        switcher(node).make(switch(player, SIGNAL), interruptible=False)
    assert caught.value.answers


def test_an_engine_that_died_is_told_from_one_that_answers_wrongly(node: Node, player: Player) -> None:
    player.silent = True
    with pytest.raises(NotServedError, match="connection refused") as caught:
        switcher(node).make(switch(player, SIGNAL), interruptible=False)
    assert not caught.value.answers


def test_a_restart_that_fails_while_installing_is_not_waited_for(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = Restarts(player, failures=1)
    monkeypatch.setattr(node, "services", restarts)
    with pytest.raises(NotServedError, match=r"engine\.service failed"):
        switcher(node).make(switch(player, SYSTEMD), interruptible=False)
    assert restarts.calls == 1


def test_a_restart_that_fails_on_the_way_back_is_tried_once_more(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = Restarts(player, failures=1)
    monkeypatch.setattr(node, "services", restarts)
    switcher(node).make(switch(player, SYSTEMD, last_resort=True), interruptible=False)
    assert restarts.calls == 2


@pytest.fixture
def restarts(node: Node, player: Player, monkeypatch: pytest.MonkeyPatch) -> Restarts:
    restarts = Restarts(player)
    monkeypatch.setattr(node, "services", restarts)
    return restarts


def test_an_engine_that_does_not_answer_is_signalled_once_it_does_and_not_before(node: Node, player: Player) -> None:
    player.answers_after = 3
    switcher(node, seconds=60).make(switch(player, SIGNAL), interruptible=False)
    assert len(player.heard) == 1


def test_an_engine_that_is_restarted_before_the_signal_arrives_is_signalled_again(node: Node, player: Player) -> None:
    player.goes = True
    switcher(node, seconds=60).make(switch(player, SIGNAL), interruptible=False)
    assert len(player.heard) == 1


@pytest.mark.usefixtures("restarts")
def test_an_engine_that_would_die_of_the_signal_is_not_signalled_while_installing(node: Node, player: Player) -> None:
    player.dies_of = b"explicit " + NEW
    with pytest.raises(NotServedError, match=r"it would die of .*not signalled") as caught:
        switcher(node).make(switch(player, SIGNAL), interruptible=False)
    assert caught.value.answers
    assert player.heard == []


def test_an_engine_that_the_signal_would_end_gets_its_old_file_and_no_signal(
    node: Node, player: Player, logged: io.StringIO
) -> None:
    player.dies_of = b"explicit " + NEW
    switcher(node).make(switch(player, SIGNAL, last_resort=True), interruptible=False)
    assert player.heard == []
    assert node.files.read(PATH) == NEW
    assert "restart it, so that it forgets the handlers" in logged.getvalue()


def test_an_edit_between_our_own_and_the_signal_is_what_the_engine_would_die_of(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    player.dies_of, player.answers_after = b"somebody's", 3

    def edit(_seconds: float = 0.0) -> None:  # somebody edits while we wait for an answer
        Path(node.root.outside(PATH)).write_bytes(b"somebody's")

    attention = SignalCollector()
    monkeypatch.setattr(attention, "take_pending", edit)
    with pytest.raises(NotServedError, match="it would die of"):
        switcher(node, attention).make(switch(player, SIGNAL), interruptible=False)
    assert player.heard == []


@pytest.mark.parametrize("last_resort", [True, False])
def test_what_does_not_help_is_done_once_more_where_the_engine_must_come_back(
    node: Node, player: Player, *, last_resort: bool
) -> None:
    player.deaf = True
    with pytest.raises(NotServedError, match="it lists something else"):
        switcher(node).make(switch(player, SIGNAL, last_resort=last_resort), interruptible=False)
    assert len(player.heard) == (2 if last_resort else 1)


def test_an_engine_that_the_signal_ended_is_given_up_and_started_at_the_rollback(
    node: Node, player: Player, restarts: Restarts
) -> None:
    player.dies, restarts.state, restarts.log = True, "inactive", "panic: runtime error"
    work = switcher(node, seconds=600)
    with pytest.raises(NotServedError, match=r"connection refused; its log says: panic: runtime error$") as caught:
        work.make(switch(player, SIGNAL), interruptible=False)
    assert not caught.value.answers
    assert restarts.calls == 0
    work.make(switch(player, SIGNAL, OLD, last_resort=True), interruptible=False)
    assert restarts.calls == 1


def test_an_engine_that_somebody_else_stopped_is_not_started(node: Node, player: Player, restarts: Restarts) -> None:
    player.silent, restarts.state = True, "inactive"
    with pytest.raises(NotServedError, match="connection refused"):
        switcher(node, seconds=600).make(switch(player, SIGNAL, last_resort=True), interruptible=False)
    assert restarts.calls == 0
    assert node.files.read(PATH) == NEW, "it reads this at its start, and needs no explicit values there"


def test_an_engine_that_comes_up_without_its_service_is_not_waited_for(
    node: Node, player: Player, restarts: Restarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "restart", lambda _unit, **_: setattr(player, "broken", True))
    restarts.log = "level=warning msg=failed to load plugin"
    with pytest.raises(NotServedError, match="UNIMPLEMENTED; its log says: level=warning"):
        switcher(node, seconds=600).make(switch(player, SYSTEMD), interruptible=False)


def test_an_engine_that_runs_is_not_restarted_on_files_that_its_own_binary_refuses(
    node: Node, player: Player, restarts: Restarts
) -> None:
    here = inspect_process(os.getpid())
    assert here is not None
    player.process, player.refuses = here, "somebody's drop-in: syntax error"
    work = switcher(node)
    with pytest.raises(NotServedError, match="somebody's drop-in: syntax error; it was not restarted") as caught:
        work.make(switch(player, SYSTEMD), interruptible=False)
    assert caught.value.answers
    assert (restarts.calls, work.reloads) == (0, 0)


@pytest.mark.usefixtures("restarts")
def test_an_engine_that_is_down_is_started_whatever_its_binary_says(node: Node, player: Player) -> None:
    player.refuses = "who knows"  # its process, 4711, does not run
    switcher(node).make(switch(player, SYSTEMD), interruptible=False)


def test_the_answer_of_a_process_from_before_the_restart_proves_nothing(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = Restarts(player)
    monkeypatch.setattr(node, "services", restarts)
    monkeypatch.setattr(restarts, "restart", lambda _unit, **_: setattr(player, "read", NEW))
    with pytest.raises(NotServedError, match="it was not restarted"):
        switcher(node).make(switch(player, SYSTEMD), interruptible=False)


def test_somebody_elses_edit_between_two_switches_is_not_overwritten(node: Node, player: Player) -> None:
    work = switcher(node)
    first = switch(player, Reload(ReloadMode.NONE))
    work.make(first, interruptible=False)
    Path(node.root.outside(PATH)).write_bytes(b"somebody's\n")
    back = msgspec.structs.replace(first, files=[msgspec.structs.replace(first.files[0], target=OLD)])
    with pytest.raises(ChangedMeanwhileError):
        work.make(back, interruptible=False)
    assert node.files.read(PATH) == b"somebody's\n"


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_signal_ends_the_wait_for_the_engine_only_where_that_is_safe(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch, *, interruptible: bool
) -> None:
    attention = SignalCollector()
    monkeypatch.setattr(attention, "take_pending", lambda _seconds=0.0: setattr(attention, "stop", signal.SIGTERM))
    player.deaf = True
    expected: type[BaseException] = Stopped if interruptible else NotServedError
    with pytest.raises(expected):
        switcher(node, attention).make(switch(player, SIGNAL), interruptible=interruptible)


def test_a_file_that_says_this_already_is_not_written(node: Node, player: Player) -> None:
    def stamp() -> Any:
        found = node.files.read_file(PATH)
        assert found is not None
        return found.identity

    before = stamp()
    switcher(node).make(switch(player, Reload(ReloadMode.NONE), OLD), interruptible=False)
    assert stamp() == before


@pytest.mark.usefixtures("restarts")
@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("reload", [SIGNAL, SYSTEMD])
def test_an_engine_that_answers_and_ends_again_and_again_has_not_loaded_the_change(
    node: Node, player: Player, reload: Reload, *, hides: bool
) -> None:
    player.crashes, player.hides = 1000, hides
    with pytest.raises(NotServedError, match="ends again and again"):
        switcher(node, seconds=600).make(switch(player, reload), interruptible=False)
    assert player.crashes > 900, "it is given up at once"


@pytest.mark.usefixtures("restarts")
@pytest.mark.parametrize("hides", [True, False])
def test_an_engine_that_is_restarted_once_by_somebody_else_is_asked_again(
    node: Node, player: Player, *, hides: bool
) -> None:
    player.crashes, player.hides = 1, hides
    switcher(node, seconds=60).make(switch(player, SYSTEMD), interruptible=False)
    assert player.crashes == 0


def test_an_engine_that_answers_just_in_time_is_asked_again_all_the_same(node: Node, player: Player) -> None:
    switcher(node, seconds=0).make(switch(player, SIGNAL), interruptible=False)


def test_a_restart_that_does_not_end_is_told_with_the_units_last_words(
    node: Node, player: Player, restarts: Restarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(_unit: str, *, seconds: float) -> None:
        raise ProgramError(f"systemctl restart engine.service did not end within {seconds:g} s")

    monkeypatch.setattr(restarts, "restart", hangs)
    restarts.log = "level=fatal msg=waiting for a mount"
    for last_resort in (False, True):
        player.silent = True
        with pytest.raises(NotServedError, match=r"did not end within 0\.3 s") as caught:
            switcher(node).make(switch(player, SYSTEMD, last_resort=last_resort), interruptible=False)
        assert caught.value.reason.endswith("; its log says: level=fatal msg=waiting for a mount")


CALLED = msgspec.structs.replace(SYSTEMD, ends_after_calls=True)


@pytest.fixture
def awaiting(player: Player, restarts: Restarts, monkeypatch: pytest.MonkeyPatch) -> SignalCollector:
    """Have the engine wait for this process, which is asked to stop once the restart was asked for."""
    monkeypatch.setattr(reload, "_END_SECONDS", 0.0)
    here = inspect_process(os.getpid())
    assert here is not None
    player.process, restarts.waits = here, True
    monkeypatch.setattr(player, "ask", lambda *_: pytest.fail("it was asked, though it is still to be restarted"))
    attention = SignalCollector()
    monkeypatch.setattr(attention, "take_pending", lambda _seconds=0.0: setattr(attention, "stop", signal.SIGTERM))
    return attention


def test_an_ending_process_does_not_wait_for_an_engine_that_ends_after_it(
    node: Node, player: Player, restarts: Restarts, awaiting: SignalCollector, logged: io.StringIO
) -> None:
    work = switcher(node, awaiting, seconds=60)
    work.make(switch(player, CALLED, last_resort=True), interruptible=False)
    assert (restarts.calls, work.left_to_systemd) == (1, ["docker"])
    assert node.files.read(PATH) == NEW
    assert "event=engine-ends-after-us engine=docker unit=engine.service" in logged.getvalue()


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_change_of_an_engine_that_ends_after_this_process_is_given_up(
    node: Node, player: Player, restarts: Restarts, awaiting: SignalCollector, *, interruptible: bool
) -> None:
    work = switcher(node, awaiting, seconds=60)
    first = switch(player, CALLED)
    with pytest.raises(Stopped):
        work.make(first, interruptible=interruptible)
    back = msgspec.structs.replace(first, files=[msgspec.structs.replace(first.files[0], target=OLD)], last_resort=True)
    work.make(back, interruptible=False)
    assert (restarts.calls, work.left_to_systemd, work.reloads) == (1, ["docker"], 2)
    assert node.files.read(PATH) == OLD
    assert awaiting.awaited_by == player.process


def test_an_engine_that_still_runs_gets_time_before_it_counts_as_waiting_for_us(
    node: Node, player: Player, restarts: Restarts, awaiting: SignalCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_END_SECONDS", 60.0)
    with pytest.raises(NotServedError, match=r"engine\.service was not restarted"):
        switcher(node, awaiting, seconds=60).make(switch(player, CALLED), interruptible=False)
    assert (restarts.calls, awaiting.awaited_by) == (1, None)


@pytest.mark.parametrize("ends", [True, False])
def test_an_engine_that_ended_or_that_nobody_stops_by_is_waited_for(
    node: Node,
    player: Player,
    restarts: Restarts,
    awaiting: SignalCollector,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ends: bool,
) -> None:
    if ends:
        player.process = PROCESS  # 4711, which does not run
    else:
        monkeypatch.setattr(awaiting, "take_pending", lambda _seconds=0.0: None)
    with pytest.raises(NotServedError, match=r"engine\.service was not restarted"):
        switcher(node, awaiting, seconds=60).make(switch(player, CALLED), interruptible=False)
    assert (restarts.calls, awaiting.awaited_by) == (1, None)


@pytest.mark.parametrize("last_resort", [True, False])
def test_an_engine_that_ends_in_time_is_seen_to_return_by_an_ending_process(
    node: Node, player: Player, restarts: Restarts, *, last_resort: bool
) -> None:
    attention = SignalCollector()
    attention.stop = signal.SIGTERM
    work = switcher(node, attention, seconds=60)
    work.make(switch(player, CALLED, last_resort=last_resort), interruptible=False)
    assert (restarts.calls, work.left_to_systemd, player.read) == (1, [], NEW)


@pytest.mark.parametrize("last_resort", [True, False])
def test_an_engine_that_ends_after_its_callers_is_seen_to_return(
    node: Node, player: Player, restarts: Restarts, *, last_resort: bool
) -> None:
    work = switcher(node, seconds=60)
    work.make(switch(player, CALLED, last_resort=last_resort), interruptible=False)
    assert (restarts.calls, work.left_to_systemd, player.read) == (1, [], NEW)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_waiting_for_an_engine_is_shown_with_the_time_and_gives_way_to_log_lines() -> None:
    clock = Clock()
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "100"}):
        log.configure(None, debug=False, stream=sys.stderr)
        patience = WaitReport("docker", clock)
        clock.now += 0.25
        patience.tick()
        assert seen() == "", "most engines are quicker"
        clock.now += 0.5
        patience.tick()
        assert seen() == f"{CLEARED}| Waiting for docker to serve its configuration, 0 s"
        clock.now += 2.5
        patience.tick()
        patience.tick()
        shown = f"{CLEARED}/ Waiting for docker to serve its configuration, 3 s"
        assert seen().endswith(shown)
        log.get().info("A line", key="a-line")
        patience.line.clear()
        assert re.fullmatch(r".*, 3 s\r\x1b\[K[^\r]*A line.*\r?\n", seen(), re.DOTALL)


def test_elsewhere_a_line_comes_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    patience = WaitReport("docker", clock)
    told = []
    for _ in range(11):
        clock.now += 1
        patience.tick()
        told += lines_of(capsys)
    line = 'level=info msg="Waiting for the engine to serve its configuration" event=waiting-for-handlers '
    assert told == [f"{line}engine=docker seconds=5", f"{line}engine=docker seconds=10"]
    assert patience.elapsed() == 11
