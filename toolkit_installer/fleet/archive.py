"""The file of a capture: a node's answers to queries, compressed, in a numbered format. Pure.

A capture comes from somebody else. It contains no names of files to unpack, so that none could lead out of a folder;
its content is decoded by types alone, within limits that are checked first.

The arguments of a query are one line, by which its answer is stored and found.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from toolkit_installer.driver.cdi import SpecificationGenerator
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.fleet.values import CapturedAnswer, RawAnswer
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import Root
from toolkit_installer.settings import ToolkitSettings

SCHEMA: Final = 1
"""The number of the format. A newer one may contain what this program does not know."""
SUFFIX: Final = ".capture"
LONGEST: Final = 16 << 20
"""Bytes of a file; most have a hundredth of it."""
_LONGEST_READ: Final = 96 << 20
"""Bytes of the decompressed content. An engine's file may have four millions, and is captured with its copies."""
_MOST: Final = 200_000
"""Answers. A node with a thousand containers gives a few thousand."""
_MOST_QUERIES: Final = 1000
_MOST_TEXTS: Final = 1000
"""Options, variables, and texts of an option."""
_LONGEST_TEXT: Final = 128 * 1024
"""Characters of an option's text, or a variable's: MAX_ARG_STRLEN (linux/binfmts.h)."""
_LONGEST_NAME: Final = 253
"""Characters of a node's name (RFC 1123, as Kubernetes has it)."""
_MAGIC: Final = b"toolkit-installer capture\n"
_LEVEL: Final = 9
_CHECK: Final = hashlib.sha256
"""The checksum before the compressed text: damage to the last bits of such a text shows in no other way."""
_CHECKED: Final = 32
_AGAIN: Final = "capture the node again"
_HEADS: Final = {0xDE: 2, 0xDF: 4}
"""The first byte of an encoded object, and how many bytes of its length come after it."""
_SHORT: Final = range(0x80, 0x90)
"""The first byte of an object with up to 15 fields, and no other byte of its length."""
_LONGEST_HEAD: Final = 5


_Name = Annotated[str, msgspec.Meta(max_length=_LONGEST_NAME)]
_Text = Annotated[str, msgspec.Meta(max_length=_LONGEST_TEXT)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=_MOST_TEXTS)]
_Some = msgspec.Meta(max_length=_MOST_TEXTS)
_Many = msgspec.Meta(max_length=_MOST)


class Archive(msgspec.Struct, frozen=True):
    """The content of a capture. `answers` are by the query's name, and by its arguments."""

    schema: int
    version: _Name
    """Of the program that made it."""
    node: _Name
    """The node's name."""
    given: Annotated[dict[str, _Texts], _Some]
    """The texts of the options of `capture`, by their names; a replay uses them too."""
    environment: Annotated[dict[str, _Text], _Some]
    """The environment variables of `capture` that stand for options."""
    root: _Text
    programs_root: _Text
    whole: bool
    digests: Annotated[dict[str, str], _Many]
    """Substitutes for the SHA-256 of contents on the node, by the SHA-256 of the masked contents here."""
    unread: Annotated[dict[str, str], _Many]
    """Paths that could not be read, with the reasons."""
    secrets_kept: bool
    answers: dict[str, dict[str, RawAnswer]]
    key: str = ""
    """The name of the key that placeholders and digests were made with; empty if secrets are kept."""


class _Packed(Archive, frozen=True):
    """The same before its answers are decoded: they are counted first."""

    answers: Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=_MOST_QUERIES)]  # type: ignore[assignment]


class _Head(msgspec.Struct, frozen=True):
    """The fields of an archive of any format."""

    schema: int
    version: str = "unknown"


def packed(head: Archive, answers: Mapping[str, Mapping[str, CapturedAnswer]]) -> bytes:
    """Return the file of a capture; the same values make the same bytes. `answers` replace those of `head`."""
    fields = {name: getattr(head, name) for name in head.__struct_fields__}
    body = msgspec.msgpack.encode(fields | {"answers": answers})
    text = zlib.compress(body, _LEVEL)
    return _MAGIC + _CHECK(text).digest() + text


def read(content: bytes, path: str) -> Archive:
    """Return the capture in a file. Raises ConfigurationError with the file and the reason."""
    try:
        return _read(content)
    except _UnusableError as error:
        raise ConfigurationError(error.why, path=path, hint=error.remedy) from error


_ANSWERS: Final = msgspec.msgpack.Decoder(dict[str, RawAnswer])


class _UnusableError(Exception):
    """A file that is no capture, or an unusable one."""

    def __init__(self, why: str, remedy: str = _AGAIN) -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


def _read(content: bytes) -> Archive:
    if not content.startswith(_MAGIC):
        raise _UnusableError("is no capture of toolkit-installer", "name files that `toolkit-installer capture` made")
    body = _decompressed(content[len(_MAGIC) :])
    try:
        head = msgspec.msgpack.decode(body, type=_Head)
        if head.schema > SCHEMA:
            version = head.version[:40]
            raise _UnusableError(
                f"has the form {head.schema}, of toolkit-installer {version!r}: this one knows none after {SCHEMA}",
                "replay it with that version, or a newer one",
            )
        if head.schema < 1:
            raise _UnusableError(f"has the form {head.schema}, which there never was")
        found = msgspec.msgpack.decode(body, type=_Packed)
        count = sum(map(_length, found.answers.values()))
        if count > _MOST:
            raise _UnusableError(f"has {count} answers, and no node gives more than {_MOST}")
        answers = {name: _ANSWERS.decode(packed) for name, packed in found.answers.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnusableError(f"is damaged: {error}") from error
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    if any("\0" in text for text in _list_settings(found)):
        raise _UnusableError("is damaged: one of its options, or its name, has a NUL")
    return Archive(**{**fields, "answers": answers})


def _list_settings(found: Archive) -> Iterator[str]:
    """Yield the texts on which a plan for the node depends."""
    yield from (found.node, found.root, found.programs_root, *found.environment, *found.environment.values())
    for name, texts in found.given.items():
        yield from (name, *texts)


def _length(packed: msgspec.Raw) -> int:
    """Return how many fields an encoded object has, by its first bytes (the specification of MessagePack, map)."""
    text = bytes(memoryview(packed)[:_LONGEST_HEAD])
    if text[0] in _SHORT:
        return text[0] - _SHORT[0]
    if text[0] in _HEADS:
        return int.from_bytes(text[1 : 1 + _HEADS[text[0]]], "big")
    raise _UnusableError("is damaged: its answers are no object")


def _decompressed(checked: bytes) -> bytes:
    digest, text = checked[:_CHECKED], checked[_CHECKED:]
    if _CHECK(text).digest() != digest:
        raise _UnusableError("is damaged: it is not as it was written")
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(text, _LONGEST_READ + 1)
    except zlib.error as error:
        raise _UnusableError(f"is damaged: {error}") from error
    if len(body) > _LONGEST_READ:
        raise _UnusableError(f"has more than {_LONGEST_READ} bytes in it, and no node gives as many")
    if not reader.eof or reader.unused_data:
        raise _UnusableError("is damaged: it does not end where its text does")
    return body


_BETWEEN: Final = "\x1f"
_WITHIN: Final = "\x1e"
_OPEN_FILE: Final = rb"(?<=/self/fd/)[0-9]+"


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content as it is here, also inside a replay."""
    return hashlib.sha256(content).hexdigest()


def make_line(arguments: list[Any]) -> str:
    """Return the line for the arguments of a query. Raises TypeError for an argument that no query has."""
    return _BETWEEN.join(map(_word, arguments))


def split_line(line: str) -> list[str]:
    """Return the arguments in a line, as texts."""
    return line.split(_BETWEEN)


def describe_line(name: str, line: str) -> str:
    """Return a query and its arguments in words."""
    words = ", ".join(part.replace(_WITHIN, " ") for part in split_line(line) if part)
    return f"{name} of {words}" if words else name


class ProgramRun(msgspec.Struct, frozen=True):
    """A program run: its root, its words, its input, and the contents of the files that it inherits.

    The numbers of these files are accidental: each file is identified by its position among them.
    """

    root: str
    words: tuple[str, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, root: str, command: Sequence[str], given: bytes, kept: Mapping[int, bytes]) -> ProgramRun:
        """Return the run of `command` with the input `given`; `kept` are the contents of inherited files, by number."""
        places = {number: index for index, number in enumerate(kept)}

        def named(match: re.Match[bytes]) -> bytes:
            index = places.get(int(match[0]))
            return match[0] if index is None else b"inherited-%d" % index

        words = (re.sub(_OPEN_FILE, named, word.encode(errors="surrogateescape")) for word in command)
        texts = (re.sub(_OPEN_FILE, named, each) for each in (given, *kept.values()))
        return cls(root, tuple(word.decode(errors="surrogateescape") for word in words), tuple(texts))

    @property
    def line(self) -> str:
        """The line of its arguments."""
        return _BETWEEN.join([self.root, _WITHIN.join(self.words), *(sha256(each) for each in self.texts if each)])


_WORDS: Final[tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...]] = (
    (str, str),
    ((type(None), bool, int, float), repr),
    ((bytes, memoryview), lambda value: sha256(bytes(value))),
    (Process, lambda value: str(value.pid)),
    (Root, lambda value: value.folder),
    ((Reader, Programs), lambda value: value.root.folder),
    (Node, lambda value: _WITHIN.join((value.root.folder, value.programs.root.folder, repr(value.whole)))),
    (PathTranslator, lambda value: _word(value.node)),
    (
        ToolkitSettings,
        lambda value: _WITHIN.join(
            (value.driver_root, value.driver_root_ctr_path, value.dev_root, value.dev_root_ctr_path)
        ),
    ),
    (Driver, lambda value: _WITHIN.join((value.root, value.seen_at, value.dev_root, value.dev_seen_at))),
    (SpecificationGenerator, lambda value: value.inputs),
    ((list, tuple), lambda value: _WITHIN.join(map(_word, value))),
    (Collection, lambda value: _WITHIN.join(sorted(map(_word, value)))),
)
"""The text of an argument, by its type; the first matching row counts."""


def _word(value: Any) -> str:
    for kind, written in _WORDS:
        if isinstance(value, kind):
            return written(value)
    raise TypeError(f"a query has an argument of type {type(value).__name__}")
