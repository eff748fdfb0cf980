"""Detection of the node's NVIDIA GPUs: by the PCI bus, device nodes, a Tegra's device tree, or a working driver.

A node without a GPU needs no toolkit and will never get a driver. If the node cannot be inspected, its GPUs count as
unknown, never as absent. Reads, never writes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

import msgspec

from toolkit_installer.driver import roots
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import Reader
from toolkit_installer.settings import ToolkitSettings

_SYSFS = "/sys/devices"
"""A folder that has entries wherever a sysfs is mounted."""
_PCI = "/sys/bus/pci/devices"
_PCI_DRIVERS = "/sys/bus/pci/drivers"
_VENDOR = "0x10de"
"""NVIDIA's PCI vendor ID, as sysfs prints it (Documentation/ABI/testing/sysfs-bus-pci)."""
_GPU_CLASSES = ("0x03", "0x12")
"""Base classes of the PCI Code and ID Assignment Specification: display controllers (VGA 0300, 3D 0302), and processing
accelerators. These do not count as GPUs: a card's sound (0403), USB-C (0c03) and serial (0c80) functions, NVSwitches
(0680) and the parts of old chipsets. A virtual function (SR-IOV), a vGPU in a guest and a GPU split by MIG have these
classes too."""
_VM_DRIVERS = r"vfio|^pci-stub$|^pciback$|^xen-pciback$"
"""Drivers that reserve a device for virtual machines: vfio-pci and its variants, such as nvgrace_gpu_vfio_pci."""
_VM_DRIVER_FOLDERS = ("vfio-pci", "nvgrace-gpu-vfio-pci", "pci-stub", "pciback")
"""The sysfs folders of these drivers, which list the devices that they hold."""
_DEVICE = r"nvidia[0-9]+|nvidiactl|nvhost-(?:ctrl-)?gpu|nvgpu"
"""The names of the device nodes of NVIDIA's Linux driver and of a Tegra's."""
_DEVICES = ("nvidiactl", "nvidia0", "nvhost-gpu", "nvhost-ctrl-gpu", "nvgpu", "dxg")
"""The first device nodes of each kind."""
_DXG = "/dev/dxg"
_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
"""A library of NVIDIA's Windows driver: in WSL 2, GPUs of any vendor have /dev/dxg, only NVIDIA's have this."""
_COMPATIBLE = "/sys/firmware/devicetree/base/compatible"
_TEGRA = "nvidia,tegra"
"""The begin of a Tegra's `compatible` strings (Devicetree Specification, 2.3.1); its GPU is not on the PCI bus."""
_LONGEST = 64 * 1024
"""Maximum bytes to read of a file, far more than any of them has."""


class Gpus(msgspec.Struct, frozen=True):
    """The node's GPUs, as descriptions: `own` are for containers, `given_away` reserved for virtual machines.

    `known`: the node's sysfs could be read, so that the lists are complete.
    """

    own: tuple[str, ...] = ()
    given_away: tuple[str, ...] = ()
    known: bool = True

    @property
    def absent(self) -> bool:
        """Whether the node certainly has no GPU for containers."""
        return self.known and not self.own

    @property
    def words(self) -> tuple[str, ...]:
        """A description of each GPU, or one that says that there is none or that it is unknown."""
        kept = [f"{each}, kept for virtual machines" for each in self.given_away]
        none = "none is seen" if self.known else "not known: the node's /sys is not seen from here"
        return (*self.own, *kept) or (none,)

    def __str__(self) -> str:
        """Return the descriptions in one line, for a log."""
        return "; ".join(self.words)


@Query()
def find_gpus(node: Node) -> Gpus:
    """Return the GPUs that the node's PCI bus, device tree and device nodes show.

    Raises NodeError if a file exists but cannot be read.
    """
    own: dict[str, None] = {}
    given_away: dict[str, None] = {}
    known = False
    for reader in node.readers():
        known = known or bool(reader.list(_SYSFS))
        for words, free in _list_pci_gpus(reader):
            (own if free else given_away)[words] = None
        tegra = [name for name in _read_text(reader, _COMPATIBLE).split("\0") if name.startswith(_TEGRA)]
        own |= dict.fromkeys([*_list_device_nodes(reader), *(f"the machine itself ({name})" for name in tegra[:1])])
    return Gpus(tuple(own), tuple(given_away), known)


def find_usable_gpus(node: Node, toolkit: ToolkitSettings) -> Gpus:
    """Return the GPUs of `find_gpus`; if there are none, a working driver counts as one. Raises NodeError, Stopped."""
    seen = find_gpus(node)
    if not seen.absent:
        return seen
    found = roots.find_driver(node, toolkit).driver
    return seen if found is None else msgspec.structs.replace(seen, own=(f"a driver that works, in {found.root}",))


def paths_to_watch(node: Node) -> tuple[str, ...]:
    """Return paths, in the installer's mount namespace, some of which change when a GPU appears.

    Paths that end in a slash are folders, which change when an entry appears or disappears (idling.identity).
    """
    folders = (_PCI, *(posixpath.join(_PCI_DRIVERS, name) for name in _VM_DRIVER_FOLDERS))
    devices = [posixpath.join("/dev", name) for name in _DEVICES]
    found = []
    for reader in node.readers():
        found += [f"{reader.root.outside(reader.canonical(folder))}/" for folder in folders]
        found += [reader.root.outside(reader.canonical(device)) for device in devices]
    return tuple(dict.fromkeys(found))


def _list_pci_gpus(reader: Reader) -> Iterator[tuple[str, bool]]:
    """Yield a description of each GPU on the PCI bus, and whether it is free for containers."""
    for address in reader.list(_PCI):
        place = posixpath.join(_PCI, address)
        if _read_text(reader, f"{place}/vendor") != _VENDOR or not _read_text(reader, f"{place}/class").startswith(
            _GPU_CLASSES
        ):
            continue
        held = posixpath.basename(reader.link_target(f"{place}/driver") or "")
        kind = _read_text(reader, f"{place}/device").removeprefix("0x")
        yield f"PCI {address} (10de:{kind}, {held or 'no driver'})", not re.search(_VM_DRIVERS, held)


def _list_device_nodes(reader: Reader) -> Iterator[str]:
    for name in reader.list("/dev"):
        if re.fullmatch(_DEVICE, name):
            yield posixpath.join("/dev", name)
    if reader.status(_DXG) is not None and reader.status(_WSL_LIBRARY) is not None:
        yield _DXG


def _read_text(reader: Reader, path: str) -> str:
    """Return the stripped text of a small file, "" if it is absent or was just removed. Raises NodeError."""
    try:
        found = reader.read_file(path, _LONGEST)
    except ConfigurationError as error:
        if error.path is None or reader.status(path) is not None:
            raise
        return ""
    return "" if found is None else found.content.decode(errors="replace").strip("\0 \n")
