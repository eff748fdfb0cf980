"""Answers to queries as values that a file can hold, and back, by the types that the query functions return.

An answer may be an error as well: the program's own errors by their class, and those of the system. A file names
classes of errors only, and only existing ones: nothing that it names is imported or called.

Decoding checks the types of answers; the ranges here refuse values that no node gives.
"""

from __future__ import annotations

import enum
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.node.queries import are_user_ids, is_canonical, is_pid, is_time
from toolkit_installer.node.reading import CONFIG_LIMIT, FileIdentity, Found, Metadata, fits_config
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


class CapturedError(msgspec.Struct, frozen=True, array_like=True):
    """An error: the name of its class, and its fields."""

    kind: str
    reason: str = ""
    path: str | None = None
    line: int | None = None
    hint: str | None = None
    number: int = 0


class CapturedAnswer(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The answer to a query: a value or an error. `escaped`: its texts contain escapes (`escape`)."""

    value: Any = None
    failure: CapturedError | None = None
    escaped: bool = False


class RawAnswer(msgspec.Struct, frozen=True, array_like=True):
    """An answer as read from a file: its value is decoded when it is needed."""

    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: CapturedError | None = None
    escaped: bool = False


class NotReadableError(Exception):
    """A file contains no value of the type that a query returns."""


def encode_error(error: InstallerError | OSError) -> CapturedError:
    """Return an error as a value that a file can hold."""
    if isinstance(error, InstallerError):
        number = getattr(error, "number", 0)
        return CapturedError(type(error).__name__, error.reason, error.path, error.line, error.hint, number)
    path = error.filename if isinstance(error.filename, str) else None
    return CapturedError(_SYSTEM, error.strerror or str(error), path, number=error.errno or 0)


def decode_error(failure: CapturedError) -> InstallerError | OSError:
    """Return the error that was encoded. Raises NotReadableError for an unknown class or a field out of range."""
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
    except TypeError as wrong:  # its constructor takes other arguments: no query raises it
        raise NotReadableError(f"no node answers the error {failure.kind}") from wrong
    if failure.number:
        vars(error)["number"] = failure.number
    return error


def encode(value: Any) -> Any:
    """Return a value as objects, arrays, texts, bytes and numbers."""
    if isinstance(value, os.stat_result):  # a tuple, which would lose the nanoseconds
        return [getattr(value, name) for name in (*_FIELDS, *_TIMES)]
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_encode_hook)


def _convert(value: Any, kind: Any) -> Any:
    """Return the value as one of that type. Raises NotReadableError."""
    try:
        return msgspec.convert(value, kind, builtin_types=(bytes,), dec_hook=_decode_hook)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise NotReadableError(str(error)) from error


def decode(raw: RawAnswer, kind: Any) -> Any:
    """Return the answer, of that type, or raise the error that it is. Raises NotReadableError."""
    if raw.failure is not None:
        raise decode_error(raw.failure if not raw.escaped else _map_error(raw.failure, unescape))
    try:
        if raw.escaped:
            value = _convert(map_texts(msgspec.msgpack.decode(raw.value), unescape), kind)
        else:
            value = msgspec.msgpack.decode(raw.value, type=kind, dec_hook=_decode_hook)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise NotReadableError(str(error)) from error
    if (why := find_fault(value)) is not None:
        raise NotReadableError(f"{why}, which no node answers")
    return value


def escape_answer(answer: CapturedAnswer) -> CapturedAnswer:
    """Return an answer with its texts escaped, if a file cannot hold them as they are."""
    if not any(map(_needs_escape, _iterate_texts(answer.value))) and not any(
        map(_needs_escape, _words(answer.failure))
    ):
        return answer
    failure = None if answer.failure is None else _map_error(answer.failure, escape)
    return CapturedAnswer(map_texts(answer.value, escape), failure, escaped=True)


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, the names of its fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iterate_texts(key)
            yield from _iterate_texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_texts(item)


def map_texts(value: Any, change: Any) -> Any:
    """Return a value with `change` applied to every text, the names of its fields included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_texts(key, change): map_texts(item, change) for key, item in value.items()}
    return [map_texts(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def escape(text: str) -> str:
    """Return a text with its lone surrogates escaped."""
    if not _needs_escape(text):
        return text
    return "".join(_ESCAPE + chr(ord(each) - _FIRST_SURROGATE) if _is_odd(each) else each for each in text)


def unescape(text: str) -> str:
    """Return the text that was escaped. Raises NotReadableError for an escape that stands for nothing."""
    first, *rest = text.split(_ESCAPE)
    return first + "".join(map(_unescape_part, rest))


def _unescape_part(part: str) -> str:
    character = chr(ord(part[0]) + _FIRST_SURROGATE) if part and ord(part[0]) < _FIRST_SURROGATE else ""
    if not character or not _is_odd(character):
        raise NotReadableError("a text with an escape that stands for nothing")
    return character + part[1:]


def _is_odd(character: str) -> bool:
    return character == _ESCAPE or _FIRST_SURROGATE <= ord(character) <= _LAST_SURROGATE


def _needs_escape(text: str) -> bool:
    return not text.isascii() and any(map(_is_odd, text))


def _words(failure: CapturedError | None) -> Iterable[str]:
    return _iterate_texts([failure.reason, failure.path, failure.hint]) if failure is not None else ()


def _map_error(failure: CapturedError, change: Any) -> CapturedError:
    return CapturedError(
        failure.kind,
        change(failure.reason),
        map_texts(failure.path, change),
        failure.line,
        map_texts(failure.hint, change),
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


def _encode_hook(value: Any) -> Any:
    """Return the encoded form of a value of a type that msgspec does not know."""
    if isinstance(value, (InstallerError, OSError)):
        return list(msgspec.structs.astuple(encode_error(value)))
    raise NotImplementedError(f"a query returns a {type(value).__name__}")


def _decode_hook(kind: type, value: Any) -> Any:
    """Return the value of a type that msgspec does not know. Raises NotReadableError, ValueError."""
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
        return decode_error(msgspec.convert(value, CapturedError))
    raise NotReadableError(f"no {kind.__name__} can be read")


_SECONDS: Final = tuple(name.removesuffix("_ns") for name in _TIMES)


_MOST_VALUES: Final = 200_000
"""In one answer. A folder of the node may have many names; nothing else comes near."""
_DEEPEST: Final = 100
"""Levels of objects and arrays in an answer; an engine's have ten."""
_MOST_STATUS: Final = 255
_MOST_SIGNAL: Final = 64
_WORD, _LONG, _LONG_LONG = 1 << 32, 1 << 63, 1 << 64
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


def find_fault(value: Any) -> str | None:
    """Return why no node gives this answer, None if a node can give it."""
    pending = [(value, 0)]
    count = 0
    while pending:
        item, depth = pending.pop()
        count += 1
        if count > _MOST_VALUES:
            return f"an answer of more than {_MOST_VALUES} values"
        if depth > _DEEPEST:
            return f"an answer of more than {_DEEPEST} levels"
        if (why := _find_own_fault(item)) is not None:
            return why
        pending.extend((each, depth + 1) for each in _list_parts(item))
    return None


def _find_own_fault(value: Any) -> str | None:
    """Return why no node gives this value, regardless of the values in it."""
    if isinstance(value, str):
        return "a text with a NUL" if "\0" in value else None
    rule = _RULES.get(type(value))
    if rule is not None:
        return None if rule(value) else f"a {type(value).__name__} out of range"
    return None if isinstance(value, _PLAIN) else f"a {type(value).__name__}"


def _list_parts(value: Any) -> Iterable[Any]:
    if isinstance(value, CompletedProgram):  # a program may print a NUL
        return ()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.astuple(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    # the numbers of a status are checked together
    return value if isinstance(value, (list, tuple, set, frozenset)) and type(value) is not os.stat_result else ()


# --- ranges of types ---


def _status(value: os.stat_result) -> bool:
    return (
        0 <= value.st_mode <= _MOST_MODE
        and stat.S_IFMT(value.st_mode) in _KINDS
        and are_user_ids((value.st_uid, value.st_gid))
        and all(0 <= each < _LONG_LONG for each in (value.st_dev, value.st_ino, value.st_nlink, value.st_rdev))
        and 0 <= value.st_size < _LONG
        and _times(value.st_atime_ns, value.st_mtime_ns, value.st_ctime_ns)
    )


def _metadata(value: Metadata) -> bool:
    return 0 <= value.mode <= _MOST_BITS and are_user_ids((value.uid, value.gid))


def _identity(value: FileIdentity) -> bool:
    return (
        all(0 <= each < _LONG_LONG for each in (value.device, value.inode))
        and 0 <= value.size < _LONG
        and _times(value.mtime_ns, value.ctime_ns)
    )


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
    Found: lambda value: is_canonical(value.path) and fits_config(value.content),
    Process: _process,
    CompletedProgram: lambda value: -_MOST_SIGNAL <= value.status <= _MOST_STATUS,
    OtherInstaller: lambda value: is_pid(value.pid),
    RunningContainers: _running,
    Naming: lambda value: 1 <= value.line <= CONFIG_LIMIT,
    Driver: _driver,
}
