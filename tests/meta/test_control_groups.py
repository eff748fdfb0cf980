"""The control group of a test's containers goes at the end, also while a runtime removes parts of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.engines import cgroups


def test_a_part_that_the_runtime_removes_meanwhile_does_not_end_the_clean_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this disk a folder's file does not go with the folder, as the kernel's own do."""
    monkeypatch.setattr(cgroups, "_TOP", tmp_path)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    read = Path.read_text
    removed: list[Path] = []

    def read_and_remove_the_other(path: Path) -> str:
        """Play a runtime that removes one container's group as soon as the other's is read."""
        text = read(path)
        if path.parent.name in ("a", "b") and not removed:
            removed.append(path.parent.with_name("b" if path.parent.name == "a" else "a"))
            shutil.rmtree(removed[0])
        return text

    monkeypatch.setattr(Path, "read_text", read_and_remove_the_other)
    with cgroups.group() as name:
        top = tmp_path / name[1:]
        for folder in (top / "a", top / "b", top):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.procs").write_text("")
    assert removed
    assert not top.exists()
