"""How the receipt's fields are read from JSON: each checked, as they decide what root writes where. Pure.

The durable record, kept on the node, of what was changed and what stood there before. Pure: values and bytes.
"""

from __future__ import annotations

import base64
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from toolkit_installer.documents import changes
from toolkit_installer.engines import registry
from toolkit_installer.engines.registry import SWITCHES
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.toolkit.payload import library_release

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


SCHEMA = 5
FOLDER = ".toolkit-installer"
"""The receipt's folder, beneath the install folder."""
FILE = "receipt.json"
SPECIFICATION_ROLE = "cdi"
"""The role of a CDI specification among the recorded files."""

AS_WRITTEN = "as written"
AS_BEFORE = "as it was before"
"""How a managed file stands that only this installer has changed (`file_records.describe_state`)."""


class State(enum.StrEnum):
    """How far a change has come. APPLYING and REVERTING outlive only a run that was killed."""

    APPLYING = "applying"
    INSTALLED = "installed"
    REVERTING = "reverting"


class OriginalFile(msgspec.Struct, frozen=True):
    """A file as it was before us. Its content is kept beside the receipt under `sha256`."""

    sha256: Sha256
    mode: Annotated[int, mode]
    uid: Number
    gid: Number
    xattrs: tuple[tuple[str, bytes], ...] = ()


class OwnedKey(msgspec.Struct, frozen=True):
    """A value of ours in a file, in the syntax of that file; `prior` is None where nothing stood there."""

    path: tuple[str, ...]
    ours: str
    prior: str | None
    item: bool = False


class FileRecord(msgspec.Struct, frozen=True):
    """An engine's file, or a CDI specification."""

    role: str
    path: Absolute
    before: OriginalFile | None
    written: tuple[Sha256, ...]
    """SHA-256 of every content of ours that may stand there, docker's transitional too."""
    keys: tuple[OwnedKey, ...] = ()
    created: tuple[OwnedKey, ...] = ()
    first: OriginalFile | None = None
    """The file as it was before the first run, where somebody has changed it since and `before` is that by now."""

    @property
    def known(self) -> frozenset[str]:
        """SHA-256 of all contents that a run may have put there: ours, and what stood there before."""
        return frozenset({*self.written, *([self.before.sha256] if self.before is not None else [])})

    def is_ours(self, content: bytes) -> bool:
        """Tell whether a content is ours, and not what stood there before as well."""
        digest = changes.sha256(content)
        return digest in self.written and (self.before is None or self.before.sha256 != digest)


class EngineRecord(msgspec.Struct, frozen=True):
    """An engine that was configured."""

    name: EngineName
    socket: Absolute
    reload: ReloadMode | None
    """As it was asked for; None: as is usual for the engine, decided each time."""
    handlers: tuple[tuple[str, Absolute], ...]
    default: str | None
    files: tuple[FileRecord, ...]
    low_level: tuple[str, ...] = ()
    """What the engine itself runs containers with, the default runtime's first: paths, or names to find in PATH."""
    defaults: tuple[tuple[str, str], ...] = ()
    """The default runtimes that its files named before us, by role: also of files that are not edited."""
    reload_due: bool = False
    """The files were changed, and the engine has not been seen with the change yet."""
    unread_by: tuple[int, int] | None = None
    """The engine's process when they were changed: its PID, and the clock ticks from the boot to its start."""

    @property
    def switches_cdi(self) -> bool:
        """Whether it is an edit of ours that switches CDI on in it."""
        return any(key.path[-1:] and key.path[-1] in SWITCHES for file in self.files for key in file.keys)


class Copy(msgspec.Struct, frozen=True):
    """A file of the toolkit that holds what a file of the payload holds, as long as both have these stamps."""

    name: Relative
    """Relative to the toolkit folder."""
    source: str
    """The payload's file, beneath the payload's root."""
    stamp: str
    """Size in bytes, mtime and ctime in nanoseconds since 1970, inode (`FileIdentity.stamp`)."""
    source_stamp: str


class Content(msgspec.Struct, frozen=True):
    """What a file of the toolkit was when it was put in place, to tell whether it still is."""

    name: Relative
    """Relative to the toolkit folder."""
    mode: Annotated[int, mode]
    """Permission bits; of no meaning for a symlink."""
    sha256: Sha256 | None = None
    """Of a generated file. A copy has none: its stamps, and the payload, say what it holds."""
    link: str | None = None
    """What a symlink says."""
    recipe: Sha256 | None = None
    """What a content that took its time was made of (`ToolkitFile.recipe`)."""


class Receipt(msgspec.Struct, frozen=True):
    """What this installer did to the node."""

    state: State
    installer: str
    toolkit_folder: Absolute
    toolkit_files: tuple[Relative, ...]
    """Names relative to the toolkit folder."""
    folders: tuple[Absolute, ...]
    """Folders that were created, outermost first."""
    pid_file: Absolute
    """The PID file of the run that wrote this: whoever holds it is to be asked to leave."""
    pid_folders: tuple[Absolute, ...]
    """Folders that were created for the PID file, outermost first: they go when it goes."""
    engines: tuple[EngineRecord, ...]
    specifications: tuple[FileRecord, ...] = ()
    """CDI specifications, ours as a whole."""
    copies: tuple[Copy, ...] = ()
    """The files that need not be read to know that they are right."""
    contents: tuple[Content, ...] = ()
    """The toolkit's files as they were put in place."""
    cdi: tuple[EngineRecord, ...] = ()
    """The engines whose containers get the GPU by CDI, without handlers and files; none where handlers are the method.

    One whose file had to be changed for it is among `engines`, too."""
    cdi_switched: tuple[EngineName, ...] = ()
    """The engines in which we switched CDI on by an edit that is going or gone, and that may not have read that yet.

    A run after one that was killed knows by it that CDI being on is ours, and not the engine's own."""
    method_why: str = ""
    """Why this method, where it was chosen for the node and not asked for by name."""
    taken_over: tuple[str, ...] = ()
    """What another installer had left that this one replaced, in words, with its place: cleanup restores none of it."""

    def engine(self, name: EngineName) -> EngineRecord | None:
        """Return the record of an engine, None if it has none."""
        return next((engine for engine in self.engines if engine.name == name), None)

    def served_engines(self) -> list[EngineRecord]:
        """Return the engines that should serve: those with handlers, and those that read CDI specifications."""
        return [*self.engines, *(each for each in self.cdi if self.engine(each.name) is None)]

    def reads_cdi(self, name: EngineName) -> bool:
        """Tell whether an engine's containers get the GPU by CDI."""
        return any(each.name == name for each in self.cdi)

    def has_switched_cdi(self, name: EngineName) -> bool:
        """Tell whether CDI is, or may still be, on in an engine by an edit of ours."""
        return name in self.cdi_switched or any(each.name == name and each.switches_cdi for each in self.engines)

    def files(self) -> list[FileRecord]:
        """Return the managed files: the engines', and the specifications."""
        return [*(file for engine in self.engines for file in engine.files), *self.specifications]

    @property
    def release(self) -> str | None:
        """The installed toolkit's release: NVIDIA gives its library the same, and the file is named after it."""
        return library_release(self.toolkit_files)

    def originals(self) -> frozenset[str]:
        """Return the SHA-256 of the copies that are kept beside the receipt."""
        kept = (each for file in self.files() for each in (file.before, file.first))
        return frozenset(each.sha256 for each in kept if each is not None)

    def file_paths(self) -> list[str]:
        """Return where the managed files are."""
        return [file.path for file in self.files()]


def encode(receipt: Receipt) -> bytes:
    """Return the receipt as JSON text."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return msgspec.structs.asdict(value)

    body = {"schema": SCHEMA, **msgspec.structs.asdict(receipt)}
    return (json.dumps(body, indent=2, default=plain) + "\n").encode()


def decode(content: bytes) -> Receipt:
    """Return the receipt in `content`, every field checked: it decides what root writes where.

    Raises ConfigurationError for damage, and for another schema than this release writes.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise damaged(f"is no JSON ({error})") from error
    if not isinstance(body, dict) or type(body.get("schema")) is not int:
        raise damaged("has no schema number")
    if body["schema"] != SCHEMA:
        raise ConfigurationError(
            f"the receipt was written by another release of the installer (schema {body['schema']}, this one knows "
            f"{SCHEMA})",
            hint="use that release; nothing was touched",
        )
    try:
        receipt: Receipt = reader_of(Receipt)(body)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(f"has a field that is missing or wrong: {error}") from error
    return receipt


def require_readable(content: bytes, receipt: Receipt) -> None:
    """Raise ConfigurationError unless `content` reads back as `receipt`: a later run could do nothing with it."""
    try:
        same = decode(content) == receipt
    except ConfigurationError as error:
        raise ConfigurationError(f"could not be written so that it can be read again: {error}") from error
    if not same:
        raise ConfigurationError("could not be written so that it can be read again: it would say something else")


def damaged(what: str) -> ConfigurationError:
    """Return the error that says what is wrong with the receipt, and what to do about it."""
    return ConfigurationError(
        f"the receipt {what}",
        hint="look at who changed it; then move it away and run `uninstall`, with the run's --runtime and --config, if "
        "it had them: what lies in the toolkit folder is recognised without it",
    )
