"""How the receipt's fields are read from JSON: each checked, as they decide what root writes where. Pure."""

from __future__ import annotations

import base64
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.settings import EngineName

_NO_ID = 2**32 - 1
"""The user id that means none (chown(2)): every real one is below it."""
_LONGEST_LIST = 10_000
"""Far more than a receipt has of anything: each element is looked at on the node."""
_PATH_LIMIT = 4096
"""Bytes of a path, its NUL included, that the kernel takes (PATH_MAX of linux/limits.h)."""
_SHOWN = 100
"""Characters of a wrong value that are shown."""
_DIGITS = "0123456789abcdef"
_SHA256_DIGITS = 64


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not (value.isascii() or _is_unicode(value)):
        raise TypeError(f"{str(value)[:_SHOWN]!r} is no text")
    return value


def _is_unicode(value: str) -> bool:
    """Tell whether a text can be written as UTF-8: JSON names halves of characters, and Python reads them."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NO_ID:
        raise TypeError(f"{value!r} is no number")
    return value


def mode(value: Any) -> int:
    """Return the permission bits of a number. Raises TypeError."""
    return _number(value) & 0o7777


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _LONGEST_LIST:
        raise TypeError(f"{str(value)[:_SHOWN]!r} is no list of a receipt")
    return value


def _sha256(value: Any) -> str:
    if len(_text(value)) != _SHA256_DIGITS or value.strip(_DIGITS):
        raise ValueError(f"{value[:_SHOWN]!r} is no SHA-256")
    return str(value)


def _absolute(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/") or ".." in text.split("/") or len(text) >= _PATH_LIMIT:
        raise ValueError(f"{text[:_SHOWN]!r} is no absolute path")
    return text


def _relative(value: Any) -> str:
    text = _text(value)
    if not text or text.startswith("/") or ".." in text.split("/"):
        raise ValueError(f"{text[:_SHOWN]!r} is no name beneath the toolkit folder")
    return text


Absolute = Annotated[str, _absolute]
Relative = Annotated[str, _relative]
Sha256 = Annotated[str, _sha256]
Number = Annotated[int, _number]
"""What a field of the receipt holds, and how it is read."""


@functools.cache
def reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return what reads a field of this type from a value of JSON. It raises KeyError, TypeError, ValueError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        read: Callable[[Any], Any] = inner[1]
        return read
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {name: reader_of(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
        return lambda value: kind(**{name: read(value[name]) for name, read in fields.items()})
    readers = [reader_of(each) for each in inner if each is not ...]
    if origin in (types.UnionType, typing.Union):  # the latter, where one of the two is Annotated
        return lambda value: None if value is None else readers[0](value)
    if origin is tuple and inner[-1] is ...:
        return lambda value: tuple(map(readers[0], _list(value)))
    if origin is tuple:
        return lambda value: tuple(read(each) for read, each in zip(readers, value, strict=True))
    return _SIMPLE.get(kind, kind)


def _engine_name(value: Any) -> EngineName:
    if value not in registry.names():
        raise ValueError(f"{value!r} is not a valid EngineName")
    return EngineName(value)


_SIMPLE: Mapping[type, Callable[[Any], Any]] = {
    str: _text,
    bool: lambda value: value is True,
    EngineName: _engine_name,
    bytes: lambda value: base64.b64decode(_text(value), validate=True),
}
"""The readers of what any field may hold; an enumeration reads its own."""
