"""Checks which other users may write to a file or folder, and so decide what is written, or what runs as root.

Permission bits and owners decide, of the file and of all folders up to the root. A group is accepted if only root is in
it.
"""

from __future__ import annotations

import contextlib
import os
import stat

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.queries import Query, are_user_ids

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
