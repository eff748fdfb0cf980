from __future__ import annotations

from pathlib import Path

from tests.support.crio_reading import read
from toolkit_installer.engines.crio import places as crio_places
from toolkit_installer.node.node import Node

NAMES = ["10-b", "10-B", "9", ".hidden", "10-b.d/z", "10-b.d/.a", "10-b.d/m/x", "10-b.dx", "10-b-", "ü.toml", "~"]


def test_files_come_in_the_order_in_which_crio_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "etc/crio/crio.conf.d"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "link").symlink_to("10-b")
    (folder / "empty").mkdir()
    found = crio_places.list_drop_ins(Node(str(tmp_path)).files, "/etc/crio/crio.conf.d")
    assert [f"{tmp_path}{path}" for path in found] == read(tmp_path / "none", folder).files
    assert len(found) == len(NAMES) + 1
    assert sorted(found, key=lambda path: crio_places.build_sort_key(path, "/etc/crio/crio.conf.d")) == found


def test_what_a_killed_run_left_is_not_taken_for_somebodys(tmp_path: Path) -> None:
    for name in (".99-nvidia.toml.toolkit-installer.tmp", ".99-nvidia.toml.toolkit-installer.swap"):
        (tmp_path / name).touch()
    kept = tmp_path / "99-nvidia.toml.toolkit-installer.kept"
    kept.touch()
    assert crio_places.list_drop_ins(Node(str(tmp_path)).files, "/") == [f"/{kept.name}"]


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert crio_places.list_drop_ins(Node(str(tmp_path)).files, "/etc/crio/crio.conf.d") == []
