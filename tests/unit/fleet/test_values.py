"""Answers of a capture are held to the ranges that a node's have, before anything is planned by them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.driver.roots import Driver
from toolkit_installer.fleet import seams, values
from toolkit_installer.fleet.values import Answer, Failure, NotReadableError, RawAnswer
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
    assert values.fault(POSSIBLE[name]) is None


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_node_answers_is_refused(name: str) -> None:
    assert values.fault(IMPOSSIBLE[name])
    assert values.fault([IMPOSSIBLE[name]])


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
        assert values.fault(place.lstat()) is None


@pytest.mark.parametrize(
    "failure",
    [
        Failure("OSError", number=-1),
        Failure("OSError", number=1 << 62),
        Failure("NodeError", "x", "/a", -1),
        Failure("NodeError", "x", "/a", 1 << 40),
        Failure("NodeError", "x", "/a\0b"),
        Failure("NotServedError", "x"),
    ],
    ids=str,
)
def test_an_error_that_no_node_leads_to_is_refused(failure: Failure) -> None:
    with pytest.raises(NotReadableError):
        values.error_of(failure)


@pytest.mark.parametrize("text", ["\uf8fe", "\uf8fe\u3000", "\uf8fe\U0010ffff", "a\uf8fe\uf8fe"])
def test_an_escape_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(NotReadableError):
        values.unescaped(text)


VALID: dict[str, tuple[Any, Any]] = {
    "node.root.Root.canonical": ("/a", "a"),
    "node.root.Root.mount_of": (-1, -2),
    "node.reading.Reader.list": (["a"], ["a/b"]),
    "node.reading.Reader.mount_flags": (0, 1 << 62),
    "node.reading.read_bounded": (b"", bytes(CONFIG_LIMIT + 1)),
    "node.reading.Tree.read": (b"", bytes(CONFIG_LIMIT + 1)),
    "node.root.real": ("/", ""),
    "node.places.PathTranslator.on_node": (None, "a"),
    "node.places.PathTranslator.seen_here": ("/a", "a"),
    "node.places.PathTranslator.reachable": ("/a", ""),
    "node.owners.list_trusted_users": (frozenset({0}), frozenset({-1})),
    "node.programs.Programs.find_program": (None, "runc"),
    "node.processes.names": ([(1, "init")], [(-1, "init")]),
    "node.processes.parent_of": (0, -1),
    "node.descriptors.content": (None, bytes(CONFIG_LIMIT + 1)),
    "node.locks.find_instance": (None, 1 << 30),
    "node.machine.boot_seconds": (1.5, -1.0),
    "node.machine.now": (1.5, 1e30),
    "engines.docker.client.query_info": ({"Runtimes": {}, "DefaultRuntime": None}, {"Runtimes": "text"}),
}


def test_each_seam_with_a_range_of_its_own_refuses_what_is_beyond() -> None:
    ranged = {str(seam): seam.valid for seam in seams.SEAMS if seam.valid is not None}
    assert ranged.keys() == VALID.keys()
    for name, valid in ranged.items():
        good, bad = VALID[name]
        assert valid(good), name
        assert not valid(bad), name


def read(value: Any, kind: Any) -> Any:
    return values.read(msgspec.msgpack.decode(msgspec.msgpack.encode(Answer(value)), type=RawAnswer), kind)
