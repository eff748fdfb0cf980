"""Files of the node: replaced atomically, copied, removed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from toolkit_installer.errors import InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.reading import Identity, Metadata, Reader, xattrs
from toolkit_installer.node.root import NodeError, Root, refuse_if_others_write

TEMPORARY_SUFFIX = ".toolkit-installer.tmp"
"""Ends the name of every file that is not yet in its place. No engine reads files with this ending in its folders."""


_ACCESS_LIST = "system.posix_acl_access"
"""The attribute that acl(5) lives in."""


class ChangedMeanwhileError(InstallerError):
    """Somebody else changed the file between our reading it and our replacing it. Read and plan again."""


class Files(Reader):
    """The files beneath one root, to be read and changed."""

    def __init__(self, root: Root, calls: SystemCalls) -> None:
        super().__init__(root)
        self.calls = calls

    def replace(self, path: str, content: bytes, metadata: Metadata, expected: Identity | None) -> Identity:
        """Make the canonical `path` a file with this content and metadata, atomically and durably.

        `expected` is the identity of what was read there (None: nothing was there).
        Raises ChangedMeanwhileError if something else is there now, NodeError, ConfigurationError.
        """

        def fill(fd: int) -> None:
            self._write_all(fd, content)
            self._dress(fd, metadata)

        return self._put(path, fill, lambda folder, name: _require(folder, name, expected, path))

    def overwrite(self, path: str, content: bytes, metadata: Metadata) -> None:
        """Make the canonical `path` a file with this content, whatever is there now: for files wholly ours."""

        def fill(fd: int) -> None:
            self._write_all(fd, content)
            self._dress(fd, metadata)

        self._put(path, fill, lambda _folder, _name: None)

    def copy(self, source: str, path: str, metadata: Metadata) -> None:
        """Make the canonical `path` a copy of the installer's own file `source`, by the kernel where it can.

        What was there is replaced atomically. Raises NodeError, ConfigurationError.
        """
        try:
            origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise NodeError.of(error, source, "read it") from error
        try:

            def fill(fd: int) -> None:
                self._copy_all(origin, fd)
                self._dress(fd, metadata)

            self._put(path, fill, lambda _folder, _name: None)
        finally:
            os.close(origin)

    def symlink(self, target: str, path: str) -> None:
        """Make the canonical `path` a symlink to `target`, atomically. Raises NodeError."""
        try:
            with self.root.parent(path) as (folder, name):
                refuse_if_others_write(folder, path)
                temporary = temporary_name(name)
                self._clear(temporary, folder)
                self.calls.symlink(target, temporary, folder)
                try:
                    self.calls.rename(temporary, name, folder)
                except OSError:
                    self._discard(temporary, folder)
                    raise
                self.calls.fsync(folder)
        except OSError as error:
            raise NodeError.of(error, path, "create the symlink") from error

    def remove(self, path: str, expected: Identity | None = None) -> None:
        """Remove the file or symlink at the canonical `path`, durably; nothing there is fine.

        Raises ChangedMeanwhileError when `expected` is given and something else is there, NodeError.
        """
        try:
            with self.root.parent(path) as (folder, name):
                if expected is not None and _exists(folder, name):
                    _require(folder, name, expected, path)
                with contextlib.suppress(FileNotFoundError):
                    self.calls.unlink(name, folder)
                    self.calls.fsync(folder)
        except FileNotFoundError:
            return  # its folder is gone as well
        except OSError as error:
            raise NodeError.of(error, path, "remove it") from error

    def sweep(self, path: str) -> None:
        """Remove the temporary file that a killed run may have left beside the canonical `path`. Raises NodeError."""
        folder, name = os.path.split(path)
        leftover = os.path.join(folder, temporary_name(name))
        if self.own_status(leftover) is not None:
            self.remove(leftover)

    def make_folders(self, path: str, mode: int = 0o755) -> tuple[str, ...]:
        """Create the folder `path` and its missing parents; return those created, outermost first. Raises NodeError."""
        missing = self.missing_folders(path)
        for folder_path in missing:
            try:
                with self.root.parent(folder_path) as (folder, name):
                    refuse_if_others_write(folder, folder_path)
                    self.calls.mkdir(name, mode, folder)
                    self._open_to(name, mode, folder)
                    self.calls.fsync(folder)
            except OSError as error:
                raise NodeError.of(error, folder_path, "create the folder") from error
        return missing

    def _open_to(self, name: str, mode: int, folder: int) -> None:
        """Give a new folder the bits that the umask took from it."""
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                self.calls.chmod(fd, mode)
        finally:
            os.close(fd)

    def remove_folder(self, path: str) -> bool:
        """Remove the folder at the canonical `path` if it is empty; tell whether it is gone. Raises NodeError."""
        try:
            with self.root.parent(path) as (folder, name):
                self.calls.rmdir(name, folder)
                self.calls.fsync(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                return False  # others use it, or it is a mount point: it stays
            raise NodeError.of(error, path, "remove the folder") from error
        return True

    def _put(self, path: str, fill: Callable[[int], None], check: Callable[[int, str], None]) -> Identity:
        """Create a temporary file beside `path`, fill it, and rename it there once `check` agrees."""
        try:
            with self.root.parent(path) as (folder, name):
                refuse_if_others_write(folder, path)
                temporary = temporary_name(name)
                self._clear(temporary, folder)
                fd = self.calls.create(temporary, 0o600, folder)
                try:
                    fill(fd)
                    self.calls.fsync(fd)
                    check(folder, name)
                    self.calls.rename(temporary, name, folder)
                    identity = Identity.of(os.fstat(fd))
                except (OSError, InstallerError):
                    self._discard(temporary, folder)
                    raise
                finally:
                    os.close(fd)
                self.calls.fsync(folder)
                return identity
        except OSError as error:
            raise NodeError.of(error, path, "write it") from error

    def _discard(self, temporary: str, folder: int) -> None:
        """Remove a temporary file after a failure, which matters more than this: the next run sweeps the name."""
        with contextlib.suppress(OSError):
            self.calls.unlink(temporary, folder)

    def _clear(self, temporary: str, folder: int) -> None:
        """Remove what a killed run, or somebody else, left under the temporary name."""
        if _exists(folder, temporary):
            self.calls.unlink(temporary, folder)

    def _write_all(self, fd: int, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[self.calls.write(fd, rest) :]

    def _copy_all(self, source: int, target: int) -> None:
        """Copy by sharing blocks, else by copy_file_range, else through memory."""
        unsupported = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM)
        try:
            self.calls.clone(source, target)
        except OSError as error:
            if error.errno not in unsupported:
                raise
        else:
            return
        try:
            while self.calls.copy_range(source, target, 1 << 30):
                pass
        except OSError as error:
            if error.errno not in unsupported:
                raise
        else:
            if os.fstat(source).st_size == os.fstat(target).st_size:
                return
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
        while chunk := os.read(source, 1 << 20):
            self._write_all(target, chunk)

    def _dress(self, fd: int, metadata: Metadata) -> None:
        """Give an open new file its owner, mode and attributes; the order keeps it closed to others meanwhile."""
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) != (metadata.uid, metadata.gid):
            self.calls.chown(fd, metadata.uid, metadata.gid)
        present = dict(xattrs(fd))
        wanted = dict(metadata.xattrs)
        if _ACCESS_LIST in present and _ACCESS_LIST not in wanted:
            self.calls.removexattr(fd, _ACCESS_LIST)  # the folder's default gave it, not the file that is replaced
        self.calls.chmod(fd, metadata.mode)
        for name, value in wanted.items():
            if present.get(name) != value:
                self.calls.setxattr(fd, name, value)


def temporary_name(name: str) -> str:
    """Return the name under which a new version of `name` is prepared, in the same folder."""
    return f".{name}{TEMPORARY_SUFFIX}"


def own_metadata(mode: int) -> Metadata:
    """Return the metadata of a file that we create ourselves: ours, with this mode."""
    return Metadata(mode=mode, uid=os.geteuid(), gid=os.getegid())


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _require(folder: int, name: str, expected: Identity | None, path: str) -> None:
    """Raise ChangedMeanwhileError unless `name` is still what was read."""
    try:
        now = Identity.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        now = None
    if now != expected:
        raise ChangedMeanwhileError("somebody else changed it meanwhile", path=path, hint="it is read again")
