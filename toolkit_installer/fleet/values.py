"""What seams answer, as values that a file can hold, and back: by the types that the functions say they return.

An answer may be an error as well: those of this program, by their class, and those of the system. A file names classes
of errors alone, and only those that are here: nothing that it says is imported, or called.

Which answers a node can give. Their types were checked when they were decoded; here are their ranges.
"""

from __future__ import annotations

import enum
import math
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.node.reading import CONFIG_LIMIT, FileIdentity, Found, Metadata
from toolkit_installer.planning.files_naming import Naming
from toolkit_installer.planning.other_installer import OtherInstaller

_ESCAPE: Final = "\uf8fe"
"""Stands before what is no text: a byte of a name that is not UTF-8 (a lone surrogate, as Python has it), or itself."""
_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF
_FIELDS: Final = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_rdev")
_TIMES: Final = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
_SECOND_NS: Final = 1_000_000_000
_SYSTEM: Final = "OSError"
_MOST_NUMBER: Final = 4095
"""MAX_ERRNO (linux/err.h)."""
_MOST_LINES: Final = 1 << 32


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error: the name of its class, and what it says. `more` are further fields of its class."""

    kind: str
    reason: str = ""
    path: str | None = None
    line: int | None = None
    hint: str | None = None
    number: int = 0


class Answer(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a seam answered: a value, or a failure. `escaped`: its texts have what is no text."""

    value: Any = None
    failure: Failure | None = None
    escaped: bool = False


class RawAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The same as it is read from a file; the value is read when somebody asks for it."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: Failure | None = None
    escaped: bool = False


class NotReadableError(Exception):
    """What a file says is no value of the kind that a seam answers."""


def failure_of(error: InstallerError | OSError) -> Failure:
    """Return an error as a value."""
    if isinstance(error, InstallerError):
        number = getattr(error, "number", 0)
        return Failure(type(error).__name__, error.reason, error.path, error.line, error.hint, number)
    path = error.filename if isinstance(error.filename, str) else None
    return Failure(_SYSTEM, error.strerror or str(error), path, number=error.errno or 0)


def error_of(failure: Failure) -> InstallerError | OSError:
    """Return the error that a value was made of. Raises NotReadableError for a class that there is not."""
    if not 0 <= failure.number <= _MOST_NUMBER or (failure.line is not None and not 1 <= failure.line <= _MOST_LINES):
        raise NotReadableError("an error with a number or a line out of range")
    if any("\0" in word for word in _words(failure)):
        raise NotReadableError("an error with a NUL")
    if failure.kind == _SYSTEM:
        return OSError(failure.number, failure.reason, failure.path)
    kind = _classes().get(failure.kind)
    if kind is None:
        raise NotReadableError(f"there is no error {failure.kind[:80]!r}")
    try:
        error = kind(failure.reason, path=failure.path, line=failure.line, hint=failure.hint)
    except TypeError as wrong:  # it is made of something else, and no seam raises it
        raise NotReadableError(f"no node answers the error {failure.kind}") from wrong
    if failure.number:
        vars(error)["number"] = failure.number
    return error


def built(value: Any) -> Any:
    """Return a value as objects, arrays, texts, bytes and numbers."""
    if isinstance(value, os.stat_result):  # a tuple, which would lose the nanoseconds
        return [getattr(value, name) for name in (*_FIELDS, *_TIMES)]
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_built)


def made(value: Any, kind: Any) -> Any:
    """Return the value of that type. Raises NotReadableError."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,), dec_hook=_made)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise NotReadableError(str(error)) from error


def read(raw: RawAnswer, kind: Any) -> Any:
    """Return what a seam answered, of that type. Raises NotReadableError, and the error that it answered."""
    if raw.failure is not None:
        raise error_of(raw.failure if not raw.escaped else _failure(raw.failure, unescaped))
    try:
        if raw.escaped:
            value = made(each(msgspec.msgpack.decode(raw.value), unescaped), kind)
        else:
            value = msgspec.msgpack.decode(raw.value, type=kind, dec_hook=_made)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise NotReadableError(str(error)) from error
    if (why := fault(value)) is not None:
        raise NotReadableError(f"{why}, which no node answers")
    return value


def packed(answer: Answer) -> Answer:
    """Return an answer whose texts a file can hold."""
    if not any(map(_needs_escape, texts(answer.value))) and not any(map(_needs_escape, _words(answer.failure))):
        return answer
    failure = None if answer.failure is None else _failure(answer.failure, escaped)
    return Answer(each(answer.value, escaped), failure, escaped=True)


def texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, those that name its fields as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)


def each(value: Any, change: Any) -> Any:
    """Return a value in which every text is what `change` makes of it, and so are the names of its fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {each(key, change): each(item, change) for key, item in value.items()}
    return [each(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def escaped(text: str) -> str:
    """Return a text without lone surrogates, from which `unescaped` makes it again."""
    if not _needs_escape(text):
        return text
    return "".join(_ESCAPE + chr(ord(each) - _FIRST_SURROGATE) if _is_odd(each) else each for each in text)


def unescaped(text: str) -> str:
    """Return the text that `escaped` was given. Raises NotReadableError for one that it does not make."""
    first, *rest = text.split(_ESCAPE)
    return first + "".join(map(_unescaped_part, rest))


def _unescaped_part(part: str) -> str:
    character = chr(ord(part[0]) + _FIRST_SURROGATE) if part and ord(part[0]) < _FIRST_SURROGATE else ""
    if not character or not _is_odd(character):
        raise NotReadableError("a text with an escape that stands for nothing")
    return character + part[1:]


def _is_odd(character: str) -> bool:
    return character == _ESCAPE or _FIRST_SURROGATE <= ord(character) <= _LAST_SURROGATE


def _needs_escape(text: str) -> bool:
    return not text.isascii() and any(map(_is_odd, text))


def _words(failure: Failure | None) -> Iterable[str]:
    return texts([failure.reason, failure.path, failure.hint]) if failure is not None else ()


def _failure(failure: Failure, change: Any) -> Failure:
    return Failure(
        failure.kind,
        change(failure.reason),
        each(failure.path, change),
        failure.line,
        each(failure.hint, change),
        failure.number,
    )


def _classes() -> dict[str, type[InstallerError]]:
    found: dict[str, type[InstallerError]] = {}
    pending: list[type[InstallerError]] = [InstallerError]
    while pending:
        kind = pending.pop()
        found[kind.__name__] = kind
        pending += kind.__subclasses__()
    return found


def _built(value: Any) -> Any:
    """Return what stands for a value that is none of msgspec's."""
    if isinstance(value, (InstallerError, OSError)):
        return list(msgspec.structs.astuple(failure_of(value)))
    raise NotImplementedError(f"a seam answers a {type(value).__name__}")


def _made(kind: type, value: Any) -> Any:
    """Return a value that is none of msgspec's from what stands for it. Raises NotReadableError, ValueError."""
    if kind is os.stat_result:
        numbers = msgspec.convert(value, tuple[(int,) * len(_FIELDS + _TIMES)])  # type: ignore[misc]
        *plain, rdev = numbers[: len(_FIELDS)]
        times = numbers[len(_FIELDS) :]
        seconds = [time / _SECOND_NS for time in times]
        return os.stat_result(
            [*plain, *(time // _SECOND_NS for time in times)],
            dict(zip(_TIMES, times, strict=True)) | dict(zip(_SECONDS, seconds, strict=True)) | {"st_rdev": rdev},
        )
    if issubclass(kind, InstallerError):
        return error_of(msgspec.convert(value, Failure))
    raise NotReadableError(f"no {kind.__name__} can be read")


_SECONDS: Final = tuple(name.removesuffix("_ns") for name in _TIMES)


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
    if isinstance(value, CompletedProgram):  # a program may print a NUL
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


def _identity(value: FileIdentity) -> bool:
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


def _running(value: RunningContainers) -> bool:
    return all(each is None or 0 <= each < _WORD for each in (value.total, value.ours))


def _driver(value: Driver) -> bool:
    places = (value.root, value.seen_at, value.dev_root, value.dev_seen_at)
    return all(not place or place.startswith("/") for place in places)


_RULES: Final[Mapping[type, Callable[[Any], bool]]] = {
    int: lambda value: -_LONG <= value < _LONG_LONG,
    float: math.isfinite,
    os.stat_result: _status,
    Metadata: _metadata,
    FileIdentity: _identity,
    Found: lambda value: is_path(value.path) and len(value.content) <= CONFIG_LIMIT,
    Process: _process,
    CompletedProgram: lambda value: -_MOST_SIGNAL <= value.status <= _MOST_STATUS,
    OtherInstaller: lambda value: is_pid(value.pid),
    RunningContainers: _running,
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
