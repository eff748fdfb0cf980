"""Folders and files of the node that are ours: created and marked, written atomically, copied, and removed.

`Writer` replaces and removes files that are wholly ours, whatever they contain now.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import TypeAlias

from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.reading import Metadata, Reader, xattrs
from toolkit_installer.node.root import ACCESS_LIST, NodeError, Root, Tolerated, attempt, opened, refuse_if_others_write

TEMPORARY_SUFFIX = ".toolkit-installer.tmp"
"""Suffix of the names of all files that are not yet in their place. No engine reads files with it in its folders."""

_MARKS = ("trusted.toolkit-installer.made", "user.toolkit-installer.made")
"""The attribute of a folder that we created: the first that the file system, and our user, allow.

A run can be killed before it has written its receipt, or after it has removed it. The mark shows that the folder is
ours all the same.
"""
_NO_ATTRIBUTES = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.E2BIG)
NO_RENAMEAT2 = (errno.EINVAL, errno.ENOSYS)
"""Errors of renameat2 where the kernel or the file system does not support it."""


class Folders(Reader):
    """Reads, creates and removes the folders beneath one root."""

    def __init__(self, root: Root, calls: SystemCalls) -> None:
        super().__init__(root)
        self.calls = calls

    def make_folders(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Create the folder `path` and its missing parents; return those created, outermost first. Raises NodeError."""
        return tuple(folder for folder in self.missing_folders(path) if self._make(folder, mode))

    def folders_of_ours(self, path: str) -> tuple[str, ...]:
        """Return which of `path` and its parents are absent, or created by us, outermost first. Raises NodeError."""
        return self._innermost(path, lambda folder: self._is_absent(folder) or bool(self._mark_of(folder)))

    def made_by_others(self, path: str) -> bool:
        """Return whether the folder at the canonical `path` exists and lacks a mark it could have. Raises NodeError."""
        return self._mark_of(path) is False

    def flush_folder(self, path: str) -> None:
        """Make the entries of the folder at the canonical `path` durable. Raises NodeError."""
        with attempt("flush the folder", path), self.root.parent(f"{path.rstrip('/')}/.") as (folder, _):
            self.calls.fsync(folder)

    def half_made(self, path: str) -> list[str]:
        """Return the names of temporary files that killed runs left in a folder of ours alone. Raises NodeError."""
        return [name for name in self.list(path) if name.endswith(TEMPORARY_SUFFIX) and name.startswith(".")]

    def sweep_folder(self, path: str) -> None:
        """Remove the temporary files that killed runs left in a folder that is ours alone. Raises NodeError."""
        leftovers = self.half_made(path)
        if not leftovers:
            return
        with attempt("tidy up in the folder", path), self.root.parent(f"{self.canonical(path)}/.") as (folder, _):
            for name in leftovers:
                self._clear(name, folder)
            self.calls.fsync(folder)

    def remove_folder(self, path: str) -> bool:
        """Remove the folder at the canonical `path` if it is empty; return whether it is gone. Raises NodeError."""
        try:
            with self.root.parent(path) as (folder, name):
                self._clear(temporary_name(name), folder)
                self.calls.rmdir(name, folder)
                self.calls.fsync(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                return False  # other programs use it, or it is a mount point: it stays
            raise NodeError.of(error, path, "remove the folder") from error
        return True

    def _make(self, path: str, mode: int) -> bool:
        """Create one folder under a temporary name and rename it: it is never visible without its mode and its mark.

        Return False if another program created it meanwhile.
        """
        with attempt("create the folder", path), self.root.parent(path) as (folder, name):
            refuse_if_others_write(folder, path)
            temporary = temporary_name(name)
            self._clear(temporary, folder)
            self.calls.mkdir(temporary, mode, folder)
            made = temporary
            try:
                self._dress_folder(temporary, mode, folder)
                self._rename_new(temporary, name, folder)
                made = name
                self.calls.fsync(folder)
            except OSError as error:
                with contextlib.suppress(OSError):  # the original error matters more: the next run removes the folder
                    self.calls.rmdir(made, folder)
                if error.errno == errno.EEXIST:
                    return False
                raise
        return True

    def _dress_folder(self, name: str, mode: int, folder: int) -> None:
        """Give a new folder the bits that the umask removed, and our mark."""
        with opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as fd:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                self.calls.chmod(fd, mode)
            for mark in _MARKS:  # without one, only the receipt records that the folder is ours
                with Tolerated(*_NO_ATTRIBUTES):
                    self.calls.setxattr(fd, mark, b"1")
                    break
            self.calls.fsync(fd)

    def _mark_of(self, path: str) -> bool | None:
        """Return whether the folder at the canonical `path` has our mark; None if it could not have one."""
        place = self.root.outside(path)
        known = None
        for name in _MARKS[os.geteuid() != 0 :]:  # only root sees the first
            try:
                os.getxattr(place, name, follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENODATA:
                    known = False
                elif error.errno not in (errno.ENOENT, errno.ENOTDIR, *_NO_ATTRIBUTES):
                    raise NodeError.of(error, path, "look at it") from error
            else:
                return True
        return known

    def _rename_new(self, source: str, target: str, folder: int) -> None:
        """Rename to a name that must be free. Raises OSError, FileExistsError."""
        with Tolerated(*NO_RENAMEAT2):
            self.calls.rename_new(source, target, folder)
            return
        if entry_exists(folder, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self.calls.rename(source, target, folder)

    def _clear(self, name: str, folder: int) -> None:
        """Remove what a killed run, or another program, left under a temporary name. Raises OSError."""
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(status.st_mode):
            self.calls.rmdir(name, folder)
        else:
            self.calls.unlink(name, folder)


def temporary_name(name: str) -> str:
    """Return the name under which a new version of `name` is prepared, in the same folder."""
    return f".{name}{TEMPORARY_SUFFIX}"


def entry_exists(folder: int, name: str) -> bool:
    """Return whether the open folder has an entry of that name. Raises OSError."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Errors of open(2) for O_TMPFILE where the file system, or the kernel, does not support it."""
_NO_LINK = (errno.ENOENT, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP)
"""Errors of linkat(2) where such a file cannot get a name: there is no /proc, or the file system forbids it."""
_PIECE = 1 << 20
"""Bytes that are copied at once: no more is in memory, and progress can be reported in between."""

ProgressCallback: TypeAlias = Callable[[int], None]
"""Receives the number of bytes of each piece that was copied."""

PlaceFile: TypeAlias = Callable[[int, str, str, int], None]
"""Moves a temporary file to its place. Parameters: the open folder, the temporary name, the name, the open file."""


class FileWriter(Folders):
    """Reads and writes the files beneath one root.

    The content of a file is on the disk before it gets its name, and the name is when a method returns; with `flush`
    False only after `flush_folder`, which the caller has to call.
    """

    def overwrite(self, path: str, content: bytes, metadata: Metadata, *, flush: bool = True) -> None:
        """Make the canonical `path` a file with this content, whatever is there now: for files wholly ours."""
        self._put(path, lambda fd: self._write_all(fd, content), metadata, self._rename, flush=flush)

    def copy(self, source: str, path: str, metadata: Metadata, told: ProgressCallback, *, flush: bool = True) -> None:
        """Make the canonical `path` a copy of the installer's own file `source`, by the kernel where it can.

        An existing file is replaced atomically. Raises NodeError, ConfigurationError, the latter also if `source` is
        changed meanwhile.
        """
        with attempt("read it", source), opened(source, os.O_RDONLY) as origin:

            def fill(fd: int) -> None:
                before = os.fstat(origin)
                self._copy_all(origin, fd, source, told)
                copied = (os.fstat(origin).st_mtime_ns, os.fstat(fd).st_size)
                if copied != (before.st_mtime_ns, before.st_size):
                    raise ConfigurationError("was changed while it was copied", path=source, hint="start again")

            self._put(path, fill, metadata, self._rename, flush=flush)

    def symlink(self, target: str, path: str, *, flush: bool = True) -> None:
        """Make the canonical `path` a symlink to `target`, atomically. Raises NodeError."""
        with attempt("create the symlink", path), self.root.parent(path) as (folder, name):
            refuse_if_others_write(folder, path)
            temporary = temporary_name(name)
            self._clear(temporary, folder)
            self.calls.symlink(target, temporary, folder)
            try:
                self.calls.rename(temporary, name, folder)
            except OSError:
                self._discard(temporary, folder)
                raise
            if flush:
                self.calls.fsync(folder)

    def remove(self, path: str) -> None:
        """Remove the file or symlink at the canonical `path`, durably; an absent one is no error. Raises NodeError."""
        with (
            attempt("remove it", path),
            contextlib.suppress(FileNotFoundError),  # its folder may be gone as well
            self.root.parent(path) as (folder, name),
        ):
            self.calls.unlink(name, folder)
            self.calls.fsync(folder)

    def sweep(self, path: str) -> None:
        """Remove the temporary file that a killed run may have left next to the canonical `path`. Raises NodeError."""
        folder, name = os.path.split(path)
        leftover = os.path.join(folder, temporary_name(name))
        status = self.own_status(leftover)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.remove_folder(leftover)
        elif status is not None:
            self.remove(leftover)

    def _put(
        self, path: str, fill: Callable[[int], None], metadata: Metadata, place: PlaceFile, *, flush: bool = True
    ) -> None:
        """Create a temporary file next to `path`, fill it, and have `place` move it there. Raises NodeError."""
        with attempt("write it", path), self.root.parent(path) as (folder, name):
            refuse_if_others_write(folder, path)
            temporary = temporary_name(name)
            self._clear(temporary, folder)
            fd = self._filled(temporary, folder, fill, metadata)
            try:
                place(folder, temporary, name, fd)
            except (OSError, InstallerError):
                self._discard(temporary, folder)
                raise
            finally:
                os.close(fd)
            if flush:
                self.calls.fsync(folder)

    def _filled(self, temporary: str, folder: int, fill: Callable[[int], None], metadata: Metadata) -> int:
        """Return a new file, open, under its temporary name, with its content on the disk.

        It has no name until then, if the file system supports that: CRI-O reads every file of its folder, whatever its
        name, and must not find an incomplete one.
        """
        try:
            fd = self.calls.create_unnamed(0o600, folder)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
        else:
            self._fill(fd, fill, metadata)
            try:
                self.calls.link(fd, temporary, folder)
            except OSError as error:
                os.close(fd)
                if error.errno not in _NO_LINK:
                    raise
            else:
                return fd
        fd = self.calls.create(temporary, 0o600, folder)
        try:
            self._fill(fd, fill, metadata)
        except (OSError, InstallerError):
            self._discard(temporary, folder)
            raise
        return fd

    def _fill(self, fd: int, fill: Callable[[int], None], metadata: Metadata) -> None:
        """Fill an open file, set its metadata, and flush it to the disk; close it if that fails."""
        try:
            fill(fd)
            self._dress(fd, metadata)
            self.calls.fsync(fd)
        except (OSError, InstallerError):
            os.close(fd)
            raise

    def _rename(self, folder: int, temporary: str, name: str, _fd: int) -> None:
        self.calls.rename(temporary, name, folder)

    def _discard(self, temporary: str, folder: int) -> None:
        """Remove a temporary file after a failure, which matters more than an error here: the next run removes it."""
        with contextlib.suppress(OSError):
            self.calls.unlink(temporary, folder)

    def _write_all(self, fd: int, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[self.calls.write(fd, rest) :]

    def _copy_all(self, source: int, target: int, path: str, told: ProgressCallback) -> None:
        """Copy by sharing blocks, else by copy_file_range, and the rest through memory. `path` leads to `source`.

        No digest is calculated on the way: reading the bytes costs three times as much as a copy by the kernel.
        """
        unsupported = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
        os.lseek(source, 0, os.SEEK_SET)  # an earlier attempt may have read some of it
        with Tolerated(*unsupported):
            self.calls.clone(source, target)
            told(os.fstat(target).st_size)
            return
        with Tolerated(*unsupported):
            while count := self.calls.copy_range(source, target, _PIECE):
                told(count)
        # from where the kernel stopped: some kernels copy nothing, or not all, and report no error
        while piece := _piece(source, path):
            self._write_all(target, piece)
            told(len(piece))

    def _dress(self, fd: int, metadata: Metadata) -> None:
        """Set an open new file's owner, mode and attributes, in an order that keeps it closed to others meanwhile."""
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) != (metadata.uid, metadata.gid):
            self.calls.chown(fd, metadata.uid, metadata.gid)
        present = dict(xattrs(fd))
        wanted = dict(metadata.xattrs)
        if ACCESS_LIST in present and ACCESS_LIST not in wanted:
            self.calls.removexattr(fd, ACCESS_LIST)  # set by the folder's default, not by the replaced file
        self.calls.chmod(fd, metadata.mode)
        for name, value in wanted.items():
            if present.get(name) != value:
                self.calls.setxattr(fd, name, value)


def _piece(source: int, path: str) -> bytes:
    """Return the next bytes of the open file at `path`. Raises NodeError, which names this file and not the copy."""
    with attempt("read it", path):
        return os.read(source, _PIECE)


def own_metadata(mode: int) -> Metadata:
    """Return the metadata of a file that we create ourselves: our user and group, and this mode."""
    return Metadata(mode=mode, uid=os.geteuid(), gid=os.getegid())
