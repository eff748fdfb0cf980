"""Writing to a standard stream past its buffer."""

from __future__ import annotations

import os
import select
from typing import TextIO


def write(stream: TextIO, text: str, *, patient: bool = False) -> None:
    """Write a text past Python's buffer, which keeps what it cannot write and fails again when the process ends.

    `patient`: wait where a pipe that does not block is full. Raises OSError, and ValueError for a closed stream.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream in memory
        stream.write(text)
        stream.flush()
        return
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            if not patient:
                raise
            select.select([], [descriptor], [])


def is_a_persons() -> bool:
    """Tell whether a person has started this program in a shell: the shell leads the session of their terminal.

    In a container with a terminal (`docker run -t`) whatever starts it again and again has it lead a session itself.
    """
    return os.isatty(0) and os.isatty(2) and os.getsid(0) != os.getpid()
