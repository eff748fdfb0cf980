"""Log lines of the plugin's process, which never blocks: a line that cannot be written at once is dropped.

An engine gives a plugin two seconds for an answer, and whoever reads the log may be slower. structlog is not imported:
it would double the process.
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
_LONGEST = select.PIPE_BUF
"""Bytes that a pipe takes whole or not at all (pipe(7))."""
_CUT = "..."


class Lines:
    """Writes lines of a format, LogFormat's value, to a descriptor; empty: as suits what is behind that."""

    def __init__(self, log_format: str, fd: int) -> None:
        suits = log_line.CONSOLE if os.isatty(fd) else log_line.LOGFMT
        self._renderer = Renderer(log_format or suits, color=False)
        self._write = _writer(fd)

    def info(self, msg: str, *, key: str, **values: object) -> None:
        """Say what is as it should be."""
        self._line("info", msg, key, values)

    def warning(self, msg: str, *, key: str, **values: object) -> None:
        """Say what somebody should know."""
        self._line("warning", msg, key, values)

    def _line(self, level: str, msg: str, key: str, values: dict[str, Any]) -> None:
        now = time.strftime(log_line.TIME, time.gmtime())
        text = self._renderer.line({"time": now, "level": level, "msg": msg, "event": key, **values})
        data = text.encode(errors="backslashreplace")
        if len(data) >= _LONGEST:
            data = data[: _LONGEST - 1 - len(_CUT)] + _CUT.encode()
        try:
            self._write(data + b"\n")
        except OSError:
            return  # whoever reads the log is slow, or gone; the engine has its answer


def _writer(fd: int) -> Callable[[bytes], object]:
    """Return what writes to whatever is behind a descriptor and does not wait. The run writes there as it always did.

    A descriptor that does not wait is such for all that share it: so what can be opened is opened anew.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return lambda data: os.write(fd, data)  # opened anew it would be written from its beginning
    if stat.S_ISSOCK(mode):
        return lambda data: _send(fd, data)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:  # it is not there any more, or belongs to somebody else
        return lambda data: os.write(fd, data) if _is_writable(fd) else 0
    return lambda data: os.write(own, data)


def _send(fd: int, data: bytes) -> None:
    """Send as much of it as goes at once. Raises OSError."""
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
    """Write lines from now on."""
    _Current.lines = Lines(log_format, fd)


def get() -> Lines:
    """Return what writes them."""
    if _Current.lines is None:
        configure("")
    assert _Current.lines is not None  # noqa: S101  # it was just made
    return _Current.lines
