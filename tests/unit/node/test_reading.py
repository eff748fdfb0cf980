"""Reading many paths in one go: what is absent is known from its folder, and what cannot be known counts as there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit_installer.node.reading import CachedReader, Reader
from toolkit_installer.node.root import Root

FILES = ("/etc/engine.toml", "/etc/engine.d/a.conf", "/opt/here")


@pytest.fixture
def look(tmp_path: Path) -> CachedReader:
    for name in FILES:
        place = tmp_path / name[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    (tmp_path / "etc/linked.d").symlink_to("/etc/engine.d")
    (tmp_path / "etc/dangling").symlink_to("/nowhere")
    return CachedReader(Reader(Root(str(tmp_path))))


@pytest.mark.parametrize(
    "path", [*FILES, "/etc/linked.d/a.conf", "/etc/dangling", "/opt/../etc/engine.toml", "/", "/etc/", "/etc/.."]
)
def test_what_is_there_or_may_be_is_not_called_absent(look: CachedReader, path: str) -> None:
    assert not look.lacks(path)


@pytest.mark.parametrize("path", ["/etc/engine.tom", "/etc/linked.d/b.conf", "/etc/absent.d/a.conf", "/absent"])
def test_what_its_folder_does_not_name_is_absent(look: CachedReader, path: str) -> None:
    assert look.lacks(path)


def test_what_lies_below_a_file_is_left_to_whoever_reads_it(look: CachedReader) -> None:
    assert not look.lacks("/opt/here/below/that")


def test_a_folder_is_listed_once_and_its_links_are_followed_once(
    look: CachedReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(kind: str, real: object) -> object:
        def call(path: str, *rest: object, **more: object) -> object:
            asked.append(f"{kind} {str(path).removeprefix(str(tmp_path))}")
            return real(path, *rest, **more)  # type: ignore[operator]

        return call

    monkeypatch.setattr(os, "listdir", noted("list", os.listdir))
    monkeypatch.setattr(os, "readlink", noted("link", os.readlink))
    for name in ("a.conf", "b.conf", "c.conf"):
        look.lacks(f"/etc/linked.d/{name}")
        look.canonical(f"/etc/linked.d/{name}")
    assert len(asked) == len(set(asked))
    assert [each for each in asked if each.startswith("list")] == ["list /etc/engine.d"]
