"""What a capture of a live node foretells elsewhere: the node's own plan, and to the byte what a run then makes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.program import SCRIPTS
from toolkit_installer.documents.masking import MASK

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_NO_NEWLINE = "\\ No newline at end of file"


class Foretold:
    """What a node was foretold: which files a run writes, and what they say then."""

    def __init__(self, machine: Machine, planned: dict[str, Any]) -> None:
        self._machine = machine
        self.nothing_to_do: bool = planned["nothing_to_do"]
        files = [*planned["files"], *(file for engine in planned["engines"] for file in engine["files"])]
        self.files = {file["path"]: patched(_content(machine, file["path"]), file["diff"]) for file in files}

    def assert_come_true(self) -> None:
        """Fail unless each file is what was foretold, byte for byte, but for hidden values that a run copies."""
        for path, content in self.files.items():
            now = _content(self._machine, path)
            assert now == content or (content and now and _shows(content.decode(), now.decode())), path


class Foretelling:
    """Captures a node again and again, and plans for the captures on another machine: this one."""

    def __init__(self, machine: Machine, flags: tuple[str, ...], folder: Path) -> None:
        self._machine = machine
        self._flags = flags
        self._folder = folder / "captures"
        self._folder.mkdir()

    def look(self) -> Foretold:
        """Return what the node is foretold now. Fails where that is not the plan which the node makes itself."""
        capture = self._captured()
        plans = [self._told("plan", *more) for more in ((), ("--json",))]
        assert _replayed(capture) == plans[0]
        (group,) = json.loads(_replayed(capture, "--json"))["groups"]
        planned: dict[str, Any] = json.loads(plans[1])
        assert group["planned"] == planned
        return Foretold(self._machine, planned)

    def _captured(self) -> Path:
        """Return a capture that was taken away from its node."""
        there = "/run/node.capture"
        self._told("capture", there)
        place = self._machine.host.path(there)
        away = self._folder / f"{len(list(self._folder.iterdir()))}.capture"
        away.write_bytes(place.read_bytes())
        place.unlink()
        return away

    def _told(self, command: str, *more: str) -> str:
        """Return what a command prints on the node, whose log is not shown."""
        words = [str(SCRIPTS / "toolkit-installer"), command, *map(str, self._machine.flags), *self._flags, *more]
        return self._machine.host.run(*words).stdout


def _replayed(capture: Path, *more: str) -> str:
    words = [str(SCRIPTS / "toolkit-installer"), "replay", *more, str(capture)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _content(machine: Machine, path: str) -> bytes | None:
    place = machine.host.path(path)
    return place.read_bytes() if place.exists() else None


def patched(before: bytes | None, diff: str) -> bytes:
    """Return what a unified diff makes of a file, None for one that is not there. Fails where it is not of this one."""
    old = (before or b"").decode().splitlines(keepends=True)
    new: list[str] = []
    at = 0
    for sign, line in _changes(diff, old):
        if sign == "@":
            start = int(line)
            new += old[at:start]
            at = start
        elif sign == "+":
            new.append(line)
        else:
            assert _shows(line, old[at]), (at, old[at], line)
            new += [old[at]] if sign == " " else []
            at += 1
    return "".join([*new, *old[at:]]).encode()


def _shows(line: str, truly: str) -> bool:
    """Tell whether a text, some of whose values are hidden, is what another one looks like."""
    return re.fullmatch(".*".join(map(re.escape, line.split(MASK))), truly, re.DOTALL) is not None


def _changes(diff: str, old: list[str]) -> Iterator[tuple[str, str]]:
    """Yield where each hunk begins in the old file, by "@", and its lines with their signs."""
    lines = diff.splitlines()[2:]
    for number, line in enumerate(lines):
        hunk = _HUNK.match(line)
        if hunk is not None:
            yield "@", str(int(hunk[1]) - (1 if hunk[2] != "0" else 0) if old else 0)
        elif line != _NO_NEWLINE:
            whole = lines[number + 1 : number + 2] != [_NO_NEWLINE]
            yield line[0], line[1:] + ("\n" if whole else "")
