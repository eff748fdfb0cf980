"""Values and keys, written as TOML that every engine's parser reads."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from toolkit_installer import patterns

_BARE_KEY: Final = patterns.lazy(r"[A-Za-z0-9_-]+")
_LITERAL_KEY: Final = patterns.lazy(r"[^'\x00-\x1f\x7f]+")
_ESCAPED: Final = patterns.lazy(r'["\\\x00-\x1f\x7f]')
_SHORT_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def write(value: Any) -> str:
    """Return `value` as TOML on one line: tables become inline tables.

    Takes what tomllib gives: str, int, float, bool, datetime, date, time, list, dict. Raises TypeError for anything
    else and ValueError for a value of these types that TOML cannot hold (a lone surrogate, a time with a zone).
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _basic_string(value)
        case int() | float():
            return repr(value)  # 1e+16, inf and nan are spelt alike in both languages
        case dt.time() if value.tzinfo is not None:
            raise ValueError("TOML has no local time with a zone")
        case dt.datetime() if (value.utcoffset() or dt.timedelta()) % dt.timedelta(minutes=1):
            raise ValueError("TOML has no zone offset with seconds")
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case list():
            return f"[{', '.join(map(write, value))}]"
        case dict():
            members = ", ".join(f"{write_key(key)} = {write(member)}" for key, member in value.items())
            return f"{{ {members} }}" if members else "{}"
    raise TypeError(f"TOML has no value of type {type(value).__name__}")


def write_key(key: str) -> str:
    """Return one part of a key: bare if it can be, else quoted.

    go-toml v1 (containerd 1.x) takes escapes in a header's key literally, so that a key that would need one is written
    in single quotes where TOML allows it. Raises ValueError for a lone surrogate.
    """
    if _BARE_KEY.fullmatch(key):
        return key
    if _ESCAPED.search(key) and _LITERAL_KEY.fullmatch(key):
        return f"'{key}'"
    return _basic_string(key)


def _basic_string(text: str) -> str:
    """Return `text` in double quotes; raises ValueError (UnicodeEncodeError) for a lone surrogate."""
    text.encode()
    escaped = _ESCAPED.sub(lambda match: _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)
    return f'"{escaped}"'
