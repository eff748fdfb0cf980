"""A damaged or hostile capture is one refused node with its reason, and the rest of the fleet is answered."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import fleet_captures
from tests.support.quick import Few
from toolkit_installer.cli import captures, commands
from toolkit_installer.settings import Program

_MAGIC = b"toolkit-installer capture\n"
_MUTANTS = 600
_FAILED = [None, ["OSError", "made up", "/x", None, None, 5], False]
_VALUES: tuple[Any, ...] = (
    *(-1, 1 << 62, -(1 << 62), 0, None, True, 1.5, "", "\0", "a/b", "../..", "/a\0b", "text", b"\xff\0"),
    *([], {}, [[]], {"Runtimes": "text"}, {"": None}, "/" * 5000, "{" * 5000, _FAILED),
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "captures"
    fleet_captures.make(folder, 6, variants=1)
    return folder


def opened(content: bytes) -> Any:
    return msgspec.msgpack.decode(zlib.decompress(content[len(_MAGIC) + 32 :]))


def closed(value: Any) -> bytes:
    text = zlib.compress(msgspec.msgpack.encode(value))
    return _MAGIC + hashlib.sha256(text).digest() + text


def replayed(*places: Path) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of a replay, its JSON, and what it logged."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        arguments = ("replay", *map(str, places), "--json")
        code = commands.main(Program.TOOLKIT_INSTALLER, arguments, {"PATH": os.environ["PATH"]})
    return code, json.loads(out.getvalue() or "{}"), errors.getvalue()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def answers_of(content: bytes, seam: str, answer: Any) -> bytes:
    """Return the capture with every answer of a seam replaced."""
    value = opened(content)
    value["answers"][seam] = dict.fromkeys(value["answers"][seam], answer)
    return closed(value)


def bomb(content: bytes) -> bytes:
    return closed(opened(content) | {"given": {"runtime": [""] * 60_000_000}})


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "an error of the system": lambda content: answers_of(content, "node.disk.root.Root.canonical", _FAILED),
    "an error in a status": lambda content: answers_of(content, "node.disk.reading.Reader.status", _FAILED),
    "a relative canonical path": lambda content: answers_of(content, "node.disk.root.Root.canonical", ["relative"]),
    "a file of 8 MB": lambda content: answers_of(
        content, "node.disk.reading.Reader.read_file", [["/x", b" " * 8_000_000, [0, 0, 0, []], [0] * 5]]
    ),
    "many values in few bytes": bomb,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_is_refused_with_a_reason_and_the_rest_is_answered(
    fleet: Path, tmp_path: Path, name: str
) -> None:
    files = sorted(fleet.iterdir())
    for number, file in enumerate(files):
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(HOSTILE[name](content) if number == 0 else content)
    _, plain, _ = replayed(fleet)
    code, found, log = replayed(tmp_path)
    assert code == 3
    assert "bug" not in log
    assert found["nodes"]["captures"] == len(files)
    assert found["nodes"]["refused"] == plain["nodes"]["refused"] + 1


def test_a_capture_that_takes_too_long_is_refused(fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "_MOST_SECONDS", 0.05)
    content = min(fleet.iterdir()).read_bytes()
    (tmp_path / "slow.capture").write_bytes(
        answers_of(
            content,
            "node.disk.reading.Reader.read_file",
            [["/x", b"{" + b'"a": [],' * 400_000, [0, 0, 0, []], [0] * 5]],
        )
    )
    code, _, log = replayed(tmp_path / "slow.capture")
    assert code == 3
    assert "bug" not in log


def test_no_mutation_of_a_capture_is_a_bug_of_ours(fleet: Path, tmp_path: Path, few: Few) -> None:
    originals = [file.read_bytes() for file in sorted(fleet.iterdir())]
    originals = [content for content in originals if len(content) > 1000]
    for seed in few(range(_MUTANTS)):
        chance = random.Random(seed)  # noqa: S311  # the same each time
        value = opened(chance.choice(originals))
        for _ in range(chance.choice((1, 1, 1, 3))):
            around, key = chance.choice(list(places(value)))
            around[key] = chance.choice(_VALUES)
        (tmp_path / f"{seed:05}.capture").write_bytes(closed(value))
    code, found, log = replayed(tmp_path)
    assert code in (0, 3), log
    assert "bug" not in log
    assert found["nodes"]["captures"] == len(list(tmp_path.iterdir()))


IN_AN_EMPTY_ROOT = """
import contextlib, importlib, io, os, pkgutil, sys
import toolkit_installer
from toolkit_installer.cli import captures, commands
from toolkit_installer.settings import Program
for module in pkgutil.walk_packages(toolkit_installer.__path__, "toolkit_installer."):
    if not module.name.endswith("__main__") and "process" not in module.name:
        importlib.import_module(module.name)
def replayed(place):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = commands.main(Program.TOOLKIT_INSTALLER, ("replay", place), {})
    return code, out.getvalue()
with open(sys.argv[1], "rb") as file:
    content = file.read()
captures.read_bounded = lambda *_: content  # it opens a file by its descriptor, for which there is no /proc there
there = replayed(sys.argv[1])
os.chroot(sys.argv[2])
lstat = os.lstat
def refused(*given, **named):
    if given[0] == "/node.capture":
        return lstat(*given, **named)
    raise AssertionError(f"the machine is asked about {given}")
os.lstat = os.scandir = os.readlink = os.statvfs = os.access = refused
os.chdir("/")
here = replayed("/node.capture")
assert here == there, (here, there)
print(here[1])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot")
@pytest.mark.parametrize("number", [0, 4])
def test_a_replay_in_an_empty_root_says_the_same(fleet: Path, tmp_path: Path, number: int) -> None:
    content = sorted(file.read_bytes() for file in fleet.iterdir() if file.stat().st_size > 1000)[number]
    empty = tmp_path / "empty"
    (empty / "proc/self").mkdir(parents=True)
    (empty / "proc/self/statm").write_text("100000 0 0 0 0 0 0")
    (empty / "node.capture").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_EMPTY_ROOT, str(empty / "node.capture"), str(empty)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "toolkit" in done.stdout
