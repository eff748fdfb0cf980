"""Frames and messages survive any way of cutting them, and what is too long is refused before it is held."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.nri import session
from toolkit_installer.nri.session import (
    Frames,
    MessageKind,
    Messages,
    ProtocolError,
    TtrpcMessage,
    build_frames,
    pack_message,
)

CUTS = st.lists(st.integers(0, 400), max_size=30)
BODIES = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=100)), max_size=8)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def by_stream(found: list[tuple[int, bytes]]) -> dict[int, bytes]:
    streams: dict[int, bytes] = {}
    for stream, piece in found:
        streams[stream] = streams.get(stream, b"") + piece
    return streams


@given(BODIES, CUTS)
def test_frames_are_the_same_however_they_are_cut(bodies: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(struct.pack(">II", stream, len(body)) + body for stream, body in bodies)
    reader = Frames()
    found = [each for piece in cut(data, places) for each in reader.feed(piece)]
    assert by_stream(found) == by_stream([(stream, body) for stream, body in bodies if body])


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 9), st.binary(max_size=60)), max_size=8), CUTS)
def test_messages_are_the_same_however_they_are_cut(told: list[tuple[int, int, bytes]], places: list[int]) -> None:
    data = b"".join(struct.pack(">IIBB", len(body), call, kind, 0) + body for call, kind, body in told)
    reader = Messages()
    assert [each for piece in cut(data, places) for each in reader.feed(piece)] == told


@given(st.integers(1, 2), st.binary(max_size=20_000))
def test_what_is_sent_comes_in_frames_that_the_engine_has_room_for(stream: int, data: bytes) -> None:
    sent = build_frames(stream, data)
    assert by_stream(list(Frames().feed(sent))) == ({stream: data} if data else {})
    while sent:
        _, length = struct.unpack(">II", sent[:8])
        assert 0 < length <= 4096
        sent = sent[8 + length :]


def test_an_empty_frame_is_none() -> None:
    assert list(Frames().feed(struct.pack(">II", 1, 0) + struct.pack(">II", 2, 1) + b"x")) == [(2, b"x")]


@pytest.mark.parametrize("length", [session.MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_a_frame_that_cannot_be_meant_is_refused_by_its_header(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes"):
        list(Frames().feed(struct.pack(">II", 1, length)))


@pytest.mark.parametrize("length", [session.MAX_MESSAGE_BYTES + 1, 2**32 - 1])
def test_a_message_that_is_too_long_is_refused_by_its_header(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"{length} bytes"):
        list(Messages().feed(struct.pack(">IIBB", length, 1, 1, 0)))


def test_the_longest_message_is_taken_and_sent() -> None:
    message = TtrpcMessage(7, MessageKind.REQUEST, bytes(session.MAX_MESSAGE_BYTES))
    assert list(Messages().feed(pack_message(message))) == [message]
    with pytest.raises(ProtocolError, match="cannot be sent"):
        pack_message(message._replace(body=bytes(session.MAX_MESSAGE_BYTES + 1)))


def test_no_more_is_held_than_has_come() -> None:
    """An announced length reserves nothing."""
    reader, messages = Frames(), Messages()
    list(reader.feed(struct.pack(">II", 1, session.MAX_FRAME_BYTES)))
    list(messages.feed(struct.pack(">IIBB", session.MAX_MESSAGE_BYTES, 1, 1, 0) + b"four"))
    assert len(messages._held) == 14
    assert reader._header == b""
