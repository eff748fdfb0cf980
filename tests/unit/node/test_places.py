"""Paths of this process and of the node where single folders are mounted, and one file's names in two mount tables."""

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


def test_a_path_without_a_name_on_the_node_is_accepted_for_our_own_files_only(node: Node) -> None:
    node.given = ("/nowhere/toolkit.pid",)
    made = PathTranslator(node)
    assert made.seen_here("/nowhere/toolkit.pid") == "/nowhere/toolkit.pid"
    assert made.seen_here("/nowhere/toolkit.pid", given=False) is None


NODE = """\
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
2 1 0:20 / /run rw,nosuid shared:2 - tmpfs tmpfs rw
3 1 8:2 / /var rw shared:3 - xfs /dev/sda2 rw
4 1 8:1 /srv/engine /etc/docker rw - ext4 /dev/sda1 rw
5 1 0:30 /@home /home rw - btrfs /dev/sdb rw
6 1 0:30 / /mnt/btrfs/all rw - btrfs /dev/sdb rw
7 3 8:1 /etc/crio /var/lib/kubelet/pods/1/volume-subpaths/a/b/0 rw - ext4 /dev/sda1 rw
8 2 0:20 /user\\040one /run/odd\\040place rw - tmpfs tmpfs rw
9 1 8:3 / /opt rw - ext4 /dev/sda3 rw
10 1 8:4 / /opt rw - ext4 /dev/sda4 rw
11 1 8:5 / /hidden/below rw - ext4 /dev/sda5 rw
12 1 8:6 / /hidden rw - ext4 /dev/sda6 rw
""".replace("10 1 8:4", "10 9 8:4")
CONTAINER = """\
100 90 0:99 / / rw - overlay overlay rw,lowerdir=/a
101 100 8:1 /etc/containerd /runtime/config-dir rw master:1 - ext4 /dev/sda1 rw
102 100 0:20 /containerd /runtime/sock-dir rw master:2 - tmpfs tmpfs rw
103 100 8:2 /lib/rancher /rancher ro master:3 - xfs /dev/sda2 rw
104 100 8:1 /srv/engine /docker rw - ext4 /dev/sda1 rw
105 100 0:30 /@home/somebody /me rw - btrfs /dev/sdb rw
106 100 8:1 /etc/crio /crio rw - ext4 /dev/sda1 rw
107 100 8:1 /etc/crio//deleted /gone rw - ext4 /dev/sda1 rw
108 100 8:3 /x /covered rw - ext4 /dev/sda3 rw
109 100 8:5 / /under rw - ext4 /dev/sda5 rw
110 100 8:1 / /host ro master:1 - ext4 /dev/sda1 rw
111 110 0:20 / /host/run rw master:2 - tmpfs tmpfs rw
112 100 8:1 /etc/one.toml /one.toml rw - ext4 /dev/sda1 rw
"""
HERE, THERE = places.parse(CONTAINER), places.parse(NODE)


@pytest.mark.parametrize(
    "here, there",
    [
        pytest.param("/runtime/config-dir/config.toml", "/etc/containerd/config.toml", id="the root file system"),
        pytest.param("/runtime/config-dir", "/etc/containerd", id="the mounted folder itself"),
        pytest.param("/runtime/sock-dir/containerd.sock", "/run/containerd/containerd.sock", id="a tmpfs"),
        pytest.param("/rancher/k3s", "/var/lib/rancher/k3s", id="a partition"),
        pytest.param("/docker/daemon.json", "/etc/docker/daemon.json", id="the node's bind mount is more specific"),
        pytest.param("/me/x", "/home/somebody/x", id="a subvolume, and all of its file system elsewhere"),
        pytest.param("/crio/crio.conf", "/etc/crio/crio.conf", id="a pod's own mount of it is passed over"),
        pytest.param("/host/run/crio/crio.sock", "/run/crio/crio.sock", id="below the node's root"),
        pytest.param("/one.toml", "/etc/one.toml", id="a file that is a mount"),
    ],
)
def test_a_file_of_the_container_has_a_name_on_the_node(here: str, there: str) -> None:
    assert next(places.names_of(here, HERE, THERE)) == there
    assert here in places.names_of(there, THERE, HERE)


@pytest.mark.parametrize("path", ["/own/file", "/gone/crio.conf", "/covered", "/under/file"])
def test_what_the_node_does_not_show_has_no_name_there(path: str) -> None:
    assert list(places.names_of(path, HERE, THERE)) == []


def test_the_mounts_below_a_folder_are_the_table_of_that_root() -> None:
    below = places.select_mounts_below(HERE, "/host")
    assert [each.place for each in below] == ["/", "/run"]
    assert list(places.names_of("/runtime/sock-dir/a.sock", HERE, below)) == ["/run/containerd/a.sock"]


def test_of_mounts_at_one_place_the_last_is_seen() -> None:
    seen = places.mount_of("/opt/x", THERE)
    assert seen is not None
    assert seen.device == "8:4"


def test_of_two_mounts_that_give_one_name_the_one_that_is_seen_counts() -> None:
    over, under = ("14 13 8:7 / /twice rw - ext4 /dev/sdc rw", "13 1 8:7 / /twice rw - ext4 /dev/sdc rw")
    here = places.parse(f"{CONTAINER}113 100 8:7 / /seen rw - ext4 /dev/sdc rw\n")
    for lines in ((under, over), (over, under)):  # the kernel promises no order
        there = places.parse(NODE + "\n".join(lines))
        assert list(places.names_of("/seen/x", here, there)) == ["/twice/x"]


def test_escapes_in_a_table_are_read() -> None:
    odd = next(each for each in THERE if each.number == 8)
    assert (odd.root, odd.place) == ("/user one", "/run/odd place")


def test_a_table_without_a_root_has_no_mount_of_a_path() -> None:
    assert places.mount_of("/x", ()) is None
    assert list(places.names_of("/x", (), THERE)) == []
