"""Paths beneath the node root, resolved as a chroot would, and who else may write to them. Reads, never writes.

The functions that take no root inspect paths of the installer's own mount namespace. Permission bits and owners of a
file, and of all folders up to the root, decide who may write to it; a group is accepted if only root is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.queries import Query, are_user_ids, is_canonical, is_word_if_any


@Query()
def is_folder(path: str) -> bool:
    """Return whether a folder is at `path`, symlinks followed."""
    return os.path.isdir(path)


@Query()
def is_present(path: str) -> bool:
    """Return whether anything is at `path` itself, a dangling symlink included."""
    return os.path.lexists(path)


@Query()
def leads_to_file(path: str) -> bool:
    """Return whether anything is at `path`, symlinks followed."""
    return os.path.exists(path)


@Query(is_valid=is_canonical)
def real(path: str) -> str:
    """Return the path with every symlink resolved."""
    return os.path.realpath(path)


@Query()
def may_run(path: str) -> bool:
    """Return whether this process may execute the file at `path`."""
    return os.access(path, os.X_OK)


def head(path: str, size: int) -> bytes | None:
    """Return the first bytes of a regular file, None if there is none that can be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return None


def device_number(path: str) -> tuple[int, int] | None:
    """Return major and minor number of the character device at `path`, None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


INIT_ROOT = "/proc/1/root"
"""The node's `/` as its first process sees it, if this process is among the node's processes."""
MAX_SYMLINKS = 40
"""As many as the kernel follows (path_resolution(7))."""

_HINTS = {
    errno.EROFS: "the file system is mounted read-only: mount it writable, or choose a path on another one",
    errno.ENOSPC: "the file system is full: free some space, then start again",
    errno.EDQUOT: "the quota is used up: free some space, then start again",
    errno.EACCES: "run as root, in a privileged container",
    errno.EPERM: "run as root, in a privileged container; look for an immutable attribute (lsattr)",
    errno.EBUSY: "it is a mount point of its own: mount the folder that it is in, not the file",
    errno.ELOOP: "somebody replaced a folder by a symlink meanwhile: start again",
    errno.EINTR: "a signal came in between: start again",
    errno.EIO: "the disk reported an error: look at the kernel's log",
    errno.ESTALE: "its network file system has another file there by now: start again",
}


_NIX_STORE = "/nix/store/"
_NIX_HINT = (
    "NixOS makes this file from the system's configuration: change it there (such as "
    "virtualisation.docker.daemon.settings), then `nixos-rebuild switch`"
)


class NodeError(ConfigurationError):
    """The kernel refused an operation on the node. `number` is its errno."""

    number = 0

    @classmethod
    def of(cls, error: OSError, path: str, doing: str) -> NodeError:
        """Return an error with the operation that the kernel refused, the file, and a remedy."""
        number = error.errno or 0
        hint = _NIX_HINT if number == errno.EROFS and path.startswith(_NIX_STORE) else _HINTS.get(number)
        made = cls(f"cannot {doing}: {os.strerror(number)}", path=path, hint=hint)
        made.number = number
        return made


@contextlib.contextmanager
def attempt(doing: str, path: str) -> Iterator[None]:
    """Raise NodeError for an OSError inside the block, with the operation `doing` and the file at `path`."""
    try:
        yield
    except OSError as error:
        raise NodeError.of(error, path, doing) from error


class Tolerated(contextlib.AbstractContextManager["Tolerated", bool]):
    """Suppresses an OSError inside the block if it has one of these numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, OSError) and error.errno in self._numbers


@contextlib.contextmanager
def opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file or folder, which no started program inherits; yield its descriptor. Raises OSError."""
    fd = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


class Root:
    """A folder that is the node's `/`. Paths given to it, and symlinks in them, are the node's own."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.only_looks = False
        """Whether this process writes nothing here, so that its own mount of the node may be a read-only one."""

    def outside(self, path: str) -> str:
        """Return the path of the node's canonical `path` in the installer's own mount namespace."""
        return path if self.folder == "/" else self.folder + path

    def for_writers(self, path: str) -> str:
        """Return the path where to check whether the canonical `path`, which exists, can be written.

        That is its path here, unless this process only inspects the node, through a read-only mount: then it is where
        the node's init has the same file or folder. Raises OSError.
        """
        here = self.outside(path)
        if self.only_looks and os.statvfs(here).f_flag & os.ST_RDONLY:
            there = f"{INIT_ROOT}{path}"
            with Tolerated(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM):
                if os.path.samestat(os.lstat(here), os.lstat(there)):
                    return there
        return here

    @Query(is_valid=is_canonical)
    def canonical(self, path: str) -> str:
        """Return the node's path with every symlink resolved; components that do not exist stay as they are.

        Raises NodeError if there are too many symlinks, one of them is where any user could have put it, or a component
        cannot be inspected.
        """
        if self._leads_straight(path):
            return path
        pending = [part for part in reversed(path.split("/")) if part]
        done: list[str] = []
        links = 0
        gone: int | None = None  # components up to the first absent one, beneath which nothing exists either
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                del done[-1:]
                gone = None if gone is not None and len(done) < gone else gone
                continue
            here = "/" + "/".join([*done, part])
            target = self._link(here) if gone is None else None
            if not target:
                done.append(part)
                gone = len(done) if gone is None and target is None else gone
                continue
            links += 1
            if links > MAX_SYMLINKS:
                error = NodeError.of(OSError(errno.ELOOP, ""), path, "follow its symlinks")
                error.hint = "its symlinks lead in a circle, or there are too many: remove it, or let it lead to a file"
                raise error
            self._refuse_planted(here)
            if target.startswith("/"):
                done = []
            pending += [piece for piece in reversed(target.split("/")) if piece]
        return "/" + "/".join(done)

    def _leads_straight(self, path: str) -> bool:
        """Return whether `path` exists and no symlink leads there, as with nearly all paths; False: unknown."""
        fd = self._straight(path, os.O_PATH)
        if fd is None:
            return False
        os.close(fd)
        return True

    def _straight(self, path: str, flags: int) -> int | None:
        """Return a descriptor of `path` if no symlink leads there; None if one may, or if it is absent.

        Decided by the kernel's own name for the open file (proc_pid_fd(5)), in two calls instead of one per component.
        """
        if not path.startswith("/"):
            return None
        place = self.outside(path)
        try:
            fd = os.open(place, flags | os.O_CLOEXEC)
        except OSError:
            return None
        with contextlib.suppress(OSError):  # without /proc it has no name
            if os.readlink(f"/proc/self/fd/{fd}") == place:
                return fd
        os.close(fd)
        return None

    def _link(self, path: str) -> str | None:
        """Return the target of the symlink at `path`, empty for anything else, None if nothing is there."""
        try:
            return os.readlink(self.outside(path))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return ""
            if error.errno == errno.ENOENT:
                return None
            doing = "reach it" if error.errno == errno.ENOTDIR else "look at it"
            raise NodeError.of(error, path, doing) from error

    def _refuse_planted(self, path: str) -> None:
        """Raise NodeError for a symlink that another user could have put there, to lead us to a file of their choice.

        The kernel's own rule (proc_sys_fs(5), protected_symlinks) applies to sticky folders only, and can be off.
        """
        folder = os.path.dirname(path)
        with attempt("look at it", path):
            owner, home = os.lstat(self.outside(path)).st_uid, os.stat(self.folder)
            with opened(self.outside(folder), os.O_PATH | os.O_DIRECTORY) as fd:
                around = os.fstat(fd)
                who = find_other_writers(fd, list_trusted_groups(home))
        trusted = list_trusted_users() | {home.st_uid}
        if around.st_uid not in trusted:
            who = f"user {around.st_uid}"
        elif around.st_mode & stat.S_ISVTX and owner in trusted:
            return
        if who is not None:
            raise NodeError(
                f"is a symlink in a folder that is writable by {who}: it is not followed",
                path=path,
                hint=f"look at who made it; {folder} should belong to root, and be writable by nobody else",
            )

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder of the canonical `path`; yield its descriptor and the last name.

        No component may be a symlink, so a folder that was replaced by one meanwhile is an error. Raises OSError.
        """
        folder, name = os.path.split(path)
        fd = self._straight(folder, os.O_RDONLY | os.O_DIRECTORY)
        if fd is None:
            fd = self._walked(folder)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def _walked(self, folder: str) -> int:
        """Return a descriptor of a folder, opened one component at a time, none of them a symlink. Raises OSError."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.open(self.folder, flags)
        try:
            for part in filter(None, folder.split("/")):
                deeper = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = deeper
        except OSError:
            os.close(fd)
            raise
        return fd

    @Query(os_errors=True, is_valid=is_word_if_any)
    def mount_of(self, path: str) -> int:
        """Return the id of the mount that the folder of the canonical `path` lies on. Raises OSError."""
        with self.parent(path) as (folder, _):
            return mount_id(folder)


def is_mounted(path: str) -> bool:
    """Return whether something is mounted at a folder of our own file system, even a part of the same disk.

    Device numbers do not show that: the node's / may be on the same disk as the container's own root.
    """
    flags = os.O_PATH | os.O_DIRECTORY
    try:
        with opened(path, flags) as folder, opened(os.path.join(path, ".."), flags) as around:
            return mount_id(folder) != mount_id(around)
    except OSError:
        return False


def mount_id(fd: int) -> int:
    """Return the id of the mount that an open file or folder is on; a bind mount has its own.

    The id is -1 if the kernel does not report it (proc_pid_fdinfo(5)).
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key == "mnt_id":
                return int(value)
    return -1


ACCESS_LIST = "system.posix_acl_access"
"""The attribute that holds an access control list (acl(5)). With one, the group's bits are its mask, which applies to
other users as well."""
_STAFF = 50
"""Debian's group `staff`, which could write to /usr/local and its folders up to Debian 11 (its Policy, 9.1.2).

Debian documents its members as equal to root there: /usr/local/bin comes first in root's own PATH.
"""
_STAFFED = frozenset({"/usr/local", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib"})
_DEBIAN = "etc/debian_version"
"""On other systems the number belongs to another group."""


@Query(is_valid=are_user_ids)
def list_trusted_users() -> frozenset[int]:
    """Return the users that are trusted when something is to be run: root and the installer's own user."""
    return frozenset({0, os.geteuid()})


def find_ownership_defect(status: os.stat_result) -> str | None:
    """Return the reason why other users may have put a file of this status there; None if only root, or we, could."""
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_uid not in list_trusted_users():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return "can be written to by others"
    if status.st_nlink > 1:
        return "has another name as well: it may be somebody else's file"
    return None


def list_trusted_groups(owner: os.stat_result | None = None) -> frozenset[int]:
    """Return the trusted groups: root's, our own, and the group of the node root's owner."""
    own = {0, os.getegid()}
    return frozenset(own if owner is None or owner.st_uid == 0 else {*own, owner.st_gid})


def system_groups(root: int, folder: str) -> frozenset[int]:
    """Return the groups that the system in the open folder `root` itself trusts to write to one of its folders."""
    if folder in _STAFFED:
        with contextlib.suppress(OSError):
            os.stat(_DEBIAN, dir_fd=root)
            return frozenset({_STAFF})
    return frozenset()


def find_other_writers(fd: int, allowed: frozenset[int]) -> str | None:
    """Return a description of the other users who may write to an open file or folder; None if there are none.

    `allowed` are the groups that may. Raises OSError.
    """
    status = os.fstat(fd)
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP:
        if status.st_gid not in allowed:
            return f"group {status.st_gid}"
        with contextlib.suppress(OSError):  # there is no list, or the file system supports none
            os.getxattr(f"/proc/self/fd/{fd}", ACCESS_LIST)
            return "whoever its access control list names"
    return None


def refuse_if_others_write(folder: int, path: str, *, runs: bool = False) -> None:
    """Raise ConfigurationError if another user of the node could replace the file at the canonical `path`.

    `folder` is its open folder. It and all folders above it, up to the root, are checked: a user who can rename one of
    them can replace the file as well. They may belong to root, to us, and to the owner of the node's root; the last is
    not trusted with `runs`. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        fd, above = os.dup(folder), os.path.dirname(path)
        stack.callback(os.close, fd)
        walked = [(fd, above)]
        while above != "/":
            fd, above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd), os.path.dirname(above)
            stack.callback(os.close, fd)
            walked.append((fd, above))
        root = os.fstat(fd)
        trusted = list_trusted_users() if runs else list_trusted_users() | {root.st_uid}
        allowed = list_trusted_groups(None if runs else root)
        for each, name in walked:
            status = os.fstat(each)
            who = find_other_writers(each, allowed | system_groups(fd, name))
            # a user who may put files next to a program, sticky or not, may put another program's name there
            sticky = status.st_mode & stat.S_ISVTX and not (runs and each == walked[0][0])
            which = "its folder" if name == os.path.dirname(path) else f"{name}, which it lies in,"
            if who is not None and not sticky:
                wrong, remedy = f"{which} is writable by {who}", f"chmod {'o' if who == 'everybody' else 'g'}-w {name}"
            elif status.st_uid not in trusted:
                wrong, remedy = f"{which} belongs to user {status.st_uid}", f"chown root {name}"
            else:
                continue
            raise ConfigurationError(f"{wrong}, who could then decide what runs as root", path=path, hint=remedy)
