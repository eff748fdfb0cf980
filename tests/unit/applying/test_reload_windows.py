"""Windows of `--reload-when`: what is read, when one is open, and when the next one opens, also as clocks change."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.applying import reload_windows
from toolkit_installer.applying.reload_windows import DAYS, ReloadWindow

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
"""Its clocks go from 02:00 to 03:00 on 2026-03-29, and from 03:00 to 02:00 on 2026-10-25."""
LORD_HOWE = zoneinfo.ZoneInfo("Australia/Lord_Howe")
"""Its clocks go half an hour forward and back."""
EVERY = (0, 1, 2, 3, 4, 5, 6)
MINUTE = 60.0


def at(text: str, zone: dt.tzinfo = dt.UTC) -> float:
    """Return a time of a zone in seconds since 1970; of one that comes twice, the first."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def opens(text: str, after: float, zone: dt.tzinfo = dt.UTC) -> str:
    """Return when a window opens, in UTC."""
    found = reload_windows.find_next_opening(reload_windows.parse_windows(text), after, zone)
    assert found is not None
    return dt.datetime.fromtimestamp(found, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    "text, read",
    [
        ("now", ()),
        ("idle", ()),
        ("02:00-04:00", (ReloadWindow(EVERY, 120, 240),)),
        ("Sat 02:00-04:00", (ReloadWindow((5,), 120, 240),)),
        (
            "sat 02:00-04:00,SUN 3:00-4:00".replace("3:00-4", "03:00-04"),
            (ReloadWindow((5,), 120, 240), ReloadWindow((6,), 180, 240)),
        ),
        ("Sat 23:00-01:00", (ReloadWindow((5,), 1380, 1500),)),
        ("22:00-24:00", (ReloadWindow(EVERY, 1320, 1440),)),
        ("22:00-00:00", (ReloadWindow(EVERY, 1320, 1440),)),
        ("00:00-24:00", (ReloadWindow(EVERY, 0, 1440),)),
        ("Mon-Wed 01:00-02:00", (ReloadWindow((0, 1, 2), 60, 120),)),
        ("Sat-Mon 01:00-02:00", (ReloadWindow((5, 6, 0), 60, 120),)),
    ],
)
def test_what_is_read(text: str, read: Sequence[ReloadWindow]) -> None:
    assert reload_windows.parse_windows(text) == read


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "'' is no window"),
        ("later", "'later' is no window"),
        ("Sat", "'Sat' is no window"),
        ("Sat,Sun 02:00-04:00", "'Sat' is no window"),
        ("now, 02:00-04:00", "'now' is no window"),
        ("02:00-04:00,", "'' is no window"),
        ("02:00", "'02:00' is no window"),
        ("Funday 02:00-04:00", "'Funday' is no day"),
        ("Saturday 02:00-04:00", "'Saturday' is no day"),
        ("2:00-4:00", "'2:00' is no time of a day"),
        ("02:60-04:00", "'02:60' is no time of a day"),
        ("25:00-26:00", "'25:00' is no time of a day"),
        ("02:00-24:01", "'24:01' is no time of a day"),
        ("24:00-01:00", "begins at 24:00"),
        ("02:00-02:00", "ends when it begins"),
        ("٠٢:00-04:00", "is no window"),
        ("Sat 02:00-04:00 UTC", "is no window"),
        ("Sat\n02:00-04:00\x00", "is no window"),
    ],
)
def test_what_is_no_window_is_refused_with_the_words_that_are_wrong(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        reload_windows.normalize_windows(text)


def test_the_text_is_said_everywhere_in_one_way() -> None:
    assert reload_windows.normalize_windows(" IDLE ") == "idle"
    assert (
        reload_windows.normalize_windows("sat  02:00-04:00 ,mon-FRI 22:00-24:00")
        == "Sat 02:00-04:00, Mon-Fri 22:00-24:00"
    )


def test_a_window_is_open_from_its_first_minute_until_before_its_last() -> None:
    saturday = reload_windows.parse_windows("Sat 02:00-04:00")
    assert [
        reload_windows.is_open(saturday, at(f"2026-11-28 {time}"), dt.UTC) for time in ("01:59:59", "02:00", "03:59:59")
    ] == [
        False,
        True,
        True,
    ]
    assert not reload_windows.is_open(saturday, at("2026-11-28 04:00"), dt.UTC)
    assert not reload_windows.is_open(saturday, at("2026-11-29 03:00"), dt.UTC)


def test_a_window_over_midnight_is_of_the_day_on_which_it_begins() -> None:
    sunday = reload_windows.parse_windows("Sun 23:00-01:00")
    assert reload_windows.is_open(sunday, at("2026-11-29 23:30"), dt.UTC)
    assert reload_windows.is_open(sunday, at("2026-11-30 00:59"), dt.UTC)  # a Monday
    assert not reload_windows.is_open(sunday, at("2026-11-30 01:00"), dt.UTC)
    assert not reload_windows.is_open(sunday, at("2026-11-29 00:30"), dt.UTC)  # begun on a Saturday


def test_the_next_one_is_told_in_seconds_since_1970() -> None:
    assert opens("Sat 02:00-04:00", at("2026-11-25 12:34:56")) == "2026-11-28 02:00:00"
    assert opens("Sat 02:00-04:00", at("2026-11-28 04:00")) == "2026-12-05 02:00:00"
    assert opens("Sat 02:00-04:00, 23:00-01:00", at("2026-11-25 12:34:56")) == "2026-11-25 23:00:00"
    assert opens("Sat 02:00-04:00", at("2026-11-25 12:34:56"), BERLIN) == "2026-11-28 01:00:00"
    now = at("2026-11-28 02:30")
    assert reload_windows.find_next_opening(reload_windows.parse_windows("Sat 02:00-04:00"), now, dt.UTC) == now


def test_an_hour_that_clocks_leave_out_is_in_no_window() -> None:
    before = at("2026-03-29 01:30", BERLIN)
    # from 02:00 until before 03:00 is nothing on this Sunday
    assert opens("Sun 02:00-03:00", before, BERLIN) == "2026-04-05 00:00:00"
    assert opens("02:00-03:00", before, BERLIN) == "2026-03-30 00:00:00"
    # what is left of a longer window begins when the clocks show a time in it, which is at 03:00
    assert opens("Sun 02:00-04:00", before, BERLIN) == "2026-03-29 01:00:00"
    assert opens("Sun 02:30-04:00", before, BERLIN) == "2026-03-29 01:00:00"


def test_an_hour_that_comes_twice_is_in_the_window_twice() -> None:
    first = at("2026-10-25 02:30", BERLIN)
    window = reload_windows.parse_windows("Sun 02:00-03:00")
    assert [reload_windows.is_open(window, first + minutes * MINUTE, BERLIN) for minutes in (-31, 0, 60, 89, 90)] == [
        *(False, True, True, True, False)
    ]
    # one that ends before the clocks go back opens again
    assert opens("Sun 02:00-02:30", first, BERLIN) == "2026-10-25 01:00:00"


def test_clocks_that_change_by_half_an_hour_are_followed() -> None:
    # at 02:00 on 2026-10-04 they show 02:30
    assert opens("02:00-02:30", at("2026-10-04 01:00", LORD_HOWE), LORD_HOWE) == "2026-10-04 15:00:00"
    assert opens("02:00-02:45", at("2026-10-04 01:00", LORD_HOWE), LORD_HOWE) == "2026-10-03 15:30:00"


TIMES = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
ITEMS = st.tuples(st.sampled_from(["", *(f"{day} " for day in DAYS), "Fri-Mon "]), TIMES, TIMES).filter(
    lambda item: item[1] != item[2]
)
TEXTS = st.lists(ITEMS.map(lambda item: f"{item[0]}{item[1]}-{item[2]}"), min_size=1, max_size=3).map(", ".join)
ZONES = st.sampled_from([dt.UTC, BERLIN, LORD_HOWE, zoneinfo.ZoneInfo("America/St_Johns")])
MOMENTS = st.integers(int(at("2026-01-01 00:00")), int(at("2027-01-01 00:00"))).map(float)


@given(TEXTS, MOMENTS, ZONES)
def test_what_opens_next_is_open_then_and_not_before(text: str, now: float, zone: dt.tzinfo) -> None:
    asked = reload_windows.parse_windows(text)
    assert reload_windows.normalize_windows(text) == text
    found = reload_windows.find_next_opening(asked, now, zone)
    assert found is not None
    assert found >= now
    assert reload_windows.is_open(asked, found, zone)
    if found > now:
        assert not reload_windows.is_open(asked, found - 1.0, zone)
        assert not reload_windows.is_open(asked, (now + found) / 2, zone)


@given(TEXTS, MOMENTS, ZONES)
def test_a_window_is_open_where_the_clock_shows_one_of_its_minutes(text: str, now: float, zone: dt.tzinfo) -> None:
    """The same, said in another way: by the words on a clock, without any arithmetic of minutes."""
    local = dt.datetime.fromtimestamp(now, zone)
    shown, today, yesterday = f"{local:%H:%M}", DAYS[local.weekday()], DAYS[local.weekday() - 1]

    def covers(days: str, day: str) -> bool:
        return not days or day in (days.split("-") if days != "Fri-Mon" else ("Fri", "Sat", "Sun", "Mon"))

    expected = False
    for item in text.split(", "):
        days, _, hours = item.rpartition(" ")
        start, end = hours.split("-")
        if start < end:
            expected |= covers(days, today) and start <= shown < end
        else:
            expected |= (covers(days, today) and start <= shown) or (covers(days, yesterday) and shown < end)
    assert reload_windows.is_open(reload_windows.parse_windows(text), now, zone) is expected
