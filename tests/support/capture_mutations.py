"""Captures that are damaged on purpose: each value of a capture in turn becomes another one, or goes."""

from __future__ import annotations

import copy
import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

MAGIC = b"toolkit-installer capture\n"
Place = tuple[Any, ...]
"""The keys that lead to a value."""
_GONE = object()
_NEXT = object()
"""The value that stands beside it."""


def _nested(around: Any, levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = around(found)
    return found


FAILED = [None, ["OSError", "made up", "/x", None, None, 5], False]
VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 1 << 32, 1 << 62, (1 << 64) - 1, -(1 << 62), None, True, False, 1.5, 1e308, float("nan"), float("inf")),
    *("", "\0", "text", "relative", "a/b", "../..", "/..", "//", "/a\0b", "/a\nb", "\uf8fe", "\uf8fe\U0010ffff"),
    *(b"", b"\xff\0", [], {}, [[]], {"Runtimes": "text"}, {"": None}, FAILED),
    *([None, ["NodeError", "made up", "/x", None, None, 5], False], [None, ["NoAnswerError", "made up"], False]),
    *([None, ["InstallerError", "made up"], False], msgspec.msgpack.Ext(1, b"x")),
    *("/" * 5000, "{" * 5000, "9" * 5000, "a" * 1_000_000, ["x"] * 1000, b"x" * (4 * 1024 * 1024 + 1)),
    *(_nested(lambda found: [found], 500), _nested(lambda found: {"a": found}, 500)),
    *(_GONE, _NEXT),
)


def opened(content: bytes) -> Any:
    """Return what is in a capture."""
    return msgspec.msgpack.decode(zlib.decompress(content[len(MAGIC) + 32 :]))


def closed(value: Any) -> bytes:
    """Return the capture that holds a value."""
    text = zlib.compress(msgspec.msgpack.encode(value), 1)
    return MAGIC + hashlib.sha256(text).digest() + text


def places(value: Any, before: Place = ()) -> Iterator[Place]:
    """Yield the place of each value in a value, outer ones first."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*before, key)
        yield from places(value[key], (*before, key))


def mutations(value: Any, shapes: set[Place]) -> list[tuple[Place, int]]:
    """Return each place with one of `VALUES`, another one each time, and the first place of each shape with all.

    Places have one shape if they differ in what was asked at a seam, or in where they are in an array. `shapes` are
    those that were met already, to which new ones are added.
    """
    found: list[tuple[Place, int]] = []
    for number, place in enumerate(places(value)):
        shape = tuple(
            "?" if (isinstance(key, int) and depth > 3) or depth == 2 else key for depth, key in enumerate(place)
        )
        if shape in shapes:
            found.append((place, number % len(VALUES)))
        else:
            shapes.add(shape)
            found += ((place, index) for index in range(len(VALUES)))
    return found


def mutated(value: Any, place: Place, index: int) -> Any:
    """Return a copy of a value with one of `VALUES` at a place."""
    *outer, last = place
    made = around = copy.copy(value)
    for key in outer:
        around[key] = copy.copy(around[key])
        around = around[key]
    put = VALUES[index]
    if put is _NEXT:
        keys = list(around) if isinstance(around, dict) else list(range(len(around)))
        put = around[keys[(keys.index(last) + 1) % len(keys)]]
    if put is _GONE:
        del around[last]
    else:
        around[last] = put
    return made
