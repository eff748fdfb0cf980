"""Which GPUs a made sysfs, /dev and device tree show, and which of them containers may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.driver.gpus import Gpus, find_gpus, paths_to_watch
from toolkit_installer.node.node import Node

ADDRESS = "0000:3b:00.0"


def plug(root: Path, vendor: str, kind: str, driver: str | None = None) -> None:
    """Put a device on the node's PCI bus."""
    place = root / "sys/bus/pci/devices" / ADDRESS
    place.mkdir(parents=True)
    (root / "sys/devices/pci0000:00").mkdir(parents=True)
    for name, value in (("vendor", vendor), ("class", kind), ("device", "0x2330")):
        (place / name).write_text(f"{value}\n")
    if driver is not None:
        (place / "driver").symlink_to(f"../../drivers/{driver}")


@pytest.mark.parametrize(
    "vendor, kind, is_gpu",
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x030000", True),
        ("0x10de", "0x120000", True),
        ("0x10de", "0x040300", False),  # a card's sound
        ("0x10de", "0x068000", False),  # an NVSwitch
        ("0x1002", "0x030000", False),
    ],
)
def test_a_gpu_is_known_by_vendor_and_class(tmp_path: Path, vendor: str, kind: str, *, is_gpu: bool) -> None:
    plug(tmp_path, vendor, kind)
    assert find_gpus(Node(str(tmp_path))).own == ((f"PCI {ADDRESS} (10de:2330, no driver)",) if is_gpu else ())


@pytest.mark.parametrize(
    "driver, is_free",
    [("nvidia", True), ("nouveau", True), ("vfio-pci", False), ("nvgrace_gpu_vfio_pci", False), ("pci-stub", False)],
)
def test_a_gpu_of_a_virtual_machines_driver_is_given_away(tmp_path: Path, driver: str, *, is_free: bool) -> None:
    plug(tmp_path, "0x10de", "0x030200", driver)
    found = find_gpus(Node(str(tmp_path)))
    words = (f"PCI {ADDRESS} (10de:2330, {driver})",)
    assert (found.own, found.given_away) == ((words, ()) if is_free else ((), words))
    assert found.absent is not is_free


@pytest.mark.parametrize(
    "files, own",
    [
        ({"dev/nvidia0": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""}, ("/dev/nvidia0", "/dev/nvidiactl")),
        ({"dev/dxg": ""}, ()),  # WSL 2 with a GPU of another vendor
        ({"dev/dxg": "", "usr/lib/wsl/lib/libnvidia-ml.so.1": ""}, ("/dev/dxg",)),
        (
            {"sys/firmware/devicetree/base/compatible": "nvidia,p3701\0nvidia,tegra234\0"},
            ("the machine itself (nvidia,tegra234)",),
        ),
    ],
)
def test_device_nodes_and_a_tegras_device_tree_show_gpus(
    tmp_path: Path, files: dict[str, str], own: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(find_gpus(Node(str(tmp_path))).own) == sorted(own)


def test_gpus_are_unknown_and_not_absent_where_no_sysfs_is_seen(tmp_path: Path) -> None:
    found = find_gpus(Node(str(tmp_path)))
    assert (found.known, found.absent) == (False, False)
    assert str(found) == "not known: the node's /sys is not seen from here"
    assert str(Gpus()) == "none is seen"


def test_folders_are_watched_for_devices_that_come(tmp_path: Path) -> None:
    watched = paths_to_watch(Node(str(tmp_path)))
    assert f"{tmp_path}/sys/bus/pci/devices/" in watched
    assert f"{tmp_path}/dev/nvidiactl" in watched
