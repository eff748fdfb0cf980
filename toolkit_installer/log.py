"""Log lines: for people on a terminal, logfmt or JSON for machines. One event is one line, always.

structlog brings logging along, and takes longer to import than all else that a command needs: it comes with the first
line that is written. Most commands that only look at the node write none. asyncio, half of it, comes when it is used.
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
"""Digits of a line's digest: two lines of a few hundred that have the same are not to be feared."""
_MOST_SAID: Final = 200
_UNUSED_BY_STRUCTLOG: Final = {
    "asyncio": "",
    "uuid": "",
    "pickle": "PicklingError",  # for coroutines, threads and copies of loggers
    "structlog__dev": "ConsoleRenderer _has_colors set_exc_info",
    "structlog__stdlib": "",
    "structlog__testing": "",
    "structlog__threadlocal": "",
    "structlog__twisted": "",
    "structlog__tracebacks": "ExceptionDictTransformer",
}
"""What structlog imports at once for its defaults, in place of which `configure` gives it what it needs."""
_LISTENER: Final = "toolkit-installer"
"""The name of our handler among those of the standard library's logging."""


class _Later:
    """Holds what `configure` said until structlog is there, and whether somebody reads along."""

    set_up: Callable[[], None] | None = None
    listen: Callable[[], None] | None = None
    for_people: bool = False


class _Told:
    """What this process has said, and what it need not say again: digests of lines."""

    said: ClassVar[dict[str, None]] = {}
    known: frozenset[str] = frozenset()
    hears: ClassVar[list[Callable[[Mapping[str, Any]], None]]] = []
    unheard: bool = False


class _Lines:
    """A logger that gets structlog's own methods once one of them is called."""

    def __getattr__(self, level: str) -> Callable[..., Any]:
        if _Told.unheard or (level == "debug" and _Later.set_up is not None):
            return lambda *_, **__: None  # nobody wants to hear it: with `debug`, structlog is there from the start
        set_up()
        import structlog  # noqa: PLC0415  # see the module's own words

        return cast("Callable[..., Any]", getattr(structlog.get_logger(), level))


def get() -> FilteringBoundLogger:
    """Return a logger; what `configure` says holds for those made before it, too."""
    return cast("FilteringBoundLogger", _Lines())


def configure(
    log_format: LogFormat | None, *, debug: bool, stream: TextIO, environment: Mapping[str, str] | None = None
) -> None:
    """Write log lines to `stream` from now on; `log_format` None is console on a terminal, logfmt otherwise.

    Colours need a terminal, and neither NO_COLOR nor TERM=dumb in `environment` (the process's, if not given).
    Libraries that use the standard library's logging are heard only with `debug`.
    """
    is_terminal = not stream.closed and stream.isatty()
    if log_format is None:
        log_format = LogFormat.CONSOLE if is_terminal else LogFormat.LOGFMT
    variables = os.environ if environment is None else environment
    color = is_terminal and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"
    renderer = Renderer(log_format, color=color)
    _Later.for_people = log_format is LogFormat.CONSOLE and not debug  # whose lines would come in between
    _Later.set_up = lambda: _configure_structlog(renderer, stream, debug=debug)
    _Later.listen = lambda: _listen_to_libraries(debug=debug)
    if debug or "structlog" in sys.modules:
        set_up()
    elif "logging" in sys.modules:
        listen()


def is_for_people() -> bool:
    """Tell whether somebody reads the log as it comes: what takes its time may then be shown in a line of its own."""
    return _Later.for_people


def only_news(known: Iterable[str]) -> None:
    """Leave out the lines that an earlier process has `said`, until the first that it has not.

    What is looked at again and again is worth a line when something is new.
    """
    _Told.known = frozenset(known)


def said() -> tuple[str, ...]:
    """Return a short digest of each line that was said, or left out because it was known; times do not count."""
    return tuple(_Told.said)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Have nothing said of what is done meanwhile, as it is no run: its own answer says what there is to say."""
    before, _Told.unheard = _Told.unheard, True
    try:
        yield
    finally:
        _Told.unheard = before


def overhear(listener: Callable[[Mapping[str, Any]], None]) -> None:
    """Have `listener` called with each line that is written from now on: the values of its keys, secrets masked."""
    _Told.hears.append(listener)


def set_up() -> None:
    """Import structlog and what else a line may need, if that is still to be done.

    Who is about to change the node does this before: what is imported half-way through may be gone by then.
    """
    if _Later.set_up is not None:
        _Later.set_up()
        _Later.set_up = None  # not before: a signal may end an import, and the next line tries again
    listen()


def listen() -> None:
    """Take what libraries log from now on. Who imports one that uses the standard library's logging does this first."""
    if _Later.listen is not None:
        _Later.listen()
        _Later.listen = None


def _configure_structlog(renderer: Renderer, stream: TextIO, *, debug: bool) -> None:
    with lazy.deferred_patterns(), lazy.unused(**_UNUSED_BY_STRUCTLOG):
        import logging  # noqa: PLC0415  # see the module's own words

        setattr(logging, "logAsyncioTasks", False)  # noqa: B010  # from 3.12 on it would ask asyncio for a name
        import structlog  # noqa: PLC0415  # see the module's own words

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _only_news,
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

    The one place where an error is swallowed on purpose: whoever reads our log may go away at any time (a closed pipe,
    a full disk), and a node half-way through a change must not be left there because nobody listens.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        StatusLine.make_room()
        try:
            terminal.write(self._stream, f"{message}\n")
        except (OSError, ValueError):
            return  # see above

    # structlog calls the method that is named as the event's level
    log = debug = info = warn = warning = error = err = exception = critical = fatal = failure = msg


def _listen_to_libraries(*, debug: bool) -> None:
    """Pass what libraries log on as our own debug events, or drop it, which keeps it from stderr."""
    import logging  # noqa: PLC0415  # see the module's own words

    class FromLibraries(logging.Handler):
        """Takes what libraries log."""

        def emit(self, record: logging.LogRecord) -> None:
            if debug:
                get().debug(_masked(record.getMessage()), logger=record.name)

    root = logging.getLogger()
    for handler in root.handlers[:]:
        if handler.name == _LISTENER:
            root.removeHandler(handler)
    listener = FromLibraries()
    listener.name = _LISTENER
    root.addHandler(listener)
    root.setLevel(_DEBUG if debug else _WARNING)


def _masked(text: str) -> str:
    from toolkit_installer import foreign_words  # noqa: PLC0415  # only errors and libraries' words need it

    return foreign_words.of_program(text)


def _only_news(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Raise DropEvent for a line that is known."""
    import structlog  # noqa: PLC0415  # it is there: it calls this

    digest = hashlib.sha256(repr(event).encode(errors="backslashreplace")).hexdigest()[:_DIGEST]
    if len(_Told.said) < _MOST_SAID:
        _Told.said[digest] = None
    if digest in _Told.known:
        raise structlog.DropEvent
    _Told.known = frozenset()
    return event


def _with_error_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace exceptions by their text, in which secrets are masked: it may quote a configuration file."""
    for key, value in event.items():
        if isinstance(value, BaseException) and key != "exc_info":
            event[key] = _masked(str(value))
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        import traceback  # noqa: PLC0415  # of bugs, and of nothing else

        event["exception"] = _masked("".join(traceback.format_exception(info)).rstrip())
    return event


def _ordered(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Put time, level, words and name of the event before what the caller gave. What structlog calls `event` is words.

    The caller gives the name as `key`, which docs/logs.md lists; it stays the same when the words are said better.
    """
    first = {"time": event.pop("time"), "level": event.pop("level"), "msg": event.pop("event")}
    first |= {"event": event.pop("key", None)}
    line = {key: value for key, value in {**first, **event, **first}.items() if value is not None}
    for hears in _Told.hears:
        hears(line)
    return line
