"""A corpus of engine files as nodes have them, and what must be true of them while we are installed, told afresh.

Nothing here knows how the installer works: documents are parsed by json and tomllib, comments are found by a scanner of
its own, and the rules for handlers are written down a second time.
"""

from __future__ import annotations

import codecs
import copy
import dataclasses
import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "corpus"
"""`ENGINE/NAME.json` and `ENGINE/NAME.toml`; `@TOOLKIT@` in them stands for the toolkit folder."""

HANDLERS = {
    "nvidia": "nvidia-container-runtime",
    "nvidia-cdi": "nvidia-container-runtime.cdi",
    "nvidia-legacy": "nvidia-container-runtime.legacy",
}
"""What is registered, and each handler's executable in the toolkit folder."""

_PLACEHOLDER = b"@TOOLKIT@"
_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One file of an engine. `text` is None for a node without the file."""

    engine: str
    name: str
    text: bytes | None

    def __str__(self) -> str:
        return f"{self.engine}-{self.name}"

    def content(self, toolkit: Path) -> bytes | None:
        """Return the file for a node with this toolkit folder."""
        return None if self.text is None else self.text.replace(_PLACEHOLDER, os.fsencode(toolkit))

    @property
    def older_installer(self) -> bool:
        """Whether entries of an older installer stand in it."""
        return self.text is not None and _PLACEHOLDER in self.text


def cases(engine: str) -> list[Case]:
    """Return all cases of an engine, that of the missing file among them."""
    found = sorted((DATA / engine).iterdir())
    return [Case(engine, path.stem, path.read_bytes()) for path in found] + [Case(engine, "missing", None)]


@dataclasses.dataclass(frozen=True)
class Site:
    """A made node: where its files are. Nothing of it exists before it is needed."""

    root: Path
    engine: str

    @property
    def config(self) -> Path:
        """The engine's file."""
        return self.root / "etc" / self.engine / ("daemon.json" if self.engine == "docker" else "config.toml")

    @property
    def drop_in(self) -> Path:
        """The drop-in's path."""
        return self.root / "etc" / self.engine / "conf.d" / "99-nvidia.toml"

    @property
    def install_dir(self) -> Path:
        """Where the toolkit folder is to be."""
        return self.root / "usr" / "local" / "nvidia"

    @property
    def toolkit(self) -> Path:
        """The toolkit folder."""
        return self.install_dir / "toolkit"

    @property
    def pid_file(self) -> Path:
        """The PID file."""
        return self.root / "run" / "nvidia" / "toolkit" / "toolkit.pid"

    def build(self, content: bytes | None, *, mode: int = 0o640) -> None:
        """Make the node, with the engine's file (None: without)."""
        self.config.parent.mkdir(parents=True)
        (self.root / "usr" / "local").mkdir(parents=True)
        (self.root / "run").mkdir()
        if content is not None:
            self.config.write_bytes(content)
            if os.geteuid() == 0:
                os.chown(self.config, 1234, 5678)
            self.config.chmod(mode)

    def flags(self, payload: Path) -> tuple[str, ...]:
        """Return the peer's flags for an installation on it, whose engine does not run."""
        return (
            *("--runtime", self.engine, "--config", str(self.config), "--drop-in-config", str(self.drop_in)),
            *("--socket", str(self.root / "run" / "engine.sock"), "--restart-mode", "none"),
            *("--toolkit-install-dir", str(self.install_dir), "--toolkit-source-root", str(payload)),
            *("--pid-file", str(self.pid_file), "--host-root", str(self.root / "host")),
        )

    def executable(self, handler: str) -> str:
        """Return the path that a handler must name."""
        return str(self.toolkit / HANDLERS[handler])


@dataclasses.dataclass(frozen=True)
class Entry:
    """What is remembered of a file or folder to compare it."""

    mode: str
    uid: int
    gid: int
    content: bytes | str | None = None
    xattrs: tuple[tuple[str, bytes], ...] = ()


def snapshot(root: Path, *, without: tuple[Path, ...] = ()) -> dict[str, Entry]:
    """Return all that is below `root`, contents and metadata, save for the folders in `without`."""
    return {str(path.relative_to(root)): _entry(path) for path in _walk(root, without)}


def _walk(root: Path, without: tuple[Path, ...]) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path in without:
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, without)


def _entry(path: Path) -> Entry:
    status = path.lstat()
    content: bytes | str | None = None
    if stat.S_ISREG(status.st_mode):
        content = path.read_bytes()
    elif stat.S_ISLNK(status.st_mode):
        content = str(path.readlink())
    names = sorted(os.listxattr(path, follow_symlinks=False))
    xattrs = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    return Entry(stat.filemode(status.st_mode), status.st_uid, status.st_gid, content, xattrs)


def parse_json(content: bytes) -> dict[str, Any]:
    """Return daemon.json's meaning; a number is its very text, so that 1e3 is not 1000. Says nothing: {}."""
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        return {}
    document = json.loads(content, parse_int=lambda text: f"number {text}", parse_float=lambda text: f"number {text}")
    assert isinstance(document, dict)
    return document


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return config.toml's meaning; a not-a-number equals itself here."""
    return tomllib.loads(content.removeprefix(codecs.BOM_UTF8).decode(), parse_float=lambda text: f"number {text}")


def without_older_docker(document: dict[str, Any], toolkit: Path) -> dict[str, Any]:
    """Return what stands in daemon.json once an older installer's entries are gone."""
    result = copy.deepcopy(document)
    runtimes = result.get("runtimes") or {}
    gone = [name for name, entry in runtimes.items() if entry.get("path", "").startswith(f"{toolkit}/")]
    for name in gone:
        del runtimes[name]
    if result.get("default-runtime") in gone:
        del result["default-runtime"]
    return result


def installed_docker(before: dict[str, Any], site: Site) -> dict[str, Any]:
    """Return what daemon.json must mean while we are installed."""
    result = without_older_docker(before, site.toolkit)
    ours = {name: {"path": site.executable(name), "args": []} for name in HANDLERS}
    result["runtimes"] = {**(result.get("runtimes") or {}), **ours}
    result["default-runtime"] = "nvidia"
    return result


def version(document: dict[str, Any]) -> int:
    """Return a containerd file's version: one that says nothing counts as 2 where no engine is there to ask."""
    return int(document.get("version", 2))


def containerd_table(document: dict[str, Any]) -> dict[str, Any]:
    """Return the table that holds the runtimes, empty where there is none."""
    table = document.get("plugins", {}).get(_CRI[version(document)], {}).get("containerd", {})
    assert isinstance(table, dict)
    return table


def without_older_containerd(document: dict[str, Any], toolkit: Path) -> dict[str, Any]:
    """Return what stands in config.toml once an older installer's entries are gone."""
    result = copy.deepcopy(document)
    table = containerd_table(result)
    runtimes = table.get("runtimes", {})
    gone = [name for name, entry in runtimes.items() if binary(entry).startswith(f"{toolkit}/")]
    for name in gone:
        del runtimes[name]
    if table.get("default_runtime_name") in gone:
        del table["default_runtime_name"]
    return result


def binary(runtime: dict[str, Any]) -> str:
    """Return the executable that a containerd runtime names."""
    return str(runtime.get("options", {}).get("BinaryName", ""))


def _lender(table: dict[str, Any]) -> dict[str, Any]:
    """Return the runtime whose settings the handlers get: the default one, or runc where that is no runc."""
    runtimes = table.get("runtimes", {})
    for name in (table.get("default_runtime_name", "runc"), "runc"):
        entry = runtimes.get(name, {})
        if entry and entry.get("runtime_type", "io.containerd.runc.").startswith("io.containerd.runc."):
            assert isinstance(entry, dict)
            return entry
    return {}


def installed_containerd(before: dict[str, Any], site: Site) -> dict[str, Any]:
    """Return what config.toml must mean while we are installed, edited in place."""
    result = without_older_containerd(before, site.toolkit)
    result.setdefault("version", 2)
    table = result.setdefault("plugins", {}).setdefault(_CRI[version(result)], {}).setdefault("containerd", {})
    lender = _lender(table)
    if "runtimes" not in table:
        mode = {"sandbox_mode": "podsandbox"} if version(result) == 2 else {}
        table["runtimes"] = {"runc": {"runtime_type": "io.containerd.runc.v2", **mode}}
    for name in HANDLERS:
        entry = {"runtime_type": "io.containerd.runc.v2"} | copy.deepcopy(lender)
        entry["options"] = {**entry.get("options", {}), "BinaryName": site.executable(name)}
        table["runtimes"][name] = entry
    table["default_runtime_name"] = "nvidia"
    return result


def pruned(value: Any) -> Any:
    """Return a document without its empty tables: they say nothing."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, each in value.items() if (inner := pruned(each)) not in ({}, None)}


_TOKEN = re.compile(
    rb'"""(?:[^\\]|\\.)*?"""(?!")|\'\'\'.*?\'\'\'(?!\')|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|(?P<comment>\#[^\n]*)',
    re.DOTALL,
)
"""A string of any of TOML's four kinds, or a comment."""


def comments(content: bytes) -> Counter[bytes]:
    """Return the comments of a TOML file, without trailing blanks and line ends, and how often each is there."""
    found = (match["comment"] for match in _TOKEN.finditer(content))
    return Counter(comment.rstrip() for comment in found if comment is not None)


def missing_lines(before: bytes, after: bytes) -> list[bytes]:
    """Return the lines of `before` that `after` does not have, in their order; bytes count, line ends too."""
    lines = after.split(b"\n")
    missing: list[bytes] = []
    at = 0
    for line in before.split(b"\n"):
        try:
            at = lines.index(line, at) + 1
        except ValueError:
            missing.append(line)
    return missing
