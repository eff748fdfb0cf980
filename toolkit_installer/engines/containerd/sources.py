"""Where the settings of the handlers' tables come from: the default runtime's, as one of the sources has it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents.changes import Table, lookup, same
from toolkit_installer.engines import ownership
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    PLUGINS,
    executable,
    is_runc,
    legacy_default,
    legacy_type,
    parse_checked,
    shape,
)
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import located

_FILLED_IN = {"sandbox_mode": "podsandbox", "sandboxer": "podsandbox"}
"""What a daemon itself puts where nothing is said."""
COMMAND, FILE = "command", "file"
"""The words of `--config-source`; the third is FILE, `=` and a path."""
_USUAL = (COMMAND, FILE)
_NOTHING = "no runtime of runc's kind that is not ours"


class Sources(msgspec.Struct, frozen=True):
    """Where the handlers' settings may come from, beside the engine's own files.

    `asked`: the words of `--config-source`, none where nothing was asked for. `printed`: what the live daemon's binary
    prints, None if it was not asked, or does not say. `files`: the others by path, None for one that is not there.
    """

    asked: tuple[str, ...] = ()
    printed: Table | None = None
    files: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)


class Candidate(msgspec.Struct, frozen=True):
    """The base runtime that one source has, {} for none. `why`: the reason in words, if that is so."""

    source: str
    table: Table
    why: str


def candidates(sources: Sources, effective: Table, plugin: str, toolkit_folder: str) -> list[Candidate]:
    """Return what the sources have, the first one first. `effective` is what the engine's own files say without us.

    Raises ConfigurationError, naming the file, for one that cannot be read as containerd's.
    """
    return [_candidate(source, sources, effective, plugin, toolkit_folder) for source in sources.asked or _USUAL]


def _candidate(source: str, sources: Sources, effective: Table, plugin: str, toolkit_folder: str) -> Candidate:
    if source == FILE:
        return Candidate(source, base_runtime(effective, plugin), f"containerd's own files have {_NOTHING}")
    if source == COMMAND:
        name = lookup(effective, shape(plugin).default)
        named = name if isinstance(name, str) and name else BUILT_IN_RUNTIME
        found = base_runtime_elsewhere(sources.printed or {}, named, toolkit_folder)
        silent = "no containerd runs whose binary prints its configuration"
        return Candidate(source, found, silent if sources.printed is None else f"what its binary prints has {_NOTHING}")
    path = source.partition("=")[2]
    content = sources.files.get(path)
    with located(path):
        document, _ = parse_checked(content or b"")
    found = base_runtime_elsewhere(document, None, toolkit_folder)
    return Candidate(source, found, f"{path} is not there" if content is None else f"{path} has {_NOTHING}")


def unused(sources: Sources, candidates: Sequence[Candidate]) -> list[str]:
    """Return a note for every source that was asked for, comes before the one that counts, and has nothing."""
    if not sources.asked:
        return []
    empty = itertools.takewhile(lambda each: not each.table, candidates)
    return [f"--config-source {each.source} is not used: {each.why}" for each in empty]


def chosen_base_runtime(candidates: Sequence[Candidate], effective: Table, plugin: str) -> Table:
    """Return the settings that the handlers get: those of the first source that has any.

    Where the file says the same, they are as the file spells them.
    """
    first = next((each.table for each in candidates if each.table), {})
    file = base_runtime(effective, plugin)
    return file if same(said(first), said(file)) else first


def base_runtime(document: Table, plugin: str, name: str | None = None) -> Table:
    """Return the runtime of a plugin's table whose settings the handlers get, {} where there is none.

    That is the runtime `name`, by default the table's own default one. One that is no runc at all (Kata, gVisor) is
    none: its options mean something else; runc's are taken then.
    """
    place = shape(plugin)
    runtimes = lookup(document, place.runtimes)
    known = runtimes if isinstance(runtimes, dict) else {}
    default = lookup(document, place.default) if name is None else name
    named = (known.get(each) for each in (default, BUILT_IN_RUNTIME) if isinstance(each, str))
    candidates = (legacy_entry(document, plugin), *named)
    return next((entry for entry in candidates if is_runc(entry)), {})


def legacy_entry(document: Table, plugin: str) -> Any:
    """Return the table that overrides the default runtime's name on containerd 1.x, None where there is none."""
    return lookup(document, legacy_default(plugin)) if lookup(document, legacy_type(plugin)) else None


def low_level(document: Table, plugin: str, built_in: str = BUILT_IN_RUNTIME) -> tuple[str, ...]:
    """Return what can run containers in the end, best first (`ownership.low_level`), as a plugin's table has it.

    `built_in`: what a runtime runs that names no executable.
    """
    return ownership.low_level(document, shape(plugin), legacy=legacy_entry(document, plugin), built_in=built_in)


def base_runtime_elsewhere(document: Table, name: str | None, toolkit_folder: str) -> Table:
    """Return the same from another document, such as what a daemon printed, whatever plugin it has the runtimes under.

    `name` is the default runtime's, None for that document's own. Never an entry of ours, and nothing that a daemon
    fills in by itself.
    """
    for plugin in PLUGINS:
        for each in (name, BUILT_IN_RUNTIME):
            entry = base_runtime(document, plugin, each)
            if entry and not beneath(executable(entry), toolkit_folder):
                told = said(entry)
                return told if isinstance(told, dict) else {}
    return {}


def said(value: Any) -> Any:
    """Return a printed runtime without what says nothing: empty and false values, and what the daemon fills in."""
    if not isinstance(value, dict):
        return value
    told = {key: said(each) for key, each in value.items()}
    return {key: each for key, each in told.items() if each not in ("", 0, [], {}) and each != _FILLED_IN.get(key, "")}
