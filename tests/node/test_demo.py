"""make demo shows what the README's picture shows."""

from __future__ import annotations

import pytest

from tests.demo import demo, picture


def test_the_demo_ends_well_and_the_picture_of_it_is_current() -> None:
    assert picture.PICTURE.read_text() == picture.drawn(picture.recorded()), "make demo-picture draws it anew"


@pytest.mark.parametrize(
    "said",
    [
        "The node is configured\r\n",
        "\r\x1b[KCopying [##  ] 1 of 4 MB\r\x1b[KCopying [####] 4 of 4 MB\r\x1b[KThe node is configured\r\n",
    ],
)
def test_a_bar_that_a_slow_machine_showed_meanwhile_leaves_no_trace(said: str) -> None:
    assert demo.shown(said) == "The node is configured"
