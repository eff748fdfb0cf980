"""A node with a made-up GPU, one of the engines, and NVIDIA's own programs as what is to be installed on it."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.e2e.hosts import gpu
from tests.support import fake_ctk
from tests.support.built import go_tools
from tests.support.built.releases import Suite
from tests.support.engines.containers import Containers, DockerContainers, PodContainers
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine, DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.e2e.hosts.gpu import Driver
    from tests.e2e.program import Installer
    from tests.support.built.go_tools import Tool
    from tests.support.built.releases import Release

# What of the GPU is there, each in a line; a device that the control group denies is none.
LOOK = f"""\
[ -c {gpu.DEVICE} ] && ! cat {gpu.DEVICE} 2>&1 | grep -q 'not permitted' && echo device
[ -e {gpu.LIBRARIES}/libcuda.so.1 ] && echo libraries
tr '\\0' '\\n' </proc/1/environ | grep -qx '{gpu.VARIABLE}={gpu.VERSION}' && echo variable
true
"""
THE_GPU = {"device", "libraries", "variable"}
NOTHING: set[str] = set()

CONTAINERD_1 = """\
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.example/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "@FOLDER@/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""
CONTAINERD_2 = """\
version = 3
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.example/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
cdi_spec_dirs = ["@CDI@"]
[plugins."io.containerd.cri.v1.runtime".cni]
conf_dir = "@FOLDER@/cni"
"""
CRIO = """\
[crio.runtime]
default_runtime = "runc"
hooks_dir = ["@FOLDER@/hooks.d"]
cdi_spec_dirs = ["@CDI@"]
[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_root = "@FOLDER@/runc"
monitor_path = "/usr/bin/conmon"
[crio.image]
pause_image = "registry.example/pause:1"
"""

CRUN = "/usr/bin/crun"

Engines: TypeAlias = DockerEngine | ContainerdEngine | CrioEngine


@dataclasses.dataclass(frozen=True)
class Kind:
    """One of the engines: its name, its series, and the Debian release that has it (None: this machine's)."""

    name: str
    series: str
    suite: Suite | None = None
    tool: Tool | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.series}"

    @property
    def cri(self) -> bool:
        """Whether its containers are pods'."""
        return self.name != "docker"


KINDS = (
    Kind("docker", "20.10"),
    Kind("docker", "26", Suite.TRIXIE),
    Kind("docker", "28", Suite.SID),
    Kind("containerd", "1.6"),
    Kind("containerd", "1.7", Suite.TRIXIE),
    Kind("containerd", "2.1", Suite.SID),
    Kind("containerd", "newest", Suite.SID, go_tools.CONTAINERD),
    Kind("crio", "1.34", None, go_tools.CRIO),
)


def engine(
    kind: Kind,
    folder: Path,
    driver: Driver,
    release: Callable[[Suite], Release],
    go_tool: Callable[[Tool], Path],
) -> Engines:
    """Return an engine with its configuration, not started; what it starts sees the driver as the test has it."""
    suite = release(kind.suite) if kind.suite is not None else None
    programs = go_tool(kind.tool) if kind.tool is not None else None
    folder.mkdir(mode=0o700)
    made: Engines
    if kind.name == "docker":
        made, text = DockerEngine(folder, suite), "{}\n"
    elif kind.name == "containerd":
        made = ContainerdEngine(folder, suite, programs)
        text = CONTAINERD_1 if kind.series.startswith("1.") else CONTAINERD_2
    else:
        assert programs is not None
        made, text = CrioEngine(folder, programs), CRIO
    made.config.write_text(text.replace("@FOLDER@", str(folder)).replace("@CDI@", str(driver.specifications)))
    made.enter = driver.enter
    return made


def offer_crun(kind: Kind, config: Path, *, default: bool) -> None:
    """Write into an engine's file that crun is a handler beside the engine's own runc, or the default."""
    if kind.name == "docker":
        document = json.loads(config.read_text()) | {"runtimes": {"crun": {"path": CRUN}}}
        config.write_text(json.dumps(document | ({"default-runtime": "crun"} if default else {})))
        return
    text = config.read_text()
    if kind.name == "crio":
        text += f'[crio.runtime.runtimes.crun]\nruntime_path = "{CRUN}"\nmonitor_path = "/usr/bin/conmon"\n'
        config.write_text(text.replace('default_runtime = "runc"', 'default_runtime = "crun"') if default else text)
        return
    plugin = "io.containerd.grpc.v1.cri" if kind.series.startswith("1.") else "io.containerd.cri.v1.runtime"
    table = f'plugins."{plugin}".containerd'
    text += "".join(f'[{table}.runtimes.{name}]\nruntime_type = "io.containerd.runc.v2"\n' for name in ("runc", "crun"))
    text += f'[{table}.runtimes.crun.options]\nBinaryName = "{CRUN}"\n'
    if default and f"[{table}]\n" in text:
        text = text.replace(f"[{table}]\n", f'[{table}]\ndefault_runtime_name = "crun"\n')
    elif default:
        text += f'[{table}]\ndefault_runtime_name = "crun"\n'
    config.write_text(text)


@dataclasses.dataclass
class GpuNode:
    """The node. `flags` are those of every run; nothing is installed yet."""

    kind: Kind
    engine: Engines
    containers: Containers
    driver: Driver
    installer: Installer
    flags: list[object]
    _count: int = 0

    @property
    def debug_log(self) -> Path:
        """Where NVIDIA's runtime says what it does."""
        return self.engine.folder / "nvidia-container-runtime.log"

    def install(self, *more: object) -> str:
        """Install, and have the engine take it over; return what was said."""
        said = self._run("run", "--no-daemon", "--nvidia-container-runtime.debug", self.debug_log, *more)
        self._reload()
        return said

    def uninstall(self, *, exits: int = 0) -> str:
        """Uninstall likewise; `exits` is the exit code that is expected."""
        said = self._run("uninstall", exits=exits)
        self._reload()
        return said

    def _run(self, command: str, *more: object, exits: int = 0) -> str:
        run = self.installer.start("toolkit-installer", command, *self.flags, *more)
        assert run.finish(within=120) == exits, run.output
        return run.output

    def _reload(self) -> None:
        if self.kind.name != "docker":  # which was signalled
            self.engine.restart()

    def start(self, name: str, handler: str) -> str:
        """Start a container through `handler` (empty: the default); return its name."""
        self.containers.start(name, handler)
        return name

    def dead(self, names: Iterable[str]) -> list[str]:
        """Return which of these containers no longer run."""
        return [name for name in names if not self.containers.runs(name)]

    def seen(
        self,
        handler: str,
        *,
        environment: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> set[str]:
        """Return what of the GPU a container sees that is run through `handler` (empty: the default).

        Raises ContainerError.
        """
        self._count += 1
        name = f"container-{self._count}"
        self.containers.start(name, handler, environment=environment or {}, annotations=annotations or {})
        found = set(self.containers.execute(name, "sh", "-c", LOOK).split())
        assert self.containers.enter(name) == "busybox"
        assert self.containers.stop(name) == 0
        self.containers.delete(name)
        return found


LOOK_FOR_ROOT = f"ls /dev/nvidia0 /dev/nvidiactl /{fake_ctk.LIBRARIES}/libcuda.so.{fake_ctk.VERSION} 2>/dev/null; true"
"""Shows, in a container, what it has of `driver_root`: three paths, if it has all."""


def driver_root(folder: Path) -> Path:
    """Make a driver's root with one GPU, whose device nodes are real ones of the kernel's: null, in effect."""
    made = fake_ctk.driver(folder, nodes=())
    for name in ("nvidia0", *fake_ctk.CONTROL):
        os.mknod(made / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return made


def places(kind: Kind, folder: Path, engine: Engines) -> list[object]:
    """Return what the installer is told of an engine and of its own places."""
    words: list[object] = [
        *("--toolkit-install-dir", folder / "nvidia", "--pid-file", folder / "pid" / "toolkit.pid"),
        *("--runtime", kind.name, "--config", engine.config, "--socket", engine.socket),
    ]
    if kind.cri:
        words += ["--restart-mode", "none"]
    if kind.name == "containerd":
        words += ["--drop-in-config", engine.folder / "conf.d" / "99-nvidia.toml"]
    return words


def containers(engine: Engines, cgroup: str) -> Containers:
    """Return containers on a live engine."""
    return DockerContainers(engine, cgroup) if isinstance(engine, DockerEngine) else PodContainers(engine, cgroup)
