"""Decides what a container gets: CDI devices by name, nothing, or a refusal. Pure.

A pod requests devices by annotations, those of nvidia-ctk-installer v1.20.1. The first of these that the pod has
counts, even if it is empty (`GetEffectiveAnnotation`, github.com/containerd/nri v0.12.5, pkg/plugin/annotations.go):

    nvidia.cdi.k8s.io/container.NAME      for one container
    nvidia.cdi.k8s.io/pod                 for all containers of the pod
    nvidia.cdi.k8s.io                     the same

Its value is a list of CDI devices by their full names, separated by commas.

**Management devices** are all GPUs of a node, for administrators: only the pods of some namespaces get them, any other
request is refused. If the program runs by one of its two old names, the container starts without any device instead, as
their callers expect. A pod's user sees a refusal, and no log.

`find_engine_refusal` decides which engines give a container the CDI devices that a plugin names. Older ones accept the
plugin and its responses, and silently leave the devices out: the container runs, and has no GPU. All of them read the
field; it takes effect by an injector that the engine passes when it applies the response
(`nrigen.WithCDIDeviceInjector`). By the sources, that is called in:

- containerd: pkg/cri/nri/nri_api_linux.go of v1.7.30, v1.7.31 and v1.7.35, not of v1.7.24 and v1.7.29;
  internal/cri/nri/nri_api_linux.go of v2.1.0, v2.1.3 and v2.4.2, not of v2.0.0, v2.0.7, v2.0.13 and v2.0.14.
- CRI-O: server/nri-api.go of v1.35.2 and v1.36.1, not of v1.34.0 as Go's module proxy has it, which is of May 2025. The
  change is cri-o's pull request 9128, merged in July 2025, before 1.34 was released. An engine that reports 1.34.0 may
  be either, so the first that is served is 1.34.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

DOMAIN = "nvidia.cdi.k8s.io"
MANAGEMENT = "management.nvidia.com/gpu"
"""The kind that always counts as management devices, whatever --cdi-kind is: an older specification may exist."""
MAX_ANNOTATION_BYTES = 64 * 1024
"""Bytes of an annotation: a thousand devices by their longest names. Kubernetes accepts four times as much, and the
engine, and each container after this one, waits for the response."""

_NAME = re.compile(r"[A-Za-z][\w.-]*/[A-Za-z][\w.-]*=[A-Za-z0-9][\w.:-]*", re.ASCII)
"""vendor/class=device, by the specification of CDI; the pattern is slightly more permissive."""
_SHOWN = 100


class ContainerRequest(NamedTuple):
    """A container that the engine is about to create; names are Kubernetes' own, `annotations` the pod's."""

    namespace: str
    pod: str
    container: str
    annotations: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


class Policy(NamedTuple):
    """Which pods may have management devices.

    `kinds` are those besides MANAGEMENT. `lenient`: a container that may not have them gets no devices, and starts.
    """

    namespaces: frozenset[str]
    kinds: frozenset[str] = frozenset()
    lenient: bool = False


class Granted(NamedTuple):
    """The container gets these devices; none if it requested none."""

    devices: tuple[str, ...] = ()


class Withheld(NamedTuple):
    """The container requested devices that it may not have, and starts without them."""

    reason: str


class DevicesRefused(NamedTuple):
    """The container is not to be created; the reason is for the author of the pod."""

    reason: str


DeviceVerdict = Granted | Withheld | DevicesRefused


def decide(asked: ContainerRequest, policy: Policy) -> DeviceVerdict:
    """Return what the container gets."""
    key = next((key for key in _list_annotation_keys(asked.container) if key in asked.annotations), None)
    if key is None:
        return Granted()
    value = asked.annotations[key]
    if len(value) > MAX_ANNOTATION_BYTES or len(value.encode()) > MAX_ANNOTATION_BYTES:
        return DevicesRefused(f"the annotation {key} has more than {MAX_ANNOTATION_BYTES} bytes")
    kind = _find_management_kind(value, policy)
    if kind is not None and asked.namespace not in policy.namespaces:
        reason = (
            f"the annotation {key} asks for devices of the kind {kind}, which only pods in these namespaces may have: "
            f"{', '.join(sorted(policy.namespaces))}. This pod is in {asked.namespace}. Ask for GPUs by the resource "
            "of a device plugin, or have the namespace added with --nri-management-cdi-device-namespaces"
        )
        return Withheld(reason) if policy.lenient else DevicesRefused(reason)
    if policy.lenient:
        return Granted(tuple(value.split(",")))
    return _parse_devices(key, value)


def _list_annotation_keys(container: str) -> tuple[str, ...]:
    """Return the annotations that apply to a container, highest precedence first."""
    return f"{DOMAIN}/container.{container}", f"{DOMAIN}/pod", DOMAIN


def _find_management_kind(value: str, policy: Policy) -> str | None:
    """Return the kind of management devices that is requested, None if none is.

    The kind counts anywhere in the value: an engine that splits the list in its own way must not find more in it than
    this function does.
    """
    return next((kind for kind in sorted({MANAGEMENT, *policy.kinds}) if kind in value), None)


def _parse_devices(key: str, value: str) -> DeviceVerdict:
    """Return the devices of a value, each once. Spaces around a name are taken for a typing error and ignored."""
    names = [name.strip() for name in value.split(",")] if value.strip() else []
    wrong = next((name for name in names if not _NAME.fullmatch(name)), None)
    if wrong is not None:
        return DevicesRefused(
            f"the annotation {key} has {wrong[:_SHOWN]!r}, which is no full name of a CDI device, such as "
            "nvidia.com/gpu=0: correct the pod"
        )
    return Granted(tuple(dict.fromkeys(names)))


_NUMBERS = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})((?:[-+~.].*)?)", re.ASCII | re.DOTALL)
"""containerd writes "v2.1.4", its packagers "1.6.20~ds1" and "v2.1.4-k3s1", CRI-O "1.34.0"."""
_CANDIDATE = re.compile(r"[-~](alpha|beta|rc)", re.ASCII)


_Version = tuple[int, int, int, int]
"""The last is 0 for a release candidate, which precedes its version, and 1 otherwise."""
_NO_END: _Version = (1 << 30, 0, 0, 0)
_SERVED_VERSIONS: dict[str, tuple[tuple[_Version, _Version], ...]] = {
    "containerd": (((1, 7, 30, 1), (2, 0, 0, 0)), ((2, 1, 0, 1), _NO_END)),
    "cri-o": (((1, 34, 1, 1), _NO_END),),
}
"""Served versions by the engine's name in Configure: from the first of each pair on, before the second."""
_WANTED = {"containerd": "containerd 1.7.30 or 2.1.0, or a later one of these,", "cri-o": "CRI-O 1.34.1 or later"}


def find_engine_refusal(name: str, version: str) -> str | None:
    """Return why an engine is not served, None if it is. Both parameters are the engine's own values in Configure."""
    said = f"{name[:_SHOWN]} {version[:_SHOWN]}".strip()
    if name not in _SERVED_VERSIONS:
        return f"the engine calls itself {said!r}, and it is not known whether it gives a container what a plugin names"
    match = _NUMBERS.fullmatch(version)
    if match is None:
        return f"the engine calls itself {said!r}, which has no version that can be read: {_WANTED[name]} is needed"
    candidate = _CANDIDATE.match(match[4]) is not None
    numbers = int(match[1]), int(match[2]), int(match[3]), int(not candidate)
    if any(first <= numbers < end for first, end in _SERVED_VERSIONS[name]):
        return None
    return (
        f"{said} accepts a plugin's answer and leaves the CDI devices out of the container without a word: "
        f"{_WANTED[name]} is needed"
    )
