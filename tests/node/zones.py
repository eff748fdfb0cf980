"""Time zones for made-up nodes, in which the node's clock shows what a test needs, whatever the time is."""

from __future__ import annotations

import os
import struct
import time

from tests.support.fake_node import FakeNode

LOCALTIME = "/etc/localtime"
_DAY, _HALF = 86_400, 43_200


def shows(node: FakeNode, clock: str) -> None:
    """Have the node's clock show HH:MM now, with the seconds of the real one."""
    hour, minute = map(int, clock.split(":"))
    seconds = int(time.time())
    offset = (hour * 3600 + minute * 60 + seconds % 60 - seconds) % _DAY
    place = node.place(LOCALTIME)
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name("localtime.new")  # a zone is replaced by a rename, as timedatectl does it
    new.write_bytes(fixed(offset - _DAY if offset > _HALF else offset))
    os.replace(new, place)


def fixed(offset: int) -> bytes:
    """Return a zone that is always so many seconds east of Greenwich, as RFC 8536 writes it (version 1)."""
    name = b"TST\0"
    return struct.pack(">4sc15x6l", b"TZif", b"\0", 0, 0, 0, 0, 1, len(name)) + struct.pack(">lbb", offset, 0, 0) + name
