"""Which process serves one of the node's sockets, and whether it is one that we believe."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import signals, trust
from toolkit_installer.node.owners import ourselves
from toolkit_installer.node.root import INIT_ROOT, NodeError, Root
from toolkit_installer.node.trust import Standing

if TYPE_CHECKING:
    from toolkit_installer.node.processes import Process

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""
_ANSWER_SECONDS = 5.0


class StrangerError(InstallerError):
    """A process that we do not believe answers on an engine's socket."""

    exit_code = ExitCode.BAD_CONFIGURATION


@contextlib.contextmanager
def reachable(root: Root, path: str) -> Iterator[str]:
    """Yield a short name of the node's socket for connect(2), whose limit is 107 bytes. Raises OSError."""
    root, path = home_of(root, path)
    with root.parent(root.canonical(path)) as (folder, name):
        yield f"/proc/self/fd/{folder}/{name}"


def home_of(root: Root, path: str) -> tuple[Root, str]:
    """Return the root and the path beneath it by which a socket is opened.

    `/proc/1/root` is no symlink that could be read: its text is `/`, and it leads to the root of the node's init.
    """
    beneath = path.removeprefix(INIT_ROOT)
    return (
        (Root(INIT_ROOT), beneath)
        if root.folder == "/" and beneath.startswith("/") and beneath != path
        else (root, path)
    )


def refuse_strangers(root: Root, path: str) -> None:
    """Raise StrangerError if what listens on the node's unix socket was made by a stranger; nothing there is fine.

    The kernel tells who called listen(2) (unix(7), SO_PEERCRED): no word of theirs has to be heard for that.
    """
    with contextlib.suppress(OSError), _connected(root, path) as connection:
        _refuse_stranger(*_listener(connection), path)


def believed(root: Root, path: str, flag: str) -> socket.socket:
    """Return a connection that does not block, to the node's unix socket; the caller closes it.

    The socket's file is root's or ours, and so is whoever listens. `flag` is what names the socket. Raises
    StrangerError, OSError, NodeError.
    """
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(reachable(root, path))
        owner = os.lstat(name).st_uid
        if owner not in ourselves():
            raise StrangerError(
                f"the socket is of user {owner}, who is neither root nor who this installer is: it is not believed",
                path=path,
                hint=f"look at who made it (ls -l), and name the engine's own socket with {flag}",
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        closing = stack.enter_context(contextlib.ExitStack())
        closing.callback(connection.close)
        connection.connect(name)
        _refuse_stranger(*_listener(connection), path, flag)
        closing.pop_all()
        return connection


def speaker(root: Root, path: str, greeting: bytes) -> Process | None:
    """Return the process that answers on the node's unix socket; None if nothing answers, or it is not seen from here.

    Raises StrangerError if a stranger answers.
    """
    from toolkit_installer.node.processes import inspect_process  # noqa: PLC0415  # who only connects has half as much

    found = peer(root, path, greeting)
    if found is None:
        return None
    pid, user = found
    _refuse_stranger(pid, user, path)
    return inspect_process(pid) if pid else None


def peer(root: Root, path: str, greeting: bytes) -> tuple[int, int] | None:
    """Return PID and user of the process that answers on the node's unix socket, or None if nothing answers.

    `greeting` is sent to make it talk: the credentials come with what the process itself sends. Those of the socket
    name whoever created it, which is systemd for a socket-activated engine. A process that stays silent is named by
    the socket. The PID 0 means that the process lives in another PID namespace.
    """
    try:
        with _connected(root, path) as connection:
            if greeting:
                connection.sendall(greeting)
            try:
                said_by = _sender(connection)
            except TimeoutError:
                said_by = None  # asked, and silent: it does not serve
            if said_by is None and not greeting:
                return _listener(connection)
            return said_by  # None: it hung up without a word, and is on its way down
    except OSError:
        return None


@contextlib.contextmanager
def _connected(root: Root, path: str) -> Iterator[socket.socket]:
    """Connect to the node's unix socket. Raises OSError."""
    with reachable(root, path) as name, socket.socket(socket.AF_UNIX) as connection, signals.interruptible():
        # before connecting: an answer that comes faster than this option carries no credentials
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(name)
        yield connection


def _listener(connection: socket.socket) -> tuple[int, int]:
    """Return PID and user of who made the socket that we are connected to."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


def _believes(pid: int, user: int) -> bool:
    """Tell whether the word of a process counts; one that ended, or is not seen from here, is judged by its user."""
    return user in ourselves() and (not pid or trust.standing(pid) is not Standing.STRANGER)


def _refuse_stranger(pid: int, user: int, path: str, flag: str = "--socket") -> None:
    if not _believes(pid, user):
        who = f"whoever answers there (PID {pid}, user {user})"
        raise StrangerError(
            f"{who} is neither root nor who this installer is: it is not believed",
            path=path,
            hint=f"look at who listens there (ss -xlp), and name the engine's own socket with {flag}",
        )


def listens(root: Root, path: str) -> bool:
    """Tell whether some process that we believe listens on the node's unix socket, whether or not it answers."""
    try:
        with _connected(root, path) as connection:
            return _believes(*_listener(connection))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    except OSError:  # a full queue: somebody is there, and counts if the socket's file is root's, or ours
        root, path = home_of(root, path)
        with contextlib.suppress(OSError, NodeError):
            return os.lstat(root.outside(root.canonical(path))).st_uid in ourselves()
        return False


def _sender(connection: socket.socket) -> tuple[int, int] | None:
    """Return PID and user of who sent what comes first, None at the end of the connection. Raises OSError."""
    said, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not said:
        return None  # the end of the connection has credentials too, and they name nobody
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, user, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return pid, user
    return None
