"""Whether a container has a GPU, or asks for one, by its specification as the engine wrote it. Pure.

What an engine adds of a CDI specification stands there as devices and mounts (OCI Runtime Specification, config.md and
config-linux.md). What NVIDIA's runtime and its hook add later goes by what the container asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEVICES = ("/dev/nvidia", "/dev/dxg")
_MAJOR = 195
"""Of the driver's devices: Linux allocated devices, "195 char"."""
_LISTED = "/var/run/nvidia-container-devices"
"""Below it, mounts name devices (NVIDIA's container toolkit, `accept-nvidia-visible-devices-as-volume-mounts`)."""
_VISIBLE, _IMPLIED = "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION"
"""Variables that ask for devices; the second one does in images from before the first, where that is not set."""
_NONE = frozenset({"", "void", "none"})
_CDI = "cdi.k8s.io/"
"""How the annotations begin that ask for CDI devices; others end so before their slash."""


def has_device(specification: Mapping[str, Any]) -> bool:
    """Tell whether a device of NVIDIA's is among the container's devices or mounts."""
    for device in _objects(_object(specification.get("linux")).get("devices")):
        if _is_device(device.get("path")) or (device.get("type") == "c" and device.get("major") == _MAJOR):
            return True
    mounts = list(_objects(specification.get("mounts")))
    return any(_is_device(mount.get(key)) for mount in mounts for key in ("source", "destination"))


def asks_for_one(specification: Mapping[str, Any]) -> bool:
    """Tell whether NVIDIA's runtime would give the container a GPU."""
    process = _object(specification.get("process"))
    words = [each for each in _list(process.get("env")) if isinstance(each, str)]
    variables = dict(word.partition("=")[::2] for word in words)
    visible = variables.get(_VISIBLE)
    if visible not in _NONE if visible is not None else _IMPLIED in variables:
        return True
    targets = [mount.get("destination") for mount in _objects(specification.get("mounts"))]
    if any(isinstance(target, str) and target.startswith(_LISTED) for target in targets):
        return True
    return has_device(specification) or any(_CDI in key for key in _object(specification.get("annotations")))


def _is_device(path: object) -> bool:
    return isinstance(path, str) and path.startswith(_DEVICES)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in _list(value) if isinstance(each, dict))
