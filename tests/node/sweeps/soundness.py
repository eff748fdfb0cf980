"""Whether a node works, told by what lies on it and nothing else: a checker that knows nothing of the installer's code.

A node between two whole states (killed, or failed by the disk) is compared with these: each file is one of theirs.
Files are parsed by json and tomllib; what a runtime needs is written down here a second time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.node.engines.rules import CRI, Served
from tests.node.sweeps.trees import Tree, unmarked
from tests.support.fake_node import (
    CONFIG_TOML,
    CRIO_DROP_IN,
    CRIO_FOLDER,
    CRIO_SITE,
    DAEMON_JSON,
    DROP_IN,
    STORE,
    TOOLKIT,
    Entry,
)
from toolkit_installer.reporting import outcome

FILES = {"docker": (DAEMON_JSON,), "containerd": (CONFIG_TOML, DROP_IN), "crio": (CRIO_SITE, CRIO_DROP_IN)}
"""Each engine's files; the first is the operator's."""
CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
_TEMPORARY = re.compile(r"\.(?P<final>.+)\.toolkit-installer\.(tmp|swap)")
"""The names of what is on its way to its place, or out of it."""
_NAMED = re.compile(re.escape(TOOLKIT) + r"/[\w.-]+")
OURS = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy", "gpu", "gpu-cdi", "gpu-legacy"})
"""Names of handlers that the tests let the program register: these may come and go."""
PASSING = "/run/nvidia"
"""What lies here ends with the run, or with the boot."""


@dataclasses.dataclass(frozen=True)
class Grounds:
    """What a node is judged by: the engine, what stood before us, the whole states that it may be between."""

    engine: str
    original: Tree
    stages: Sequence[Tree]


def judge(tree: Tree, grounds: Grounds, served: Served | None = None) -> list[str]:
    """Return in words what is wrong with a node that is between its whole states; nothing, if it works.

    `served` is what the live engine serves, which may be more, or less, than its files say.
    """
    wrong = [problem for path in FILES[grounds.engine] for problem in _engine_file(path, tree, grounds)]
    if wrong:
        return wrong
    named = handlers(tree, grounds.engine) | _of_ours(served)
    wrong += _runtimes(named, tree, grounds)
    wrong += _everything(tree, grounds)
    wrong += _dangling(tree, grounds.original)
    if served is not None and served.down:
        wrong.append(f"the engine is down: {served.down}")
    return wrong


def handlers(tree: Tree, engine: str) -> dict[str, str]:
    """Return the handlers with an executable in the toolkit's folder that the engine's files name."""
    named: dict[str, Any] = {}
    for path in _read(tree, engine):
        document = parsed(tree.get(path), path)
        runtimes = document.get("crio", {}).get("runtime", {}).get("runtimes", {}).items()
        named |= {name: entry.get("runtime_path") for name, entry in runtimes}
        if engine == "docker":
            named |= {name: entry.get("path") for name, entry in (document.get("runtimes") or {}).items()}
        for plugin in CRI.values():
            table = document.get("plugins", {}).get(plugin, {}).get("containerd", {})
            runtimes = table.get("runtimes", {}).items()
            named |= {name: entry.get("options", {}).get("BinaryName") for name, entry in runtimes}
    return {name: path for name, path in named.items() if str(path).startswith(f"{TOOLKIT}/")}


def _read(tree: Tree, engine: str) -> list[str]:
    """Return the files that the engine reads: CRI-O all that lie in its folder, those with a temporary name too."""
    hidden = [path for path in sorted(tree) if posixpath.dirname(path) == CRIO_FOLDER] if engine == "crio" else []
    return list(dict.fromkeys([*hidden, *FILES[engine]]))


def _of_ours(served: Served | None) -> dict[str, str]:
    live = served.handlers if served is not None else ()
    return {f"{name} (live)": path for name, path in live if path.startswith(f"{TOOLKIT}/")}


def parsed(entry: Entry | None, path: str) -> dict[str, Any]:
    """Return what a file says, nothing where it is absent or empty. Raises ValueError."""
    content = entry.content if entry is not None and isinstance(entry.content, bytes) else b""
    if path.endswith(".json"):
        document: dict[str, Any] = json.loads(content or b"{}")
        return document
    return tomllib.loads(content.decode())


# --- the engine's files ---


def _engine_file(path: str, tree: Tree, grounds: Grounds) -> Iterator[str]:
    """Yield what is wrong with one of the engine's files: old bytes, new ones, or what the receipt names for docker."""
    entry = tree.get(path)
    whole = [stage.get(path) for stage in grounds.stages]
    if entry is None:
        if None not in whole:
            yield f"{path} is missing"
        return
    if entry.kind != "-" or not isinstance(entry.content, bytes):
        yield f"{path} is no file"
        return
    known = {stage.content for stage in whole if stage is not None}
    digest = hashlib.sha256(entry.content).hexdigest()
    if entry.content not in known and not (grounds.engine == "docker" and digest in written(tree, path)):
        yield f"{path} is none of the whole ones, and the receipt does not name it: {entry.content!r}"
        return
    try:
        document = parsed(entry, path)
    except ValueError as error:
        yield f"{path} cannot be parsed: {error}"
        return
    original = grounds.original.get(path)
    yield from _dress(path, entry, original or next(stage for stage in (*whole, entry) if stage is not None))
    yield from lost(parsed(original, path), document, path)


def written(tree: Tree, path: str) -> set[str]:
    """Return the SHA-256 of each content that the receipt names for a file."""
    receipt = tree.get(f"{STORE}/receipt.json")
    if receipt is None:
        return set()
    body = json.loads(receipt.content)
    return {
        digest
        for engine in body["engines"]
        for file in engine["files"]
        if file["path"] == path
        for digest in file["written"]
    }


def _dress(path: str, entry: Entry, wanted: Entry) -> Iterator[str]:
    for field in ("mode", "owner", "xattrs"):
        if getattr(entry, field) != getattr(wanted, field):
            yield f"{path}: {field} is {getattr(entry, field)}, not {getattr(wanted, field)}"


def lost(original: Any, document: Any, where: str) -> Iterator[str]:
    """Yield the operator's keys and values that a document lacks; the default and our handlers are ours to set."""
    if isinstance(original, dict) and isinstance(document, dict):
        for key, value in original.items():
            if key in ("default-runtime", "default_runtime_name", "default_runtime") or key in OURS:
                continue
            if key not in document:
                yield f"{where}: {key} is gone"
            else:
                yield from lost(value, document[key], f"{where}: {key}")
    elif where.endswith(": imports"):
        if document[: len(original)] != original:
            yield f"{where} lacks some of {original}"
    elif original != document:
        yield f"{where} is {document!r}, not {original!r}"


# --- the toolkit ---


def _runtimes(named: Mapping[str, str], tree: Tree, grounds: Grounds) -> Iterator[str]:
    """Yield what the runtimes that are named lack: they and all that they start, load or read."""
    if not named:
        return
    kits = [kit for stage in grounds.stages if (kit := {path for path in stage if _in_toolkit(path)})]
    needed = set.intersection(*kits) if kits else set()
    for name, path in named.items():
        for part in (path, f"{path}.real"):
            entry = tree.get(part)
            if entry is None or entry.kind != "-" or entry.mode & 0o555 != 0o555:
                yield f"{name}: {part} is missing, or not to be executed"
    for part in sorted(needed | {CONFIG}):
        if part not in tree:
            yield f"{', '.join(named)}: {part} is missing"
    for path, entry in tree.items():
        if _in_toolkit(path) and entry.kind == "l" and not temporary(path):
            target = posixpath.join(posixpath.dirname(path), str(entry.content))
            if target not in tree:
                yield f"{path} leads to {target}, which is missing"


def _in_toolkit(path: str) -> bool:
    return path.startswith(f"{TOOLKIT}/")


def temporary(path: str) -> bool:
    return any(_TEMPORARY.fullmatch(part) for part in path.split("/"))


def becoming(path: str) -> str:
    """Return the path that something with a temporary name is to become, or was; any other path as it is."""
    name = _TEMPORARY.fullmatch(posixpath.basename(path))
    return posixpath.join(posixpath.dirname(path), name["final"]) if name else path


# --- all the rest ---


def _dangling(tree: Tree, original: Tree) -> Iterator[str]:
    """Yield which file, of whatever engine, names an executable of the toolkit's that is gone, and did not before."""
    for path, entry in tree.items():
        if (
            _in_toolkit(path)
            or f"{path}/".startswith(f"{STORE}/")
            or posixpath.basename(becoming(path)) == outcome.FILE
        ):
            continue  # the last tells people what a run has said, and no engine reads it
        for name in sorted(mentioned(entry) - mentioned(original.get(path))):
            if name not in tree or tree[name].mode & 0o555 != 0o555:
                yield f"{path} names {name}, which is missing, or not to be executed"


def mentioned(entry: Entry | None) -> set[str]:
    """Return the paths in the toolkit's folder that a file's bytes, or where a link leads, name; nothing for none."""
    content = entry.content if entry is not None else ""
    text = content.decode(errors="surrogateescape") if isinstance(content, bytes) else content
    return set(_NAMED.findall(text))


def _everything(tree: Tree, grounds: Grounds) -> Iterator[str]:
    """Yield what is neither as in one of the whole states nor on its way there."""
    for path, entry in tree.items():
        if path in FILES[grounds.engine] or f"{path}/".startswith(f"{PASSING}/"):
            continue
        if temporary(path):
            yield from _veiled(path, entry, grounds)
        elif path == STORE or path.startswith(f"{STORE}/"):
            if entry.mode & 0o077:
                yield f"{path} is open to others: mode {entry.mode:o}"
        elif not any(_may_be(entry, stage.get(path)) for stage in grounds.stages):
            yield f"{path} is as in none of the whole states"
    for path in set.intersection(*(set(stage) for stage in grounds.stages)):
        if path not in tree and not f"{path}/".startswith((f"{STORE}/", f"{PASSING}/")):
            yield f"{path} is missing"


def _may_be(entry: Entry, wanted: Entry | None) -> bool:
    """Tell whether an entry is what is wanted; a folder made just now may lack what the umask took."""
    if wanted is None or entry.kind != wanted.kind:
        return False
    if entry.kind == "d":
        entry, wanted = unmarked(entry), unmarked(wanted)
        return not entry.mode & ~wanted.mode and entry == dataclasses.replace(wanted, mode=entry.mode)
    return entry == wanted


def _veiled(path: str, entry: Entry, grounds: Grounds) -> Iterator[str]:
    """Yield whether a temporary file shows more to others than the file that it is to become."""
    final = becoming(path)
    secret = grounds.original.get(final)
    engines = entry.kind == "-" and final in FILES[grounds.engine]
    if engines and secret is not None and entry.mode & ~secret.mode & 0o077:
        yield f"{path} shows others what {final} does not: mode {entry.mode:o}"


def leftovers(tree: Tree) -> list[str]:
    """Return the temporary files that lie about."""
    return [path for path in tree if temporary(path)]


def state(tree: Tree) -> str | None:
    """Return how far a change has come, as the receipt says; None without a receipt."""
    receipt = tree.get(f"{STORE}/receipt.json")
    return None if receipt is None else str(json.loads(receipt.content)["state"])
