"""A real node: a machine with systemd, its engine and a kubelet as units, on a network of its own with bridge CNI."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.e2e.cluster import control_plane
from tests.e2e.cluster.control_plane import BRIDGE, ControlPlane
from tests.e2e.cluster.files import Files, State
from tests.e2e.cluster.kept_images import KeptImages
from tests.e2e.cluster.kinds import CNI_CONFIGURATION
from tests.e2e.cluster.pod_logs import PodLogs
from tests.e2e.hosts import gpu_host
from tests.e2e.hosts.hardware import Hardware, connect
from tests.e2e.hosts.host import Host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.kinds import Kind
    from tests.support.built.releases import Release

PODS = "toolkit-"
"""What the names of the installer's pods begin with."""
_STARTS = "/run/engine-starts"
_OF_INTEREST = re.compile(r"toolkit-|StopContainer|Kill container|[Ff]ailed to|deadline|Start(ing|ed)|Stopp(ing|ed)")
_LINES, _COLUMNS = 60, 300
# The kernel is everybody's, and a kubelet would set these: it finds them as it wants them.
_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
_CHANGING = (
    *("var/log", "var/cache", "var/lib/systemd", "var/lib/kubelet", "var/lib/cni"),
    *("var/lib/crio", "var/lib/cri-dockerd", "var/lib/dockershim"),
)
"""Where a node at work writes, whoever is installed on it."""


class Node:
    """Node `number` of a cluster, with an engine of this kind, of `release` where one is given.

    `programs` has the kubelet, `engine` what Go built for the engine. The control plane's images are there as well, and
    `kept` may have what an engine of its kind makes of them.
    """

    def __init__(
        self,
        number: int,
        kind: Kind,
        plane: ControlPlane,
        programs: Path,
        *,
        release: Release | None = None,
        engine: Path | None = None,
        kept: KeptImages | None = None,
    ) -> None:
        self.number, self.kind, self.name = number, kind, f"node{number}"
        self._plane, self._programs, self._engine = plane, programs, engine
        self._folder = plane.folder.parent / self.name
        self.hardware = Hardware(self._folder / "disk")
        shown = [programs, plane.images]
        self.host = Host(self.hardware.disk, release=release, shown=shown, hardware=self.hardware)
        self.logs = PodLogs(self.host, PODS)
        self._files = Files()
        self._driver = False
        self._kept = kept
        self.has_images = False
        """Whether its engine has had the images from its first start on."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.hardware)
            self._connect()
            stack.enter_context(self.host)
            self._furnish()
            self.has_images = self._kept is not None and self._kept.give(self.kind, self.host)
            self._boot()
            stack.enter_context(self.logs)
            stack.pop_all()
        return self

    def account(self) -> str:
        """Return what runs of the installer, and what kubelet and engine said of its pods in the last minutes."""
        running = self.host.run("ps", "-eo", "pid,ppid,lstart,stat,args").stdout
        units = (f"--unit={unit}" for unit in ("kubelet", self.kind.unit))
        journal = self.host.run("journalctl", "--no-pager", "--output=short-precise", "--since=-4min", *units).stdout
        lines = [line for line in running.splitlines() if "toolkit-installer" in line]
        lines += [line for line in journal.splitlines() if _OF_INTEREST.search(line)][-_LINES:]
        return "\n".join(line[:_COLUMNS] for line in lines)

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.hardware.__exit__)
            stack.callback(self.host.close)
            self.logs.__exit__()

    # --- as a machine ---

    def _connect(self) -> None:
        address, network = control_plane.address_of(self.number), control_plane.pods_of(self.number)
        connect(self._plane.hardware, BRIDGE, self.hardware, self.name)
        self._plane.hardware.ip("route", "add", network, "via", address)
        self.hardware.ip("address", "add", f"{address}/24", "dev", "eth0")
        self.hardware.ip("route", "add", "default", "via", control_plane.ADDRESS)

    def _furnish(self) -> None:
        """Write what a node's disk has before its first boot as a node."""
        self.kind.bring(self.host, self._engine)
        address = control_plane.address_of(self.number)
        for path, text in {
            "/etc/hosts": f"127.0.0.1 localhost\n{address} {self.name}\n",
            "/etc/hostname": f"{self.name}\n",
            "/etc/resolv.conf": "nameserver 127.0.0.1\n",  # which says at once that there is none, and others do not
            "/etc/machine-id": f"{uuid.uuid4().hex}\n",
            f"{CNI_CONFIGURATION}/10-pods.conflist": _cni(control_plane.pods_of(self.number)),
            "/etc/kubernetes/ca.crt": self._plane.authority.read_text(),
            "/etc/kubernetes/kubeconfig": control_plane.kubeconfig(f"{self.name}-token", "/etc/kubernetes/ca.crt"),
            "/etc/kubernetes/kubelet.yaml": _kubelet_config(self.kind.socket),
            "/etc/systemd/system/kubelet.service": self._kubelet_unit(address),
            f"/etc/systemd/system/{self.kind.unit}.service.d/count.conf": (
                f"[Service]\nExecStartPre=/bin/sh -c 'echo start >>{_STARTS}'\n"
            ),
            **self.kind.files,
        }.items():
            self.host.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.host.path(path).write_text(text)
            if path in self.kind.files:
                self.host.path(path).chmod(0o640)
        self.host.run("systemctl", "daemon-reload")

    def _kubelet_unit(self, address: str) -> str:
        flags = f"--hostname-override={self.name} --node-ip={address}"
        files = "--config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubeconfig"
        return f"""\
[Unit]
DefaultDependencies=no
StartLimitIntervalSec=0
[Service]
ExecStart={self._programs}/kubelet {files} {flags}
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
Restart=always
RestartSec=1
KillMode=process
"""

    def _boot(self) -> None:
        """Do what a machine's systemd does at each boot where it is not in a container, and start the units."""
        run = self.host.run
        run("hostname", self.name)
        run("mount", "--make-rshared", "/")
        run("mknod", "/dev/kmsg", "c", "1", "11")
        for number, (setting, value) in enumerate(_SETTINGS.items()):
            file = f"/run/setting-{number}"
            self.host.path(file).write_text(f"{value}\n")
            run("mount", "--bind", file, f"/proc/sys/{setting}")
        self.kind.prepare_boot(self.host)
        self._start()

    def _start(self) -> None:
        for unit in (*self.kind.units, "kubelet"):
            self.host.run("systemctl", "start", unit)

    def begin_to_shut_down(self) -> None:
        """Have its systemd stop units, one of which takes long, and tell the installer to stop, as it tells all."""
        # Not by default: sysinit.target comes with that, whose units this node has not, and which change its files.
        stopped = ("DefaultDependencies=no", "Conflicts=shutdown.target", "Before=shutdown.target")
        lasts = ("RemainAfterExit=yes", "ExecStop=/bin/sleep 60", *stopped)
        properties = [f"--property={each}" for each in lasts]
        self.host.run("systemd-run", "--unit=lasts", *properties, "/bin/true")
        self.host.run("systemctl", "poweroff", "--no-block")
        self.host.run("pkill", "-TERM", "-f", "idle_process")

    def reboot(self) -> None:
        """Cut its power, and start it again: its disk is as it was, and everything else new."""
        self.host.close()
        self.host.start()
        self._boot()
        if self._driver:
            gpu_host.load(self.host)

    def install_driver(self) -> None:
        """Install a made-up GPU and its driver, or install it again."""
        with tempfile.TemporaryDirectory(dir=self._folder) as work:
            gpu_host.install(self.host, Path(work) / "driver")
        self._driver = True

    def remove_driver(self, *, gpu: bool = False) -> None:
        """Remove the driver, and its GPU unless that stays."""
        gpu_host.remove(self.host)
        self._driver = False
        if gpu:
            gpu_host.plug_in(self.host)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Have its engine, and all that asks it, stopped until the block ends."""
        socket = f"{self.kind.unit}.socket"  # docker's would start it again
        sockets = (socket,) if self.host.run("systemctl", "is-active", socket, check=False).returncode == 0 else ()
        self.host.run("systemctl", "stop", "kubelet", *reversed(self.kind.units), *sockets)
        yield
        self._start()

    def load(self, archive: Path, *names: str) -> None:
        """Bring an image, with these names, to its engine, from a file in a folder that it is shown."""
        self.kind.load(self.host, archive, *names)

    def settle(self) -> None:
        """Have what stands between its engine and the kubelet look at the engine's handlers now.

        cri-dockerd does that once a minute, and a kubelet tries again until then.
        """
        if self.kind.below is not None:
            self.host.run("systemctl", "restart", self.kind.below)

    @contextlib.contextmanager
    def small_disk(self, place: str) -> Iterator[SmallDisk]:
        """Have a disk of its own on an empty folder of the node until the block ends."""
        self.host.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        try:
            yield SmallDisk(self.host, place)
        finally:
            self.host.run("umount", "--lazy", place)

    # --- what is seen of it ---

    def engine_starts(self) -> int:
        """Return how often its engine was started, or tried to, since the last boot."""
        return len(self.host.path(_STARTS).read_text().splitlines())

    def handlers(self) -> frozenset[str]:
        """Return the names of the handlers that the live engine serves."""
        return self.kind.handlers(self.host)

    def differences(self) -> dict[str, State]:
        """Return what tells its files from those of the machine that the tests run on, each with all that it is.

        Every file of the node's own file system counts, but for those that any node at work writes.
        """
        upper = Path(f"/proc/{self.hardware.pid}/root") / self.hardware.disk.relative_to("/") / "upper"
        found = self._files.differences(upper, Path("/"), _CHANGING)
        own = self.host.path("/run/nvidia")
        return found | {f"run/nvidia/{path.relative_to(own)}": () for path in own.rglob("*")}


@dataclasses.dataclass(frozen=True)
class SmallDisk:
    """A disk that is mounted on a node's folder."""

    host: Host
    place: str

    def fill(self) -> None:
        """Leave no room on it: it is as large as what is on it."""
        used = self.host.run("df", "--output=used", "--block-size=1K", self.place).stdout.split()[-1]
        self._resize(f"{used}k")

    def make_room(self) -> None:
        """Make it larger again."""
        self._resize("1g")

    def _resize(self, size: str) -> None:
        self.host.run("mount", "-o", f"remount,size={size}", self.place)

    def files(self) -> list[Path]:
        """Return all that is on it."""
        return list(self.host.path(self.place).rglob("*"))


def _cni(network: str) -> str:
    ranges = [[{"subnet": network}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def _kubelet_config(socket: str) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "failCgroupV1": False,
            "resolvConf": "/etc/resolv.conf",
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            # the disk is shared with the tests' machine: how full that is says nothing
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "50Mi",
                **dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"),
            },
        }
    )
