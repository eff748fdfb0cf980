"""The pending reload as a value, and the time windows of `--reload-when`, such as `Sat 02:00-04:00`. Pure.

A pending reload is saved and printed. Windows are parsed, and compared with a clock. A window is what a wall clock on
the node shows, and nothing else: when clocks are set back, a repeated hour is in the window twice; when they are set
forward, a skipped hour is in none.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

import msgspec

NOW, IDLE = "now", "idle"
"""The words of `--reload-when` that name no window."""


class Pending(msgspec.Struct, frozen=True):
    """A reload that is due and not allowed yet."""

    engines: tuple[str, ...]
    """The engines to reload."""
    reason: str
    """Why the reload is not allowed, as text."""
    since: float
    """When the run began to wait: seconds since 1970."""
    opens: float | None = None
    """When the next window opens: seconds since 1970. None if no window is waited for."""
    served: bool = False
    """Whether the engines serve their target configuration already."""

    @property
    def words(self) -> str:
        """The pending reload as one sentence."""
        return f"A reload of {', '.join(self.engines)} is pending: {self.reason}"


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_ITEM = r"(?:(?P<first>[A-Za-z]+)(?:-(?P<last>[A-Za-z]+))?\s+)?(?P<start>[0-9:]+)-(?P<end>[0-9:]+)"
_TIME = r"([01][0-9]|2[0-3]):([0-5][0-9])|(24):(00)"
_HOUR, _DAY = 60, 24 * 60
"""Minutes."""
_FAR = 22
"""Days. A window on one day of the week that is skipped as clocks are set forward opens within this time."""
ALLOWED = (
    f"{NOW}, {IDLE}, or windows such as `Sat 02:00-04:00`, `Mon-Fri 22:00-24:00` or `02:00-04:00` for every day, "
    "separated by commas"
)


class ReloadWindow(msgspec.Struct, frozen=True):
    """A time window: on each of `days` (0 is Monday) from the minute `start` until before `end`, which is greater.

    Minutes are counted from 00:00 of that day, beyond 24:00 if the window ends on the next day.
    """

    days: tuple[int, ...]
    start: int
    end: int


def parse_windows(text: str) -> tuple[ReloadWindow, ...]:
    """Parse the option's windows, none for `now` and `idle`. Raises ValueError with the reason as its text."""
    if text in (NOW, IDLE):
        return ()
    return tuple(_parse_window(item.strip()) for item in text.split(","))


def normalize_windows(text: str) -> str:
    """Return the option's text with normalized spaces and case. Raises ValueError for no valid window."""
    word = text.strip().lower()
    if word in (NOW, IDLE):
        return word
    parse_windows(text)
    return ", ".join(" ".join(item.split()).title() for item in text.split(","))


def _parse_window(item: str) -> ReloadWindow:
    match = re.fullmatch(_ITEM, item)
    if match is None:
        raise ValueError(f"{item!r} is no window")
    start, end = _parse_minute(match["start"]), _parse_minute(match["end"])
    if start == _DAY:
        raise ValueError(f"{item!r} begins at 24:00, which is 00:00 of the next day")
    if start == end:
        raise ValueError(f"{item!r} ends when it begins; 00:00-24:00 is a whole day")
    days = tuple(range(len(DAYS)))
    if match["first"] is not None:
        first = _parse_day(match["first"])
        last = _parse_day(match["last"]) if match["last"] is not None else first
        days = tuple((first + more) % len(DAYS) for more in range((last - first) % len(DAYS) + 1))
    return ReloadWindow(days, start, end if end > start else end + _DAY)


def _parse_day(word: str) -> int:
    try:
        return DAYS.index(word.capitalize())
    except ValueError:
        raise ValueError(f"{word!r} is no day: {', '.join(DAYS)} are") from None


def _parse_minute(text: str) -> int:
    match = re.fullmatch(_TIME, text)
    if match is None:
        raise ValueError(f"{text!r} is no time of a day: 00:00 to 24:00 are, with two digits each")
    hour, minute = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
    return int(hour) * _HOUR + int(minute)


def is_open(windows: Sequence[ReloadWindow], at: float, zone: dt.tzinfo) -> bool:
    """Return whether one of the windows is open at a time (seconds since 1970) in the zone."""
    local = dt.datetime.fromtimestamp(at, zone)
    day, minute = local.weekday(), local.hour * _HOUR + local.minute
    return any(
        (day in each.days and each.start <= minute < each.end)
        or ((day - 1) % len(DAYS) in each.days and minute + _DAY < each.end)
        for each in windows
    )


def find_next_opening(windows: Sequence[ReloadWindow], after: float, zone: dt.tzinfo) -> float | None:
    """Return when one of the windows is next open, at or after `after` (seconds since 1970); None for never.

    Steps minute by minute, to see every change of the zone's clocks.
    """
    minute = int(after // 60)
    if is_open(windows, after, zone):
        return after
    for candidate in range(minute + 1, minute + _FAR * _DAY):
        if is_open(windows, candidate * 60.0, zone):
            return candidate * 60.0
    return None
