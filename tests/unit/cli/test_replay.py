"""The page of a replay says of how many captures it is, whatever became of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.cli import replay
from toolkit_installer.cli.replay import ReplayOptions


@pytest.mark.parametrize("count, words", [(1, "Replay of 1 capture<"), (2, "Replay of 2 captures<")])
def test_the_page_names_how_many_captures_there_were(tmp_path: Path, count: int, words: str) -> None:
    captures = [tmp_path / f"{number}.tar.gz" for number in range(count)]
    for each in captures:
        each.write_bytes(b"no capture")
    page = tmp_path / "page.html"
    replay.replay([str(each) for each in captures], ReplayOptions({}, html=str(page)))
    assert words in page.read_text()
