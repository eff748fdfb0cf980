"""Switching an engine over, with an engine that fails on command; real ones are in the end-to-end tests."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any, cast

import pytest

from toolkit_installer.engines.base import Engine, EngineFile, EngineSilentError, Live, Reload
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.signals import Attention, Stopped
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.switching import NotServedError, Step, Switch, Switcher

PATH = "/etc/engine.conf"
OLD, NEW = b"old\n", b"new\n"
PROCESS = Process(4711, "engine", "/usr/bin/engine", ("engine",), 1.0, "engine.service")


@dataclasses.dataclass
class Player:
    """An engine that reads its file when it is signalled or restarted, and answers with what it read."""

    node: Node
    name: EngineName = EngineName.DOCKER
    read: bytes = OLD
    silent: bool = False
    deaf: bool = False
    process: Process = PROCESS
    heard: list[bytes] = dataclasses.field(default_factory=list)

    def ask(self, _node: Node, socket: str, _seconds: float) -> Live:
        if self.silent:
            raise EngineSilentError("connection refused", path=socket)
        return Live("1.0", {self.read.decode(): None}, None, self.process)

    def signal(self, node: Node, _process: Process) -> None:
        self.heard.append(node.files.read(PATH))
        if not self.deaf:
            self.read = node.files.read(PATH)

    def transitional(self, content: bytes | None) -> bytes | None:
        return b"explicit " + (content or b"")


class Restarts:
    """The node's systemd: restarts the player, or fails so many times."""

    def __init__(self, player: Player, failures: int = 0) -> None:
        self.player = player
        self.failures = failures
        self.calls = 0

    def restart(self, unit: str, *, seconds: float) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            self.player.silent = True
            raise ProgramError(f"{unit} failed after {seconds} s")
        self.player.silent = False
        self.player.read = self.player.node.files.read(PATH)
        self.player.process = dataclasses.replace(PROCESS, pid=PROCESS.pid + self.calls)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "etc").mkdir()
    (tmp_path / PATH[1:]).write_bytes(OLD)
    return Node.open(str(tmp_path), "/host")


@pytest.fixture
def player(node: Node) -> Player:
    return Player(node)


def switch(player: Player, reload: Reload, content: bytes | None = NEW, *, last_resort: bool = False) -> Switch:
    file = EngineFile("conf", PATH, player.node.files.find(PATH))

    def wrong(live: Live) -> list[str]:
        return [] if (content or b"").decode() in "".join(live.handlers) else ["it lists something else"]

    live = Live("1.0", {}, None, player.process)
    return Switch(
        cast("Engine", player), "/run/engine.sock", live, [Step(file, content)], reload, wrong, last_resort=last_resort
    )


def switcher(node: Node, attention: Attention | None = None) -> Switcher:
    return Switcher(node, attention or Attention(), 0.3)


SIGNAL = Reload(ReloadMode.SIGNAL)
SYSTEMD = Reload(ReloadMode.SYSTEMD, "engine.service", restarts=True)


def test_a_signalled_engine_reads_explicit_values_and_the_exact_bytes_come_afterwards(
    node: Node, player: Player
) -> None:
    switcher(node).make(switch(player, SIGNAL), interruptible=False)
    assert player.heard == [b"explicit " + NEW]
    assert node.files.read(PATH) == NEW


def test_a_file_that_is_to_go_stays_until_the_signalled_engine_has_forgotten(node: Node, player: Player) -> None:
    switcher(node).make(switch(player, SIGNAL, None), interruptible=False)
    assert player.heard == [b"explicit "]
    assert node.files.find(PATH) is None


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
    back = dataclasses.replace(first, steps=[Step(first.steps[0].file, OLD)])
    with pytest.raises(ChangedMeanwhileError):
        work.make(back, interruptible=False)
    assert node.files.read(PATH) == b"somebody's\n"


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_signal_ends_the_wait_for_the_engine_only_where_that_is_safe(
    node: Node, player: Player, monkeypatch: pytest.MonkeyPatch, *, interruptible: bool
) -> None:
    attention = Attention()
    monkeypatch.setattr(attention, "look", lambda _seconds=0.0: setattr(attention, "stop", signal.SIGTERM))
    player.deaf = True
    expected: type[BaseException] = Stopped if interruptible else NotServedError
    with pytest.raises(expected):
        switcher(node, attention).make(switch(player, SIGNAL), interruptible=interruptible)


def test_a_file_that_says_this_already_is_not_written(node: Node, player: Player) -> None:
    def stamp() -> Any:
        found = node.files.find(PATH)
        assert found is not None
        return found.identity

    before = stamp()
    switcher(node).make(switch(player, Reload(ReloadMode.NONE), OLD), interruptible=False)
    assert stamp() == before
