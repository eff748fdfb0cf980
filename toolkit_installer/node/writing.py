"""Folders of the node: made, marked as made by us, and removed again.

Files of the node that are wholly ours: written atomically, copied, removed, whatever is there now.
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
from toolkit_installer.node.owners import ACCESS_LIST, refuse_if_others_write
from toolkit_installer.node.reading import Metadata, Reader, xattrs
from toolkit_installer.node.root import NodeError, Root, Tolerated, attempt, opened

TEMPORARY_SUFFIX = ".toolkit-installer.tmp"
"""Ends the name of everything that is not yet in its place. No engine reads files with this ending in its folders."""

_MARKS = ("trusted.toolkit-installer.made", "user.toolkit-installer.made")
"""The attribute of a folder that we made: the first that the file system, and who we are, allow.

A run can be killed before its receipt stands and after it went. The mark says that the folder is ours all the same."""
_NO_ATTRIBUTES = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.E2BIG)
NO_RENAMEAT2 = (errno.EINVAL, errno.ENOSYS)
"""What renameat2 says where the kernel or the file system does not have it."""


class Folders(Reader):
    """The folders beneath one root, to be read and changed."""

    def __init__(self, root: Root, calls: SystemCalls) -> None:
        super().__init__(root)
        self.calls = calls

    def make_folders(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Create the folder `path` and its missing parents; return those created, outermost first. Raises NodeError."""
        return tuple(folder for folder in self.missing_folders(path) if self._make(folder, mode))

    def folders_of_ours(self, path: str) -> tuple[str, ...]:
        """Return which of `path` and its parents are not there, or made by us, outermost first. Raises NodeError."""
        return self._innermost(path, lambda folder: self._is_absent(folder) or bool(self._mark_of(folder)))

    def made_by_others(self, path: str) -> bool:
        """Tell whether the folder at the canonical `path` is there and lacks a mark it could have. Raises NodeError."""
        return self._mark_of(path) is False

    def flush_folder(self, path: str) -> None:
        """Make the entries of the folder at the canonical `path` durable. Raises NodeError."""
        with attempt("flush the folder", path), self.root.parent(f"{path.rstrip('/')}/.") as (folder, _):
            self.calls.fsync(folder)

    def half_made(self, path: str) -> list[str]:
        """Return the names of what killed runs left half made in a folder that is ours alone. Raises NodeError."""
        return [name for name in self.list(path) if name.endswith(TEMPORARY_SUFFIX) and name.startswith(".")]

    def sweep_folder(self, path: str) -> None:
        """Remove what killed runs left half made in a folder that is ours alone. Raises NodeError."""
        leftovers = self.half_made(path)
        if not leftovers:
            return
        with attempt("tidy up in the folder", path), self.root.parent(f"{self.canonical(path)}/.") as (folder, _):
            for name in leftovers:
                self._clear(name, folder)
            self.calls.fsync(folder)

    def remove_folder(self, path: str) -> bool:
        """Remove the folder at the canonical `path` if it is empty; tell whether it is gone. Raises NodeError."""
        try:
            with self.root.parent(path) as (folder, name):
                self._clear(temporary_name(name), folder)
                self.calls.rmdir(name, folder)
                self.calls.fsync(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                return False  # others use it, or it is a mount point: it stays
            raise NodeError.of(error, path, "remove the folder") from error
        return True

    def _make(self, path: str, mode: int) -> bool:
        """Make one folder under a temporary name and rename it: nobody sees it without its mode and its mark.

        Return False if somebody else made it meanwhile.
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
                with contextlib.suppress(OSError):  # the error that led here matters more: the next run sweeps it
                    self.calls.rmdir(made, folder)
                if error.errno == errno.EEXIST:
                    return False
                raise
        return True

    def _dress_folder(self, name: str, mode: int, folder: int) -> None:
        """Give a new folder the bits that the umask took from it, and our mark."""
        with opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as fd:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                self.calls.chmod(fd, mode)
            for mark in _MARKS:  # without one, only the receipt knows that the folder is ours
                with Tolerated(*_NO_ATTRIBUTES):
                    self.calls.setxattr(fd, mark, b"1")
                    break
            self.calls.fsync(fd)

    def _mark_of(self, path: str) -> bool | None:
        """Tell whether the folder at the canonical `path` has our mark; None where it could not have one."""
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
        """Remove what a killed run, or somebody else, left under a temporary name. Raises OSError."""
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
    """Tell whether the open folder has an entry of that name. Raises OSError."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""What open(2) says to O_TMPFILE where the file system, or the kernel, does not have it."""
_NO_LINK = (errno.ENOENT, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP)
"""What linkat(2) says where such a file cannot get a name: there is no /proc, or the file system forbids it."""
_PIECE = 1 << 20
"""Bytes that are copied at once: no more is in memory, and how far the copy is can be told in between."""

Told: TypeAlias = Callable[[int], None]
"""Hears of each piece that is copied how many bytes it has."""

Placing: TypeAlias = Callable[[int, str, str, int], None]
"""Brings a temporary file to its place. Given: the open folder, the temporary name, the name, the open file."""


class Writer(Folders):
    """The files beneath one root, to be read and written.

    What is in a file is on the disk before it gets its name, and the name is once a method returns; with `flush` False
    only after `flush_folder`, which the caller owes.
    """

    def overwrite(self, path: str, content: bytes, metadata: Metadata, *, flush: bool = True) -> None:
        """Make the canonical `path` a file with this content, whatever is there now: for files wholly ours."""
        self._put(path, lambda fd: self._write_all(fd, content), metadata, self._rename, flush=flush)

    def copy(self, source: str, path: str, metadata: Metadata, told: Told, *, flush: bool = True) -> None:
        """Make the canonical `path` a copy of the installer's own file `source`, by the kernel where it can.

        What was there is replaced atomically. Raises NodeError, ConfigurationError: that, too, where somebody changes
        `source` meanwhile.
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
        """Remove the file or symlink at the canonical `path`, durably; nothing there is fine. Raises NodeError."""
        with (
            attempt("remove it", path),
            contextlib.suppress(FileNotFoundError),  # its folder may be gone as well
            self.root.parent(path) as (folder, name),
        ):
            self.calls.unlink(name, folder)
            self.calls.fsync(folder)

    def sweep(self, path: str) -> None:
        """Remove the temporary file that a killed run may have left beside the canonical `path`. Raises NodeError."""
        folder, name = os.path.split(path)
        leftover = os.path.join(folder, temporary_name(name))
        status = self.own_status(leftover)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.remove_folder(leftover)
        elif status is not None:
            self.remove(leftover)

    def _put(
        self, path: str, fill: Callable[[int], None], metadata: Metadata, place: Placing, *, flush: bool = True
    ) -> None:
        """Create a temporary file beside `path`, fill it, and let `place` bring it there. Raises NodeError."""
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
        """Return a new file, open, under its temporary name, with all that is in it on the disk.

        It has no name until then, where the file system can: CRI-O reads every file of its folder, whatever it is
        called, and must not find one that is not whole yet.
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
        """Fill an open file, dress it, and bring what is in it to the disk; it is closed if that fails."""
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
        """Remove a temporary file after a failure, which matters more than this: the next run sweeps the name."""
        with contextlib.suppress(OSError):
            self.calls.unlink(temporary, folder)

    def _write_all(self, fd: int, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[self.calls.write(fd, rest) :]

    def _copy_all(self, source: int, target: int, path: str, told: Told) -> None:
        """Copy by sharing blocks, else by copy_file_range, and what is left through memory. `path` leads to `source`.

        No digest is taken on the way: to see the bytes costs three times as much as to have the kernel copy them.
        """
        unsupported = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
        os.lseek(source, 0, os.SEEK_SET)  # another attempt may have read some of it
        with Tolerated(*unsupported):
            self.calls.clone(source, target)
            told(os.fstat(target).st_size)
            return
        with Tolerated(*unsupported):
            while count := self.calls.copy_range(source, target, _PIECE):
                told(count)
        # from where the kernel came to: some copy nothing, or not all, and say no error
        while piece := _piece(source, path):
            self._write_all(target, piece)
            told(len(piece))

    def _dress(self, fd: int, metadata: Metadata) -> None:
        """Give an open new file its owner, mode and attributes; the order keeps it closed to others meanwhile."""
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) != (metadata.uid, metadata.gid):
            self.calls.chown(fd, metadata.uid, metadata.gid)
        present = dict(xattrs(fd))
        wanted = dict(metadata.xattrs)
        if ACCESS_LIST in present and ACCESS_LIST not in wanted:
            self.calls.removexattr(fd, ACCESS_LIST)  # the folder's default gave it, not the file that is replaced
        self.calls.chmod(fd, metadata.mode)
        for name, value in wanted.items():
            if present.get(name) != value:
                self.calls.setxattr(fd, name, value)


def _piece(source: int, path: str) -> bytes:
    """Return the next bytes of the open file at `path`. Raises NodeError, which names it and not the copy."""
    with attempt("read it", path):
        return os.read(source, _PIECE)


def own_metadata(mode: int) -> Metadata:
    """Return the metadata of a file that we create ourselves: ours, with this mode."""
    return Metadata(mode=mode, uid=os.geteuid(), gid=os.getegid())
