"""Which file a running containerd reads: as its command line says, else as what the kernel shows of it tells.

k3s links a library that wipes the arguments of every program in its binary, its containerd among them: `containerd` is
all that is left. What such a process is shows in its executable, in the database that it has open, in the sockets that
it has bound and in its unit. A file counts only if it is there, as the process sees it; where nothing tells, that is
said, and nothing is assumed. Sources: k3s-io/k3s `pkg/agent/config` (the folders below its data folder) and
`cmd/k3s` (the executable); canonical/microk8s `run-containerd-with-args`; k0sproject/k0s `pkg/constant`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit_installer.engines.common import told
from toolkit_installer.node import descriptors
from toolkit_installer.node.processes import Process, read_as

CONFIG_FLAGS = ("--config", "-config", "-c")
_DATABASE = "/io.containerd.metadata.v1.bolt/meta.db"
"""Below a containerd's root folder, and open as long as it runs."""
_AGENT = "/agent/containerd"
"""Below the data folder of k3s or RKE2: the root folder of its containerd."""
_MADE_BY_AGENT = "agent/etc/containerd/config.toml"
_UNPACKED = re.compile(r"(?P<data>/.+)/data/[^/]+/bin/[^/]+\Z")
"""Where k3s and RKE2 unpack their programs below their data folder."""
_SNAP = re.compile(r"/snap/microk8s/(?P<revision>[^/]+)/")
_MICROK8S = "/var/snap/microk8s/{}/args/containerd.toml"
_K0S = "/etc/k0s/containerd.toml"
_RANCHER = "/var/lib/rancher"

_BY_FOLDER = {
    "/var/snap/microk8s/common/var/lib/containerd": _MICROK8S.format("current"),
    "/var/lib/k0s/containerd": _K0S,
}
"""A root folder of containerd, and the file of the distribution that has it there."""
_BY_UNIT = {
    "k3s.service": f"{_RANCHER}/k3s/{_MADE_BY_AGENT}",
    "k3s-agent.service": f"{_RANCHER}/k3s/{_MADE_BY_AGENT}",
    "rke2-server.service": f"{_RANCHER}/rke2/{_MADE_BY_AGENT}",
    "rke2-agent.service": f"{_RANCHER}/rke2/{_MADE_BY_AGENT}",
    "k0sworker.service": _K0S,
    "k0scontroller.service": _K0S,
    "snap.microk8s.daemon-containerd.service": _MICROK8S.format("current"),
}
_BY_SOCKET = {
    "/run/k3s/containerd/containerd.sock": (
        f"{_RANCHER}/k3s/{_MADE_BY_AGENT}",
        f"{_RANCHER}/rke2/{_MADE_BY_AGENT}",
    ),
    "/run/k0s/containerd.sock": (_K0S,),
    "/var/snap/microk8s/common/run/containerd.sock": (_MICROK8S.format("current"),),
}
"""Two that share a socket are told apart by which file is there; where both are, the socket tells nothing."""


def told_config(process: Process) -> str | None:
    """Return the file that a containerd was started with, None where it was given none.

    Raises NodeError, and HiddenError where its command line is wiped and nothing else tells.
    """
    given = told.last(process.arguments, *CONFIG_FLAGS)
    if given:
        return told.place(process, given)
    if not process.hidden:
        return None
    for candidates in _candidates(process):
        there = [path for path in candidates if read_as(process, path) is not None]
        if len(there) == 1:
            return there[0]
    raise told.hidden(process, "which configuration it reads")


def config_or(process: Process, other: str) -> str:
    """Return the file that a containerd was started with; `other` where it was given none, or that is not seen.

    Raises NodeError.
    """
    try:
        return told_config(process) or other
    except told.HiddenError:
        return other


def is_known(process: Process) -> bool:
    """Tell whether it can be told which file a containerd reads. Raises NodeError."""
    try:
        told_config(process)
    except told.HiddenError:
        return False
    return True


def _candidates(process: Process) -> Iterator[tuple[str, ...]]:
    """Yield the files that a containerd may have been started with, by each kind of evidence, the strongest first."""
    yield tuple(_by_executable(process.executable))
    roots = [name.removesuffix(_DATABASE) for name in descriptors.opened(process) if name.endswith(_DATABASE)]
    yield tuple(dict.fromkeys(path for root in roots for path in _by_root(root)))
    if process.unit in _BY_UNIT:
        yield (_BY_UNIT[process.unit],)
    for socket in descriptors.bound(process.pid) or ():
        yield _BY_SOCKET.get(re.sub(r"\A/var/run/", "/run/", socket), ())


def _by_executable(path: str) -> Iterator[str]:
    if (unpacked := _UNPACKED.match(path)) is not None:
        yield f"{unpacked['data']}/{_MADE_BY_AGENT}"
    if (snap := _SNAP.match(path)) is not None:
        yield _MICROK8S.format(snap["revision"])
    if path.startswith("/var/lib/k0s/bin/"):
        yield _K0S


def _by_root(folder: str) -> Iterator[str]:
    """Yield the file of the containerd whose root folder is `folder` (its `root`, in containerd-config.toml(5))."""
    if folder.endswith(_AGENT):
        yield f"{folder.removesuffix(_AGENT)}/{_MADE_BY_AGENT}"
    if folder in _BY_FOLDER:
        yield _BY_FOLDER[folder]
