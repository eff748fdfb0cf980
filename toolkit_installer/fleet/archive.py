"""A capture as one file: what was asked of a node and answered, compressed, in a form with a number. Pure.

Whoever reads one has it from somebody else. It has no names of files to unpack, so that there is nowhere that one could
lead; what it says is read by its form alone, and has limits before anything is made of it.

What was asked at a seam, in one line: by it an answer is kept, and found again. Pure.
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
from toolkit_installer.fleet.values import Answer, RawAnswer
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import Root
from toolkit_installer.settings import ToolkitSettings

SCHEMA: Final = 1
"""The form's number. A newer one may mean what this program does not know."""
SUFFIX: Final = ".capture"
LONGEST: Final = 16 << 20
"""Bytes of a file; most have a hundredth of it."""
_LONGEST_READ: Final = 96 << 20
"""Bytes of what is in it. An engine's file may have four millions of them, and is kept with its copies."""
_MOST: Final = 200_000
"""Answers. A node with a thousand containers gives a few thousand."""
_MOST_SEAMS: Final = 1000
_MOST_TEXTS: Final = 1000
"""Options, variables, and texts of an option."""
_LONGEST_TEXT: Final = 128 * 1024
"""Characters of an option's text, or a variable's: MAX_ARG_STRLEN (linux/binfmts.h)."""
_LONGEST_NAME: Final = 253
"""Characters of a node's name (RFC 1123, as Kubernetes has it)."""
_MAGIC: Final = b"toolkit-installer capture\n"
_LEVEL: Final = 9
_CHECK: Final = hashlib.sha256
"""What stands before the compressed text, and tells whether it is whole: the last bits of such a text say nothing."""
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
    """What a capture has. `answers`: by the seam, and by what was asked there."""

    schema: int
    version: _Name
    """Of the program that made it."""
    node: _Name
    """What the node is called."""
    given: Annotated[dict[str, _Texts], _Some]
    """The texts of the options that the capture was given, by their names; what is replayed has them too."""
    environment: Annotated[dict[str, _Text], _Some]
    """The variables that it was given, of those that stand for options."""
    root: _Text
    programs_root: _Text
    whole: bool
    digests: Annotated[dict[str, str], _Many]
    """What stands for the SHA-256 of contents as they are on the node, by that of what stands for the contents here."""
    unread: Annotated[dict[str, str], _Many]
    """What could not be read, and why."""
    secrets_kept: bool
    answers: dict[str, dict[str, RawAnswer]]
    key: str = ""
    """What the key is called that stand-ins and digests were made with; empty where secrets are kept."""


class _Packed(Archive, frozen=True):
    """The same before its answers are decoded: how many there are is looked at first."""

    answers: Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=_MOST_SEAMS)]  # type: ignore[assignment]


class _Written(msgspec.Struct, frozen=True):
    """The fields of an archive that is written."""

    head: Archive
    answers: Mapping[str, Mapping[str, Answer]]


class _Head(msgspec.Struct, frozen=True):
    """What an archive of any form has."""

    schema: int
    version: str = "unknown"


def packed(head: Archive, answers: Mapping[str, Mapping[str, Answer]]) -> bytes:
    """Return the file of a capture; the same values make the same bytes. `answers` are what `head` has none of."""
    fields = {name: getattr(head, name) for name in head.__struct_fields__}
    body = msgspec.msgpack.encode(fields | {"answers": answers})
    text = zlib.compress(body, _LEVEL)
    return _MAGIC + _CHECK(text).digest() + text


def read(content: bytes, path: str) -> Archive:
    """Return the capture that a file holds. Raises ConfigurationError, with the file and the reason."""
    try:
        return _read(content)
    except _UnusableError as error:
        raise ConfigurationError(error.why, path=path, hint=error.remedy) from error


_ANSWERS: Final = msgspec.msgpack.Decoder(dict[str, RawAnswer])


class _UnusableError(Exception):
    """A file that is no capture, or one that cannot be used."""

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
        answers = {seam: _ANSWERS.decode(packed) for seam, packed in found.answers.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _UnusableError(f"is damaged: {error}") from error
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    if any("\0" in text for text in _told(found)):
        raise _UnusableError("is damaged: one of its options, or its name, has a NUL")
    return Archive(**{**fields, "answers": answers})


def _told(found: Archive) -> Iterator[str]:
    """Yield the texts that say how a node is planned for."""
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
    """Return the SHA-256 of a content as it is asked with: not what a player says that it is on the node."""
    return hashlib.sha256(content).hexdigest()


def line(arguments: list[Any]) -> str:
    """Return what tells one question at a seam from another. Raises TypeError for what no seam is asked."""
    return _BETWEEN.join(map(_word, arguments))


def parts(asked: str) -> list[str]:
    """Return the arguments in a line, as they are written there."""
    return asked.split(_BETWEEN)


def shown(name: str, asked: str) -> str:
    """Return in words what was asked, for people."""
    said = ", ".join(part.replace(_WITHIN, " ") for part in parts(asked) if part)
    return f"{name} of {said}" if said else name


class Run(msgspec.Struct, frozen=True):
    """A program that is run: its root, its words, its input, and what is in the files that it inherits.

    Their numbers are whatever was free: each is known by its place among them.
    """

    root: str
    words: tuple[str, ...]
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, root: str, command: Sequence[str], given: bytes, kept: Mapping[int, bytes]) -> Run:
        """`kept`: what is in the files that it inherits, by their numbers."""
        places = {number: index for index, number in enumerate(kept)}

        def named(match: re.Match[bytes]) -> bytes:
            index = places.get(int(match[0]))
            return match[0] if index is None else b"inherited-%d" % index

        words = (re.sub(_OPEN_FILE, named, word.encode(errors="surrogateescape")) for word in command)
        texts = (re.sub(_OPEN_FILE, named, each) for each in (given, *kept.values()))
        return cls(root, tuple(word.decode(errors="surrogateescape") for word in words), tuple(texts))

    @property
    def line(self) -> str:
        """What tells it from others."""
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
    (SpecificationGenerator, lambda value: value.asked),
    ((list, tuple), lambda value: _WITHIN.join(map(_word, value))),
    (Collection, lambda value: _WITHIN.join(sorted(map(_word, value)))),
)
"""How what a seam is asked with is written, by its type; the first that fits counts."""


def _word(value: Any) -> str:
    for kind, written in _WORDS:
        if isinstance(value, kind):
            return written(value)
    raise TypeError(f"a seam is asked with a {type(value).__name__}")
