"""Log lines: for people on a terminal, logfmt or JSON for machines. One event is one line, always."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from toolkit_installer.documents import visible
from toolkit_installer.documents.secrets import mask
from toolkit_installer.node import streams
from toolkit_installer.settings import LogFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import EventDict, WrappedLogger

_BARE: Final = re.compile(r"[A-Za-z0-9_./@^+-]+")
_QUOTED: Final = frozenset({"time", "msg"})
_LEVEL_COLORS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_BAD: Final = "\x1b[31m"
_DIM: Final = "\x1b[36m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"


def get() -> FilteringBoundLogger:
    """Return a logger; what `configure` says holds for those made before it, too."""
    return cast("FilteringBoundLogger", structlog.get_logger())


def configure(
    log_format: LogFormat | None,
    *,
    debug: bool,
    stream: TextIO,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Write log lines to `stream` from now on; `log_format` None is console on a terminal, logfmt otherwise.

    Colours need a terminal, and neither NO_COLOR nor TERM=dumb in `environment` (the process's, if not given).
    Libraries that use the standard library's logging are heard only with `debug`.
    """
    is_terminal = _is_terminal(stream)
    if log_format is None:
        log_format = LogFormat.CONSOLE if is_terminal else LogFormat.LOGFMT
    variables = os.environ if environment is None else environment
    color = is_terminal and not variables.get("NO_COLOR") and variables.get("TERM") != "dumb"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True, key="time"),
            _with_error_text,
            _ordered,
            _Renderer(log_format, color=color),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=lambda *_: _Writer(stream),
        cache_logger_on_first_use=False,
    )
    _listen_to_libraries(debug=debug)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


class _Writer:
    """Writes a line to a stream, if it can.

    The one place where an error is swallowed on purpose: whoever reads our log may go away at any time (a closed pipe,
    a full disk), and a node half-way through a change must not be left there because nobody listens.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, message: str) -> None:
        try:
            streams.write(self._stream, f"{message}\n")
        except (OSError, ValueError):
            return  # see above

    # structlog calls the method that is named as the event's level
    log = debug = info = warn = warning = error = err = exception = critical = fatal = failure = msg


class _FromLibraries(logging.Handler):
    """Takes what libraries log: passed on as our own debug events, or dropped (and so kept from stderr)."""

    def __init__(self, *, heard: bool) -> None:
        super().__init__()
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        if self._heard:
            get().debug(mask(record.getMessage()), logger=record.name)


def _listen_to_libraries(*, debug: bool) -> None:
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _FromLibraries):
            root.removeHandler(handler)
    root.addHandler(_FromLibraries(heard=debug))
    root.setLevel(logging.DEBUG if debug else logging.WARNING)


def _with_error_text(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace exceptions by their text, in which secrets are masked: it may quote a configuration file."""
    for key, value in event.items():
        if isinstance(value, BaseException) and key != "exc_info":
            event[key] = mask(str(value))
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    elif isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        event["exception"] = mask("".join(traceback.format_exception(info)).rstrip())
    return event


def _ordered(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Name the event `msg`, and put time, level and msg before what the caller gave."""
    first = {"time": event.pop("time"), "level": event.pop("level"), "msg": event.pop("event")}
    return first | {key: value for key, value in event.items() if value is not None and key not in first}


class _Renderer:
    """Makes a line of an event."""

    def __init__(self, log_format: LogFormat, *, color: bool) -> None:
        self._format = log_format
        self._color = color

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> str:
        if self._format is LogFormat.JSON:
            return json.dumps(event, default=_text)
        if self._format is LogFormat.LOGFMT:
            return " ".join(f"{_key(key)}={_value(value, quoted=key in _QUOTED)}" for key, value in event.items())
        return self._console(event)

    def _console(self, event: EventDict) -> str:
        level = str(event["level"])
        head = (
            self._painted(_LEVEL_COLORS.get(level, _BAD), f"{level:<7}"),
            self._painted(_BOLD, visible.line(_text(event["msg"]))),
        )
        pairs = [
            self._painted(_DIM, f"{_key(key)}=") + _value(value, quoted=False)
            for key, value in event.items()
            if key not in {"time", "level", "msg"}
        ]
        return " ".join((str(event["time"]), *head, *pairs))

    def _painted(self, color: str, text: str) -> str:
        return f"{color}{text}{_RESET}" if self._color else text


def _text(value: Any) -> str:
    """Return a value as people would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(_text(item) for item in value)
    return str(value)


def _key(key: str) -> str:
    """Return a key without what would make it look like more than one."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", key)


def _value(value: Any, *, quoted: bool) -> str:
    text = _text(value)
    if not quoted and _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{visible.line(escaped)}"'
