"""Reads files of the node with their content, metadata and identity, and caches what was read lately. Never writes.

The cache has contents of files, command lines and environments: a program that fails quotes its configuration, and the
code that shows its output has to know which words may be secret.

`Tree` reads the payload, `CachedReader` many paths in one search.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import signals
from toolkit_installer.node.queries import Query, Secrecy, are_file_names, is_word_if_any
from toolkit_installer.node.root import NodeError, Root, Tolerated, attempt, opened

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_MOST: Final = 4096
_LONGEST: Final = 1024 * 1024
"""Bytes of a file. Extracting the values of a longer file takes seconds, in which no signal is handled."""
_MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of all files."""

cached_files: Final[dict[str, bytes]] = {}
"""Contents, by their paths."""
cached_commands: Final[dict[int, tuple[str, ...]]] = {}
"""The words of command lines, by PID."""
cached_environments: Final[dict[int, Mapping[str, str]]] = {}
"""The environments of processes, by PID."""


def cache_file(path: str, content: bytes) -> None:
    """Cache a file's content, and drop the oldest contents if there are too many bytes."""
    if len(content) <= _LONGEST and not path.startswith(("/proc/", "/sys/")):
        _cache(cached_files, path, content)
        while sum(map(len, cached_files.values())) > _MOST_BYTES:
            del cached_files[next(iter(cached_files))]


def cache_command(pid: int, words: tuple[str, ...]) -> None:
    """Cache a command line."""
    _cache(cached_commands, pid, words)


def cache_environment(pid: int, values: Mapping[str, str]) -> None:
    """Cache an environment."""
    _cache(cached_environments, pid, values)


def _cache(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    known.pop(key, None)
    while len(known) >= _MOST:
        del known[next(iter(known))]
    known[key] = value


CONFIG_LIMIT = 4 * 1024 * 1024
"""Bytes. A larger file is not accepted as a configuration file, whatever names it."""


def fits_config(content: bytes | None) -> bool:
    """Return whether a content, if any, is no larger than a configuration file may be."""
    return content is None or len(content) <= CONFIG_LIMIT


_LARGEST = 1024 * 1024 * 1024
"""Bytes. The largest library of a toolkit has a hundredth of it."""

_SECOND_NS = 1_000_000_000
_FILES_CLOCK = 5
"""CLOCK_REALTIME_COARSE (linux/time.h), from which the kernel takes file times; it advances a few hundred times a
second."""
_STEPS = 2
"""Ticks of that clock to wait: after two of them it has surely advanced by one."""

_ABSENT = (FileNotFoundError, NotADirectoryError)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symlink",
}


class Metadata(msgspec.Struct, frozen=True):
    """A file's metadata: permission bits, owner, group, extended attributes."""

    mode: int
    uid: int
    gid: int
    xattrs: tuple[tuple[str, bytes], ...] = ()


class FileIdentity(msgspec.Struct, frozen=True):
    """Identifies one state of a file: any write, replacement or change of mode or owner changes it."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return the identity in the result of a stat call."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def stamp(self) -> str:
        """All fields but the device, whose number may differ in each mount and each container."""
        return f"{self.size} {self.mtime_ns} {self.ctime_ns} {self.inode}"

    def will_differ(self) -> bool:
        """Return whether any later change will have another ctime, because the kernel's clock has advanced since.

        False if ctime has whole seconds: the file system has no finer clock, or the file is from an image, with any
        time.
        """
        return self.ctime_ns % _SECOND_NS != 0 and self.ctime_ns < time.clock_gettime_ns(_FILES_CLOCK)


def wait_for_file_clock() -> None:
    """Wait until a later write has another ctime than the writes so far (Identity.will_differ)."""
    time.sleep(_STEPS * time.clock_getres(_FILES_CLOCK))


class Found(msgspec.Struct, frozen=True):
    """A regular file as it was read. `path` is canonical: no component of it is a symlink."""

    path: str
    content: bytes
    metadata: Metadata
    identity: FileIdentity


class Reader:
    """Reads the files beneath one root."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def canonical(self, path: str) -> str:
        """Return the node's path with every symlink resolved. Raises NodeError."""
        return self.root.canonical(path)

    @Query()
    def status(self, path: str) -> os.stat_result | None:
        """Return the stat of the file at `path`, symlinks followed beneath the root, or None. Raises NodeError."""
        with attempt("look at it", path), contextlib.suppress(*_ABSENT):
            return os.lstat(self.root.outside(self.canonical(path)))
        return None

    def is_file(self, path: str) -> bool:
        """Return whether a regular file is at `path`."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode)

    def is_executable(self, path: str) -> bool:
        """Return whether an executable regular file is at `path`."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)

    @Query(is_valid=are_file_names)
    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it is absent."""
        with attempt("list it", path), contextlib.suppress(*_ABSENT):
            return sorted(os.listdir(self.root.outside(self.canonical(path))))
        return []

    def links(self, path: str) -> Sequence[str]:
        """Return the sorted names of the symlinks in a folder; none if it is absent. Raises NodeError."""
        with (
            attempt("list it", path),
            contextlib.suppress(*_ABSENT),
            os.scandir(self.root.outside(self.canonical(path))) as entries,
        ):
            return sorted(entry.name for entry in entries if entry.is_symlink())
        return []

    def matching(self, pattern: str) -> Sequence[str]:
        """Return the sorted paths that match and exist; a wildcard matches within one name. Raises NodeError."""
        places = ["/"]
        for part in pattern.strip("/").split("/"):
            if "*" in part:
                names = [(place, name) for place in places for name in self.list(place)]
                places = [f"{place.rstrip('/')}/{name}" for place, name in names if fnmatch.fnmatchcase(name, part)]
            else:
                places = [f"{place.rstrip('/')}/{part}" for place in places]
        return [place for place in places if self.status(place) is not None]

    def read(self, path: str) -> bytes:
        """Return the content of the file at `path`, which must exist. Raises NodeError, ConfigurationError."""
        content = self.content(path)
        if content is None:
            raise NodeError.of(FileNotFoundError(errno.ENOENT, ""), path, "read it")
        return content

    def content(self, path: str) -> bytes | None:
        """Return the content of the file at `path`, None if nothing is there. Raises as `read_file` does."""
        found = self.read_file(path)
        return None if found is None else found.content

    @Query(ignored=("limit",), secrecy=Secrecy.TEXT)
    def read_file(self, path: str, limit: int = CONFIG_LIMIT) -> Found | None:
        """Read the regular file that `path` leads to, or return None if nothing is there.

        Raises ConfigurationError for anything else (a folder, a pipe, more than `limit` bytes), NodeError.
        """
        canonical = self.canonical(path)
        try:
            with self.root.parent(canonical) as (folder, name), _opened(name, folder) as fd:
                status = os.fstat(fd)
                _require_regular(status, canonical)
                content = _whole(fd, limit, path)
                metadata = Metadata(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, xattrs(fd))
                cache_file(canonical, content)
                return Found(canonical, content, metadata, FileIdentity.of(os.fstat(fd)))
        except FileNotFoundError:
            return None
        except OSError as error:
            doing = "reach it" if error.errno == errno.ENOTDIR else "read it"
            raise NodeError.of(error, path, doing) from error

    def missing_folders(self, path: str) -> tuple[str, ...]:
        """Return which of the folder `path` and its parents do not exist, outermost first. Raises NodeError."""
        return self._innermost(path, self._is_absent)

    def _is_absent(self, canonical: str) -> bool:
        return self.status(canonical) is None

    def _innermost(self, path: str, belongs: Callable[[str], bool]) -> tuple[str, ...]:
        """Return the folder `path` and its parents up to the first for which `belongs` is false, outermost first."""
        canonical = self.canonical(path)
        found: tuple[str, ...] = ()
        while canonical != "/" and belongs(canonical):
            found = (canonical, *found)
            canonical = os.path.dirname(canonical)
        return found

    @Query(is_valid=is_word_if_any)
    def mount_flags(self, path: str) -> int:
        """Return the flags (ST_RDONLY, ST_NOEXEC: statvfs(3)) of the file system that `path` is or will be on.

        Raises NodeError.
        """
        missing = self.missing_folders(path)
        there = os.path.dirname(missing[0]) if missing else self.canonical(path)
        with attempt("look at its file system", path):
            return os.statvfs(self.root.for_writers(there)).f_flag

    @Query()
    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of the file at `path` in hex, or None if no regular file is there. Raises NodeError.

        None as well for a file that is larger than any program or library of a toolkit. Raises Stopped.
        """
        if not self.is_file(path):
            return None
        digest, left = hashlib.sha256(), _LARGEST
        with (
            attempt("read it", path),
            self.root.parent(self.canonical(path)) as (folder, name),
            _opened(name, folder) as fd,
        ):
            while left >= 0 and (piece := os.read(fd, 1 << 20)):
                digest.update(piece)
                left -= len(piece)
                signals.raise_if_pending()
        return digest.hexdigest() if left >= 0 else None

    @Query()
    def link_target(self, path: str) -> str | None:
        """Return the target of the symlink at `path` itself, or None. Its folder is resolved. Raises NodeError."""
        place = self.in_folder(path)
        with attempt("look at it", path), Tolerated(errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return os.readlink(self.root.outside(place))
        return None

    @Query()
    def own_status(self, path: str) -> os.stat_result | None:
        """Return the stat of `path` itself (not of a symlink's target), or None. Raises NodeError."""
        with attempt("look at it", path), contextlib.suppress(*_ABSENT):
            return os.lstat(self.root.outside(self.in_folder(path)))
        return None

    def is_at(self, path: str, fd: int) -> bool:
        """Return whether the open file is still the one at `path` itself. Raises NodeError."""
        status = self.own_status(path)
        return status is not None and os.path.samestat(status, os.fstat(fd))

    def in_folder(self, path: str) -> str:
        """Return `path` with the symlinks of its folder resolved, and the last component as it is."""
        folder, name = os.path.split(path)
        return os.path.join(self.canonical(folder), name)


@Query(ignored=("limit",), secrecy=Secrecy.TEXT, os_errors=True, is_valid=fits_config)
def read_bounded(path: str, limit: int = CONFIG_LIMIT) -> bytes:
    """Return the content of a file of the installer's own file system, or of a process's under /proc.

    Raises ConfigurationError if it is no regular file, or larger than `limit`; OSError.
    """
    with _opened(path) as fd:
        _require_regular(os.fstat(fd), path)
        return _whole(fd, limit, path)


@contextlib.contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    """Open a file for reading, never through a symlink; one that is not regular is only opened as a path (O_PATH).

    Opening a pipe waits for its writer, and opening a device uses it. Raises OSError.
    """
    with opened(name, os.O_PATH | os.O_NOFOLLOW, folder) as named:
        if not stat.S_ISREG(os.fstat(named).st_mode):
            yield named
            return
        # nor does a lease on the file (fcntl(2)) block, which would have to be released first
        with opened(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_NONBLOCK) as fd:
            yield fd


def _require_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        raise ConfigurationError(f"is {kind}, not a regular file", path=path, hint="move it out of the way")


def _whole(fd: int, limit: int, path: str) -> bytes:
    """Return all of an open file. Raises ConfigurationError for more than `limit` bytes, OSError."""
    content = bytearray()
    while piece := os.read(fd, 1 << 20):
        content += piece
        if len(content) > limit:  # the file may grow while it is read
            raise ConfigurationError(f"is larger than {limit} bytes", path=path)
    return bytes(content)


def xattrs(fd: int) -> tuple[tuple[str, bytes], ...]:
    """Return the extended attributes; none if the file system has none."""
    with Tolerated(errno.EOPNOTSUPP, errno.ENODATA):
        return tuple((name, os.getxattr(fd, name)) for name in sorted(os.listxattr(fd)))
    return ()


class Tree(Reader):
    """A folder of the installer's own file system, read as a root; files that cannot be reached count as absent."""

    def __init__(self, folder: str) -> None:
        super().__init__(Root(folder))

    def status(self, path: str) -> os.stat_result | None:
        """Return the stat of the file to which `path` leads, or None."""
        try:
            return super().status(path)
        except NodeError:
            return None  # a symlink that loops leads nowhere

    @Query(secrecy=Secrecy.PUBLIC, is_valid=fits_config)
    def read(self, path: str, limit: int = -1) -> bytes:
        """Return the first `limit` bytes of a file, all of them if negative. Raises NodeError."""
        place = self.outside(path)
        with attempt("read it", place), open(place, "rb") as stream:
            return stream.read(limit)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, none if it is absent."""
        try:
            return super().list(path)
        except NodeError:
            return []  # as above

    def outside(self, path: str) -> str:
        """Return the installer's path of a path of the tree."""
        return self.root.outside(self.canonical(path))


class _CachedLinksRoot(Root):
    """A root that reads each symlink once."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._links: dict[str, str | None] = {}

    def _leads_straight(self, path: str) -> bool:  # noqa: ARG002  # the cached links of its components decide
        return False

    def _link(self, path: str) -> str | None:
        if path not in self._links:
            self._links[path] = super()._link(path)
        return self._links[path]


class CachedReader(Reader):
    """A reader for a search of hundreds of patterns, most of whose folders are the same or absent.

    Its cached folders and links are never refreshed: use it for reading only, and discard it after the search.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(_CachedLinksRoot(reader.root.folder))
        self._names: dict[str, list[str]] = {}

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it is absent. Raises NodeError."""
        if path not in self._names:
            self._names[path] = super().list(path)
        return self._names[path]

    def lacks(self, path: str) -> bool:
        """Return whether certainly nothing is at `path`: its folder could be read, and has no such name."""
        folder, name = posixpath.split(path)
        if name in ("", ".", ".."):
            return False
        try:
            return name not in self.list(folder)
        except NodeError:
            return False
