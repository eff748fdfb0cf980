"""Connects to the node's unix sockets, and checks which process serves a socket and whether it is trusted."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import signals, trust
from toolkit_installer.node.queries import Query, Secrecy
from toolkit_installer.node.root import INIT_ROOT, NodeError, Root, list_trusted_users
from toolkit_installer.node.trust import TrustLevel

if TYPE_CHECKING:
    from toolkit_installer.node.processes import Process

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""
_ANSWER_SECONDS = 5.0


class UntrustedProcessError(InstallerError):
    """An untrusted process answers on an engine's socket."""

    exit_code = ExitCode.BAD_CONFIGURATION


@contextlib.contextmanager
def shorten_socket_path(root: Root, path: str) -> Iterator[str]:
    """Yield a short path of the node's socket for connect(2), whose limit is 107 bytes. Raises OSError."""
    root, path = find_root_of(root, path)
    with root.parent(root.canonical(path)) as (folder, name):
        yield f"/proc/self/fd/{folder}/{name}"


def find_root_of(root: Root, path: str) -> tuple[Root, str]:
    """Return the root, and the path beneath it, by which a socket is opened.

    `/proc/1/root` cannot be resolved as a symlink: its text is `/`, but it leads to the root of the node's init.
    """
    beneath = path.removeprefix(INIT_ROOT)
    return (
        (Root(INIT_ROOT), beneath)
        if root.folder == "/" and beneath.startswith("/") and beneath != path
        else (root, path)
    )


@Query()
def refuse_untrusted(root: Root, path: str) -> None:
    """Raise UntrustedProcessError if an untrusted process created the listening unix socket; an absent one is fine.

    The kernel reports which process called listen(2) (unix(7), SO_PEERCRED): nothing has to be read from it.
    """
    with contextlib.suppress(OSError), _connected(root, path) as connection:
        _refuse_untrusted_process(*_listener(connection), path)


def connect_to_trusted(root: Root, path: str, flag: str) -> socket.socket:
    """Return a non-blocking connection to the node's unix socket; the caller closes it.

    The socket's file belongs to root or to us, and so does the listening process. `flag` is the option that names the
    socket. Raises UntrustedProcessError, OSError, NodeError.
    """
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(shorten_socket_path(root, path))
        owner = os.lstat(name).st_uid
        if owner not in list_trusted_users():
            raise UntrustedProcessError(
                f"the socket is of user {owner}, who is neither root nor who this installer is: it is not believed",
                path=path,
                hint=f"look at who made it (ls -l), and name the engine's own socket with {flag}",
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        closing = stack.enter_context(contextlib.ExitStack())
        closing.callback(connection.close)
        connection.connect(name)
        _refuse_untrusted_process(*_listener(connection), path, flag)
        closing.pop_all()
        return connection


@Query(ignored=("greeting",), secrecy=Secrecy.WORDS, polled=True)
def find_responding_process(root: Root, path: str, greeting: bytes) -> Process | None:
    """Return the process that responds on the node's unix socket; None if nothing responds, or it is not visible here.

    Raises UntrustedProcessError if an untrusted process responds.
    """
    from toolkit_installer.node.processes import inspect_process  # noqa: PLC0415  # half the memory to only connect

    found = find_responding_peer(root, path, greeting)
    if found is None:
        return None
    pid, user = found
    _refuse_untrusted_process(pid, user, path)
    return inspect_process(pid) if pid else None


def find_responding_peer(root: Root, path: str, greeting: bytes) -> tuple[int, int] | None:
    """Return PID and user of the process that responds on the node's unix socket, or None if nothing responds.

    `greeting` is sent to get a response: the credentials come with what the process itself sends. Those of the socket
    name its creator, which is systemd for a socket-activated engine; they are used if there is no `greeting` and the
    process sends nothing. PID 0 means that the process is in another PID namespace.
    """
    try:
        with _connected(root, path) as connection:
            if greeting:
                connection.sendall(greeting)
            try:
                said_by = _sender(connection)
            except TimeoutError:
                said_by = None  # no response: it does not serve
            if said_by is None and not greeting:
                return _listener(connection)
            return said_by  # None: it closed the connection without a response, and is shutting down
    except OSError:
        return None


@contextlib.contextmanager
def _connected(root: Root, path: str) -> Iterator[socket.socket]:
    """Connect to the node's unix socket. Raises OSError."""
    with shorten_socket_path(root, path) as name, socket.socket(socket.AF_UNIX) as connection, signals.interruptible():
        # before connecting: a response that arrives before this option is set carries no credentials
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(name)
        yield connection


def _listener(connection: socket.socket) -> tuple[int, int]:
    """Return PID and user of the process that created the socket to which we are connected."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


def _is_trusted(pid: int, user: int) -> bool:
    """Return whether a process is trusted; one that ended, or is not visible here, is judged by its user."""
    return user in list_trusted_users() and (not pid or trust.find_trust_level(pid) is not TrustLevel.STRANGER)


def _refuse_untrusted_process(pid: int, user: int, path: str, flag: str = "--socket") -> None:
    if not _is_trusted(pid, user):
        who = f"whoever answers there (PID {pid}, user {user})"
        raise UntrustedProcessError(
            f"{who} is neither root nor who this installer is: it is not believed",
            path=path,
            hint=f"look at who listens there (ss -xlp), and name the engine's own socket with {flag}",
        )


@Query()
def is_listening(root: Root, path: str) -> bool:
    """Return whether a trusted process listens on the node's unix socket, whether or not it responds."""
    try:
        with _connected(root, path) as connection:
            return _is_trusted(*_listener(connection))
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    except OSError:  # a full queue: a process listens, and counts if the socket's file belongs to root or to us
        root, path = find_root_of(root, path)
        with contextlib.suppress(OSError, NodeError):
            return os.lstat(root.outside(root.canonical(path))).st_uid in list_trusted_users()
        return False


def _sender(connection: socket.socket) -> tuple[int, int] | None:
    """Return PID and user of the sender of the first data, None at the end of the connection. Raises OSError."""
    said, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not said:
        return None  # the end of the connection has credentials too, which name no process
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, user, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
            return pid, user
    return None
