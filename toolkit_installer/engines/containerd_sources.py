"""The handlers' tables: copies of the default runtime's, as one of the sources has it, with our executable. Pure."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from toolkit_installer.documents.changes import ABSENT, Table, lookup, same
from toolkit_installer.engines.containerd_tables import (
    BUILT_IN_RUNTIME,
    DEFAULT_RUNTIME_TYPE,
    PLUGINS,
    RUNTIME,
    SHORT,
    executable,
    legacy_default,
    legacy_type,
    shape,
)
from toolkit_installer.engines.containerd_views import merged
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.toolkit.handlers import Handler

_RUNC_TYPES = "io.containerd.runc."
"""Runtime types whose options have a BinaryName."""
_GONE_FROM_2 = "io.containerd.runc.v1"
"""Deprecated since 1.4, removed in 2.0 (containerd, RELEASES.md)."""
_FILLED_IN = {"sandbox_mode": "podsandbox", "sandboxer": "podsandbox"}
"""What a daemon itself puts where nothing is said."""


def lender(document: Table, plugin: str, name: str | None = None) -> Table:
    """Return the runtime of a plugin's table whose settings the handlers get, {} where there is none.

    That is the runtime `name`, by default the table's own default one. One that is no runc at all (Kata, gVisor) lends
    nothing: its options mean something else; runc's are taken then.
    """
    place = shape(plugin)
    runtimes = lookup(document, place.runtimes)
    known = runtimes if isinstance(runtimes, dict) else {}
    default = lookup(document, place.default) if name is None else name
    legacy = lookup(document, legacy_default(plugin)) if lookup(document, legacy_type(plugin)) else None
    candidates = (legacy, *(known.get(each) for each in (default, BUILT_IN_RUNTIME) if isinstance(each, str)))
    return next((entry for entry in candidates if isinstance(entry, dict) and _is_runc(entry)), {})


def lender_elsewhere(document: Table, name: str | None, toolkit_folder: str) -> Table:
    """Return the same from another document, such as what a daemon printed, whatever plugin it has the runtimes under.

    `name` is the default runtime's, None for that document's own. Never an entry of ours, and nothing that a daemon
    fills in by itself.
    """
    for plugin in PLUGINS:
        for each in (name, BUILT_IN_RUNTIME):
            entry = lender(document, plugin, each)
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


def chosen(candidates: Sequence[Table], file: Table) -> Table:
    """Return the first source's settings; where the file says the same, as the file spells it."""
    first = next((entry for entry in candidates if entry), {})
    return file if same(said(first), said(file)) else first


def entries(  # all that makes a handler's table
    source: Table,
    plugin: str,
    handlers: Sequence[Handler],
    *,
    runtime_type: str | None = None,
    annotations: Sequence[str] = (),
    override: str = "{}",
) -> tuple[tuple[str, Table], ...]:
    """Return each handler's runtime table: a copy of `source` with our executable.

    `annotations` are patterns of container annotations that the runtime is to see as well. `override` is a JSON object
    that is merged into the options, or into the whole table if it has an object `options` itself.
    """
    made = []
    for handler in handlers:
        entry = copy.deepcopy(source)
        entry["runtime_type"] = runtime_type or _readable(entry.get("runtime_type"), plugin)
        options = dict(entry.get("options", {}))
        asked = json.loads(override)
        if isinstance(asked.get("options"), dict):
            entry = merged(entry, {key: value for key, value in asked.items() if key != "options"})
            asked = asked["options"]
        entry["options"] = {**merged(options, asked), "BinaryName": handler.executable}
        if plugin == SHORT:
            entry["options"]["Runtime"] = handler.executable
        if annotations:
            known_annotations = entry.get("container_annotations", [])
            entry["container_annotations"] = list(dict.fromkeys([*known_annotations, *annotations]))
        made.append((handler.name, entry))
    return tuple(made)


def _readable(kind: str | None, plugin: str) -> str:
    """Return a lender's runtime type, and for a table that only a 2.x reads one whose shim that still has."""
    return DEFAULT_RUNTIME_TYPE if not kind or (plugin == RUNTIME and kind == _GONE_FROM_2) else kind


def _is_runc(entry: Table) -> bool:
    kind = entry.get("runtime_type") or DEFAULT_RUNTIME_TYPE
    return isinstance(kind, str) and kind.startswith(_RUNC_TYPES)


def default_name(document: Table, plugin: str) -> str | None:
    """Return the name of a plugin's default runtime, None where nothing is said."""
    name = lookup(document, shape(plugin).default)
    return name if name is not ABSENT and isinstance(name, str) and name else None
