"""A file that is called a capture may be anybody's: it is used whole and as it was written, or refused."""

from __future__ import annotations

import hashlib
import os
import posixpath
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.fleet import archive, values
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.values import CapturedAnswer, NotReadableError, RawAnswer
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.node.root import NodeError

MAGIC = b"toolkit-installer capture\n"
HEAD = Archive(
    schema=archive.SCHEMA,
    version="0.1.0",
    node="a",
    given={"runtime": ("docker",)},
    environment={},
    root="/",
    programs_root="/",
    whole=True,
    digests={},
    unread={},
    secrets_kept=False,
    answers={},
)
ANSWERS = {"node.machine.now": {"": CapturedAnswer(1.5)}}


def body(**changed: Any) -> bytes:
    """Return the content of an archive with some fields changed, not compressed."""
    fields = {name: getattr(HEAD, name) for name in HEAD.__struct_fields__}
    return msgspec.msgpack.encode({**fields, "answers": ANSWERS, **changed})


def packed(content: bytes) -> bytes:
    return checked(zlib.compress(content))


def checked(text: bytes) -> bytes:
    return MAGIC + hashlib.sha256(text).digest() + text


def test_an_archive_is_read_as_written_and_the_same_values_make_the_same_bytes() -> None:
    content = archive.packed(HEAD, ANSWERS)
    assert content == archive.packed(HEAD, ANSWERS)
    found = archive.read(content, "x")
    assert msgspec.structs.replace(found, answers={}) == HEAD
    assert values.decode(found.answers["node.machine.now"][""], float) == 1.5


# made when they are wanted: two are large
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty file": (lambda: b"", "is no capture"),
    "another file": (lambda: b"PK\3\4" + bytes(100), "is no capture"),
    "nothing behind the first line": (lambda: MAGIC, "is damaged"),
    "no compressed text": (lambda: MAGIC + b"x" * 100, "is damaged"),
    "a newer form": (lambda: packed(body(schema=2, version="9.0")), "has the form 2, of toolkit-installer '9.0'"),
    "a newer form that is another": (lambda: packed(msgspec.msgpack.encode({"schema": 7})), "has the form 7"),
    "no form": (lambda: packed(msgspec.msgpack.encode({"schema": 0})), "has the form 0"),
    "a list": (lambda: packed(msgspec.msgpack.encode([1, 2])), "is damaged"),
    "a field too few": (lambda: packed(msgspec.msgpack.encode({"schema": 1})), "is damaged"),
    "a field of another kind": (lambda: packed(body(whole="yes")), "is damaged"),
    "answers that are none": (lambda: packed(body(answers={"a": {"b": 1}})), "is damaged"),
    "lists in lists": (lambda: packed(b"\x91" * 100_000), "is damaged"),
    "a bomb": (lambda: packed(bytes(200 << 20)), "has more than 100663296 bytes in it"),
    "something behind the end": (lambda: packed(body()) + b"more", "is damaged"),
    "something behind the end that is counted": (lambda: checked(zlib.compress(body()) + b"more"), "is damaged"),
    "a text that does not end": (lambda: checked(zlib.compress(body())[:-4]), "is damaged"),
    "a text that is none": (lambda: checked(b"x" * 100), "is damaged"),
    "answers that are no object": (lambda: packed(body(answers={"a": [1]})), "is damaged: its answers are no object"),
    "too many options": (lambda: packed(body(given={"runtime": [""] * 1001})), "is damaged"),
    "too many variables": (lambda: packed(body(environment=dict.fromkeys(map(str, range(1001)), ""))), "is damaged"),
    "a long name": (lambda: packed(body(node="a" * 254)), "is damaged"),
    "a NUL in an option": (lambda: packed(body(given={"runtime": ["a\0b"]})), "is damaged: one of its options"),
    "many values in few bytes": (
        lambda: packed(body(given={"runtime": [""] * 60_000_000})),
        "is damaged: Expected `array` of length <= 1000",
    ),
    "too many answers in few bytes": (
        lambda: packed(body(answers={str(seam): {str(each): [1] for each in range(501)} for seam in range(400)})),
        "has 200400 answers",
    ),
    "too many answers": (
        lambda: packed(body(answers={"a": {str(number): [1] for number in range(200_001)}})),
        "has 200001 answers",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_capture_is_refused_with_its_name_and_the_reason(name: str) -> None:
    content, reason = HOSTILE[name]
    with pytest.raises(ConfigurationError) as refused:
        archive.read(content(), "/x/node.capture")
    assert refused.value.path == "/x/node.capture"
    assert refused.value.reason.startswith(reason)
    assert refused.value.hint


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place: int, change: int) -> None:
    content = bytearray(archive.packed(HEAD, ANSWERS))
    content[place % len(content)] ^= change
    with pytest.raises(ConfigurationError):
        archive.read(bytes(content), "x")


@given(st.integers(0, 10_000))
def test_a_file_that_was_cut_off_is_noticed(length: int) -> None:
    content = archive.packed(HEAD, ANSWERS)
    with pytest.raises(ConfigurationError):
        archive.read(content[: length % len(content)], "x")


# --- values ---

ANY_NAMES = st.text(st.characters(), max_size=12) | st.binary(max_size=12).map(os.fsdecode) | st.just("\uf8fe\udcff")
NAMES = ANY_NAMES.map(lambda name: name.replace("\0", "_"))
PATHS = NAMES.map(lambda name: posixpath.normpath(f"/{name.strip('/')}"))
FOUND = st.builds(
    Found,
    PATHS,
    st.binary(max_size=30),
    st.builds(Metadata, st.integers(0, 0o7777), st.integers(0, 9), st.integers(0, 9), st.just((("user.a", b"\0"),))),
    st.builds(FileIdentity, *(st.integers(0, 1 << 62) for _ in range(5))),
)
PROCESS = st.builds(
    Process, st.integers(1, 1 << 22), NAMES, NAMES, st.lists(NAMES).map(tuple), st.floats(0, 1e10), st.none() | NAMES
)


def kept(answer: CapturedAnswer, kind: Any) -> Any:
    """Return an answer as it comes back from a file."""
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(values.escape_answer(answer)), type=RawAnswer)
    return values.decode(raw, kind)


@given(FOUND | st.none())
def test_a_file_comes_back_as_it_was_read(found: Found | None) -> None:
    assert kept(CapturedAnswer(values.encode(found)), Found | None) == found


@given(PROCESS)
def test_a_process_comes_back_as_it_was_seen(process: Process) -> None:
    assert kept(CapturedAnswer(values.encode(process)), Process | None) == process


@given(st.lists(NAMES))
def test_names_come_back_whatever_bytes_they_have(names: list[str]) -> None:
    assert kept(CapturedAnswer(values.encode(names)), list[str]) == names


def test_a_status_comes_back_with_its_nanoseconds(tmp_path: Path) -> None:
    status = tmp_path.stat()
    found = kept(CapturedAnswer(values.encode(status)), os.stat_result | None)
    assert found == status
    assert (found.st_mtime_ns, found.st_ctime_ns, found.st_dev) == (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_dev,
    )


@given(NAMES, NAMES)
def test_an_error_comes_back_as_it_was_raised(reason: str, path: str) -> None:
    error = NodeError(reason, path=path, line=3, hint="do that")
    error.number = 13
    with pytest.raises(NodeError) as raised:
        kept(CapturedAnswer(failure=values.encode_error(error)), str)
    again = raised.value
    assert (again.reason, again.path, again.line, again.hint, again.number) == (reason, path, 3, "do that", 13)


def test_a_file_names_no_class_but_those_of_errors() -> None:
    with pytest.raises(NotReadableError, match="there is no error 'system'"):
        kept(CapturedAnswer(failure=values.CapturedError("system", "rm")), str)


@pytest.mark.parametrize("value", [1, "x", [1], {"path": 1}, {"path": "/", "content": "text"}])
def test_a_value_of_another_kind_is_not_taken(value: object) -> None:
    with pytest.raises(NotReadableError):
        kept(CapturedAnswer(value), Found)
