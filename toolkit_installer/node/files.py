"""Files of the node that others write too: replaced and removed only if they are unchanged since they were read.

A check before a rename leaves a moment in which another program can write a version that would then be lost. So the new
version is exchanged with the present one, and the displaced version is compared with what was read: if it differs, the
exchange is made again, backwards. A run that is killed in between leaves the displaced version, complete, next to the
file, and `recover` restores it.

`find_obstacle` predicts, without trying, whether the kernel would refuse to replace a file.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Container

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.node.root import NodeError, Root, Tolerated, attempt, mount_id, opened
from toolkit_installer.node.writing import NO_RENAMEAT2, FileWriter, entry_exists, own_metadata

_GETFLAGS = 0x80086601
"""ioctl request FS_IOC_GETFLAGS of linux/fs.h, on 64-bit machines."""
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
"""Attributes of linux/fs.h, as chattr(1) sets them: `i` and `a`."""
_NO_FLAGS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EPERM)
_LONG = struct.Struct("l")


@Query()
def find_obstacle(root: Root, path: str) -> NodeError | None:
    """Return the error that replacing or creating the file at the canonical `path` would raise, None if none.

    Raises NodeError if the node cannot be inspected.
    """
    folder = os.path.dirname(path)
    while folder != "/" and not os.path.lexists(root.outside(folder)):
        folder = os.path.dirname(folder)
    with attempt("look at it", path):
        number = _refusal(root, folder, path)
    return NodeError.of(OSError(number, ""), path, "replace it") if number else None


def _refusal(root: Root, folder: str, path: str) -> int:
    """Return the errno with which a rename onto `path` would fail, 0 if it would succeed."""
    place = root.for_writers(folder)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return errno.EROFS
    if _attributes(place):  # root is stopped by an attribute only
        return errno.EPERM
    # a process that writes as root may do all that root may; one that only inspects may have fewer capabilities
    may = (root.only_looks and os.geteuid() == 0) or os.access(place, os.W_OK | os.X_OK, effective_ids=True)
    if not may:
        return errno.EACCES
    if not os.path.lexists(root.outside(path)):
        return 0
    there = root.for_writers(path)
    if _mount(there) != _mount(place):
        return errno.EBUSY
    return errno.EPERM if _attributes(there) else 0


def _attributes(place: str) -> int:
    """Return the attributes that protect a file or folder from changes, 0 if the file system has none."""
    with Tolerated(*_NO_FLAGS), opened(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW) as fd:
        flags: int = _LONG.unpack(fcntl.ioctl(fd, _GETFLAGS, bytes(_LONG.size)))[0]
        return flags & (_IMMUTABLE | _APPEND_ONLY)
    return 0


def _mount(place: str) -> int:
    with opened(place, os.O_PATH | os.O_NOFOLLOW) as fd:
        return mount_id(fd)


SWAP_SUFFIX = ".toolkit-installer.swap"
"""Suffix of the name under which a complete new version waits for the exchange, and under which the old one is
afterwards."""
KEPT_SUFFIX = ".toolkit-installer.kept"
"""Suffix of another program's version that was not restored because a newer version of that program is in its place."""
_TAKEN_AWAY = "a killed run had taken somebody else's version away"
_PRIVATE = 0o600
"""Mode of such a version outside its folder, where its intended readers are unknown."""


class ChangedMeanwhileError(InstallerError):
    """Another program changed a file between its reading and its replacement: read it and plan again."""

    exit_code = ExitCode.BAD_CONFIGURATION

    @classmethod
    def of(cls, path: str) -> ChangedMeanwhileError:
        """Return the error for the file at `path`."""
        return cls("somebody else changed it meanwhile", path=path, hint="it is read again")


class Recovered(enum.StrEnum):
    """What `recover` did with a version that a killed run left next to a file."""

    NOTHING = "nothing was left"
    REMOVED = "removed what a killed run had replaced or not yet put in place"
    RETURNED = f"{_TAKEN_AWAY}: it is back"
    KEPT = f"{_TAKEN_AWAY}: it lies beside the file, named {KEPT_SUFFIX}"
    QUARANTINED = f"{_TAKEN_AWAY}: it lies in the install folder, named {KEPT_SUFFIX}"


class Files(FileWriter):
    """Reads and changes the files beneath one root."""

    def replace(self, path: str, content: bytes, metadata: Metadata, expected: Found | None) -> None:
        """Make the canonical `path` a file with this content and metadata, atomically and durably.

        `expected` is what was read there (None: there was no file). Raises ChangedMeanwhileError if the path has
        changed since, and leaves it as it is; NodeError, ConfigurationError.
        """

        def place(folder: int, temporary: str, name: str, fd: int) -> None:
            _require(folder, name, expected, path)
            if expected is not None:
                self._exchange(folder, temporary, name, fd, expected)
                return
            try:
                self._rename_new(temporary, name, folder)
            except FileExistsError as error:
                raise ChangedMeanwhileError.of(path) from error

        self._put(path, lambda fd: self._write_all(fd, content), metadata, place)

    def remove_expected(self, expected: Found) -> None:
        """Remove the file that was read, durably; it is no error if it is absent.

        Raises ChangedMeanwhileError if the path has changed since, and leaves it as it is; NodeError.
        """
        path = expected.path
        with (
            attempt("remove it", path),
            contextlib.suppress(FileNotFoundError),  # the file or its folder was removed meanwhile
            self.root.parent(path) as (folder, name),
        ):
            if not entry_exists(folder, name):
                return
            _require(folder, name, expected, path)
            swap = swap_name(name)
            try:
                self.calls.rename_new(name, swap, folder)
            except OSError as error:
                if error.errno not in NO_RENAMEAT2:
                    raise
                self.calls.unlink(name, folder)
            else:
                self._require_displaced(folder, swap, expected, back=lambda: self._rename_new(swap, name, folder))
                self.calls.unlink(swap, folder)
            self.calls.fsync(folder)

    def recover(self, path: str, ours: Container[str], quarantine: str | None = None) -> Recovered:
        """Clean up after a run that was killed while it replaced or removed the canonical `path`.

        `ours`: the SHA-256 digests, in hex, of all versions that may be deleted. `quarantine`: the folder for another
        program's version, for an engine that reads every file in the folder of `path`. Raises NodeError,
        ConfigurationError.
        """
        self.sweep(path)
        folder, name = os.path.split(path)
        swap = os.path.join(folder, swap_name(name))
        if self.own_status(swap) is None:
            return Recovered.NOTHING
        if self.link_target(swap) is not None or _digest(self.read_file(swap)) in ours:
            self.remove(swap)
            return Recovered.REMOVED
        present = self.read_file(path)
        if quarantine is not None and present is not None and _digest(present) not in ours:
            self._quarantine(swap, name, quarantine)
            return Recovered.QUARANTINED
        with attempt("give somebody else's version back", path), self.root.parent(path) as (open_folder, name):
            return self._return_displaced(open_folder, name, present, ours)

    def _quarantine(self, swap: str, name: str, folder: str) -> None:
        """Move another program's version to another folder, maybe on another file system, under a name of its own."""
        found = self.read_file(swap)
        if found is not None:
            target = os.path.join(folder, f"{name}.{_digest(found)[:12]}{KEPT_SUFFIX}")
            if self.own_status(target) is None:  # else a run was killed just after it had saved the version
                self.replace(target, found.content, own_metadata(_PRIVATE), None)
            self.remove(swap)

    def _return_displaced(self, folder: int, name: str, present: Found | None, ours: Container[str]) -> Recovered:
        """Rename a displaced version back, or to a name next to it if another program's newer version is there."""
        recovered = Recovered.RETURNED
        if present is None:
            self._rename_new(swap_name(name), name, folder)
        elif _digest(present) in ours:
            self.calls.rename(swap_name(name), name, folder)
        else:
            self._rename_new(swap_name(name), f"{name}{KEPT_SUFFIX}", folder)
            recovered = Recovered.KEPT
        self.calls.fsync(folder)
        return recovered

    def _exchange(self, folder: int, temporary: str, name: str, fd: int, expected: Found) -> None:
        """Put the new version in place of the old one if the old one is still what was read."""
        swap = swap_name(name)
        new = _state(os.fstat(fd))
        # a file with this name is complete: a half-written version is never mistaken for a displaced one
        self._rename_new(temporary, swap, folder)
        if _state(os.stat(swap, dir_fd=folder, follow_symlinks=False)) != new:
            # a run with another install folder prepared its version under the same name: it may be half written
            self._discard(swap, folder)
            raise ChangedMeanwhileError.of(expected.path)
        try:
            self.calls.exchange(swap, name, folder)
        except FileNotFoundError as error:
            self._discard(swap, folder)
            raise ChangedMeanwhileError.of(expected.path) from error
        except OSError as error:
            if error.errno not in NO_RENAMEAT2:
                self._discard(swap, folder)
                raise
            self.calls.rename(swap, name, folder)
            return
        self._require_displaced(folder, swap, expected, back=lambda: self._exchange_back(folder, swap, name, new))
        self.calls.unlink(swap, folder)

    def _exchange_back(self, folder: int, swap: str, name: str, new: tuple[int, ...]) -> None:
        """Exchange again until our `new` version is displaced: any other is another program's newer one, and stays."""
        superseded = new
        while True:
            held = _state(os.stat(swap, dir_fd=folder, follow_symlinks=False))
            try:
                self.calls.exchange(swap, name, folder)
            except FileNotFoundError:
                self._rename_new(swap, name, folder)
                return
            if _state(os.stat(swap, dir_fd=folder, follow_symlinks=False)) == superseded:
                self._discard(swap, folder)
                return
            superseded = held

    def _require_displaced(self, folder: int, swap: str, expected: Found, back: Callable[[], None]) -> None:
        """Call `back` and raise ChangedMeanwhileError unless the displaced file is what was read."""
        try:
            regular = stat.S_ISREG(os.stat(swap, dir_fd=folder, follow_symlinks=False).st_mode)
            came_out = self.read_file(os.path.join(os.path.dirname(expected.path), swap)) if regular else None
        except (OSError, InstallerError):
            back()
            raise
        if came_out is None or (came_out.content, came_out.metadata) != (expected.content, expected.metadata):
            back()
            raise ChangedMeanwhileError.of(expected.path)


def swap_name(name: str) -> str:
    """Return the name in the same folder through which `name` is exchanged."""
    return f".{name}{SWAP_SUFFIX}"


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Return the fields that identify a version of a file and that a rename does not change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _digest(found: Found | None) -> str:
    return hashlib.sha256(found.content).hexdigest() if found is not None else ""


def _require(folder: int, name: str, expected: Found | None, path: str) -> None:
    """Raise ChangedMeanwhileError unless `name` is still what was read."""
    try:
        now = FileIdentity.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        now = None
    if now != (None if expected is None else expected.identity):
        raise ChangedMeanwhileError.of(path)
