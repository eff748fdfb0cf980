"""Log lines of the plugin's process, which never blocks: a line that cannot be written at once is dropped.

An engine gives a plugin two seconds for an answer, and the log's reader may be slower. structlog is not imported: it
would double the size of the process.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from collections.abc import Callable
from typing import Any, ClassVar

from toolkit_installer.documents import log_line
from toolkit_installer.documents.log_line import Renderer

_STDERR = 2
_MAX_LINE = select.PIPE_BUF
"""The bytes that a pipe takes whole or not at all (pipe(7))."""
_CUT = "..."


class Lines:
    """A writer of log lines to a descriptor, in a format of LogFormat; empty: chosen by the kind of descriptor."""

    def __init__(self, log_format: str, fd: int) -> None:
        suits = log_line.CONSOLE if os.isatty(fd) else log_line.LOGFMT
        self._renderer = Renderer(log_format or suits, color=False)
        self._write = _writer(fd)

    def info(self, msg: str, *, key: str, **values: object) -> None:
        """Log normal operation."""
        self._line("info", msg, key, values)

    def warning(self, msg: str, *, key: str, **values: object) -> None:
        """Log a fault that an administrator should know of."""
        self._line("warning", msg, key, values)

    def _line(self, level: str, msg: str, key: str, values: dict[str, Any]) -> None:
        now = time.strftime(log_line.TIME, time.gmtime())
        text = self._renderer.line({"time": now, "level": level, "msg": msg, "event": key, **values})
        data = text.encode(errors="backslashreplace")
        if len(data) >= _MAX_LINE:
            data = data[: _MAX_LINE - 1 - len(_CUT)] + _CUT.encode()
        try:
            self._write(data + b"\n")
        except OSError:
            return  # the log's reader is slow, or gone; the engine has its answer


def _writer(fd: int) -> Callable[[bytes], object]:
    """Return a function that writes to a descriptor without waiting; the run's own writes there still block.

    O_NONBLOCK holds for every process that shares an open file: so a file that can be opened is opened again.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return lambda data: os.write(fd, data)  # opened again, it would be overwritten from its beginning
    if stat.S_ISSOCK(mode):
        return lambda data: _send(fd, data)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:  # the file is gone, or belongs to another user
        return lambda data: os.write(fd, data) if _is_writable(fd) else 0
    return lambda data: os.write(own, data)


def _send(fd: int, data: bytes) -> None:
    """Send as many of the bytes as can be sent at once. Raises OSError."""
    connection = socket.socket(fileno=fd)
    try:
        connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        connection.detach()


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class _Current:
    lines: ClassVar[Lines | None] = None


def configure(log_format: str, fd: int = _STDERR) -> None:
    """Set the format and the descriptor of all later lines."""
    _Current.lines = Lines(log_format, fd)


def get() -> Lines:
    """Return the writer of log lines."""
    if _Current.lines is None:
        configure("")
    assert _Current.lines is not None  # noqa: S101  # set just above
    return _Current.lines
