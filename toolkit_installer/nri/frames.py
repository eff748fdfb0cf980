"""The two streams that share the connection between the engine and a plugin, taken apart and put together. Pure.

A frame has a header of eight bytes: the stream, and the length of what follows, four bytes each in network order. That
is how `pkg/net/multiplex` of github.com/containerd/nri v0.12.5 has it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PLUGIN = 1
"""The stream on which the engine asks the plugin."""
RUNTIME = 2
"""The stream on which the plugin asks the engine."""
LARGEST = 10 + (4 << 20)
"""Bytes in a frame: the largest message of ttrpc with its header. A longer one cannot be meant."""

_HEADER = struct.Struct(">II")
_SENT = 4096
"""Bytes in a frame of ours. The engine's reader has a buffer of that size, and gives up at a frame that is longer than
what it happens to read into (`conn.Read` there, ENOMEM; `bufio.NewReader` in ttrpc v1.2.10)."""


class ProtocolError(Exception):
    """The other side does not speak the protocol; the connection is of no use any more."""


class Frames:
    """Takes what arrives apart. Whatever comes, it keeps a header at most, seven bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield what belongs to which stream, in the order in which it came; a frame may come in pieces.

        Raises ProtocolError: a frame would be longer than any that is sent.
        """
        rest = memoryview(data)
        while rest:
            if not self._missing:
                wanted = _HEADER.size - len(self._header)
                self._header += bytes(rest[:wanted])
                rest = rest[wanted:]
                if len(self._header) < _HEADER.size:
                    return
                self._stream, self._missing = _HEADER.unpack(self._header)
                self._header = b""
                if self._missing > LARGEST:
                    raise ProtocolError(f"a frame of {self._missing} bytes is announced, {LARGEST} are the most")
                continue
            piece = bytes(rest[: self._missing])
            rest = rest[len(piece) :]
            self._missing -= len(piece)
            yield self._stream, piece


def framed(stream: int, data: bytes) -> bytes:
    """Return the frames that carry `data` in a stream."""
    pieces = (data[start : start + _SENT] for start in range(0, len(data), _SENT))
    return b"".join(_HEADER.pack(stream, len(piece)) + piece for piece in pieces)
