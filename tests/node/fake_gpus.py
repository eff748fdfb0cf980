"""What a made-up node's sysfs and /dev show of devices."""

from __future__ import annotations

import shutil

from tests.support.fake_node import FakeNode

GPU = "0000:3b:00.0"
H100 = ("0x10de", "0x030200", "0x2330")
"""Vendor, class and device, as /sys/bus/pci/devices says them of a GPU without an output."""
ETHERNET = ("0x8086", "0x020000", "0x1521")
_BUS = "/sys/bus/pci"


def show_sysfs(node: FakeNode) -> None:
    """Mount a sysfs that has a PCI bus with a network card on it."""
    show(node, "0000:00:1f.6", ETHERNET, driver="igb")


def show(node: FakeNode, address: str = GPU, kind: tuple[str, str, str] = H100, driver: str | None = None) -> None:
    """Plug a device in, held by a driver of the kernel's."""
    place = f"/sys/devices/pci0000:00/{address}"
    for name, value in zip(("vendor", "class", "device"), kind, strict=True):
        node.write(f"{place}/{name}", f"{value}\n")
    entry = node.place(f"{_BUS}/devices/{address}")
    entry.parent.mkdir(parents=True, exist_ok=True)
    bind(node, address, driver)
    entry.symlink_to(f"../../../devices/pci0000:00/{address}")  # last: what comes is whole


def bind(node: FakeNode, address: str, driver: str | None) -> None:
    """Have another driver of the kernel's hold a device, or none."""
    link = node.place(f"/sys/devices/pci0000:00/{address}/driver")
    for held in node.place(f"{_BUS}/drivers").glob(f"*/{address}"):
        held.unlink()
    link.unlink(missing_ok=True)
    if driver is not None:
        folder = node.place(f"{_BUS}/drivers/{driver}")
        folder.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../bus/pci/drivers/{driver}")
        (folder / address).symlink_to(f"../../../../devices/pci0000:00/{address}")


def unplug(node: FakeNode, address: str = GPU) -> None:
    """Take a device away."""
    bind(node, address, None)
    node.place(f"{_BUS}/devices/{address}").unlink()
    shutil.rmtree(node.place(f"/sys/devices/pci0000:00/{address}"))
