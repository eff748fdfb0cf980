"""make demo shows what the README's picture shows."""

from __future__ import annotations

from tests.demo import picture


def test_the_demo_ends_well_and_the_picture_of_it_is_current() -> None:
    assert picture.PICTURE.read_text() == picture.drawn(picture.recorded()), "make demo-picture draws it anew"
