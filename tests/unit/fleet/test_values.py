"""Answers of a capture are held to the ranges that a node's have, before anything is planned by them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.driver.roots import Driver
from toolkit_installer.fleet import values
from toolkit_installer.fleet.values import CapturedAnswer, CapturedError, NotReadableError, RawAnswer
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.node.reading import CONFIG_LIMIT, FileIdentity, Found, Metadata
from toolkit_installer.planning.files_naming import Naming
from toolkit_installer.planning.other_installer import OtherInstaller

METADATA = Metadata(0o644, 0, 0)
IDENTITY = FileIdentity(1, 1, 1, 1, 1)
HUGE = 1 << 63
STATUS = [0o100644, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1]
"""As a capture has it: mode, inode, device, links, user, group, size, device's number, three times."""


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


POSSIBLE = {
    "a file": Found("/etc/a", b"x" * CONFIG_LIMIT, METADATA, IDENTITY),
    "a file before 1970": Found("/etc/a", b"", METADATA, FileIdentity(1, 1, 1, -1, -1)),
    "a process": Process(1, "init", "/sbin/init", (), 0.0, None),
    "a signal": CompletedProgram(-9, b"", "\0"),
    "an exit status": CompletedProgram(255, b"\0", ""),
    "no containers": RunningContainers(0, 0),
    "containers that cannot be seen": RunningContainers(),
    "a driver": Driver("/", "/host"),
    "levels": deep(90),
}
IMPOSSIBLE = {
    "a relative path": Found("etc/a", b"", METADATA, IDENTITY),
    "a path with ..": Found("/etc/../a", b"", METADATA, IDENTITY),
    "two slashes": Found("//", b"", METADATA, IDENTITY),
    "a NUL": Found("/etc/\0", b"", METADATA, IDENTITY),
    "a large file": Found("/etc/a", b"x" * (CONFIG_LIMIT + 1), METADATA, IDENTITY),
    "a negative mode": Metadata(-1, 0, 0),
    "a huge mode": Metadata(1 << 62, 0, 0),
    "a negative user": Metadata(0, -1, 0),
    "a huge group": Metadata(0, 0, 1 << 32),
    "a negative size": FileIdentity(1, 1, -1, 1, 1),
    "a huge time": FileIdentity(1, 1, 1, HUGE, 1),
    "a negative PID": Process(-1, "a", "/a", (), 0.0, None),
    "PID 0": Process(0, "a", "/a", (), 0.0, None),
    "a huge PID": OtherInstaller("a", 1 << 23),
    "a process of the far future": Process(1, "a", "/a", (), 1e300, None),
    "a start that is no number": Process(1, "a", "/a", (), float("nan"), None),
    "an exit status of 256": CompletedProgram(256, b"", ""),
    "a signal that there is not": CompletedProgram(-65, b"", ""),
    "negative containers": RunningContainers(-1, 0),
    "line 0": Naming("/a", 0, "/b"),
    "a relative root": Driver("run/nvidia"),
    "a number that is none": float("inf"),
    "many values": [0] * 200_001,
    "many levels": deep(101),
    "another kind": msgspec.msgpack.Ext(1, b""),
    "a NUL in a name": {"a\0b": 1},
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_a_node_can_answer_is_taken(name: str) -> None:
    assert values.find_fault(POSSIBLE[name]) is None


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_node_answers_is_refused(name: str) -> None:
    assert values.find_fault(IMPOSSIBLE[name])
    assert values.find_fault([IMPOSSIBLE[name]])


@pytest.mark.parametrize("place", range(len(STATUS)))
@pytest.mark.parametrize("number", [-HUGE, HUGE])
def test_a_status_with_a_number_out_of_range_is_refused(place: int, number: int) -> None:
    assert isinstance(read(STATUS, os.stat_result), os.stat_result)
    changed = [number if index == place else each for index, each in enumerate(STATUS)]
    if number == -HUGE and place >= len(STATUS) - 3:
        return  # a time that a file can have
    if number == HUGE and place in (1, 2, 3, 7):
        return  # these have 64 bits
    with pytest.raises(NotReadableError):
        read(changed, os.stat_result)


@pytest.mark.parametrize("mode", [0, 0o644, 0o200000, 0o170000])
def test_a_status_of_nothing_that_there_is_is_refused(mode: int) -> None:
    with pytest.raises(NotReadableError):
        read([mode, *STATUS[1:]], os.stat_result)


def test_a_status_of_a_real_file_is_taken(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/dev/null"), Path("/proc/self/exe"), Path("/")):
        assert values.find_fault(place.lstat()) is None


@pytest.mark.parametrize(
    "failure",
    [
        CapturedError("OSError", number=-1),
        CapturedError("OSError", number=1 << 62),
        CapturedError("NodeError", "x", "/a", -1),
        CapturedError("NodeError", "x", "/a", 1 << 40),
        CapturedError("NodeError", "x", "/a\0b"),
        CapturedError("NotServedError", "x"),
    ],
    ids=str,
)
def test_an_error_that_no_node_leads_to_is_refused(failure: CapturedError) -> None:
    with pytest.raises(NotReadableError):
        values.decode_error(failure)


@pytest.mark.parametrize("text", ["\uf8fe", "\uf8fe\u3000", "\uf8fe\U0010ffff", "a\uf8fe\uf8fe"])
def test_an_escape_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(NotReadableError):
        values.unescape(text)


def read(value: Any, kind: Any) -> Any:
    return values.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(CapturedAnswer(value)), type=RawAnswer), kind)
