"""The messages of ttrpc, taken out of a stream and put into one. Pure.

A message has a header of ten bytes, numbers in network order: length of what follows (four), call (four), kind (one),
flags (one). Calls are numbered by who makes them, in odd numbers. That is how `channel.go` of
github.com/containerd/ttrpc v1.2.10 has it. Streaming calls, which it has too, no plugin is asked by.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from toolkit_installer.nri.frames import ProtocolError

LIMIT = 4 << 20
"""Bytes in a message, without its header."""

_HEADER = struct.Struct(">IIBB")


class Kind(enum.IntEnum):
    """The kinds of messages that a plugin knows; others are left alone, as the protocol may get more."""

    REQUEST = 1
    RESPONSE = 2


class Message(NamedTuple):
    """One message: the number of its call, its kind, and a Request or Response of nri.proto as bytes."""

    call: int
    kind: int
    body: bytes


class Messages:
    """Takes messages out of a stream. It keeps one message at most, and no more of it than has come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are whole. Raises ProtocolError: one would be too long."""
        self._held += data
        while len(self._held) >= _HEADER.size:
            length, call, kind, _flags = _HEADER.unpack_from(self._held)
            if length > LIMIT:
                raise ProtocolError(f"a message of {length} bytes is announced, {LIMIT} are the most")
            end = _HEADER.size + length
            if len(self._held) < end:
                return
            body = bytes(self._held[_HEADER.size : end])
            del self._held[:end]
            yield Message(call, kind, body)


def packed(message: Message) -> bytes:
    """Return a message as it is sent. Raises ProtocolError: it is too long."""
    if len(message.body) > LIMIT:
        raise ProtocolError(f"a message of {len(message.body)} bytes cannot be sent, {LIMIT} are the most")
    return _HEADER.pack(len(message.body), message.call, message.kind, 0) + message.body
