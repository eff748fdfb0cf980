"""Find the files of engines that still name the toolkit, whether or not this program wrote or recorded them.

Removing a binary that an engine's file names breaks its containers, or its next start. So before a removal, all engines
on the node are searched: their files in the usual places, the files that their processes and units name, the imports of
those, and the folders of drop-ins, hooks and CDI specifications. Entries that a distribution generates at each start
because it finds the toolkit do not count: they vanish by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import mentions, toml_document
from toolkit_installer.documents.changes import lookup
from toolkit_installer.engines import registry
from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.engines.containerd import config_files
from toolkit_installer.engines.containerd.distributions import layout_of
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.engines.containerd.tables import build_shape, read_executable, runtimes_in
from toolkit_installer.engines.detect.unit_files import TABLE, UNIT_FOLDERS
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import PATH
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import CachedReader, Reader
from toolkit_installer.node.root import NodeError
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import EngineName
from toolkit_installer.toolkit.payload import RUNTIMES

_MOST_FILES = 100_000
_LONGEST_PATH = 4096
_PATH = PATH.split(":")
_UNREADABLE_ERRNOS = frozenset({0, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""The errno values of files that engines, or this user's, cannot read either; 0: a symlink that is not followed."""
_WILDCARD = re.compile(r"[*?\[\\]")
_SHIM = "containerd-shim-"
_PROGRAMS = frozenset({*RUNTIMES, "nvidia-container-runtime-hook", "nvidia-container-toolkit"})
"""Programs that engines may name without a folder, and find in their PATH."""


class StillNamedError(InstallerError):
    """The toolkit stays, as files of engines that are not this installer's name it."""

    exit_code = ExitCode.BAD_CONFIGURATION


class Naming(msgspec.Struct, frozen=True):
    """A file that names the toolkit: the line, and the path that it names."""

    file: str
    line: int
    path: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} names {self.path}"


@Query(ignored=("known",))
def find_naming_files(
    node: Node, folder: str, *, known: Iterable[str] = (), instead: Collection[str] = ()
) -> tuple[Naming, ...]:
    """Return the files that name anything in the toolkit's `folder`, each file and path once.

    `known`: more files that an engine is known to read. `instead`: files to skip, as they are about to change.
    """
    search = _Search(node, folder, instead)
    for reader in map(CachedReader, node.readers()):
        search.read(reader, (*known, *list_usual_patterns(), *list_command_line_files(node)))
    search.look_at_processes()
    return tuple(search.found)


def find_naming_specifications(node: Node, folder: str) -> tuple[Naming, ...]:
    """Return the CDI specifications that name the toolkit's `folder`. The caller has to remove ours first."""
    search = _Search(node, folder, ())
    for reader in map(CachedReader, node.readers()):
        search.read(reader, (f"{place}/*" for place in CDI_FOLDERS))
    return tuple(search.found)


def list_recorded_files(receipt: Receipt) -> tuple[str, ...]:
    """Return the engines' files that the receipt names."""
    return tuple(dict.fromkeys(file.path for engine in receipt.engines for file in engine.files))


def build_refusal(found: Sequence[Naming], *, recorded: bool) -> StillNamedError:
    """Return an error that says what stays, why, and what to do. `recorded`: there is a receipt."""
    another = "" if recorded else "; or name its engine, too, with --runtime: what installers left is taken out of it"
    return StillNamedError(
        f"everything was taken back but the toolkit, which stays: {'; '.join(map(str, found))}",
        path=found[0].file,
        line=found[0].line,
        hint=f"take that out and restart the engine, then run `toolkit-installer uninstall` again{another}",
    )


class _Search:
    """Searches files and the files that they import; reads each once."""

    def __init__(self, node: Node, folder: str, instead: Collection[str]) -> None:
        self._node = node
        self._folders = (folder, node.files.canonical(folder))
        self._instead = instead
        self._seen: set[str] = set()
        self._links: dict[str, frozenset[str]] = {}
        """By each reader's root: the programs that are links into the toolkit."""
        self.found: dict[Naming, None] = {}

    def read(self, reader: CachedReader, patterns: Iterable[str]) -> None:
        """Search the files that match the patterns, and all imports. Raises StillNamedError if there are too many."""
        pending = deque(patterns)
        while pending:
            for path in _matching(reader, pending.popleft()):
                content = self._content(reader, path)
                if content is not None:
                    pending += list_imports(content, path)
                    self._look(reader, path, content)
            if len(self._seen) > _MOST_FILES:
                raise StillNamedError(
                    f"the engines' files name more than {_MOST_FILES} others, which may name the toolkit",
                    hint="nothing was removed; look at what they import",
                )

    def _content(self, reader: Reader, path: str) -> bytes | None:
        """Return the content of a file that counts and was not read yet."""
        try:
            canonical = reader.canonical(path)
            place = reader.root.outside(canonical)
            if place in self._seen or canonical in self._instead or not reader.is_file(canonical):
                return None
            self._seen.add(place)
            return reader.content(canonical)
        except ConfigurationError as error:
            log.get().warning(
                "A file that an engine may read cannot be looked at",
                key="file-unreadable",
                file=path,
                reason=error.reason,
            )
            # the file exists, but is too large or unreadable here: an engine may still read it
            if not isinstance(error, NodeError) or error.number not in _UNREADABLE_ERRNOS:
                self.found[Naming(path, 1, f"what nobody has read to its end ({error.reason})")] = None
            return None

    def _look(self, reader: Reader, path: str, content: bytes) -> None:
        named = self._mentioned(reader, content)
        layout = None
        with contextlib.suppress(ConfigurationError):
            layout = layout_of(self._node.files.content, path) if named else None
        if layout is None or path not in (layout.generated, layout.source) or path == layout.drop_in:
            self.found |= dict.fromkeys(Naming(path, each.line, each.path) for each in named)
        elif layout.detection and layout.may_set_default(self._node.files.content):
            # other generated files come from one that is searched itself, and are generated again without the toolkit
            self.found |= dict.fromkeys(_find_default_runtime(layout, path, content, self._folders))

    def look_at_processes(self) -> None:
        """Search the command lines of the node's engines."""
        for process in processes.find_by_name(frozenset().union(*PROCESS_NAMES.values())):
            if not self._node.is_home_of(process):
                continue
            if process.hidden:
                log.get().info(
                    "An engine has wiped its command line, which may name the toolkit: its files are looked at",
                    key="command-line-wiped-at-cleanup",
                    engine=process.name,
                    pid=process.pid,
                )
            text = "\n".join(process.arguments)
            for each in self._mentioned(self._node.files, text.encode(errors="surrogateescape")):
                words = f"the command line of {process.name} (PID {process.pid})"
                self.found[Naming(words, each.line, each.path)] = None

    def _mentioned(self, reader: Reader, content: bytes) -> Sequence[mentions.Mention]:
        """Return the places that name the toolkit, also by a link to it that engines find in their PATH."""
        root = reader.root.folder
        if root not in self._links:
            self._links[root] = frozenset(_links(reader, self._folders))
        links = self._links[root]
        return mentions.find_mentions(content, lambda name: name in links or _is_ours(reader, self._folders, name))


def names_toolkit(reader: Reader, folder: str, content: bytes) -> bool:
    """Return whether a text names a path in the toolkit's folder, or one of its programs without a folder."""
    folders = (folder, reader.canonical(folder))
    return bool(mentions.find_mentions(content, lambda name: _is_ours(reader, folders, name)))


def _links(reader: Reader, folders: Sequence[str]) -> Iterator[str]:
    """Yield the names of links to the toolkit, whatever their names, in the usual folders of programs.

    A shim is also named by its runtime type: `io.containerd.x.v1` runs `containerd-shim-x-v1` (containerd,
    docs/runtime-v2.md).
    """
    looked_at = set()
    for place in _PATH:
        try:
            if (folder := reader.canonical(place)) in looked_at:
                continue  # /bin is /usr/bin nearly everywhere, and may have a thousand links
            links = reader.links(place)
        except NodeError:
            continue  # a folder that cannot be reached from here has no program that runs here
        looked_at.add(folder)
        for name in links:
            if not _is_ours(reader, folders, f"{place}/{name}"):
                continue
            yield name
            if name.startswith(_SHIM):
                kind, _, version = name.removeprefix(_SHIM).rpartition("-")
                yield f"io.containerd.{kind}.{version}"


def _is_ours(reader: Reader, folders: Sequence[str], name: str) -> bool:
    """Return whether a path lies in the toolkit's folder, or a program's name leads there by a symlink."""
    places = [name] if name.startswith("/") else [f"{place}/{name}" for place in _PATH if name in _PROGRAMS]
    for path in places:
        if any(is_beneath(posixpath.normpath(path), folder) for folder in folders):
            return True
        try:
            leads = reader.canonical(path) if "\0" not in path and len(path) < _LONGEST_PATH else path
        except NodeError:
            continue
        if any(is_beneath(leads, folder) for folder in folders):
            return True
    return False


def _find_default_runtime(layout: Layout, path: str, content: bytes, folders: Sequence[str]) -> Iterator[Naming]:
    """Yield the default runtime in a generated file, if it lies in one of the folders.

    Such a default is an option of the distribution's, not ours: k3s does not start with a default that it does not find
    (k3s-io/k3s, pkg/agent/containerd/config_linux.go).
    """
    try:
        document = toml_document.parse(content)
    except ConfigurationError:
        return
    tables = build_shape(layout.plugin)
    name = lookup(document, tables.default)
    entry = runtimes_in(document, layout.plugin).get(name) if isinstance(name, str) else None
    runs = read_executable(entry) if entry is not None else None
    if runs is not None and any(is_beneath(runs, folder) for folder in folders):
        words = f"{runs} as the default runtime, which {layout.name} was told (its --default-runtime)"
        yield Naming(path, toml_document.line_of(content, tables.default) or 1, words)


def _matching(reader: CachedReader, pattern: str) -> Sequence[str]:
    if "*" not in pattern:
        return [] if reader.lacks(pattern) else [pattern]
    if reader.lacks(posixpath.dirname(_WILDCARD.split(pattern, maxsplit=1)[0])):
        return []
    try:
        return list(dict.fromkeys([*reader.matching(pattern), *config_files.expand_pattern(reader, pattern)]))
    except ConfigurationError:
        return []  # no engine here reads a file that cannot be reached from here


_ROWS = [row for row in TABLE if row.refused is None]
"""The rows whose engine could run the toolkit; the files of others may belong to local users."""
_OTHERS = (
    "/etc/containerd/conf.d/*.toml",
    "/etc/crio/crio.conf.d/*",
    "/etc/crio/crio.conf.d/*/*",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*.conf",
    "/usr/share/containers/containers.conf",
    "/usr/share/containers/containers.conf.d/*.conf",
    *(f"/etc/default/{engine}" for engine in registry.names()),
    *(f"/etc/sysconfig/{engine}*" for engine in registry.names()),
    *(f"/etc/conf.d/{engine}" for engine in registry.names()),
    "/etc/containers/containers.conf.modules/*.conf",
    "/usr/share/containers/containers.conf.modules/*.conf",
    "/root/.config/containers/containers.conf",
    "/root/.config/containers/containers.conf.d/*.conf",
    "/etc/buildkit/buildkitd.toml",
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/share/containers/oci/hooks.d/*.json",
    "/etc/containers/oci/hooks.d/*.json",
)
"""Drop-ins and hooks in their usual places; podman reads hooks and runtimes as well (containers.conf(5))."""
_UNIT_FOLDERS = (
    *UNIT_FOLDERS,
    *(f"/{place}/systemd/system.{kind}" for kind in ("control", "attached") for place in ("etc", "run")),
    *(f"/run/systemd/{kind}" for kind in ("transient", "generator.early", "generator", "generator.late")),
)
"""The "Unit File Load Path" of systemd.unit(5)."""
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""Where engines look for CDI specifications (CDI's SPEC.md, "CDI JSON definition")."""
_FOLDERS = {"hooks_dir": "*.json", "cdi_spec_dirs": "*", "cdi-spec-dirs": "*"}
"""Keys that name folders, and the pattern of the files that are read there."""
_FOLDER_LIST = rf"""["']?\b({"|".join(_FOLDERS)})["']?\s*[=:]\s*\[([^\]\[]{{0,4096}})\]"""
_QUOTED = r"""["']([^"'\n]+)["']"""
_FLAG = (
    r"""(?:^|[\s"'=])(?:--?config(?:-file)?|-c|CONTAINER_CONFIG|CONTAINERS_CONF(?:_OVERRIDE)?)(?:[= ]|\s|\\\n)\s*"""
    r"""(?:"(/[^"\n]+)|'(/[^'\n]+)|(/[^\s"'\\]+))"""
)
"""Matches an engine's file that a command line or variable names."""
_QUOTED_FLAG = r"""(["'])--?config(?:-file)?=(/[^"'\n]+)\1"""
"""The same with the whole option in quotes: then blanks are part of the path."""
_ENVIRONMENT_FILE = r"(?m)^[ \t]*EnvironmentFile[ \t]*=[ \t]*-?(/[^\n]*)"
"""Matches a unit's file of variables for its command line (systemd.exec(5))."""
_FLAG_FOLDER = (
    r"""(?i)(?:--?|CONTAINER_|(?<=\s)-(?=d))(config[-_]dir|hooks[-_]dir|cdi[-_]spec[-_]dirs?|d)"""
    r"""(?:[= ]|\s|\\\n)\s*["']?(/[^\s"'\\]+)"""
)
"""Matches a folder that a command line or variable names, and whose files are all read."""
_FILE_KEYS = frozenset({"base_runtime_spec", "ConfigPath", "runtime_config_path"})
"""Keys whose value is a file that is read as well."""
_IMPORTS = r"(?m)^[ \t]*imports[ \t]*=\s*\[([^\]]{0,4096})\]"
"""Imports in a file that is not TOML: a template, or a broken file."""


def list_usual_patterns() -> Iterator[str]:
    """Yield the usual places of engines' files, as patterns."""
    for row in _ROWS:
        yield row.config
        if row.drop_in is not None:
            yield posixpath.join(posixpath.dirname(row.drop_in), "*")
        yield from (posixpath.join(posixpath.dirname(row.config), pattern) for pattern in row.sibling_patterns)
        for unit in (posixpath.join(folder, name) for folder in _UNIT_FOLDERS for name in row.units):
            yield from (unit, f"{unit}.d/*.conf")
    # drop-ins for services of all kinds
    yield from (posixpath.join(folder, "service.d", "*.conf") for folder in _UNIT_FOLDERS)
    yield from _OTHERS


def list_command_line_files(node: Node) -> Iterator[str]:
    """Yield the files that the command lines of the node's engines name."""
    for process in processes.find_by_name(frozenset().union(*PROCESS_NAMES.values())):
        if not node.is_home_of(process):
            continue
        yield from _find_flagged_files(" ".join(process.arguments))
        if process.hidden and process.name in PROCESS_NAMES[EngineName.CONTAINERD]:
            try:
                config = config_files.find_config(process)
            except ConfigurationError as error:
                log.get().warning(
                    "What an engine reads cannot be looked at for the toolkit",
                    key="engine-files-unreadable",
                    reason=error.reason,
                )
                continue
            yield from (config,) if config is not None else ()


def _find_flagged_files(text: str) -> Iterator[str]:
    """Yield the files that a command line names, and patterns for the folders that it names."""
    yield from ("".join(match) for match in re.findall(_FLAG, text))
    for kind, folder in re.findall(_FLAG_FOLDER, text):
        yield posixpath.join(folder, _FOLDERS.get(kind.lower().replace("-", "_"), "*"))
    yield from (path for _, path in re.findall(_QUOTED_FLAG, text))
    yield from (path.strip() for path in re.findall(_ENVIRONMENT_FILE, text))


def list_imports(content: bytes, path: str) -> Iterator[str]:
    """Yield the imports of an engine's file, and patterns for the folders that it names."""
    text = content.decode(errors="replace")
    try:
        yield from config_files.list_imports(content, path)
    except ConfigurationError:  # a template, or broken: its imports are read all the same, or will be
        for listed in re.findall(_IMPORTS, text):
            yield from (
                posixpath.normpath(posixpath.join(posixpath.dirname(path), each))
                for each in re.findall(_QUOTED, listed)
            )
    yield from _find_flagged_files(text)
    for key, value in mentions.find_strings(content):
        if value.startswith("/") and key in _FOLDERS:
            yield posixpath.join(value, _FOLDERS[key])
        elif value.startswith("/") and key in _FILE_KEYS:
            yield value
    for match in re.finditer(_FOLDER_LIST, text):
        yield from (
            posixpath.join(each, _FOLDERS[match[1]]) for each in re.findall(_QUOTED, match[2]) if each[:1] == "/"
        )
