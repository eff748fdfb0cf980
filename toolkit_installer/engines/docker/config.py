"""docker's daemon.json: the handlers and CDI in it, and the contents that dockerd would refuse. Pure.

CDI (seen on 20.10, 26 and 28): dockerd reads `features.cdi` when it starts, and no signal changes it; `/info` lists the
folders of CDI specifications if CDI is on, and none if it is off; before 25.0 the key is accepted and has no effect.

`dockerd --validate` (from 23.0 on) finds only some faults of a well-formed file: tried on 26.1 and 28.5, it accepts a
second `runc` and a default that does not exist; the daemon then rejects the reload, and exits at its next start.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents import json_document, shown
from toolkit_installer.documents.changes import ABSENT, Change, Path, Set, Table, lookup
from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.ownership import (
    BUILT_IN,
    CgroupSetting,
    ListedRuntime,
    Owned,
    Ownership,
    Shape,
    find_chosen_default,
    ours,
    record_ownership,
    remove_ours,
)
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import ConfigurationError

_FIRST = 25
"""The first major release of dockerd that supports CDI."""
_FLAG = "--feature"
_NAME = "cdi"


class DockerLiveState(LiveState, frozen=True):
    """The state that a running dockerd reports."""

    cdi: bool = False
    """It reads CDI specifications."""
    rootless: bool = False
    system: str = ""
    """The operating system that it reports."""

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        """Raise ConfigurationError for a default runtime that this dockerd loses at a SIGHUP, which kills it. Pure."""
        refuse_signal(content or b"", self, seen)


class CdiSwitch(msgspec.Struct, frozen=True):
    """How to turn CDI on. `write`: `features.cdi` must be in daemon.json."""

    write: bool = False
    notes: tuple[str, ...] = ()
    restart_why: str = ""


def decide_cdi_switch(live: LiveState | None, *, asked: bool, restarts: bool) -> CdiSwitch:
    """Return how to turn CDI on. Pure. `restarts`: the settings choose a reload by systemd.

    Raises ConfigurationError if dockerd's command line has features, and CDI is not among them: dockerd refuses a file
    that repeats the flag.
    """
    if not asked:
        return CdiSwitch()
    arguments = live.process.arguments if live is not None and live.process is not None else ()
    # NAME or NAME=BOOL, one each time (28.1 and later)
    features = [value.partition("=") for value in command_line.flag_values(arguments, _FLAG)]
    given = {name: not equals or value.lower() in ("1", "t", "true") for name, equals, value in features}
    if given:
        if given.get(_NAME):
            return CdiSwitch(
                notes=(f"dockerd was started with {_FLAG} {_NAME}: CDI is on, and daemon.json need not say it",)
            )
        raise ConfigurationError(
            f"dockerd was started with {_FLAG}, so CDI cannot be turned on in this file: dockerd takes no file that "
            "repeats a flag, and would not start again",
            hint=f"nothing was changed; add {_FLAG} {_NAME} to dockerd's command line, or move its features here",
        )
    if not isinstance(live, DockerLiveState) or live.cdi:
        return CdiSwitch(write=True)
    if live.release is not None and live.release[0] < _FIRST:
        return CdiSwitch(write=True, notes=(f"dockerd {live.version} knows no CDI: {_FIRST}.0 is the first that does",))
    if restarts:
        return CdiSwitch(write=True, restart_why="CDI is turned on by a restart only")
    note = (
        "CDI is on in daemon.json, and dockerd takes that over when it is restarted, not by a signal: restart it when "
        "its containers may stop, or name --restart-mode systemd and --allow-restart"
    )
    return CdiSwitch(write=True, notes=(note,))


RUNTIMES: Path = ("runtimes",)
DEFAULT: Path = ("default-runtime",)
FEATURES: Path = ("features",)
CDI: Path = (*FEATURES, "cdi")
"""Whether containers get devices by CDI: dockerd 25.0 and later; on by default from 28.2 on."""
_RUNC_TYPES = "io.containerd.runc."
"""The prefix of the types of containerd's shims that run an OCI runtime of runc's kind."""

CONFLICTING_FLAGS = {
    "--add-runtime": "a reload takes away what it adds (tried on 20.10, 26 and 28)",
    "--default-runtime": "the same directive in this file would stop its next start",
}
"""Flags of dockerd that conflict with the keys that we write, and why."""


def _executable(entry: Any) -> str | None:
    """Return a runtime's executable; an entry with a `runtimeType` names it as containerd's shim does."""
    path = entry.get("path") or lookup(entry, ("options", "BinaryName")) if isinstance(entry, dict) else None
    return path if isinstance(path, str) else None


def _is_low_level(entry: Any) -> bool:
    """Tell whether a runtime is of runc's kind: one with a `path` is, and one with a `runtimeType` of runc's."""
    return isinstance(entry, dict) and str(entry.get("runtimeType") or _RUNC_TYPES).startswith(_RUNC_TYPES)


SHAPE = Shape(RUNTIMES, DEFAULT, _executable, others=(CDI,), is_low_level=_is_low_level, reset=BUILT_IN)


def parse_checked(content: bytes) -> Table:
    """Parse daemon.json and check the types of our keys. Raises DocumentError, ConfigurationError with a line."""
    document = json_document.parse(content)
    for path in (RUNTIMES, DEFAULT, FEATURES):
        _refuse_other_case(document, path, content)
    _check(document, RUNTIMES, dict, content)
    for name, entry in (document.get("runtimes") or {}).items():
        _check(document, (*RUNTIMES, name), dict, content, spared=())
        _refuse_other_case(document, (*RUNTIMES, name, "path"), content)
        if "path" in entry:
            _check(document, (*RUNTIMES, name, "path"), str, content, spared=())
    _check(document, DEFAULT, str, content)
    return document


def _refuse_other_case(document: Table, path: Path, content: bytes) -> None:
    """Raise ConfigurationError for a key that dockerd, which ignores case, takes for the one at `path`.

    Tried on 20.10, 26 and 28: they merge an empty "Runtimes" with "runtimes", and a "Path" replaces a "path".
    """
    *folder, key = path
    for other in lookup(document, tuple(folder)) if folder else document:
        if other != key and other.lower() == key:
            raise ConfigurationError(
                f'"{other}" is "{key}" to dockerd, which ignores case',
                line=json_document.line_of(content, (*folder, other)),
                hint=f'write "{key}", once: merge the two where both are there',
            )


_KINDS = {dict: "an object", str: "a string", bool: "true or false"}


def _check(document: Table, path: Path, kind: type, content: bytes, spared: tuple[Any, ...] = (ABSENT, None)) -> None:
    """Raise ConfigurationError for a value of another type. `spared`: the values that count as missing."""
    value = lookup(document, path)
    if value not in spared and not isinstance(value, kind):
        raise ConfigurationError(
            f'"{".".join(path)}" must be {_KINDS[kind]}',
            line=json_document.line_of(content, path),
            hint="correct the file; dockerd would refuse it too",
        )


def without_us(
    content: bytes,
    ownership: Ownership,
    toolkit_folder: str,
    before: bytes | None = None,
    handlers: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without our values, and others' changes to them. `before` is the text from before us."""
    document = parse_checked(content)
    changes, left = remove_ours(
        document, SHAPE, ownership, toolkit_folder, json_document.parse(before or b""), handlers
    )
    return json_document.edit(content, changes), left


def find_unrecorded(content: bytes, toolkit_folder: str) -> Ownership:
    """Return our values that are identified without a receipt: besides our runtimes, the table created for them.

    Raises the errors of `parse_checked`.
    """
    if not ours(parse_checked(content), SHAPE, toolkit_folder):
        return Ownership()
    return Ownership(created=(Owned(RUNTIMES, {}),))


def add_handlers(
    base: bytes, handlers: Sequence[Handler], default: str | None, *, cdi: bool = False
) -> tuple[bytes, Ownership]:
    """Return `base` with the handlers registered (`default` as the default, CDI on), and our ownership of it.

    Raises the errors of `parse_checked`.
    """
    document = parse_checked(base)
    changes: list[Change] = [
        Set((*RUNTIMES, handler.name), {"path": handler.executable, "args": []}) for handler in handlers
    ]
    if default is not None:
        changes.append(Set(DEFAULT, default))
    if cdi:
        _check(document, FEATURES, dict, base)
        _check(document, CDI, bool, base)
        changes.append(Set(CDI, value=True))
    ownership = record_ownership(document, changes)
    tables = (RUNTIMES, FEATURES) if cdi else (RUNTIMES,)
    changes[:0] = [Set(table, {}) for table in tables if lookup(document, table) is None]  # "runtimes": null
    return json_document.edit(base, changes), ownership


def apply_chosen_default(text: bytes, present: bytes, ownership: Ownership, handlers: Collection[str]) -> bytes:
    """Return `text` with the default that an administrator chose in `present`, if that is one of our handlers.

    It is not ours, and is removed with the handler. Raises DocumentError.
    """
    chosen = find_chosen_default(json_document.parse(present), SHAPE, ownership, handlers)
    return text if chosen is None else json_document.edit(text, [Set(DEFAULT, chosen)])


def describe_removal(content: bytes, base: bytes) -> tuple[str, ...]:
    """Return messages about replacing `content` with `base`."""
    before, after = (lookup(json_document.parse(text), CDI) for text in (content, base))
    if before is True and after is not True:
        return ("a dockerd that was restarted with features.cdi keeps CDI on until its next restart",)
    return ()


def make_explicit(content: bytes) -> bytes:
    """Return the text with `runtimes` and `default-runtime` present.

    A SIGHUP does not undo keys that are missing from the file, and a SIGHUP on a file with only one of the two has
    crashed dockerd 20.10: it is signalled only on a file that has both.
    """
    document = parse_checked(content)
    changes: list[Change] = []
    if document.get("runtimes") is None:
        changes.append(Set(RUNTIMES, {}))
    if not document.get("default-runtime"):
        changes.append(Set(DEFAULT, BUILT_IN))
    return json_document.edit(content, changes)


def is_explicit(content: bytes) -> bool:
    """Tell whether the text has both keys that a signal reloads."""
    document = json_document.parse(content)
    return document.get("runtimes") is not None and bool(document.get("default-runtime"))


def read_served(content: bytes) -> tuple[dict[str, str], str]:
    """Return the runtimes (name to path) and the default that a dockerd with this file should report."""
    document = json_document.parse(content)
    runtimes = document.get("runtimes") or {}
    paths = {name: path for name, entry in runtimes.items() if (path := _executable(entry)) is not None}
    return paths, document.get("default-runtime") or BUILT_IN


def find_flag_conflicts(arguments: Sequence[str]) -> list[str]:
    """Return the flags on dockerd's command line that conflict with the keys that we write."""
    return [flag for flag in CONFLICTING_FLAGS if any(word.partition("=")[0] == flag for word in arguments)]


def list_runtimes(files: Sequence[tuple[str, bytes]]) -> list[ListedRuntime]:
    """Return the runtimes of daemon.json with their lines. Raises ConfigurationError."""
    found = []
    for path, content in files:
        document = parse_checked(content)
        default = lookup(document, DEFAULT)
        for name, entry in SHAPE.entries(document).items():
            line = json_document.line_of(content, (*RUNTIMES, name))
            found.append(ListedRuntime(name, SHAPE.executable(entry), path, line, default=name == default))
    return found


def read_cgroup_driver(files: Sequence[tuple[str, bytes]]) -> CgroupSetting | None:
    """Return the cgroup driver that daemon.json names. Raises ConfigurationError."""
    for path, content in files:
        options = lookup(json_document.parse(content), _OPTIONS)
        for option in options if isinstance(options, list) else ():
            if isinstance(option, str) and option.startswith(_CGROUP_OPTION):
                return CgroupSetting(
                    option.removeprefix(_CGROUP_OPTION), path, json_document.line_of(content, _OPTIONS)
                )
    return None


_OPTIONS: Path = ("exec-opts",)
_CGROUP_OPTION = "native.cgroupdriver="


_KEEPS_ALIASES = (25, 0)
"""The first release of dockerd that keeps its own aliases of runc after any SIGHUP (moby's daemon/reload_unix.go)."""
_TAKES_MARK = 23
"""The first major release of dockerd that accepts a byte order mark."""
_LISTS = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-network-opt": "default-network-opts",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
"""Flags that may be repeated, and their keys in daemon.json; all other flags equal their keys (dockerd(8))."""
_SHORT = {"D": "debug", "G": "group", "H": "hosts", "l": "log-level", "p": "pidfile", "s": "storage-driver"}


def refuse(content: bytes, seen: bytes | None = None) -> None:
    """Raise ConfigurationError for a checked text that dockerd would refuse.

    The error's line is the line in `seen`, the file's current content; `content` is the future one.
    """
    seen = content if seen is None else seen
    document = json_document.parse(content)
    runtimes = document.get("runtimes") or {}
    if BUILT_IN in runtimes:
        raise _wrong(seen, (*RUNTIMES, BUILT_IN), "is dockerd's own runtime and cannot be another one")
    default = document.get("default-runtime") or BUILT_IN
    if default != BUILT_IN and default not in runtimes and not _may_be_a_shim(default):
        raise _wrong(seen, DEFAULT, f"names a runtime that does not exist: {shown.quote_name(default)}")


def is_accepted(content: bytes) -> bool:
    """Tell whether dockerd would start with this text, which `parse_checked` or `refuse` has refused.

    It accepts a key that occurs twice, or in another case, and merges the values.
    """
    try:
        document = json.loads(content.removeprefix(codecs.BOM_UTF8) or b"{}", object_pairs_hook=_merged)
    except (ValueError, RecursionError):
        return False
    runtimes = document.get("runtimes", {}) if isinstance(document, dict) else None
    default = document.get("default-runtime", "") if isinstance(document, dict) else None
    if not isinstance(runtimes, dict) or not isinstance(default, str) or BUILT_IN in runtimes:
        return False
    known = all(isinstance(entry, dict) for entry in runtimes.values())
    return known and (default in ("", BUILT_IN, *runtimes) or _may_be_a_shim(default))


def _merged(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object as dockerd reads it: Go ignores a key's case, and merges objects under the same key."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        key = name.lower() if name.lower() in ("runtimes", "default-runtime", "path") else name
        before = found.get(key)
        found[key] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _may_be_a_shim(name: str) -> bool:
    """Tell whether dockerd searches for a runtime of that name only when a container needs it."""
    return "." in name or "/" in name


def find_deadly_default(content: bytes, release: tuple[int, int] | None) -> str | None:
    """Return the default runtime that would kill a dockerd at a SIGHUP on this text; None: it survives.

    A SIGHUP is sent only on a text that has `runtimes`, and replaces all runtimes that dockerd has. Up to 24.0 that
    also removes the runtimes that dockerd registered itself at its start, `io.containerd.runc.v2` and
    `io.containerd.runtime.v1.linux`, and a default that no longer exists makes it panic. Tried: 20.10 dies, 26 and 28
    keep every name. `release` is None if unknown: then it counts as an old one.
    """
    document = json_document.parse(content)
    default = document.get("default-runtime") or BUILT_IN
    if (release is not None and release >= _KEEPS_ALIASES) or not _may_be_a_shim(default):
        return None
    return None if default in (document.get("runtimes") or {}) else default


def refuse_signal(content: bytes, live: LiveState, seen: bytes | None = None) -> None:
    """Raise ConfigurationError for a text on which a SIGHUP kills the running dockerd; `seen` as in `refuse`."""
    default = find_deadly_default(content, live.release)
    if default is not None:
        raise ConfigurationError(
            f'"default-runtime" is {shown.quote_name(default)}, which dockerd {live.version} itself registers when it '
            "starts, and forgets at a SIGHUP: it would die of one",
            line=_line(content if seen is None else seen, DEFAULT),
            hint="use --restart-mode systemd --allow-restart, or --restart-mode none and restart docker yourself",
        )


def refuse_byte_order_mark(content: bytes, version: str) -> None:
    """Raise ConfigurationError for a byte order mark if this dockerd refuses it: 20.10 does, 26 and 28 do not."""
    first = version.partition(".")[0]
    if content.startswith(codecs.BOM_UTF8) and first.isascii() and first.isdigit() and int(first) < _TAKES_MARK:
        raise ConfigurationError(
            f"begins with a byte order mark, which dockerd {version} does not take: it would not start again",
            line=1,
            hint="nothing was changed; save the file as UTF-8 without it",
        )


def refuse_flag_conflicts(content: bytes, arguments: Sequence[str], seen: bytes | None = None) -> None:
    """Raise ConfigurationError for a key that the running dockerd also has as a flag; `seen` as in `refuse`."""
    seen = content if seen is None else seen
    document = json_document.parse(content)
    for word in arguments[1:]:
        flag = word.partition("=")[0]
        name = flag.lstrip("-")
        key = _SHORT.get(name[:1]) if not flag.startswith("--") else _LISTS.get(name, name)
        if flag.startswith("-") and key in document:
            raise ConfigurationError(
                f'dockerd was started with {flag}, and "{key}" stands here too: it takes no file that repeats a flag, '
                "and would not start again",
                line=_line(seen, (key,)),
                hint="nothing was changed; give it in one of the two places",
            )


def list_other_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a running dockerd without its program and its --config-file."""
    kept: list[str] = []
    words = iter(arguments[1:])
    for word in words:
        if word == "--config-file":
            next(words, None)
        elif not word.startswith("--config-file="):
            kept.append(word)
    return kept


def _line(content: bytes, path: Path) -> int | None:
    return None if lookup(json_document.parse(content), path) is ABSENT else json_document.line_of(content, path)


def _wrong(content: bytes, path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(
        f'"{".".join(path)}" {what}',
        line=_line(content, path),
        hint="nothing was changed; correct it: dockerd would reject the file, and would not start again",
    )
