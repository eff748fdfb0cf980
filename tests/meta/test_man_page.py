"""The manual page says what the help says."""

from __future__ import annotations

import pytest

from tests.support import man_page
from toolkit_installer.cli.options import help as cli_help


def test_the_manual_page_is_current() -> None:
    assert man_page.PAGE.read_text() == man_page.page(), "make man makes it anew"


def test_every_option_that_is_shown_is_in_it() -> None:
    text = man_page.page()
    for page in cli_help.COMMANDS.values():
        assert [row.name for row in page.shown(full=True) if man_page.escaped(row.flags[0]) not in text] == []


@pytest.mark.parametrize("text, printed", [("--flag", "\\-\\-flag"), (".TH x", "\\&.TH x"), ("a\\b", "a\\eb")])
def test_what_roff_would_take_for_a_request_is_printed(text: str, printed: str) -> None:
    assert man_page.escaped(text) == printed
