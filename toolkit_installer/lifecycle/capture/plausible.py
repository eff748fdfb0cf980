"""Which answers a node can give. Their types were checked when they were decoded; here are their ranges."""

from __future__ import annotations

import enum
import math
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import InstallerError
from toolkit_installer.lifecycle.impact.words import Running
from toolkit_installer.lifecycle.other_installer import OtherInstaller
from toolkit_installer.lifecycle.still_needed.named_in_files import Naming
from toolkit_installer.node.disk.reading import CONFIG_LIMIT, Found, Identity, Metadata
from toolkit_installer.node.processes import Process
from toolkit_installer.node.running import Completed

_MOST_VALUES: Final = 200_000
"""In one answer. A folder of the node may have many names; nothing else comes near."""
_DEEPEST: Final = 100
"""Levels of objects and arrays in an answer; an engine's have ten."""
_MOST_PID: Final = 1 << 22
"""PID_MAX_LIMIT (proc_sys_kernel(5))."""
_MOST_STATUS: Final = 255
_MOST_SIGNAL: Final = 64
_WORD, _LONG, _LONG_LONG = 1 << 32, 1 << 63, 1 << 64
_LATEST: Final = 1 << 40
"""Seconds since the epoch: beyond the year 30,000, which clocks and calendars can still write."""
_MOST_MODE: Final = 0o177777
_MOST_BITS: Final = 0o7777
_KINDS: Final = {
    *(stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFSOCK),
    *(stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK),
}
_PLAIN: Final = (
    *(bytes, type(None), bool, enum.Enum, InstallerError),
    *(list, dict, set, frozenset, tuple, msgspec.Struct),
)


def fault(value: Any) -> str | None:
    """Return why no node gives this answer, None for one that a node can give."""
    pending = [(value, 0)]
    count = 0
    while pending:
        item, depth = pending.pop()
        count += 1
        if count > _MOST_VALUES:
            return f"an answer of more than {_MOST_VALUES} values"
        if depth > _DEEPEST:
            return f"an answer of more than {_DEEPEST} levels"
        if (why := _fault_of(item)) is not None:
            return why
        pending.extend((each, depth + 1) for each in _within(item))
    return None


def _fault_of(value: Any) -> str | None:
    """Return why no node answers this value, whatever is in it."""
    if isinstance(value, str):
        return "a text with a NUL" if "\0" in value else None
    rule = _RULES.get(type(value))
    if rule is not None:
        return None if rule(value) else f"a {type(value).__name__} out of range"
    return None if isinstance(value, _PLAIN) else f"a {type(value).__name__}"


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, Completed):  # a program may print a NUL
        return ()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.astuple(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    # the numbers of a status were looked at together
    return value if isinstance(value, (list, tuple, set, frozenset)) and type(value) is not os.stat_result else ()


# --- ranges of types ---


def _status(value: os.stat_result) -> bool:
    return (
        0 <= value.st_mode <= _MOST_MODE
        and stat.S_IFMT(value.st_mode) in _KINDS
        and _users(value.st_uid, value.st_gid)
        and all(0 <= each < _LONG_LONG for each in (value.st_dev, value.st_ino, value.st_nlink, value.st_rdev))
        and 0 <= value.st_size < _LONG
        and _times(value.st_atime_ns, value.st_mtime_ns, value.st_ctime_ns)
    )


def _metadata(value: Metadata) -> bool:
    return 0 <= value.mode <= _MOST_BITS and _users(value.uid, value.gid)


def _identity(value: Identity) -> bool:
    return (
        all(0 <= each < _LONG_LONG for each in (value.device, value.inode))
        and 0 <= value.size < _LONG
        and _times(value.mtime_ns, value.ctime_ns)
    )


def _users(*numbers: int) -> bool:
    return all(0 <= each < _WORD for each in numbers)


def _times(*nanoseconds: int) -> bool:
    return all(-_LONG <= each < _LONG for each in nanoseconds)


def _process(value: Process) -> bool:
    return is_pid(value.pid) and is_time(value.started)


def _running(value: Running) -> bool:
    return all(each is None or 0 <= each < _WORD for each in (value.total, value.ours))


def _driver(value: Driver) -> bool:
    places = (value.root, value.seen_at, value.dev_root, value.dev_seen_at)
    return all(not place or place.startswith("/") for place in places)


_RULES: Final[Mapping[type, Callable[[Any], bool]]] = {
    int: lambda value: -_LONG <= value < _LONG_LONG,
    float: math.isfinite,
    os.stat_result: _status,
    Metadata: _metadata,
    Identity: _identity,
    Found: lambda value: is_path(value.path) and len(value.content) <= CONFIG_LIMIT,
    Process: _process,
    Completed: lambda value: -_MOST_SIGNAL <= value.status <= _MOST_STATUS,
    OtherInstaller: lambda value: is_pid(value.pid),
    Running: _running,
    Naming: lambda value: 1 <= value.line <= CONFIG_LIMIT,
    Driver: _driver,
}

_OF_DOCKER: Final[Mapping[str, type]] = {
    **dict.fromkeys(("DefaultRuntime", "OperatingSystem", "ServerVersion"), str),
    **dict.fromkeys(("CDISpecDirs", "SecurityOptions"), list),
    "ContainersRunning": int,
    "LiveRestoreEnabled": bool,
    "Runtimes": dict,
}

# --- ranges of plain values, for the seams that answer them ---


def is_path(value: str) -> bool:
    """Tell whether a path is canonical, as far as its text shows."""
    return value.startswith("/") and not value.startswith("//") and posixpath.normpath(value) == value


def is_path_if_any(value: str | None) -> bool:
    """Tell whether a path, if there is one, is absolute."""
    return value is None or value.startswith("/")


def are_names(value: list[str]) -> bool:
    """Tell whether these can be the names in a folder."""
    return all(each and "/" not in each and each not in {".", ".."} for each in value)


def is_pid(value: int) -> bool:
    """Tell whether a process can have this number."""
    return 1 <= value <= _MOST_PID


def is_pid_if_any(value: int | None) -> bool:
    """Tell whether this is None, a process's number, or the 0 that stands for one outside of the PID namespace."""
    return value is None or value == 0 or is_pid(value)


def are_processes(value: list[tuple[int, str]]) -> bool:
    """Tell whether these can be processes' numbers and names."""
    return all(is_pid(pid) for pid, _ in value)


def are_users(value: Iterable[int]) -> bool:
    """Tell whether these can be users' numbers."""
    return _users(*value)


def is_time(value: float) -> bool:
    """Tell whether a clock can show these seconds."""
    return 0 <= value <= _LATEST


def is_word(value: int) -> bool:
    """Tell whether this is a number of 31 bits, or the -1 that says that it is not known."""
    return -1 <= value < _WORD >> 1


def is_dockers(value: Mapping[str, Any]) -> bool:
    """Tell whether dockerd's fields are of the types that its API has (system information)."""
    return all(value.get(name) is None or type(value[name]) is kind for name, kind in _OF_DOCKER.items())


def is_config(value: bytes | None) -> bool:
    """Tell whether a content is no larger than a file that is read may be."""
    return value is None or len(value) <= CONFIG_LIMIT
