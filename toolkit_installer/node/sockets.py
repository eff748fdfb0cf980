"""What a process has open, as the kernel tells it: the sockets that it has bound, and its files.

Processes in containers that have a device of a driver open, by the device's number and not by a name.

Which process serves one of the node's sockets, and whether it is one that we believe.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import processes, signals, trust
from toolkit_installer.node.owners import ourselves
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import INIT_ROOT, NodeError, Root
from toolkit_installer.node.trust import Standing

if TYPE_CHECKING:
    from toolkit_installer.node.processes import Process


_UNIX_FIELDS = 8
"""Of a line about a socket that has a name."""


def bound(pid: int) -> list[str] | None:
    """Return the names, in the process's own file system, of the unix sockets that it has bound; None if unknown.

    The kernel's list (proc_net_unix, in proc(5)) has the names as their owners chose them, line ends included: what is
    no line of it is passed over.
    """
    try:
        with trust.pinned(pid) as folder:
            inodes = {name[8:-1] for name in _links(folder) if name.startswith("socket:[")}
            names = []
            fd = os.open("net/unix", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as lines:
                for line in lines:
                    fields = line.rstrip(b"\n").split(b" ", 7)
                    words = [field for field in fields if field]
                    if len(words) >= _UNIX_FIELDS and words[6].decode(errors="replace") in inodes:
                        names.append(os.fsdecode(line.rstrip(b"\n").partition(words[6] + b" ")[2]))
            return [name for name in names if name.startswith("/")]
    except OSError:
        return None


def opened(process: Process) -> list[str]:
    """Return the files that a process has open, as it calls them; nothing where that cannot be seen.

    The descriptors are those of a process that is still the same, and so as much to be believed as the process is.
    """
    try:
        with trust.pinned(process.pid) as folder:
            root = os.readlink("root", dir_fd=folder).rstrip("/")
            return [name.removeprefix(root) for name in _links(folder) if name.startswith(f"{root}/")]
    except OSError:
        return []


def content(pid: int, name: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of what a process has open under the name `name`, None where it has no such file.

    A process that is not to be believed has none.
    """
    try:
        with trust.pinned(pid) as folder:
            if trust.standing_of(folder, pid) is not trust.Standing.BELIEVED:
                return None
            for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"fd/{number}", dir_fd=folder) == name:
                        fd = os.open(f"fd/{number}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                        with open(fd, "rb") as stream:
                            return stream.read(limit)
    except OSError:
        return None  # it is gone
    return None


def _links(folder: int) -> Iterator[str]:
    """Yield what the descriptors behind an open /proc/PID lead to, as proc_pid_fd(5) spells it. Raises OSError."""
    for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(f"fd/{number}", dir_fd=folder)


_DEVICES = "/proc/devices"
_CHARACTER = "Character devices:"
_MOST = 1_000_000
"""Descriptors that are looked at, some seconds: each user may have that many, and more, in a container of their own."""
_HEED = 4096
"""Descriptors between two looks for a signal."""


class Users(msgspec.Struct, frozen=True):
    """The PIDs of such processes, and how many processes could not be looked at."""

    pids: tuple[int, ...] = ()
    unseen: int = 0


def majors(driver: str, listed: str | None = None) -> frozenset[int]:
    """Return the major numbers of a driver's character devices: those whose name begins with `driver`.

    `listed` is what proc(5) says of /proc/devices; None: it is read. Raises OSError.
    """
    if listed is None:
        with open(_DEVICES, encoding="utf-8", errors="replace", newline="\n") as stream:
            listed = stream.read()
    lines = listed.partition(_CHARACTER)[2].partition("\n\n")[0].split("\n")
    words = [line.split() for line in lines if line.strip()]
    return frozenset(int(number) for number, *name in words if name and name[0].startswith(driver))


def in_containers(numbers: Collection[int], homes: Sequence[Root]) -> Users:
    """Return the processes that have a device of one of these major numbers open, and no `/` of `homes`.

    Those that were not looked at, as others have too much open, count as unseen. Raises Stopped.
    """
    if not numbers:  # no driver, no device: none can be open
        return Users()
    own = [_identity(home.folder) for home in homes]
    pids, unseen, left = [], 0, _MOST
    for pid in processes.pids():
        signals.heed()
        try:
            if _identity(f"/proc/{pid}/root/") in own:
                continue
            found, looked_at = _has_open(pid, numbers, left)
            left -= looked_at
            if found:
                pids.append(pid)
            elif left <= 0:
                unseen += 1
        except PermissionError:
            unseen += 1
        except OSError:
            continue  # it ended meanwhile: it has nothing open
    return Users(tuple(pids), unseen)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _has_open(pid: int, numbers: Collection[int], most: int) -> tuple[bool, int]:
    """Tell whether a process has such a device open, and how many of its descriptors were looked at, `most` at most."""
    place = f"/proc/{pid}/fd"
    count = 0
    with os.scandir(place) as descriptors:  # one after the other: there may be a million
        for descriptor in descriptors:
            if count >= most:
                break
            count += 1
            if count % _HEED == 0:
                signals.heed()
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                status = os.stat(f"{place}/{descriptor.name}")
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in numbers:
                    return True, count
    return False, count


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
