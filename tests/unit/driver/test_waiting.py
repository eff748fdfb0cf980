"""Waiting for the driver: what ends it, what is said meanwhile and how often, and that a signal is not slept over."""

from __future__ import annotations

import io
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from toolkit_installer.driver import roots, waiting
from toolkit_installer.driver.roots import Driver, DriverSearch
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node import signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Stopped
from toolkit_installer.settings import AUTO, LogFormat, Settings, ToolkitSettings, WithoutGpu

WAITING = Settings(toolkit=ToolkitSettings(driver_root=AUTO), log_format=LogFormat.LOGFMT)
IDLE = Settings(toolkit=WAITING.toolkit, log_format=LogFormat.LOGFMT, without_gpu=WithoutGpu.IDLE)
DRIVER = Driver("/run/nvidia/driver")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path))


class Probes:
    """The results of the next probes; the last one stays. `seconds` are the limits that they were given."""

    def __init__(self) -> None:
        self.results = [DriverSearch(None, ("/: there is no nvidia-smi",))]
        self.seconds: list[float] = []

    def probe(self, _node: Node, _toolkit: ToolkitSettings, seconds: float) -> DriverSearch:
        self.seconds.append(seconds)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Probes:
    made = Probes()
    monkeypatch.setattr(roots, "find_driver", made.probe)
    monkeypatch.setattr(waiting, "_PROBE_SECONDS", 0.01)
    return made


def lines(logged: io.StringIO) -> list[str]:
    return re.findall(r'missing="?([^"\n]*)', logged.getvalue())


def test_a_driver_that_is_there_is_returned_without_a_word(node: Node, probes: Probes, logged: io.StringIO) -> None:
    probes.results = [DriverSearch(DRIVER)]
    assert waiting.wait_for_driver(node, WAITING, None) == DRIVER
    assert logged.getvalue() == ""


def test_what_is_missing_is_said_once_and_again_when_it_changes(
    node: Node, probes: Probes, logged: io.StringIO
) -> None:
    one, other = DriverSearch(None, ("one", "two")), DriverSearch(None, ("other",))
    probes.results = [one, one, other, other, one, DriverSearch(DRIVER)]
    assert waiting.wait_for_driver(node, WAITING, None) == DRIVER
    assert lines(logged) == ["one; two", "other", "one; two"]


def test_what_stays_missing_is_said_again_now_and_then(
    node: Node, probes: Probes, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_LOG_SECONDS", 0.0)
    probes.results = [*probes.results * 3, DriverSearch(DRIVER)]
    waiting.wait_for_driver(node, WAITING, None)
    assert len(lines(logged)) == 3


def test_the_time_that_is_over_is_an_error_with_what_is_missing(node: Node, probes: Probes) -> None:
    with pytest.raises(DriverNotReadyError, match=r"within 0\.05 s: /: there is no nvidia-smi") as raised:
        waiting.wait_for_driver(node, WAITING, 0.05)
    assert "--timeout" in (raised.value.hint or "")
    assert len(probes.seconds) > 1
    assert all(1.0 <= seconds <= roots.PROOF_SECONDS for seconds in probes.seconds)


@pytest.mark.parametrize(
    "seconds, least, most", [(None, 60, 60), (1000.0, 60, 60), (20.0, 19, 20), (0.0, 1, 1)], ids=str
)
def test_no_probe_gets_more_time_than_there_is_nor_less_than_it_needs(
    node: Node, probes: Probes, seconds: float | None, least: float, most: float
) -> None:
    probes.results = [DriverSearch(DRIVER)]
    waiting.wait_for_driver(node, WAITING, seconds)
    assert least <= probes.seconds[0] <= most


def test_a_node_without_a_gpu_is_not_waited_for_where_such_a_one_idles(node: Node, probes: Probes) -> None:
    (Path(node.root.folder) / "sys/bus/pci/devices").mkdir(parents=True)
    (Path(node.root.folder) / "sys/devices/pci0000:00").mkdir(parents=True)
    assert waiting.wait_for_driver(node, IDLE, None) is None
    probes.results = [*probes.results * 2, DriverSearch(DRIVER)]
    assert waiting.wait_for_driver(node, WAITING, None) == DRIVER


@pytest.mark.usefixtures("blocked")
@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_that_stops_ends_the_wait(
    node: Node, probes: Probes, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(waiting, "_PROBE_SECONDS", 60.0)
    signal.raise_signal(number)
    with pytest.raises(Stopped, match=number.name):
        waiting.wait_for_driver(node, WAITING, None)
    assert len(probes.seconds) == 1


@pytest.mark.usefixtures("blocked")
def test_a_hangup_probes_at_once(node: Node, probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_PROBE_SECONDS", 60.0)
    probes.results = [*probes.results, DriverSearch(DRIVER)]
    threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGHUP)).start()
    began = time.monotonic()
    assert waiting.wait_for_driver(node, WAITING, None) == DRIVER
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("seconds, words", [(0.0, "0 s"), (59.9, "59 s"), (60.0, "1 min 0 s"), (3725.0, "62 min 5 s")])
def test_the_time_is_said_in_minutes_and_seconds(seconds: float, words: str) -> None:
    assert waiting._duration(seconds) == words
