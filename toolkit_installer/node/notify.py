"""Tells the service manager that started this process how far it is (sd_notify(3)); nothing where none asks."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

_VARIABLE: Final = "NOTIFY_SOCKET"


def ready(status: str) -> None:
    """Report that the service is up, and its status in one line. A service manager that is gone is no error."""
    address = os.environ.get(_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    # an abstract name begins with a NUL (unix(7)), which the variable spells as @
    name = f"\0{address.removeprefix('@')}" if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection,
    ):
        connection.settimeout(1)
        connection.sendto(f"READY=1\nSTATUS={status}".encode(), name)
