"""CRI-O's crio.conf and drop-ins, merged as CRI-O merges them, and its OCI hook's file; with us and without us. Pure.

CRI-O (pkg/config: UpdateFromFile, UpdateFromPath; BurntSushi/toml) reads one file after the other; a later value
replaces an earlier one. Tables are merged, except that a runtime's table replaces that runtime as a whole.

The hook's file has the format of oci-hooks(5), version 1.0.0.
"""

from __future__ import annotations

import copy
import json
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from toolkit_installer.documents import json_document, toml_document
from toolkit_installer.documents.changes import (
    ABSENT,
    Change,
    DocumentError,
    Path,
    Set,
    Table,
    apply_changes,
    is_same,
    lookup,
)
from toolkit_installer.documents.changes import merge_tables as merged_tables
from toolkit_installer.engines.ownership import (
    MARKER,
    CgroupSetting,
    ListedRuntime,
    Owned,
    Ownership,
    Shape,
    is_beneath,
    parents,
    record_ownership,
    remove_ours,
    revert_content,
)
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.toolkit.payload import HOOK

RUNTIME: Path = ("crio", "runtime")
RUNTIMES: Path = (*RUNTIME, "runtimes")
DEFAULT: Path = (*RUNTIME, "default_runtime")
HOOKS_DIR: Path = (*RUNTIME, "hooks_dir")
DEFAULT_HOOKS_DIR = "/usr/share/containers/oci/hooks.d"
_EXECUTABLE = "runtime_path"
_TYPE = "runtime_type"
INHERITS = "inherit_default_runtime"
"""Whether a runtime uses the default runtime's executable, whatever that is."""

TYPE = "oci"
_OCI_TYPES = (None, "", TYPE)
"""Types of runtimes whose executable is an OCI runtime run by conmon, and whose settings also apply to ours."""
_LOW_LEVEL_TYPES = (*_OCI_TYPES, "pod")
_NOT_CARRIED = frozenset({_EXECUTABLE, _TYPE, INHERITS, "runtime_config_path"})
"""Settings of the executable itself: the last two would give ours another executable, or are refused with type oci."""
_BY_PLATFORM = "platform_runtime_paths"
"""Executables for images of single platforms, instead of `runtime_path`. Ours is for Linux images."""
_SETTING = r"[a-z][a-z0-9_]*"
"""The keys of a runtime's table, as in the manual: CRI-O's output also has names of internal fields."""

CRUN_BY_DEFAULT = (1, 31)
"""The first CRI-O whose built-in default runtime is crun; earlier ones use runc."""
_BUILT_IN = {
    "allowed_annotations": ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"],
    "monitor_env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
}
LOW_LEVEL = ("crun", "runc")
"""The names of CRI-O's built-in runtimes, across its releases."""
_BARE_KEY = r"[A-Za-z0-9_-]+"


def _executable(entry: Any) -> str | None:
    path = entry.get(_EXECUTABLE) if isinstance(entry, dict) else None
    return path if isinstance(path, str) else None


SHAPE = Shape(RUNTIMES, DEFAULT, _executable, (HOOKS_DIR,))
runtimes_in = SHAPE.entries


def parse_checked(content: bytes) -> Table:
    """Parse a file and check the types of our keys. Raises DocumentError, ConfigurationError with a line."""
    document = toml_document.parse(content)
    tables = [RUNTIMES[:length] for length in range(1, len(RUNTIMES) + 1)]
    kinds: list[tuple[Path, type, str]] = [(path, dict, "a table") for path in tables]
    found = lookup(document, RUNTIMES)
    for name in found if isinstance(found, dict) else ():
        kinds.append(((*RUNTIMES, name), dict, "a table"))
        kinds += [((*RUNTIMES, name, key), str, "a string") for key in (_EXECUTABLE, _TYPE)]
    for path, kind, what in (*kinds, (DEFAULT, str, "a string"), (HOOKS_DIR, list, "a list of folders")):
        value = lookup(document, path)
        if value is not ABSENT and type(value) is not kind:
            raise ConfigurationError(
                f"{'.'.join(path)} must be {what}",
                line=toml_document.line_of(content, path),
                hint="correct the file; CRI-O would not start with it either",
            )
    return document


def build_built_in(release: tuple[int, int] | None) -> Table:
    """Return the relevant built-in configuration of this CRI-O release (None: the newest)."""
    name = "runc" if release is not None and release < CRUN_BY_DEFAULT else "crun"
    entry = {_TYPE: TYPE, "runtime_root": f"/run/{name}", **copy.deepcopy(_BUILT_IN)}
    if name == "crun":
        entry["container_min_memory"] = "500KiB"
    runtime = {"default_runtime": name, "runtimes": {name: entry}, "hooks_dir": [DEFAULT_HOOKS_DIR]}
    return {"crio": {"runtime": runtime}}


def merge_files(start: Table, documents: Iterable[Table]) -> Table:
    """Return CRI-O's configuration from files in reading order, starting from the built-in one."""
    result = start
    for document in documents:
        result = merged_tables(result, document, whole=RUNTIMES)
    if lookup(result, DEFAULT) == "":  # an empty name has no effect
        result = apply_changes(result, (Set(DEFAULT, lookup(start, DEFAULT)),))
    return result


def build_entries(effective: Table, handlers: Sequence[Handler]) -> list[tuple[str, Table]]:
    """Return each handler's table: the default runtime's settings, with our executable.

    `effective` is CRI-O's configuration without us. A default runtime that conmon does not run (a virtual machine's,
    conmon-rs') is no base runtime, as its settings mean something else: the base runtime is then crun or runc,
    preferably one that has a path in a file.
    """
    runtimes = runtimes_in(effective)
    usual = sorted((name for name in LOW_LEVEL if name in runtimes), key=lambda name: not _executable(runtimes[name]))
    candidates = (runtimes.get(name, {_TYPE: None}) for name in (str(lookup(effective, DEFAULT)), *usual))
    source = next((entry for entry in candidates if entry.get(_TYPE) in _OCI_TYPES), {})
    carried = {key: value for key, value in source.items() if key not in _NOT_CARRIED}
    if isinstance(by_platform := carried.pop(_BY_PLATFORM, None), dict):
        others = {platform: path for platform, path in by_platform.items() if not platform.startswith("linux/")}
        carried |= {_BY_PLATFORM: others} if others else {}
    return [
        (handler.name, {_EXECUTABLE: handler.executable, _TYPE: TYPE, **copy.deepcopy(carried)}) for handler in handlers
    ]


def build_base_configuration(source: Table, start: Table, known: Table, toolkit_folder: str) -> Table:
    """Return the configuration `source`, from CRI-O or the user, without us, over the built-in `start`.

    If its default is ours, the default comes from `known`, the files without us. Empty or false values are omitted:
    they have no effect.
    """
    runtimes = {
        name: {key: value for key, value in entry.items() if value and re.fullmatch(_SETTING, key)}
        for name, entry in runtimes_in(source).items()
        if not is_beneath(_executable(entry), toolkit_folder)
    }
    table = merge_files(start, [{"crio": {"runtime": {"runtimes": runtimes}}}])
    wanted = (lookup(source, DEFAULT), lookup(known, DEFAULT), *LOW_LEVEL, *runtimes)
    default = next(name for name in wanted if isinstance(name, str) and name in runtimes_in(table))
    return apply_changes(table, (Set(DEFAULT, default),))


def list_low_level_runtimes(effective: Table, live: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the executables of the default runtime, of crun and of runc, if CRI-O has them without us.

    An executable that the files do not name comes from the `live` engine, which searched its own PATH. The default
    runtime's, which is certainly used, falls back to its name.
    """
    runtimes = runtimes_in(effective)
    default = str(lookup(effective, DEFAULT))
    names = dict.fromkeys((default, *LOW_LEVEL))
    usable = [name for name in names if name in runtimes and runtimes[name].get(_TYPE) in _LOW_LEVEL_TYPES]
    paths = (_executable(runtimes[name]) or live.get(name) or (name if name == default else None) for name in usable)
    return tuple(dict.fromkeys(path for path in paths if path))


def add_handlers(base: bytes, made: Sequence[tuple[str, Table]], default: str | None) -> tuple[bytes, Ownership]:
    """Return `base` with the runtimes registered (and `default` as the default), and our ownership of it."""
    changes: list[Change] = [Set((*RUNTIMES, name), entry) for name, entry in made]
    if default is not None:
        changes.append(Set(DEFAULT, default))
    return edit(base, changes)


def edit(base: bytes, changes: Sequence[Change]) -> tuple[bytes, Ownership]:
    """Return `base` with our changes made to it, and our ownership of it."""
    return toml_document.edit(base, changes, marker=MARKER), record_ownership(toml_document.parse(base), changes)


def list_hooks_dirs(effective: Table) -> list[str]:
    """Return the folders whose hooks CRI-O runs."""
    found = lookup(effective, HOOKS_DIR)
    return [folder for folder in found if isinstance(folder, str)] if isinstance(found, list) else []


def remove_ours_from_text(
    content: bytes, ownership: Ownership, toolkit_folder: str, before: bytes | None, handlers: Collection[str] = ()
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without our values, and others' changes to them. `before` is the text from before us.

    `handlers` are our handlers in all of CRI-O's files.
    """
    document = parse_checked(content)
    changes, left = remove_ours(
        document, SHAPE, ownership, toolkit_folder, toml_document.parse(before or b""), handlers
    )
    return toml_document.edit(content, changes, marker=MARKER), left


def find_unrecorded(content: bytes, gone: Collection[str]) -> Ownership:
    """Return our values that are identified without a receipt, besides runtimes in our toolkit folder.

    These are: a default that names one of the runtimes to be removed (`gone`), in whatever file these are, as CRI-O
    does not start with a default that no file defines; the folders of hooks in a block of ours; and tables that are
    empty without those runtimes. Raises the errors of `parse_checked`.
    """
    document = parse_checked(content)
    marked = toml_document.find_marked_tables(content, MARKER)
    paths = [DEFAULT] if lookup(document, DEFAULT) in gone else []
    paths += [HOOKS_DIR] if RUNTIME in marked and lookup(document, HOOKS_DIR) is not ABSENT else []
    created = parents((*RUNTIMES, "")) if marked or not runtimes_in(document).keys().isdisjoint(gone) else ()
    return Ownership(tuple(Owned(path, lookup(document, path)) for path in paths), created)


def split_runtime_names(content: bytes, toolkit_folder: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a file's runtimes in our toolkit folder, and of the others. Raises as `parse_checked`."""
    runtimes = runtimes_in(parse_checked(content))
    inside = frozenset(name for name, entry in runtimes.items() if is_beneath(_executable(entry), toolkit_folder))
    return inside, frozenset(runtimes) - inside


def has_no_content(content: bytes) -> bool:
    """Tell whether a file has neither values nor comments: at most headers of empty tables."""
    return b"#" not in content and not _has_values(toml_document.parse(content))


def _has_values(value: Any) -> bool:
    return any(_has_values(inner) for inner in value.values()) if isinstance(value, dict) else True


def find_differences(effective: Table, served: Mapping[str, str], default: str | None) -> list[Path]:
    """Return the keys at which `effective`, CRI-O's future configuration, differs from the desired one."""
    wrong = [
        (*RUNTIMES, name) for name, path in served.items() if _executable(runtimes_in(effective).get(name)) != path
    ]
    return [*wrong, DEFAULT] if default is not None and lookup(effective, DEFAULT) != default else wrong


def extract_runtimes(effective: Table) -> bytes:
    """Return the runtimes and the default of `effective` as a separate file."""
    values = [(path, lookup(effective, path)) for path in (DEFAULT, RUNTIMES)]
    changes = [Set(path, value) for path, value in values if value is not ABSENT]
    return toml_document.edit(b"", changes, marker=MARKER)


def find_losses(before: Table, after: Table, served: Mapping[str, str], default: str | None) -> list[str]:
    """Return in words what CRI-O would not serve, or would lose; `before` and `after` are its output.

    Names that TOML must quote are not compared: `crio config` prints them unquoted, as other keys.
    """
    old, new = runtimes_in(before), runtimes_in(after)
    bare = {name: path for name, path in served.items() if re.fullmatch(_BARE_KEY, name)}
    wrong = [f"it does not see the handler {name}" for name, path in bare.items() if _executable(new.get(name)) != path]
    found = lookup(after, DEFAULT)
    if default is not None and found != default:
        wrong.append(f"its default runtime would be {'the built-in one' if found is ABSENT else repr(found)}")
    wrong += [
        f"the runtime {name} would not be what it was"
        for name, entry in old.items()
        if name not in served and not is_same(new.get(name), entry)
    ]
    return wrong


def list_runtimes(files: Sequence[tuple[str, bytes]], release: tuple[int, int] | None) -> list[ListedRuntime]:
    """Return the runtimes of CRI-O's files, each with the last file that defines it. Raises ConfigurationError."""
    documents = [(path, content, parse_checked(content)) for path, content in files]
    effective = merge_files(build_built_in(release), [document for _, _, document in documents])
    default = lookup(effective, DEFAULT)
    found = []
    for name, entry in runtimes_in(effective).items():
        for path, content, document in reversed(documents):
            if name in runtimes_in(document):
                line = toml_document.line_of(content, (*RUNTIMES, name))
                found.append(ListedRuntime(name, _executable(entry) or None, path, line, default=name == default))
                break
    return found


def read_cgroup_driver(files: Sequence[tuple[str, bytes]]) -> CgroupSetting | None:
    """Return CRI-O's cgroup manager, systemd if no file names one. Raises ConfigurationError."""
    where: Path = (*RUNTIME, "cgroup_manager")
    for path, content in reversed(files):
        said = lookup(parse_checked(content), where)
        if isinstance(said, str):
            return CgroupSetting(said, path, toml_document.line_of(content, where))
    return CgroupSetting("systemd", files[0][0]) if files else None


_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_hook(toolkit_folder: str) -> bytes:
    """Return the file that runs the toolkit's hook before every container's start; the hook decides whether to act."""
    document = {
        "version": "1.0.0",
        "hook": {"path": posixpath.join(toolkit_folder, HOOK), "args": [HOOK, "prestart"], "env": [_PATH]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def remove_our_hook(
    present: bytes | None, before: bytes | None, written: Collection[str], toolkit_folder: str
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the hook's file without us (None: no file), and a message if somebody's edit is removed.

    `before` is the content before us, `written` the SHA-256 of every content that we wrote.
    """

    def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        if not _runs_ours(content, toolkit_folder):
            return content, ()
        # whatever else was changed: it runs a program that is removed, and every container would fail
        left = (
            ("somebody changed the hook since; it is removed nevertheless, as it runs the toolkit's",)
            if written
            else ()
        )
        return before, left

    return revert_content(present, before, written, without_ours)


def _runs_ours(present: bytes, toolkit_folder: str) -> bool:
    try:
        path = lookup(json_document.parse(present), ("hook", "path"))
    except DocumentError:
        return False  # broken, and so not ours: we write whole files
    return isinstance(path, str) and is_beneath(path, toolkit_folder)
