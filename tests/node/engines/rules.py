"""Made engines, as fast as a matrix needs them: what they serve, and what a reload or a start makes of their files.

The rules are those that real ones were seen to follow. dockerd (20.10, 26, 28): a SIGHUP takes over `runtimes` and
`default-runtime` where the file names them, and takes nothing back that is gone from it; broken JSON leaves all as it
was; a file with `runtimes` that lacks the live default, and names none, crashed 20.10. containerd 2.1: a restart reads
all anew, merges imports deeply, refuses a literal import that is missing, and ignores the CRI part of a drop-in whose
version is not the root file's. CRI-O 1.34: a restart reads every file of its folder, hidden ones too, a runtime's table
as a whole, and refuses a default that none of them has.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import json
import posixpath
import tomllib
from typing import Any

from tests.node.sweeps.trees import Tree
from tests.support.fake_node import CONFIG_TOML, CRIO_FOLDER, DAEMON_JSON

CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


@dataclasses.dataclass(frozen=True)
class Served:
    """What an engine serves. `down` says in words why it serves nothing; `handlers` are (name, executable)."""

    handlers: tuple[tuple[str, str], ...] = (("runc", "runc"),)
    default: str = "runc"
    down: str = ""
    starts: int = 1
    """How often it was started: tells a process from the one before it."""
    cdi: bool = True
    """It has CDI on, where it was told of folders for it."""

    def again(self) -> Served:
        """Return the same from a process that was started just now: what a comparison of two of them spares."""
        return dataclasses.replace(self, starts=1)


def _content(tree: Tree, path: str) -> bytes | None:
    entry = tree.get(path)
    return entry.content if entry is not None and isinstance(entry.content, bytes) else None


def started(engine: str, tree: Tree) -> Served:
    """Return what the engine serves once it has read the files of `tree` at its start."""
    if engine == "docker":
        return docker_started(_content(tree, DAEMON_JSON))
    return crio_started(tree) if engine == "crio" else containerd_started(tree)


# --- dockerd ---


def _runtimes(document: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    named = {name: entry.get("path", "") for name, entry in (document.get("runtimes") or {}).items()}
    return tuple(sorted({"runc": "runc", **named}.items()))


def docker_started(content: bytes | None) -> Served:
    """Return what dockerd serves when it starts on a daemon.json with this content (None: no file)."""
    try:
        document = json.loads(content) if content else {}
    except ValueError as error:
        return Served((), "", f"exits 1 at its start: {error}")
    handlers = _runtimes(document)
    default = document.get("default-runtime") or "runc"
    if default not in dict(handlers):
        return Served((), "", f"exits 1 at its start: the default runtime {default!r} is unknown")
    return Served(handlers, default)


def docker_reloaded(served: Served, content: bytes | None) -> Served:
    """Return what a dockerd serves that was signalled on a daemon.json with this content."""
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        return served
    if "runc" in (document.get("runtimes") or {}):
        return served  # it is reserved: the reload is rejected
    handlers = _runtimes(document) if document.get("runtimes") is not None else served.handlers
    default = document.get("default-runtime") or served.default
    if default not in dict(handlers):
        return Served((), "", f"panicked: signalled on a file whose runtimes lack the default {default!r}")
    if document.get("runtimes") is None or not document.get("default-runtime"):
        return Served((), "", "signalled on a file that does not name both runtimes and default-runtime")
    return Served(handlers, default)


# --- containerd ---


def containerd_started(tree: Tree) -> Served:
    """Return what containerd 2.1 serves when it starts on the config.toml of `tree`."""
    try:
        root = tomllib.loads((_content(tree, CONFIG_TOML) or b"").decode())
        version = root.get("version", 3)
        plugin: dict[str, Any] = {}
        for document in (root, *_imports(tree, root)):
            if document.get("version", version) == version:
                plugin = _merged(plugin, document.get("plugins", {}).get(CRI[version], {}))
        table = plugin.get("containerd", {})
    except (ValueError, KeyError) as error:
        return Served((), "", f"does not start: {error}")
    handlers = {
        name: entry.get("options", {}).get("BinaryName", name) for name, entry in table.get("runtimes", {}).items()
    }
    default = table.get("default_runtime_name", "runc")
    handlers = handlers or {"runc": "runc"}
    if default not in handlers:
        return Served((), "", f"its CRI plugin fails: no runtime {default!r}")
    return Served(tuple(sorted(handlers.items())), default, cdi=plugin.get("enable_cdi", True))


def _imports(tree: Tree, root: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for pattern in root.get("imports", []):
        path = posixpath.join(posixpath.dirname(CONFIG_TOML), pattern)
        # a glob does not cross folders, and skips hidden files, as Go's filepath.Glob is used there
        names = [name for name in sorted(tree) if posixpath.dirname(name) == posixpath.dirname(path)]
        matching = [name for name in names if fnmatch.fnmatchcase(posixpath.basename(name), posixpath.basename(path))]
        if not matching and not set("*?[") & set(pattern):
            raise ValueError(f"the import {pattern} is missing")
        found += [tomllib.loads((_content(tree, name) or b"").decode()) for name in matching]
    return found


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


# --- CRI-O ---


def crio_started(tree: Tree) -> Served:
    """Return what CRI-O serves when it starts on the files of its folder in `tree`."""
    runtimes, default = {"crun": "crun"}, "crun"
    for path in (name for name in sorted(tree) if posixpath.dirname(name) == CRIO_FOLDER):
        try:
            document = tomllib.loads((_content(tree, path) or b"").decode())
        except ValueError as error:
            return Served((), "", f"does not start: {path}: {error}")
        table = document.get("crio", {}).get("runtime", {})
        default = table.get("default_runtime", default)
        runtimes |= {name: entry.get("runtime_path") or name for name, entry in table.get("runtimes", {}).items()}
    if default not in runtimes:
        return Served((), "", f"does not start: no runtime {default!r}")
    return Served(tuple(sorted(runtimes.items())), default)
