"""Text that others chose is one line on a terminal, and gives it no orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents import log_line

ANY = st.text(st.characters(codec=None, exclude_categories=[]))


@pytest.mark.parametrize(
    "text, shown",
    [
        ("/etc/docker/daemon.json", "/etc/docker/daemon.json"),
        ("Köln 東京 \N{GRINNING FACE}", "Köln 東京 \N{GRINNING FACE}"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x1b]0;title\x07", r"a\x1b]0;title\x07"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("a\x0b\x0c\x1c\x85\u2028\u2029b", r"a\x0b\x0c\x1c\x85\u2028\u2029b"),
        ("\0\x08\x7f\x9b31m", r"\x00\x08\x7f\x9b31m"),
        ("\u202efdp.\u2066\u2069\u200f\u061c\ufeff\u200b", r"\u202efdp.\u2066\u2069\u200f\u061c\ufeff\u200b"),
        (b"a\xff\x9b".decode(errors="surrogateescape"), r"a\xff\x9b"),
        ("\ud800\udfff", r"\ud800\udfff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_or_hide_is_escaped(text: str, shown: str) -> None:
    assert log_line.escape_line(text) == shown


def test_tabs_stay_where_they_mean_something() -> None:
    assert log_line.escape_line("\ta\tb\n", tabs=True) == "\ta\tb\\n"


@given(ANY)
def test_whatever_a_text_has_it_is_one_printable_line_that_can_be_written(text: str) -> None:
    shown = log_line.escape_line(text)
    assert shown.isprintable()
    assert len(f"{shown}.".splitlines()) == 1
    shown.encode()
    assert log_line.escape_line(shown) == shown
    assert log_line.escape_line(text, tabs=True).replace("\t", "").isprintable()


@given(st.text())
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    plain = "".join(character for character in text if character.isprintable())
    assert log_line.escape_line(plain) == plain
