"""Files of the node that are wholly ours: written atomically, copied, removed, whatever is there now."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import TypeAlias

from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.disk.folders import Folders, temporary_name
from toolkit_installer.node.disk.reading import Metadata, xattrs
from toolkit_installer.node.disk.root import Tolerated, attempt, opened
from toolkit_installer.node.owners import ACCESS_LIST, refuse_if_others_write

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
