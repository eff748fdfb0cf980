"""Processes of the node: the one behind a socket, what it is, and signals to it and to no other."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import struct
from collections.abc import Iterator, Sequence

import psutil

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.root import NodeError, Root

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""

_ANSWER_SECONDS = 5.0


class ProcessGoneError(ConfigurationError):
    """The process ended, or its PID is another one's by now."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A process as it was seen. `started` (seconds since the epoch) tells it from a later one with the same PID."""

    pid: int
    name: str
    executable: str
    arguments: tuple[str, ...]
    started: float
    unit: str | None
    """The systemd service that it belongs to, such as `docker.service`."""


def look(pid: int) -> Process | None:
    """Return the process `pid`, or None if it is gone or dead."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return Process(
                pid=pid,
                name=process.name(),
                executable=process.exe(),
                arguments=tuple(process.cmdline()),
                started=process.create_time(),
                unit=_unit(pid),
            )
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """Return what a command line gives one of the flags, as `FLAG VALUE` or `FLAG=VALUE`; None if it does not. Pure."""
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in flags and equals:
            return value
        if word in flags and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


def root_of(process: Process) -> Root:
    """Return the file system as the process sees it, as proc_pid_root(5) shows it."""
    return Root(f"/proc/{process.pid}/root")


def read_as(process: Process, path: str) -> bytes | None:
    """Return a file's content as the process itself would read it, None where there is none. Raises NodeError."""
    root = root_of(process)
    try:
        with open(root.outside(root.canonical(path)), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError.of(error, path, "read it") from error


def lives_on(process: Process, root: Root) -> bool:
    """Tell whether the process has `root` for its `/`: whether it is one of that node's own."""
    try:
        return os.path.samestat(os.stat(f"/proc/{process.pid}/root/"), os.stat(root.folder))
    except OSError:
        return False  # it ended meanwhile, or hides


def user_of(process: Process) -> int | None:
    """Return the id of the user whose process it is, as this user namespace has it; None where it is gone."""
    try:
        return int(psutil.Process(process.pid).uids().real)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def environment(process: Process) -> dict[str, str]:
    """Return the variables that the process was started with; none where they cannot be read."""
    try:
        return dict(psutil.Process(process.pid).environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}


def named(names: frozenset[str]) -> list[Process]:
    """Return the running processes with one of these names."""
    seen = (look(process.pid) for process in psutil.process_iter() if _name(process) in names)
    return [process for process in seen if process is not None]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def _unit(pid: int) -> str | None:
    """Return the service in the process's cgroup path (proc_pid_cgroup(5)), or None."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as lines:
            for line in lines:
                last = line.rstrip("\n").rpartition("/")[2]
                if last.endswith(".service"):
                    return last
    except OSError:
        return None  # it ended meanwhile, or hides: then its unit is not known
    return None


@contextlib.contextmanager
def reachable(root: Root, path: str) -> Iterator[str]:
    """Yield a short name of the node's socket for connect(2), whose limit is 107 bytes. Raises OSError."""
    with root.parent(root.canonical(path)) as (folder, name):
        yield f"/proc/self/fd/{folder}/{name}"


def behind(root: Root, path: str, greeting: bytes) -> int | None:
    """Return the PID of the process that answers on the node's unix socket, or None if nothing answers.

    `greeting` is sent to make it talk: the credentials come with what the process itself sends. Those of the socket
    name whoever created it, which is systemd for a socket-activated engine. A process that stays silent is named by
    the socket. 0 means that the process lives in another PID namespace.
    """
    try:
        with reachable(root, path) as name, socket.socket(socket.AF_UNIX) as connection:
            # before connecting: an answer that comes faster than this option carries no credentials
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(name)
            if greeting:
                connection.sendall(greeting)
            try:
                pid = _sender(connection)
            except TimeoutError:
                if greeting:
                    return None  # asked, and silent: it does not serve
                pid = None
            if pid is None:
                if greeting:
                    return None  # it hung up without a word: it is on its way down
                option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                pid = _CREDENTIALS.unpack(option)[0]
            return pid
    except OSError:
        return None


def listens(root: Root, path: str) -> bool:
    """Tell whether some process listens on the node's unix socket, whether or not it answers."""
    try:
        with reachable(root, path) as name, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(name)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    except OSError:
        return True  # a full queue: somebody is there
    return True


def bound(pid: int) -> list[str] | None:
    """Return the names, in the process's own file system, of the unix sockets that it has bound; None if unknown."""
    try:
        return [str(each.laddr) for each in psutil.Process(pid).net_connections("unix") if each.laddr]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _sender(connection: socket.socket) -> int | None:
    said, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not said:
        return None  # the end of the connection has credentials too, and they name nobody
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
            return pid
    return None


def send(calls: SystemCalls, process: Process, number: signal.Signals) -> None:
    """Signal exactly this process.

    Raises ProcessGoneError if it is no longer there, ConfigurationError if it is PID 0 or 1, NodeError.
    """
    if process.pid <= 1:
        raise ConfigurationError(f"PID {process.pid} is never signalled", hint="use --restart-mode systemd or none")
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError as error:
        raise _gone(process) from error
    except OSError as error:
        raise NodeError.of(error, f"/proc/{process.pid}", "open the process") from error
    try:
        # looked at again once the descriptor pins it: the PID cannot be reused from here on
        if look(process.pid) != process:
            raise _gone(process)
        calls.signal(pidfd, number)
    except ProcessLookupError as error:
        raise _gone(process) from error
    except OSError as error:
        raise NodeError.of(error, f"/proc/{process.pid}", f"send it {number.name}") from error
    finally:
        os.close(pidfd)


def _gone(process: Process) -> ProcessGoneError:
    return ProcessGoneError(f"the process {process.pid} ({process.name}) is gone", hint="start again")
