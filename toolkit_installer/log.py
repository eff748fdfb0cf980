"""Log lines: for people on a terminal, logfmt or JSON for machines. One event is one line, always.

The first line that is written imports structlog, which imports logging and takes longer than all else that a command
needs. Most commands that only inspect the node write no line. asyncio, half of that time, is imported when it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final, TextIO, cast

from toolkit_installer import lazy
from toolkit_installer.documents.log_line import TIME, Renderer
from toolkit_installer.node import terminal
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.settings import LogFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

_DEBUG, _INFO, _WARNING = 10, 20, 30
"""The levels of the standard library's logging, which may not be imported yet."""
_DIGEST: Final = 16
"""Hex digits of a line's digest: enough to keep a few hundred lines apart."""
_MOST_DIGESTS: Final = 200
_LISTENER: Final = "toolkit-installer"
"""The name of our handler in the standard library's logging."""


class _PendingSetup:
    """The setup that `configure` defers until structlog is imported, and whether a person reads the log live."""

    set_up: Callable[[], None] | None = None
    listen: Callable[[], None] | None = None
    for_people: bool = False


class _LoggedLines:
    """Digests of the lines that this process has written, and of those to suppress; listeners for each line."""

    written_digests: ClassVar[dict[str, None]] = {}
    suppressed_digests: frozenset[str] = frozenset()
    listeners: ClassVar[list[Callable[[Mapping[str, Any]], None]]] = []
    muted: bool = False


class _LazyLogger:
    """A logger that imports structlog when one of its methods is called."""

    def __getattr__(self, level: str) -> Callable[..., Any]:
        if _LoggedLines.muted or (level == "debug" and _PendingSetup.set_up is not None):
            return lambda *_, **__: None  # not to be written: with `debug`, structlog is set up from the start
        set_up()
        import structlog  # noqa: PLC0415  # see the module's docstring

        return cast("Callable[..., Any]", getattr(structlog.get_logger(), level))


def get() -> FilteringBoundLogger:
    """Return a logger; `configure` applies to loggers made before it, too."""
    return cast("FilteringBoundLogger", _LazyLogger())


def configure(
    log_format: LogFormat | None, *, debug: bool, stream: TextIO, environment: Mapping[str, str] | None = None
) -> None:
    """Write log lines to `stream` from now on; `log_format` None is console on a terminal, logfmt otherwise.

    Colours need a terminal, and neither NO_COLOR nor TERM=dumb in `environment` (default: the process's).
    Libraries' messages in the standard library's logging are written only with `debug`.
    """
    is_terminal = not stream.closed and stream.isatty()
    if log_format is None:
        log_format = LogFormat.CONSOLE if is_terminal else LogFormat.LOGFMT
    variables = os.environ if environment is None else environment
    color = is_terminal and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"
    renderer = Renderer(log_format, color=color)
    _PendingSetup.for_people = log_format is LogFormat.CONSOLE and not debug  # with `debug`, its lines would interleave
    _PendingSetup.set_up = lambda: _configure_structlog(renderer, stream, debug=debug)
    _PendingSetup.listen = lambda: _listen_to_libraries(debug=debug)
    if debug or "structlog" in sys.modules:
        set_up()
    elif "logging" in sys.modules:
        listen()


def is_for_people() -> bool:
    """Return whether a person reads the log live: slow work may then be shown in a status line."""
    return _PendingSetup.for_people


def suppress_known_lines(known: Iterable[str]) -> None:
    """Suppress lines by the digests that an earlier process returned from `get_line_digests`, up to the first new line.

    A repeated inspection is worth a line only if something is new.
    """
    _LoggedLines.suppressed_digests = frozenset(known)


def get_line_digests() -> tuple[str, ...]:
    """Return a short digest of each line that was written, or suppressed as known; times do not count."""
    return tuple(_LoggedLines.written_digests)


@contextlib.contextmanager
def suppress_lines() -> Iterator[None]:
    """Suppress logging inside the block, for a command that is no run and prints its own result."""
    before, _LoggedLines.muted = _LoggedLines.muted, True
    try:
        yield
    finally:
        _LoggedLines.muted = before


def add_listener(listener: Callable[[Mapping[str, Any]], None]) -> None:
    """Call `listener` with each line that is written from now on: its keys and values, secrets masked."""
    _LoggedLines.listeners.append(listener)


def set_up() -> None:
    """Import structlog and everything else that a line may need, if that is still pending.

    A command that changes the node calls this first: half-way through, the program's own files may be gone.
    """
    if _PendingSetup.set_up is not None:
        _PendingSetup.set_up()
        _PendingSetup.set_up = None  # only now: a signal may interrupt an import, and the next line tries again
    listen()


def listen() -> None:
    """Handle libraries' messages from now on. Call it before importing one that uses the standard library's logging."""
    if _PendingSetup.listen is not None:
        _PendingSetup.listen()
        _PendingSetup.listen = None


def _configure_structlog(renderer: Renderer, stream: TextIO, *, debug: bool) -> None:
    lazy.defer("asyncio")
    import logging  # noqa: PLC0415  # see the module's docstring

    setattr(logging, "logAsyncioTasks", False)  # noqa: B010  # from 3.12 on it would ask asyncio for a task
    import structlog  # noqa: PLC0415  # see the module's docstring

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_known_line,
            structlog.processors.TimeStamper(fmt=TIME, utc=True, key="time"),
            _with_error_text,
            _ordered,
            lambda _logger, _method, event: renderer.line(event),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_DEBUG if debug else _INFO),
        logger_factory=lambda *_: _Writer(stream),
        cache_logger_on_first_use=False,
    )


class _Writer:
    """Writes a line to a stream, if it can.

    The one place where an error is swallowed on purpose: the log's reader may go away at any time (a closed pipe, a
    full disk), and that must not stop a change of the node half-way.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        StatusLine.make_room()
        try:
            terminal.write(self._stream, f"{message}\n")
        except (OSError, ValueError):
            return  # see above

    # structlog calls the method that is named after the event's level
    log = debug = info = warn = warning = error = err = exception = critical = fatal = failure = msg


def _listen_to_libraries(*, debug: bool) -> None:
    """Log libraries' messages as our own debug events, or drop them, which keeps them off stderr."""
    import logging  # noqa: PLC0415  # see the module's docstring

    class FromLibraries(logging.Handler):
        """Handles libraries' messages."""

        def emit(self, record: logging.LogRecord) -> None:
            if debug:
                get().debug(_mask_text(record.getMessage()), logger=record.name)

    root = logging.getLogger()
    for handler in root.handlers[:]:
        if handler.name == _LISTENER:
            root.removeHandler(handler)
    listener = FromLibraries()
    listener.name = _LISTENER
    root.addHandler(listener)
    root.setLevel(_DEBUG if debug else _WARNING)


def _mask_text(text: str) -> str:
    from toolkit_installer import foreign_words  # noqa: PLC0415  # only errors and libraries' messages need it

    return foreign_words.mask_program_text(text)


def _drop_known_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Raise DropEvent for a known line."""
    import structlog  # noqa: PLC0415  # already imported: it calls this

    digest = hashlib.sha256(repr(event).encode(errors="backslashreplace")).hexdigest()[:_DIGEST]
    if len(_LoggedLines.written_digests) < _MOST_DIGESTS:
        _LoggedLines.written_digests[digest] = None
    if digest in _LoggedLines.suppressed_digests:
        raise structlog.DropEvent
    _LoggedLines.suppressed_digests = frozenset()
    return event


def _with_error_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace exceptions by their text with secrets masked: it may quote a configuration file."""
    for key, value in event.items():
        if isinstance(value, BaseException) and key != "exc_info":
            event[key] = _mask_text(str(value))
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        import traceback  # noqa: PLC0415  # needed for bugs only

        event["exception"] = _mask_text("".join(traceback.format_exception(info)).rstrip())
    return event


def _ordered(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put time, level, message and name of the event before the caller's keys. structlog's `event` is the message.

    The caller gives the name as `key`, which docs/logs.md lists; it stays the same when the message is reworded.
    """
    first = {"time": event.pop("time"), "level": event.pop("level"), "msg": event.pop("event")}
    first |= {"event": event.pop("key", None)}
    line = {key: value for key, value in {**first, **event, **first}.items() if value is not None}
    for listener in _LoggedLines.listeners:
        listener(line)
    return line
