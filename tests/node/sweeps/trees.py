"""A made node as a value: everything on it, looked at, compared, and put back as often as a test wants."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.fake_node import PID_FILES, STORE, TOOLKIT, Entry, FakeNode

Tree: TypeAlias = Mapping[str, Entry]
"""What lies where, by the node's path. Sockets are left out: they are the engine's."""

RELOADS = "/run/nvidia/toolkit-installer.reloads"
"""The one file that survives cleanup, on purpose: how often the engine was reloaded lately. It ends with the boot."""
_NEW_RELOADS = "/run/nvidia/.toolkit-installer.reloads.toolkit-installer.tmp"
SOMEBODYS_PID = b"4194305\n"
"""In place of any PID: above the highest that there is (PID_MAX_LIMIT), so that nobody has it."""
_SEEN: dict[Entry, Entry] = {}
"""Thousands of trees have most of their entries in common: each is kept once."""
SOMETIME = b'{"boot": "", "reloads": []}\n'
RECEIPTS = (f"{STORE}/receipt.json", f"{STORE}/.receipt.json.toolkit-installer.tmp")
"""Where a receipt lies, and where its next one is written."""


def taken(node: FakeNode) -> Tree:
    """Return the node's tree. What differs between two runs that do the same (PID, times, inodes) is made the same.

    What the receipt takes for copies is compared first: nothing that it is believed for is false.
    """
    for path in RECEIPTS:
        assert not (false := misremembered(node, path)), false
    entries = ((path, _timeless(path, entry)) for path, entry in node.snapshot().items() if entry.kind != "s")
    return {path: _SEEN.setdefault(entry, entry) for path, entry in entries}


def _timeless(path: str, entry: Entry) -> Entry:
    if path in (RELOADS, _NEW_RELOADS) and entry.content:
        return Entry(entry.kind, entry.mode, entry.owner, SOMETIME, entry.xattrs)
    if path in PID_FILES and isinstance(entry.content, bytes) and entry.content.strip().isdigit():
        return Entry(entry.kind, entry.mode, entry.owner, SOMEBODYS_PID, entry.xattrs)
    if path in RECEIPTS and isinstance(entry.content, bytes):
        return Entry(entry.kind, entry.mode, entry.owner, stampless(entry.content), entry.xattrs)
    return entry


@functools.lru_cache(256)  # most instants have their receipt in common with the one before
def stampless(receipt: bytes) -> bytes:
    """Return a receipt without what stat(2) said of the files, which is never the same twice; as it is if not whole."""
    if not (body := _parsed(receipt)):
        return receipt
    return json.dumps(body | {"copies": []}, indent=2).encode() + b"\n"


@functools.lru_cache(256)
def _parsed(content: bytes) -> dict[str, Any]:
    """Return a receipt that is whole, {} for another one. It is not to be changed."""
    try:
        body: dict[str, Any] = json.loads(content)
    except ValueError:
        return {}
    return body if "copies" in body else {}


def stamp_of(place: Path) -> str:
    """Return what the receipt says of a file in place of its content."""
    status = place.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def misremembered(node: FakeNode, path: str) -> list[str]:
    """Return the names of the toolkit's files that a receipt takes for copies of the payload's, and that are none."""
    receipt = _parsed(node.read(path)) if node.exists(path) else {}
    wrong = []
    for each in receipt.get("copies", ()):
        place, source = node.place(f"{TOOLKIT}/{each['name']}"), node.payload / each["source"].lstrip("/")
        if (
            place.is_file()
            and source.is_file()
            and (stamp_of(place), stamp_of(source)) == (each["stamp"], each["source_stamp"])
            and place.read_bytes() != source.read_bytes()
        ):
            wrong.append(each["name"])
    return wrong


def rebooted(tree: Tree) -> Tree:
    """Return what of a tree is there after a boot: /run is empty."""
    return {path: entry for path, entry in tree.items() if not path.startswith("/run/")}


def put(root: Path, tree: Tree, present: Tree) -> None:
    """Make the folder `root`, which holds `present`, hold `tree`; only what differs is touched."""
    for path in sorted(present, reverse=True):
        if path not in tree or tree[path].kind != present[path].kind:
            _remove(Path(f"{root}{path}"))
    for path in sorted(tree):
        if present.get(path) != tree[path]:
            _make(Path(f"{root}{path}"), tree[path])


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _make(place: Path, entry: Entry) -> None:
    if entry.kind == "d":
        place.mkdir(exist_ok=True)
    else:
        place.unlink(missing_ok=True)
        if entry.kind == "l":
            place.symlink_to(entry.content if isinstance(entry.content, str) else os.fsdecode(entry.content))
        else:
            place.write_bytes(entry.content if isinstance(entry.content, bytes) else b"")
    os.chown(place, *entry.owner, follow_symlinks=False)
    if entry.kind != "l":
        place.chmod(entry.mode)
        for name in os.listxattr(place):
            os.removexattr(place, name)
        for name, value in entry.xattrs:
            os.setxattr(place, name, value)


MARK = "toolkit-installer.made"
"""Ends the name of the attribute that folders of the program's making have: which one, if any, is up to the disk."""


def unmarked(entry: Entry) -> Entry:
    """Return an entry without what marks a folder as made by the program."""
    kept = tuple((name, value) for name, value in entry.xattrs if not name.endswith(MARK))
    return entry if kept == entry.xattrs else dataclasses.replace(entry, xattrs=kept)


def differences(tree: Tree, wanted: Tree) -> list[str]:
    """Return in words how a tree differs from what is wanted."""
    wrong = [f"{path} is left over" for path in tree if path not in wanted]
    for path, entry in wanted.items():
        now = tree.get(path)
        if now is None:
            wrong.append(f"{path} is missing")
        elif unmarked(now) != unmarked(entry):
            fields = [field.name for field in dataclasses.fields(entry) if _differ(now, entry, field.name)]
            wrong.append(f"{path} differs in {', '.join(fields)}")
    return wrong


def _differ(one: Entry, other: Entry, field: str) -> bool:
    return bool(getattr(one, field) != getattr(other, field))
