"""What the idle process is told, and what the installer is told once it is woken."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit_installer import waiter, waiting
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.waiting import Remembered

DRIVER = (("/dev/nvidiactl", "absent 2"), ("/a\nb", "1 2 3"))
REMEMBERED = Remembered(("DaemonSet", "Node"), DRIVER, driver_away=True, tries=2)


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

    def of(self, remembered: Remembered, *, later: bool, watched: tuple[tuple[str, str, str], ...] = ()) -> list[str]:
        with pytest.raises(Replaced) as caught:
            waiting.wait(self.pid_file, None, watched, remembered, later=later)
        self.fd = int(caught.value.args[-1])
        return os.pread(self.fd, waiter.LIMIT, 0).decode().split("\0")  # what reads it in earnest closes it


def test_what_is_remembered_is_known_again(fields: Fields, monkeypatch: pytest.MonkeyPatch) -> None:
    fields.of(REMEMBERED, later=True)
    monkeypatch.setenv(waiter.RESUME, f"{fields.fd}:DRIFT,DRIVER")
    woken = waiting.resumed()
    assert woken is not None
    assert woken.remembered == REMEMBERED
    assert woken.events == {waiter.DRIFT, waiter.DRIVER}
    assert waiting.resumed() is None


def test_what_is_not_known_is_looked_for_less_and_less_often_but_never_given_up(fields: Fields) -> None:
    pauses = [
        float(fields.of(dataclasses.replace(REMEMBERED, tries=tries), later=True)[2]) for tries in (*range(8), 5000)
    ]
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 600, 600]


def test_where_all_is_known_nobody_is_woken_without_an_event(fields: Fields) -> None:
    told = fields.of(REMEMBERED, later=False, watched=((waiter.DRIFT, "/etc/a", "1"),))
    assert told[2] == ""
    assert told[-3:] == [waiter.DRIFT, "/etc/a", "1"]


def test_all_that_changed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    same = waiter.identity(str(file))
    watched = [
        (waiter.ENGINE, str(file), same),
        (waiter.DRIVER, str(file), "another"),
        (waiter.DRIFT, "/absent", "there"),
        (waiter.DRIFT, str(file), "another"),
    ]
    assert waiter.wait(0.01, None, watched) == "DRIFT,DRIVER"


@pytest.mark.parametrize("seconds", [0.01, 1000.0])
@pytest.mark.parametrize("files", [0, 1])
def test_it_is_woken_in_time_whether_it_looks_at_files_or_not(seconds: float, files: int) -> None:
    assert waiter.wait(seconds, 0.05, [(waiter.DRIFT, "/absent", waiter.identity("/absent"))] * files) == waiter.LATER
