"""What was asked at a seam, in one line: by it an answer is kept, and found again. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from toolkit_installer.driver.cdi import Generator
from toolkit_installer.driver.roots import Driver
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import Places
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import Programs
from toolkit_installer.settings import ToolkitSettings

_BETWEEN: Final = "\x1f"
_WITHIN: Final = "\x1e"
_OPEN_FILE: Final = rb"(?<=/self/fd/)[0-9]+"


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content as it is asked with: not what a player says that it is on the node."""
    return hashlib.sha256(content).hexdigest()


def line(arguments: list[Any]) -> str:
    """Return what tells one question at a seam from another. Raises TypeError for what no seam is asked."""
    return _BETWEEN.join(map(_word, arguments))


def parts(asked: str) -> list[str]:
    """Return the arguments in a line, as they are written there."""
    return asked.split(_BETWEEN)


def shown(name: str, asked: str) -> str:
    """Return in words what was asked, for people."""
    said = ", ".join(part.replace(_WITHIN, " ") for part in parts(asked) if part)
    return f"{name} of {said}" if said else name


class Run(msgspec.Struct, frozen=True):
    """A program that is run: its root, its words, its input, and what is in the files that it inherits.

    Their numbers are whatever was free: each is known by its place among them.
    """

    root: str
    words: tuple[str, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, root: str, command: Sequence[str], given: bytes, kept: Mapping[int, bytes]) -> Run:
        """`kept`: what is in the files that it inherits, by their numbers."""
        places = {number: index for index, number in enumerate(kept)}

        def named(match: re.Match[bytes]) -> bytes:
            index = places.get(int(match[0]))
            return match[0] if index is None else b"inherited-%d" % index

        words = (re.sub(_OPEN_FILE, named, word.encode(errors="surrogateescape")) for word in command)
        texts = (re.sub(_OPEN_FILE, named, each) for each in (given, *kept.values()))
        return cls(root, tuple(word.decode(errors="surrogateescape") for word in words), tuple(texts))

    @property
    def line(self) -> str:
        """What tells it from others."""
        return _BETWEEN.join([self.root, _WITHIN.join(self.words), *(sha256(each) for each in self.texts if each)])


_WORDS: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...]] = (
    (str, str),
    ((type(None), bool, int, float), repr),
    ((bytes, memoryview), lambda value: sha256(bytes(value))),
    (Process, lambda value: str(value.pid)),
    (Root, lambda value: value.folder),
    ((Reader, Programs), lambda value: value.root.folder),
    (Node, lambda value: _WITHIN.join((value.root.folder, value.programs.root.folder, repr(value.whole)))),
    (Places, lambda value: _word(value.node)),
    (
        ToolkitSettings,
        lambda value: _WITHIN.join(
            (value.driver_root, value.driver_root_ctr_path, value.dev_root, value.dev_root_ctr_path)
        ),
    ),
    (Driver, lambda value: _WITHIN.join((value.root, value.seen_at, value.dev_root, value.dev_seen_at))),
    (Generator, lambda value: value.asked),
    ((list, tuple), lambda value: _WITHIN.join(map(_word, value))),
    (Collection, lambda value: _WITHIN.join(sorted(map(_word, value)))),
)
"""How what a seam is asked with is written, by its type; the first that fits counts."""


def _word(value: Any) -> str:
    for kind, written in _WORDS:
        if isinstance(value, kind):
            return written(value)
    raise TypeError(f"a seam is asked with a {type(value).__name__}")
