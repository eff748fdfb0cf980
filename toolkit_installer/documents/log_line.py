"""Rendering of log lines for a terminal, as logfmt or as JSON, and escaping of untrusted text. Pure.

Untrusted text is names, file contents and messages of other programs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_BYTES: Final = range(0xDC80, 0xDD00)
"""The lone surrogates that Python decodes invalid UTF-8 bytes to (PEP 383)."""
_TO_BYTE: Final = 0xDC00


def escape_line(text: str, *, tabs: bool = False) -> str:
    r"""Return `text` with all characters escaped that a terminal would obey, hide or show as a line break.

    These are the characters that Python calls unprintable: control characters (`\x1b`, `\n`), format characters such as
    those that turn the writing direction (`\u202e`), spaces that look like others, and lone surrogates. A surrogate
    that stands for a byte is written as that byte (`\xff`). With `tabs`, tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or (tabs and character == "\t") else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    if ord(character) in _BYTES:
        return f"\\x{ord(character) - _TO_BYTE:02x}"
    return character.encode("unicode_escape").decode()


CONSOLE: Final = "console"
LOGFMT: Final = "logfmt"
JSON: Final = "json"
"""The values of settings.LogFormat, copied because importing settings costs a small process a package."""
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
"""The format of timestamps, which are UTC."""
_BARE: Final = re.compile(r"[A-Za-z0-9_./@^+-]+")
_QUOTED: Final = frozenset({"time", "msg"})
_NOT_ON_TERMINAL: Final = frozenset({"time", "level", "msg", "event", "code"})
"""Keys that a line on a terminal shows elsewhere, or not at all."""
_LEVEL_COLORS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_BAD: Final = "\x1b[31m"
_DIM: Final = "\x1b[36m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"


class Renderer:
    """A formatter that turns events into lines."""

    def __init__(self, log_format: str, *, color: bool) -> None:
        self._format = log_format
        self._color = color

    def line(self, event: Mapping[str, Any]) -> str:
        """Return the line, without its end. `event` has time, level, msg and event first."""
        if self._format == JSON:
            return json.dumps(event, default=_text)
        if self._format == LOGFMT:
            return " ".join(f"{_key(key)}={_value(value, quoted=key in _QUOTED)}" for key, value in event.items())
        return self._console(event)

    def _console(self, event: Mapping[str, Any]) -> str:
        level = str(event["level"])
        head = (
            self._painted(_LEVEL_COLORS.get(level, _BAD), f"{level:<7}"),
            self._painted(_BOLD, escape_line(_text(event["msg"]))),
        )
        pairs = [
            self._painted(_DIM, f"{_key(key)}=") + _value(value, quoted=False)
            for key, value in event.items()
            if key not in _NOT_ON_TERMINAL
        ]
        return " ".join((str(event["time"]), *head, *pairs))

    def _painted(self, color: str, text: str) -> str:
        return f"{color}{text}{_RESET}" if self._color else text


def _text(value: Any) -> str:
    """Return a value as text for people: `true`, `a,b`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(_text(item) for item in value)
    return str(value)


def _key(key: str) -> str:
    """Return a key with the characters replaced that could make it look like several keys."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", key)


def _value(value: Any, *, quoted: bool) -> str:
    text = _text(value)
    if not quoted and _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escape_line(escaped)}"'
