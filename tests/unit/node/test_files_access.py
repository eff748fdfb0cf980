"""What stands in the way of replacing a file is told before anybody tries, with the file and the kernel's own words."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolkit_installer.node import files
from toolkit_installer.node.root import NodeError, Root

PATH = "/etc/docker/daemon.json"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "etc").mkdir()
    return Root(str(tmp_path))


def put(root: Root) -> None:
    place = Path(root.outside(PATH))
    place.parent.mkdir()
    place.write_text("{}")


def told(root: Root) -> tuple[str, str | None, int | None]:
    error = files.find_obstacle(root, PATH)
    assert error is not None
    return error.reason, error.path, error.number


def test_nothing_blocks_an_existing_file_or_a_new_one_with_its_folder(root: Root) -> None:
    assert files.find_obstacle(root, PATH) is None
    put(root)
    assert files.find_obstacle(root, PATH) is None


def test_a_file_system_that_may_only_be_read_is_told(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert told(root) == ("cannot replace it: Read-only file system", PATH, errno.EROFS)


def test_a_folder_in_which_this_user_may_not_write_is_told(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert told(root) == ("cannot replace it: Permission denied", PATH, errno.EACCES)


def test_a_file_that_is_mounted_is_told(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root)
    monkeypatch.setattr(files, "_mount", os.path.isfile)  # two mounts
    assert told(root) == ("cannot replace it: Device or resource busy", PATH, errno.EBUSY)


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_an_attribute_keeps_as_it_is_is_told(root: Root, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    put(root)
    kept = os.path.isdir if which == "folder" else os.path.isfile  # chattr +i
    monkeypatch.setattr(files, "_attributes", lambda place: int(kept(place)))
    assert told(root) == ("cannot replace it: Operation not permitted", PATH, errno.EPERM)


def test_a_file_of_the_nix_store_is_not_to_be_mounted_writable() -> None:
    hint = NodeError.of(OSError(errno.EROFS, ""), "/nix/store/abc-daemon.json", "replace it").hint or ""
    assert "nixos-rebuild switch" in hint
    assert "mount it writable" not in hint
    assert "mount it writable" in (NodeError.of(OSError(errno.EROFS, ""), "/etc/docker", "replace it").hint or "")
