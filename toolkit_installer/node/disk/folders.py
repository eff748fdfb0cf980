"""Folders of the node: made, marked as made by us, and removed again."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError, Root, Tolerated, attempt, opened
from toolkit_installer.node.owners import refuse_if_others_write

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
