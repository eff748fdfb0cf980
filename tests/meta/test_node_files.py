"""What tests of a cluster read of its nodes' files: a content is remembered, and no change of it is missed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster.files import Files, State


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    """Return an upper layer with a file, later changes of which have another time, and an empty lower one."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    (upper / "etc").mkdir(parents=True)
    lower.mkdir()
    (config := upper / "etc/config").write_text("one\n")
    other = tmp_path / "other"
    other.touch()
    while other.stat().st_ctime_ns == config.stat().st_ctime_ns:  # the file system's clock stands still for a while
        other.touch()
    return upper, lower


@pytest.fixture
def look(layers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, State]]:
    """Return what looks at them again and again; to it, each change was long ago."""
    files = Files()
    monkeypatch.setattr("tests.e2e.cluster.files.time.time", lambda: 2**40)
    return lambda: files.differences(*layers, ("var/log",))


def test_a_file_that_nobody_touched_is_read_only_once(
    look: Callable[[], dict[str, State]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = look()
    monkeypatch.setattr("builtins.open", None)
    assert look() == before
    assert set(before) == {"etc", "etc/config"}


def change_content(path: Path) -> None:
    path.write_text("two\n")


def change_content_and_hide_it(path: Path) -> None:
    about = path.stat()
    path.write_text("two\n")
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def replace(path: Path) -> None:
    beside = path.with_name("new")
    beside.write_text("two\n")
    os.utime(beside, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    beside.rename(path)


@pytest.mark.parametrize(
    "change",
    [change_content, change_content_and_hide_it, replace, lambda path: path.chmod(0o600), Path.unlink],
)
def test_a_change_that_leaves_the_size_as_it_was_is_seen(
    layers: tuple[Path, Path], look: Callable[[], dict[str, State]], change: Callable[[Path], None]
) -> None:
    before = look()
    change(layers[0] / "etc/config")
    assert look() != before


def test_a_file_that_was_changed_just_now_is_read_again(
    layers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, now = Files(), (layers[0] / "etc/config").stat().st_ctime
    monkeypatch.setattr("tests.e2e.cluster.files.time.time", lambda: now)
    before = files.differences(*layers, ())
    assert not files._known
    (layers[0] / "etc/config").write_text("two\n")
    assert files.differences(*layers, ()) != before


def test_what_the_layers_have_in_common_and_what_is_left_out_is_no_difference(
    layers: tuple[Path, Path], look: Callable[[], dict[str, State]]
) -> None:
    upper, lower = layers
    (upper / "var/log").mkdir(parents=True)
    (upper / "var/log/messages").write_text("much\n")
    for folder in ("etc", "var"):
        (lower / folder).mkdir()
    (lower / "etc/config").write_text("one\n")
    assert look() == {}
