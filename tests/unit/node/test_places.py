"""Paths of this process and of the node, where single folders of the node are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.node import places
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import Mount, PathTranslator


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node of which this process, a container, sees the `/` in a folder."""
    for part in ("proc", "usr", "etc/engine"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("ID=node")
    monkeypatch.setattr(places, "is_marked_as_container", lambda: True)
    return Node("/", str(tmp_path), whole=False)


def test_mount_tables_are_read_once_for_any_number_of_paths(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    read = places.own_table
    tables: list[tuple[Mount, ...]] = []

    def counted() -> tuple[Mount, ...]:
        tables.append(read())
        return tables[-1]

    monkeypatch.setattr(places, "own_table", counted)
    node.given = ("/run/engine/engine.sock", "/nowhere/file")
    made = PathTranslator(node)
    for number in range(10):
        made.on_node(f"/etc/engine/{number}")
        made.seen_here(f"/etc/engine/{number}")
        made.reachable(f"/run/engine/{number}.sock")
    assert len(tables) == 1


@pytest.mark.parametrize(
    "mounted, named",
    [
        ("/etc/engine", "/etc/engine/file"),
        ("/@root/etc/engine", "/etc/engine/file"),  # a subvolume
        ("/engine", "/etc/engine/file"),  # a partition that the node has at /etc
        ("/data/engine", None),  # the node's /etc/engine is a symlink to it, or something else is: nothing tells which
    ],
)
def test_a_mount_keeps_its_name_only_where_its_file_system_bears_that_out(
    monkeypatch: pytest.MonkeyPatch, mounted: str, named: str | None
) -> None:
    table = f"1 0 0:9 / / rw - overlay overlay rw\n2 1 8:1 {mounted} /etc/engine rw - ext4 /dev/sda1 rw\n"
    monkeypatch.setattr(places, "is_marked_as_container", lambda: True)
    monkeypatch.setattr(places, "_is_another", lambda _folder: False)
    monkeypatch.setattr(places, "own_table", lambda: places.parse(table))
    assert PathTranslator(Node("/", "/", whole=False)).on_node("/etc/engine/file") == named


def test_a_given_path_without_a_name_on_the_node_is_believed_for_files_of_our_own_alone(node: Node) -> None:
    node.given = ("/nowhere/toolkit.pid",)
    made = PathTranslator(node)
    assert made.seen_here("/nowhere/toolkit.pid") == "/nowhere/toolkit.pid"
    assert made.seen_here("/nowhere/toolkit.pid", given=False) is None
