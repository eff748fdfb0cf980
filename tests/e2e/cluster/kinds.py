"""The engines that a cluster's nodes have: how each comes to a node, gets its images, and says what it serves."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.hosts import cri_dockerd_unit, crio_unit, kubelet_pod, low_level
from tests.e2e.hosts.host import Host
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.built.releases import Suite
from tests.support.engines import cri_client, images

CNI = Path("/usr/lib/cni")
"""The plugins of Debian's package containernetworking-plugins."""
CNI_CONFIGURATION = "/etc/cni/net.d"
_STORAGE = {"containerd": "/var/lib/containerd", "crio": "/var/lib/containers", "docker": "/var/lib/docker"}
_DAEMONS = {"containerd": "containerd", "crio": "/usr/local/bin/crio", "docker": "dockerd"}
_ARCHIVE = "/run/image.tar"
"""Where CRI-O pulls images from, whatever their names."""
_LOAD_SECONDS = 300
_ANSWER_SECONDS = 60.0

_CONTAINERD_1 = f"""\
# Managed by hand: ask the storage team before you touch this.
version = 2   # of the format

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = '{images.PAUSE}'   # mirrored
\trestrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI}"
    conf_dir = "{CNI_CONFIGURATION}"
"""
_CONTAINERD_2 = f"""\
# Managed by hand: ask the storage team before you touch this.
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = '{images.PAUSE}'   # mirrored
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI}"]
conf_dir = "{CNI_CONFIGURATION}"
"""
# Images come from a file, and their layers lie in memory: the kernel makes no overlay on the machine's own.
_CRIO_PLACES = f"""\
[crio]
root = "/var/lib/containers/storage"
runroot = "/run/crio-storage"
[crio.image]
default_transport = "docker-archive:{_ARCHIVE}:"
pause_image = "{images.PAUSE}"
pause_command = ""
[crio.network]
network_dir = "{CNI_CONFIGURATION}"
plugin_dirs = ["{CNI}"]
[crio.nri]
enable_nri = false
"""
# as most nodes have it, for names without a registry such as the manifest's
_CRIO_REGISTRIES = 'unqualified-search-registries = ["docker.io"]\n'
_DOCKER = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
_DOCKER_OPTIONS = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"


@dataclasses.dataclass(frozen=True)
class Kind:
    """An engine as a node has it. `files` are those of its configuration, by path."""

    name: str
    suite: Suite | None = None
    """The Debian release that has it; None: this machine's."""
    tool: Tool | None = None
    """What Go has to build for it."""
    unit: str = "containerd"
    socket: str = kubelet_pod.SOCKET
    """Where the kubelet asks."""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    restarted: bool = True
    """Whether it is restarted to take its configuration over, and not only signalled."""
    below: str | None = None
    """The unit of what stands between it and the kubelet."""

    @property
    def storage(self) -> str:
        """Where it keeps its images."""
        return _STORAGE[self.unit]

    @property
    def units(self) -> tuple[str, ...]:
        """What has to be started for it, in this order."""
        return (self.unit, self.below) if self.below else (self.unit,)

    def version(self, host: Host) -> str:
        """Return what its daemon says of its version, without being started."""
        return host.run(_DAEMONS[self.unit], "--version").stdout

    def bring(self, host: Host, programs: Path | None) -> None:
        """Bring what no package has to a machine; `programs` is what Go built."""
        if self.unit == "crio" and programs is not None:
            crio_unit.bring(host, programs, "overlay")
        elif self.unit == "docker" and programs is not None:
            cri_dockerd_unit.bring(host, programs, cni=CNI)
            host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{_DOCKER_OPTIONS}"\n')

    def prepare_boot(self, host: Host) -> None:
        """Do what has to be done at each boot."""
        if self.suite is Suite.SID:  # its runc starts no container on a machine of the tests, whatever the container
            host.run("umount", "/usr/sbin/runc")
        if self.unit == "crio":  # it takes each that the kernel has for one that is mounted, and sets limits there
            lines = Path("/proc/cgroups").read_text().splitlines(keepends=True)
            used = [line for line in lines if line.split()[1] != "0"]
            host.path("/run/cgroups").write_text("".join(used))
            host.run("mount", "--bind", "/run/cgroups", "/proc/cgroups")
        if self.unit in ("crio", "docker"):
            low_level.make_privileged_containers_possible(host)

    def load(self, host: Host, archive: Path, *names: str) -> None:
        """Bring an image, with these names, to the live engine, from a file that its machine is shown."""
        if self.unit == "docker":
            host.run("docker", "load", "--input", archive, within=_LOAD_SECONDS)
            host.run("docker", "image", "inspect", *names)
        elif self.unit == "crio":
            place = host.path(_ARCHIVE)
            place.symlink_to(archive)
            with kubelet_pod.kubelet(host, "", self.socket) as kubelet:
                for name in names:
                    kubelet.pull(name)
            place.unlink()
        else:
            host.run("ctr", "--namespace=k8s.io", "images", "import", archive, within=_LOAD_SECONDS)

    def handlers(self, host: Host) -> frozenset[str]:
        """Return the names of the handlers that the live engine serves."""
        if self.unit == "docker":
            shown = json.loads(host.run("docker", "info", "--format", "{{json .Runtimes}}").stdout)
            return frozenset(name for name in shown if not name.startswith("io.containerd."))
        told = cri_client.status(host.path(self.socket), _ANSWER_SECONDS)
        found = told["handlers"] if self.unit == "crio" else told["config"]["containerd"]["runtimes"]
        return frozenset(found) - {""}


KINDS = (
    Kind("containerd-1.6", files={"/etc/containerd/config.toml": _CONTAINERD_1}),
    Kind("containerd-1.7", Suite.TRIXIE, files={"/etc/containerd/config.toml": _CONTAINERD_1}),
    Kind("containerd-2", Suite.SID, files={"/etc/containerd/config.toml": _CONTAINERD_2}),
    Kind(
        "crio",
        tool=go_tools.CRIO,
        unit=crio_unit.UNIT,
        socket=crio_unit.SOCKET,
        files={
            crio_unit.CONFIG: crio_unit.CONFIGURATION,
            "/etc/crio/crio.conf.d/10-places.conf": _CRIO_PLACES,
            "/etc/containers/registries.conf": _CRIO_REGISTRIES,
        },
    ),
    Kind(
        "docker",
        Suite.SID,
        tool=go_tools.CRI_DOCKERD,
        unit="docker",
        socket=cri_dockerd_unit.SOCKET,
        files={"/etc/docker/daemon.json": _DOCKER},
        restarted=False,
        below=cri_dockerd_unit.UNIT,
    ),
)
