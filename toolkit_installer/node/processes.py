"""Processes of the node that are trusted (trust.py): command lines, environments, open descriptors, and signals."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

import msgspec
import psutil

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import reading, signals, trust
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.queries import Query, Secrecy, are_pids_and_names, is_pid_if_any
from toolkit_installer.node.reading import Reader, fits_config
from toolkit_installer.node.root import NodeError, Root, opened
from toolkit_installer.node.trust import TrustLevel

_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Indexes of the addresses of a process's arguments at its start: the fields 48 and 49 of proc_pid_stat(5), counted
after the name."""


def is_wiped(said: bytes, words: Sequence[bytes], given: int | None) -> bool:
    """Return whether a command line differs from the one with which the process was started.

    A program may overwrite its arguments, and some do, to hide a password: one word remains, and the rest is zeros
    (proc_pid_cmdline(5)). A program that was started with nothing but empty arguments looks the same. `given`: the
    number of bytes of the arguments at its start, None if unknown.
    """
    return not said or (len(words) > 1 and not any(words[1:])) or (given is not None and given != len(said))


def parse_arguments_length(told: Sequence[bytes]) -> int | None:
    """Return the number of bytes of the arguments with which a process was started, None if the kernel hides it.

    `told` are the fields of proc_pid_stat(5) after the name: arg_start and arg_end are 0 for a reader without
    permission.
    """
    if len(told) <= _ARGUMENTS_END:
        return None
    start, end = int(told[_ARGUMENTS_START]), int(told[_ARGUMENTS_END])
    return end - start if start else None


def flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """Return the value that a command line gives one of the flags, as `FLAG VALUE` or `FLAG=VALUE`; None if absent."""
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in flags and equals:
            return value
        if word in flags and index + 1 < len(arguments):
            return arguments[index + 1]
    return None


_LONGEST_LINE = 4096
_LONGEST_COMMAND = 2 * 1024 * 1024
"""Bytes. The kernel allows no more for a program's arguments and variables together, by default (execve(2))."""
_DELETED = " (deleted)"
"""The kernel's suffix to the path of a program whose file was removed or replaced after the start."""
_STARTED = 19
"""Index of the start of a process in clock ticks after the boot: field 22 of proc_pid_stat(5), counted after the
name."""
_MAX_INSPECTIONS = 4
"""How often a process is inspected until two inspections in a row agree: it may execute another program meanwhile."""


class ProcessGoneError(ConfigurationError):
    """The process ended, or its PID belongs to another process by now."""


class Process(msgspec.Struct, frozen=True):
    """A trusted process, as it was inspected."""

    pid: int
    name: str
    executable: str
    arguments: tuple[str, ...]
    started: float
    """Seconds since the epoch, which distinguish it from a later process with the same PID (`_read_boot_time`)."""
    unit: str | None
    """The systemd service that it belongs to, such as `docker.service`."""
    hidden: bool = False
    """Whether it has overwritten its command line, as k3s does: a flag that is not among `arguments` may have been
    given."""
    ticks: int = 0
    """From the boot to its start, in clock ticks: setting the clock does not change it. 0: unknown."""

    @property
    def identity(self) -> tuple[int, int]:
        """Its PID and the ticks to its start: no other process has both until the next boot."""
        return self.pid, self.ticks


@Query(secrecy=Secrecy.WORDS)
def inspect_process(pid: int) -> Process | None:
    """Return the process `pid`, or None if it is gone, dead or untrusted, or may not be inspected."""
    try:
        return inspect_visible(pid)
    except PermissionError:
        return None


@Query(secrecy=Secrecy.WORDS, os_errors=True)
def inspect_visible(pid: int) -> Process | None:
    """Return the process `pid`, or None if it is gone, dead or untrusted.

    Raises PermissionError if the kernel does not allow its inspection.
    """
    try:
        with trust.pin_process(pid) as folder:
            seen = _inspect_if_trusted(folder, pid)
            for _ in range(_MAX_INSPECTIONS - 1):
                before, seen = seen, _inspect_if_trusted(folder, pid)
                if seen == before:
                    return seen
    except PermissionError:
        raise
    except OSError:
        return None
    return None  # each inspection found another program: any result would be out of date


def _inspect_if_trusted(folder: int, pid: int) -> Process | None:
    """Return the process behind the open /proc/PID, None if it is untrusted or dead. Raises OSError.

    The process may execute another program while it is read: one inspection proves nothing. Once it is gone, nothing
    can be read by this descriptor.
    """
    # an untrusted process's data is not even read, as it can be of any length
    return _inspect_pinned(folder, pid) if trust.find_pinned_trust_level(folder, pid) is TrustLevel.BELIEVED else None


def _inspect_pinned(folder: int, pid: int) -> Process | None:
    """Return the process behind the open /proc/PID, None if it is dead or its command line too long. Raises OSError."""
    arguments = _read_bounded(folder, "cmdline", _LONGEST_COMMAND)
    if arguments is None or trust.is_dead(folder):
        return None
    words = arguments.removesuffix(b"\0").split(b"\0")
    told = (_read_bounded(folder, "stat", _LONGEST_LINE) or b"").rpartition(b")")[2].split()
    if len(told) <= _STARTED:
        return None
    ticks = int(told[_STARTED])
    hidden = is_wiped(arguments, words, parse_arguments_length(told))
    reading.cache_command(pid, tuple(os.fsdecode(word) for word in words))
    return Process(
        pid=pid,
        name=os.fsdecode(_read_bounded(folder, "comm", _LONGEST_LINE) or b"").rstrip("\n"),
        executable=os.readlink("exe", dir_fd=folder).removesuffix(_DELETED),
        arguments=tuple(os.fsdecode(word) for word in (words[:1] if hidden else words)),
        started=_read_boot_time() + ticks / os.sysconf("SC_CLK_TCK"),
        unit=_unit(os.fsdecode(_read_bounded(folder, "cgroup", _LONGEST_COMMAND) or b"")),
        ticks=ticks,
        hidden=hidden,
    )


@functools.cache
def _read_boot_time() -> float:
    """Return when the kernel was booted, in seconds since the epoch, by the clock at the first call.

    Cached, because the kernel calculates it from the clock: once that is set, as happens soon after a node's boot, each
    process would seem to be another one than before.
    """
    return psutil.boot_time()


def _read_bounded(folder: int, name: str, limit: int) -> bytes | None:
    """Return the content of a file in an open /proc/PID, None for more than `limit` bytes. Raises OSError."""
    said = bytearray()
    with opened(name, os.O_RDONLY, folder) as fd:
        while len(said) <= limit and (piece := os.read(fd, min(1 << 16, limit + 1))):
            said += piece
    return bytes(said) if len(said) <= limit else None


def is_running(process: Process) -> bool:
    """Return whether a process still runs, and no other has its PID."""
    found = inspect_process(process.pid)
    return found is not None and found.identity == process.identity


def root_of(process: Process) -> Root:
    """Return the file system as the process sees it, as proc_pid_root(5) shows it."""
    return Root(f"/proc/{process.pid}/root")


def read_as(process: Process, path: str) -> bytes | None:
    """Return a file's content as the process itself would read it, None if it is absent.

    Raises NodeError, also if it is no regular file, or larger than a configuration is.
    """
    try:
        return Reader(root_of(process)).content(path)
    except NodeError:
        raise
    except ConfigurationError as error:
        raise NodeError(error.reason, path=path, hint=error.hint) from error


@Query()
def has_root(process: Process, root: Root) -> bool:
    """Return whether the process has `root` as its `/`: whether it is one of that node's own."""
    try:
        return os.path.samestat(os.stat(f"/proc/{process.pid}/root/"), os.stat(root.folder))
    except OSError:
        return False  # it ended meanwhile, or may not be inspected


@Query(is_valid=is_pid_if_any)
def parent_of(process: Process) -> int | None:
    """Return the PID of the process's parent, None if the process is gone, 0 if the parent is not visible here."""
    try:
        return psutil.Process(process.pid).ppid()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def own_ancestors() -> frozenset[int]:
    """Return our own PID and those of our ancestors, as far as they are visible here."""
    own = psutil.Process()
    return frozenset((own.pid, *(each.pid for each in own.parents())))


def list_pids() -> list[int]:
    """Return the PIDs of all processes that are visible here.

    psutil does the same, but its import takes longer than the inspection of all processes of most nodes.
    """
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


@Query(secrecy=Secrecy.JSON)
def environment(process: Process) -> dict[str, str]:
    """Return the environment variables with which the process was started; none if they cannot be read."""
    try:
        found = dict(psutil.Process(process.pid).environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
    reading.cache_environment(process.pid, found)
    return found


def find_by_name(names: frozenset[str]) -> list[Process]:
    """Return the trusted running processes with one of these names."""
    seen = (inspect_process(pid) for pid, _ in _running(names.__contains__))
    return [process for process in seen if process is not None]


def find_matching(wanted: Callable[[str], bool]) -> Iterator[tuple[int, str, TrustLevel]]:
    """Yield PID, name and trust of the running processes with a wanted name, except untrusted ones."""
    for pid, name in _running(wanted):
        standing = trust.find_trust_level(pid)
        if standing in (TrustLevel.BELIEVED, TrustLevel.UNSEEN):
            yield pid, name, standing


def _running(wanted: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Return the processes with a wanted name, as the kernel has it: 15 bytes at most (proc_pid_comm(5))."""
    return ((pid, name) for pid, name in names() if wanted(name))


class _NameCache:
    """The cache of `cache_names`: the names as last read."""

    keeps: ClassVar[bool] = False
    names: ClassVar[list[tuple[int, str]] | None] = None


@contextlib.contextmanager
def cache_names() -> Iterator[None]:
    """Read the names of all processes once inside the block, and once more after `clear_cached_names`.

    Each process with a wanted name is inspected when it is requested, so that a process that has ended meanwhile is not
    taken for running. A process that was started meanwhile is missed.
    """
    before, _NameCache.keeps = _NameCache.keeps, True
    try:
        yield
    finally:
        _NameCache.keeps = before
        if not before:
            clear_cached_names()


def clear_cached_names() -> None:
    """Discard the cached names: a process may have been started since."""
    _NameCache.names = None


@Query(is_valid=are_pids_and_names)
def names() -> list[tuple[int, str]]:
    """Return PID and name of all processes that are visible here; inside `cache_names`, the cached ones."""
    if _NameCache.names is not None:
        return _NameCache.names
    found = _names()
    if _NameCache.keeps:
        _NameCache.names = found
    return found


def _names() -> list[tuple[int, str]]:
    found = []
    for pid in list_pids():
        try:
            fd = os.open(f"/proc/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it ended meanwhile
        try:
            # one call, and nothing else is read: a node has hundreds of processes, and few are wanted
            name = os.fsdecode(os.read(fd, _LONGEST_LINE)).rstrip("\n")
        except OSError:
            continue
        finally:
            os.close(fd)
        found.append((pid, name))
    return found


def _unit(cgroups: str) -> str | None:
    """Return the service in a process's cgroup paths (proc_pid_cgroup(5)), or None."""
    lasts = (line.rpartition("/")[2] for line in cgroups.split("\n"))
    return next((last for last in lasts if last.endswith(".service")), None)


def send_signal(calls: SystemCalls, process: Process, number: signal.Signals) -> None:
    """Send a signal to this process alone.

    Raises ProcessGoneError if it ended, ConfigurationError for PID 0 or 1, NodeError.
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
        # inspected again once the descriptor pins it: the PID cannot be reused from here on
        if inspect_process(process.pid) != process:
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


_UNIX_FIELDS = 8
"""Number of fields in a line of /proc/net/unix for a socket that has a name."""


@Query()
def list_bound_sockets(pid: int) -> list[str] | None:
    """Return the paths of the unix sockets that the process has bound, None if unknown.

    The paths are those of the process's own file system. The kernel's list (proc_net_unix, in proc(5)) has them as
    their owners chose them, line feeds included: lines that cannot be parsed are skipped.
    """
    try:
        with trust.pin_process(pid) as folder:
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


@Query()
def list_open_files(process: Process) -> list[str]:
    """Return the paths of the files that a process has open, as the process sees them; none if they cannot be read.

    The descriptors are read through a pinned /proc/PID, so they can be trusted as much as the process.
    """
    try:
        with trust.pin_process(process.pid) as folder:
            root = os.readlink("root", dir_fd=folder).rstrip("/")
            return [name.removeprefix(root) for name in _links(folder) if name.startswith(f"{root}/")]
    except OSError:
        return []


@Query(is_valid=fits_config)
def read_open_file(pid: int, name: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of the file that a process has open as `name`, None if it has no such file open.

    None as well for an untrusted process.
    """
    try:
        with trust.pin_process(pid) as folder:
            if trust.find_pinned_trust_level(folder, pid) is not trust.TrustLevel.BELIEVED:
                return None
            for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"fd/{number}", dir_fd=folder) == name:
                        fd = os.open(f"fd/{number}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                        with open(fd, "rb") as stream:
                            return stream.read(limit)
    except OSError:
        return None  # the process ended
    return None


def _links(folder: int) -> Iterator[str]:
    """Yield the link targets of the descriptors behind an open /proc/PID (proc_pid_fd(5)). Raises OSError."""
    for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(f"fd/{number}", dir_fd=folder)


_DEVICES = "/proc/devices"
_CHARACTER = "Character devices:"
_MAX_DESCRIPTORS = 1_000_000
"""Descriptors that are inspected at most, in some seconds: each user may have as many and more in a container."""
_HEED = 4096
"""Descriptors between two checks for a signal."""


class DeviceUsers(msgspec.Struct, frozen=True):
    """PIDs of the processes that have a device open, and the number of processes that could not be inspected."""

    pids: tuple[int, ...] = ()
    unseen: int = 0


def find_major_numbers(driver: str, listed: str | None = None) -> frozenset[int]:
    """Return the major numbers of a driver's character devices: those whose name begins with `driver`.

    `listed` is the content of /proc/devices (proc(5)); if None, the file is read. Raises OSError.
    """
    if listed is None:
        with open(_DEVICES, encoding="utf-8", errors="replace", newline="\n") as stream:
            listed = stream.read()
    lines = listed.partition(_CHARACTER)[2].partition("\n\n")[0].split("\n")
    words = [line.split() for line in lines if line.strip()]
    return frozenset(int(number) for number, *name in words if name and name[0].startswith(driver))


def find_users_in_containers(numbers: Collection[int], homes: Sequence[Root]) -> DeviceUsers:
    """Return the processes that have a device with one of these major numbers open and whose root is none of `homes`.

    Processes that are skipped because others have too many descriptors open count as unseen. Raises Stopped.
    """
    if not numbers:  # without a driver, no device can be open
        return DeviceUsers()
    own = [_identity(home.folder) for home in homes]
    pids, unseen, left = [], 0, _MAX_DESCRIPTORS
    for pid in list_pids():
        signals.raise_if_pending()
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
            continue  # the process ended: it has nothing open
    return DeviceUsers(tuple(pids), unseen)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _has_open(pid: int, numbers: Collection[int], most: int) -> tuple[bool, int]:
    """Return whether a process has such a device open, and how many descriptors were inspected, at most `most`."""
    place = f"/proc/{pid}/fd"
    count = 0
    with os.scandir(place) as descriptors:  # one at a time: there may be a million
        for descriptor in descriptors:
            if count >= most:
                break
            count += 1
            if count % _HEED == 0:
                signals.raise_if_pending()
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                status = os.stat(f"{place}/{descriptor.name}")
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in numbers:
                    return True, count
    return False, count
