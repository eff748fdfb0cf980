"""The durable record, kept on the node, of what was changed and what stood there before. Pure: values and bytes."""

from __future__ import annotations

import base64
import copy
import dataclasses
import enum
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from toolkit_installer.engines import registry
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.settings import EngineName, ReloadMode

SCHEMA = 3
FOLDER = ".toolkit-installer"
"""The receipt's folder, beneath the install folder."""
FILE = "receipt.json"
SPECIFICATION_ROLE = "cdi"
"""The role of a CDI specification among the recorded files."""

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def _with_low_level(body: dict[str, Any]) -> dict[str, Any]:
    """Give the engines no low-level runtimes, which schema 1 did not have: the next run looks at them anyway."""
    return body | {"engines": [engine | {"low_level": []} for engine in body["engines"]]}


def _with_specifications(body: dict[str, Any]) -> dict[str, Any]:
    """Give it no CDI specifications, which schema 2 did not have, as nobody wrote any."""
    return body | {"specifications": []}


MIGRATIONS: Mapping[int, Migration] = {1: _with_low_level, 2: _with_specifications}
"""How a receipt of a schema becomes one of the next: schema n to a pure function of its body. Schema 1 was the first.

Whoever raises SCHEMA enters the step from the one before; the result is checked like any other receipt."""

_NO_ID = 2**32 - 1
"""The user id that means none (chown(2)): every real one is below it."""
_LONGEST_LIST = 10_000
"""Far more than a receipt has of anything: each element is looked at on the node."""
_PATH_LIMIT = 4096
"""Bytes of a path, its NUL included, that the kernel takes (PATH_MAX of linux/limits.h)."""
_SHOWN = 100
"""Characters of a wrong value that are shown."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or _SURROGATE.search(value):
        raise TypeError(f"{str(value)[:_SHOWN]!r} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NO_ID:
        raise TypeError(f"{value!r} is no number")
    return value


def _mode(value: Any) -> int:
    return _number(value) & 0o7777


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _LONGEST_LIST:
        raise TypeError(f"{str(value)[:_SHOWN]!r} is no list of a receipt")
    return value


def _sha256(value: Any) -> str:
    if not _SHA256.match(_text(value)):
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


_Absolute = Annotated[str, _absolute]
_Relative = Annotated[str, _relative]
_Sha256 = Annotated[str, _sha256]
_Number = Annotated[int, _number]
"""What a field holds, and how it is read: the classes below are the receipt's schema."""


class State(enum.StrEnum):
    """How far a change has come. APPLYING and REVERTING outlive only a run that was killed."""

    APPLYING = "applying"
    INSTALLED = "installed"
    REVERTING = "reverting"


@dataclasses.dataclass(frozen=True)
class Before:
    """A file as it was before us. Its content is kept beside the receipt under `sha256`."""

    sha256: _Sha256
    mode: Annotated[int, _mode]
    uid: _Number
    gid: _Number
    xattrs: tuple[tuple[str, bytes], ...] = ()


@dataclasses.dataclass(frozen=True)
class OwnedKey:
    """A value of ours in a file, in the syntax of that file; `prior` is None where nothing stood there."""

    path: tuple[str, ...]
    ours: str
    prior: str | None
    item: bool = False


@dataclasses.dataclass(frozen=True)
class FileRecord:
    """An engine's file, or a CDI specification.

    `written`: SHA-256 of every content of ours that may stand there, docker's transitional too.
    """

    role: str
    path: _Absolute
    before: Before | None
    written: tuple[_Sha256, ...]
    keys: tuple[OwnedKey, ...] = ()
    created: tuple[OwnedKey, ...] = ()


@dataclasses.dataclass(frozen=True)
class EngineRecord:
    """An engine that was configured."""

    name: EngineName
    socket: _Absolute
    reload: ReloadMode | None
    """As it was asked for; None: as is usual for the engine, decided each time."""
    handlers: tuple[tuple[str, _Absolute], ...]
    default: str | None
    files: tuple[FileRecord, ...]
    low_level: tuple[str, ...] = ()
    """What the engine itself runs containers with, the default runtime's first: paths, or names to find in PATH."""
    reload_due: bool = False
    """The files were changed, and the engine has not been seen with the change yet."""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What this installer did to the node."""

    state: State
    installer: str
    toolkit_folder: _Absolute
    toolkit_files: tuple[_Relative, ...]
    """Names relative to the toolkit folder."""
    folders: tuple[_Absolute, ...]
    """Folders that were created, outermost first."""
    pid_file: _Absolute
    """The PID file of the run that wrote this: whoever holds it is to be asked to leave."""
    pid_folders: tuple[_Absolute, ...]
    """Folders that were created for the PID file, outermost first: they go when it goes."""
    engines: tuple[EngineRecord, ...]
    specifications: tuple[FileRecord, ...] = ()
    """CDI specifications, ours as a whole."""

    def engine(self, name: EngineName) -> EngineRecord | None:
        """Return the record of an engine, None if it has none."""
        return next((engine for engine in self.engines if engine.name == name), None)

    def files(self) -> list[FileRecord]:
        """Return the managed files: the engines', and the specifications."""
        return [*(file for engine in self.engines for file in engine.files), *self.specifications]

    def file_paths(self) -> list[str]:
        """Return where the managed files are."""
        return [file.path for file in self.files()]


def encode(receipt: Receipt) -> bytes:
    """Return the receipt as JSON text."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        raise TypeError(type(value).__name__)

    body = {"schema": SCHEMA, **dataclasses.asdict(receipt)}
    return (json.dumps(body, indent=2, default=plain) + "\n").encode()


def decode(content: bytes) -> Receipt:
    """Return the receipt in `content`, every field checked: it decides what root writes where.

    Raises ConfigurationError for damage, and for a schema that a newer installer wrote.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(f"is no JSON ({error})") from error
    if not isinstance(body, dict) or type(body.get("schema")) is not int or body["schema"] < 1:
        raise damaged("has no schema number")
    if body["schema"] > SCHEMA:
        raise ConfigurationError(
            f"the receipt was written by a newer installer (schema {body['schema']}, this one knows {SCHEMA})",
            hint="use that installer, or a newer one; nothing was touched",
        )
    try:
        receipt: Receipt = _reader(Receipt)(migrated(body, MIGRATIONS, SCHEMA))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(f"has a field that is missing or wrong: {error}") from error
    return receipt


def check(content: bytes, receipt: Receipt) -> None:
    """Raise ConfigurationError unless `content` reads back as `receipt`: a later run could do nothing with it."""
    try:
        same = decode(content) == receipt
    except ConfigurationError as error:
        raise ConfigurationError(f"could not be written so that it can be read again: {error}") from error
    if not same:
        raise ConfigurationError("could not be written so that it can be read again: it would say something else")


def migrated(body: dict[str, Any], steps: Mapping[int, Migration], schema: int) -> dict[str, Any]:
    """Return the body brought to `schema`, step by step; the argument is left alone. Raises KeyError without a step."""
    body = copy.deepcopy(body)
    for number in range(body["schema"], schema):
        body = steps[number](body) | {"schema": number + 1}
    return body


def damaged(what: str) -> ConfigurationError:
    """Return the error that says what is wrong with the receipt, and what to do about it."""
    return ConfigurationError(
        f"the receipt {what}",
        hint="look at who changed it; then move it away and run `uninstall`, with the run's --runtime and --config, if "
        "it had them: what lies in the toolkit folder is recognised without it",
    )


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return what reads a field of this type from a value of JSON. It raises KeyError, TypeError, ValueError."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        read: Callable[[Any], Any] = inner[1]
        return read
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = {name: _reader(hint) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
        return lambda value: kind(**{name: read(value[name]) for name, read in fields.items()})
    readers = [_reader(each) for each in inner if each is not ...]
    if origin is types.UnionType:
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
