"""Text that others chose (names, contents, messages), made safe for a terminal and for a line of its own. Pure.

A line of the log as it is written: for people on a terminal, logfmt or JSON for machines. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from toolkit_installer import lazy

_BYTES: Final = range(0xDC80, 0xDD00)
"""The lone surrogates by which Python hands over bytes that are no UTF-8 (PEP 383)."""
_TO_BYTE: Final = 0xDC00


def visible_line(text: str, *, tabs: bool = False) -> str:
    r"""Return `text` with everything escaped that a terminal would obey or hide, or take for another line.

    That is whatever Python calls unprintable: control characters (`\x1b`, `\n`), format characters such as those that
    turn the writing direction (`\u202e`), spaces that look like others, lone surrogates; the latter, where they stand
    for bytes, as these (`\xff`). `tabs` stay if they are wanted.
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
"""The values of settings.LogFormat, which brings a package along that a small process does without."""
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
"""How the time is written, which is UTC."""
_BARE: Final = lazy.pattern(r"[A-Za-z0-9_./@^+-]+")
_QUOTED: Final = frozenset({"time", "msg"})
_NOT_FOR_PEOPLE: Final = frozenset({"time", "level", "msg", "event", "code"})
"""What a line on a terminal has elsewhere, or not at all."""
_LEVEL_COLORS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_BAD: Final = "\x1b[31m"
_DIM: Final = "\x1b[36m"
_BOLD: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"


class Renderer:
    """Makes a line of an event."""

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
            self._painted(_BOLD, visible_line(_text(event["msg"]))),
        )
        pairs = [
            self._painted(_DIM, f"{_key(key)}=") + _value(value, quoted=False)
            for key, value in event.items()
            if key not in _NOT_FOR_PEOPLE
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
    return f'"{visible_line(escaped)}"'
