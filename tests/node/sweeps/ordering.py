"""The order in which a node is changed, so that a power cut leaves what was meant: told from the calls."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from tests.node.faults import RENAMES, Call
from tests.node.sweeps.soundness import PASSING, becoming
from tests.support.fake_node import STORE, TOOLKIT

RECEIPT = f"{STORE}/receipt.json"
CONTENT = frozenset({"write", "truncate", "clone", "copy_range", "chmod", "chown", "setxattr", "removexattr"})
NAMES = RENAMES | {"link", "mkdir", "rmdir", "create", "open_or_create", "unlink", "symlink"}
ASKING = frozenset({"signal", "restart_unit", "make_device_nodes"})
"""Where others act: an engine, or the program that creates device nodes."""


def on_the_node(trace: Sequence[Call], root: str) -> list[Call]:
    """Return the calls that were made, with the node's own paths; not those beneath /run, which ends with the boot."""
    calls = []
    for call in _named(trace):
        paths = tuple(path.removeprefix(root) or "/" for path in call.paths if path.startswith(root))
        passing = paths and all(f"{becoming(path)}/".startswith(f"{PASSING}/") for path in paths)
        unseen = call.name == "create_unnamed"  # a file without a name is no part of the node yet
        if not call.failed and not unseen and not passing and paths != (posixpath.dirname(PASSING),):
            calls.append(Call(call.name, paths))
    return calls


def _named(trace: Sequence[Call]) -> list[Call]:
    """Return the calls with each file that was made without a name called by the one that it was given later."""
    calls: list[Call] = []
    names: dict[str, str] = {}
    for call in reversed(trace):
        if call.name == "link" and not call.failed:
            names[call.paths[0]] = call.paths[1]
            calls.append(Call("link", call.paths[1:]))
        else:
            paths = tuple(names.get(path, path) for path in call.paths)
            calls.append(Call(call.name, paths, failed=call.failed))
    return calls[::-1]


def disorder(calls: Sequence[Call]) -> list[str]:
    """Return in words what is out of order."""
    return [*_unsynced_content(calls), *_unsynced_names(calls), *_unrecorded(calls)]


def _unsynced_content(calls: Sequence[Call]) -> Iterator[str]:
    """Yield what gets its name, or is part of a reload, before what is in it is on the disk."""
    dirty: set[str] = set()
    for number, call in enumerate(calls):
        if call.name in CONTENT or call.name in ("create", "mkdir"):
            dirty.add(call.paths[-1])
        elif call.name == "fsync" or call.name in ("unlink", "rmdir"):
            dirty.discard(call.paths[0])
        elif call.name in RENAMES or call.name in ("link", *ASKING):
            early = dirty if call.name in ASKING else dirty & set(call.paths)
            yield from (f"call {number}, {call.name}: {path} is not on the disk yet" for path in sorted(early))
    yield from (f"at the end {path} is not on the disk yet" for path in sorted(dirty))


def _unsynced_names(calls: Sequence[Call]) -> Iterator[str]:
    """Yield the folders whose entries are not on the disk when the next one is changed, or the engine reloads."""
    pending = ""
    for number, call in enumerate(calls):
        folder = posixpath.dirname(call.paths[-1]) if call.name in NAMES else ""
        if call.name == "fsync" and call.paths == (pending,):
            pending = ""
        elif pending and (call.name in ASKING or folder not in ("", pending)):
            yield f"call {number}, {call.name} {' '.join(call.paths)}: the entries of {pending} are not on the disk yet"
        if folder:
            pending = folder
    if pending:
        yield f"at the end the entries of {pending} are not on the disk yet"


def _unrecorded(calls: Sequence[Call]) -> Iterator[str]:
    """Yield the changes that are made before a receipt that describes them stands, or after the last one said so."""
    marks = [at for at, call in enumerate(calls) if call.name in NAMES and RECEIPT in call.paths]
    durable = [at for at, call in enumerate(calls) if call.name == "fsync" and call.paths == (STORE,)]
    changes = [at for at, call in enumerate(calls) if call.name != "fsync" and not _recording(call)]
    if not changes:
        return
    first = min((at for at in durable if marks and at > marks[0]), default=len(calls))
    for at in (changes[0], changes[-1]):
        if at < first:
            yield f"call {at}, {calls[at]}: the receipt does not stand yet"
    # what no longer belongs goes last of all: it stays recorded until then, and whoever is killed here is finished
    last = [at for at in changes if not (marks and calls[marks[-1]].name in RENAMES and _clearing_away(calls[at]))]
    if not marks or (last and marks[-1] < last[-1]):
        yield f"call {changes[-1]}, {calls[changes[-1]]}: the receipt's last state stands already"


def _recording(call: Call) -> bool:
    """Tell whether a call makes or removes the receipt's folder, or the folders that lead there."""
    return bool(call.paths) and all(
        f"{path}/".startswith(f"{STORE}/") or f"{STORE}/".startswith(f"{becoming(path)}/") for path in call.paths
    )


def _clearing_away(call: Call) -> bool:
    """Tell whether a call removes one of the toolkit's files."""
    return call.name == "unlink" and call.paths[0].startswith(f"{TOOLKIT}/")
