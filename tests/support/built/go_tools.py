"""Programs that Debian does not have in the versions that the tests are about: built by Go, once for all.

    python -m tests.support.built.go_tools

builds all at once, which takes minutes; a test that wants one builds it otherwise.

A module is fetched as Go fetches any: checked against Go's own checksum database, and what it needs against its go.sum.
It is built where it lies, since `go install MODULE@VERSION` asks for a list of versions that not every proxy gives out.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.built import commands

CACHE = Path(__file__).parents[3] / ".cache" / "go-tools"
_SECONDS = 2400
"""For one command: a slow machine with two cores compiles CRI-O in several minutes."""
_SMALLER = "-s -w"
"""No symbols: half of the linking's time, and of the disk."""
_QUICKLY = ("-gcflags=all=-dwarf=false -l", "-gcflags=std=-dwarf=false")
"""No package gets symbols, which the linker would throw away: a seventh of all compiling, for the same program. Outside
of Go's own packages, no function is copied to where it is called either: a quarter."""
_INLINED = ("-gcflags=all=-dwarf=false",)
_NO_GARBAGE = {"GOGC": "off", "GOMEMLIMIT": "2GiB"}
"""A compiler is done before it is worth while to look for garbage: another quarter. Each may take so much memory."""


class GoToolError(Exception):
    """A tool cannot be had; the message has what is missing, or what the program that failed said."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """Programs of one module. `commands` are its packages, each of which becomes a program of that name."""

    name: str
    module: str
    version: str
    commands: tuple[str, ...]
    tags: tuple[str, ...] = ()
    in_c: tuple[str, ...] = ()
    """Folders of C files: each becomes a program of that name."""
    linking: str = _SMALLER
    cgo: bool = False
    """Whether parts of it are C."""
    libraries: tuple[str, ...] = ()
    """What pkg-config has to know."""
    source: Path | None = None
    """The folder of a module of the tests' own, which needs this one, or is it: its go.mod and go.sum are what counts.

    Tools of one such folder use the same releases of what they share, and Go compiles that once.
    """
    inlined: bool = False
    """Whether it is as quick as it can be, as somebody measures it: all others are compiled quicker, and run slower."""
    names: tuple[str, ...] = ()
    """What its one program is called by, where it looks at its name to know what to be."""

    @property
    def programs(self) -> tuple[str, ...]:
        """What is in the folder once it is built."""
        if self.names:
            return self.names
        module = re.sub(r"/v\d+$", "", self.module)  # Go leaves a major version out of a program's name
        names = (module if command == "." else command for command in self.commands)
        return *(name.rpartition("/")[2] for name in names), *self.in_c

    @property
    def packages(self) -> tuple[str, ...]:
        """What Go builds in the folder of the module, or in that of the tests' own."""
        within = "." if self.source is None else self.module
        return tuple(command if command == within else f"{within}/{command}" for command in self.commands)

    @property
    def needs(self) -> tuple[str, ...]:
        """The programs that build it."""
        return "go", *(("gcc",) if self.cgo or self.in_c else ()), *(("pkg-config",) if self.libraries else ())


_NVIDIA = "github.com/NVIDIA/nvidia-container-toolkit"
_NVIDIA_VERSION = "v1.19.0"
_NEWEST_VERSION = "v1.20.2"


def _driver_linking(flags: str) -> str:
    """Link lazily, as NVIDIA's Makefiles have it: NVML's symbols are the driver's, and there may be none."""
    lazily = "-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy"
    return f"{flags} '-extldflags={lazily}'"


def _nvidia_linking(version: str) -> str:
    return _driver_linking(f"{_SMALLER} -X {_NVIDIA}/internal/info.version={version[1:]}")


TOOLKIT = Tool(  # the release that the payloads of the tests are made like
    name="nvidia-container-toolkit",
    module=_NVIDIA,
    version=_NVIDIA_VERSION,
    commands=(
        "cmd/nvidia-cdi-hook",
        "cmd/nvidia-container-runtime",
        "cmd/nvidia-container-runtime.cdi",
        "cmd/nvidia-container-runtime.legacy",
        "cmd/nvidia-container-runtime-hook",
        "cmd/nvidia-ctk",
    ),
    linking=_nvidia_linking(_NVIDIA_VERSION),
    cgo=True,
    inlined=True,
)
NEWEST_CTK = dataclasses.replace(  # what a payload of the newest release generates specifications with
    TOOLKIT,
    name="nvidia-ctk",
    version=_NEWEST_VERSION,
    commands=("cmd/nvidia-ctk",),
    linking=_nvidia_linking(_NEWEST_VERSION),
    inlined=False,
)
PEER = Tool(  # the same release: what its own installer does with the same files
    name="nvidia-ctk-installer",
    module=_NVIDIA,
    version=_NVIDIA_VERSION,
    commands=("cmd/nvidia-ctk-installer",),
    linking=_nvidia_linking(_NVIDIA_VERSION),
    cgo=True,
    inlined=True,
)
NEWEST_PEER = dataclasses.replace(  # what make bench measures beside ours
    PEER, version=_NEWEST_VERSION, linking=_nvidia_linking(_NEWEST_VERSION)
)
DEVICE_PLUGIN = Tool(  # offers the node's GPUs to pods as nvidia.com/gpu
    name="k8s-device-plugin",
    module="github.com/NVIDIA/k8s-device-plugin",
    version="v0.17.4",
    commands=("cmd/nvidia-device-plugin",),
    linking=_driver_linking(_SMALLER),
    cgo=True,
)
VALIDATOR = Tool(  # by which the GPU Operator knows that a node's toolkit works; it tags no Go module
    name="gpu-operator-validator",
    module="github.com/NVIDIA/gpu-operator",
    version="v0.0.0-20250917190837-d73a0086a6ba",
    commands=("validator",),
)
CONTAINERD = Tool(  # the newest 2.x: Debian's newest is 2.1 to 2.3, and 2.3 came with version 4 of the configuration
    name="containerd",
    module="github.com/containerd/containerd/v2",
    version="v2.4.2",
    commands=("cmd/containerd", "cmd/containerd-shim-runc-v2"),
    inlined=True,
)
CONTAINERD_2_0 = dataclasses.replace(  # of no release of Debian; it leaves out the devices that an NRI plugin names
    CONTAINERD, version="v2.0.5", inlined=False
)
CTR = dataclasses.replace(CONTAINERD, name="ctr", commands=("cmd/ctr",))
RUNC = Tool(  # for a machine whose own is unknown: linked so that it runs everywhere, and so without seccomp
    name="runc",
    module="github.com/opencontainers/runc",
    version="v1.3.4",
    commands=(".",),
    linking=f"{_SMALLER} -extldflags=-static",
    cgo=True,
)
CRIO = Tool(  # the last whose dependencies can all be had everywhere; its rules on configuration are those of today
    name="cri-o",
    module="github.com/cri-o/cri-o",
    version="v1.34.0",
    commands=("cmd/crio",),
    tags=(
        *("containers_image_openpgp", "containers_image_ostree_stub", "exclude_graphdriver_btrfs"),  # without more C
        *("libsqlite3", "seccomp"),  # by Debian's libraries
    ),
    in_c=("pinns",),
    cgo=True,
    libraries=("sqlite3", "libseccomp"),
)

KUSTOMIZE = Tool(  # the last that Go 1.26 builds
    name="kustomize",
    module="sigs.k8s.io/kustomize/kustomize/v5",
    version="v5.8.1",
    commands=(".",),
)

_IN_A_CLUSTER = Path(__file__).with_name("kubernetes")
_HELM_VERSION = "v3.19.5"
HELM = Tool(  # of the Kubernetes below, which it takes a cluster to be of, where it renders without one
    name="helm",
    module="helm.sh/helm/v3",
    version=_HELM_VERSION,
    commands=("cmd/helm",),
    linking=" ".join(
        [
            _SMALLER,
            f"-X helm.sh/helm/v3/internal/version.version={_HELM_VERSION}",
            "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
            "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
        ]
    ),
    source=_IN_A_CLUSTER,
)

CRI_DOCKERD = Tool(  # the first that hands a RuntimeClass's handler to docker
    name="cri-dockerd",
    module="github.com/Mirantis/cri-dockerd",
    version="v0.4.0",
    commands=(".",),
)

_KUBERNETES_VERSION = "v1.34.4"
KUBERNETES = Tool(  # all of a cluster but etcd, in one program: they share nearly all that is in them
    name="kubernetes",
    module="kubernetes",
    version=_KUBERNETES_VERSION,
    commands=("kubernetes",),
    tags=("providerless", "selinux"),
    linking=" ".join(
        [
            _SMALLER,
            f"-X k8s.io/component-base/version.gitVersion={_KUBERNETES_VERSION}",
            f"-X k8s.io/client-go/pkg/version.gitVersion={_KUBERNETES_VERSION}",
        ]
    ),
    source=_IN_A_CLUSTER,
    names=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"),
)
KWOK = Tool(  # nodes that are only made up, for a larger cluster; the newest that is built with the Kubernetes above
    name="kwok",
    module="sigs.k8s.io/kwok",
    version="v0.6.1",
    commands=("cmd/kwok",),
    source=_IN_A_CLUSTER,
)

ORAS = Tool(  # copies an image between folders and registries, with all that refers to it
    name="oras",
    module="oras.land/oras",
    version="v1.3.6",
    commands=("cmd/oras",),
)

ALL = (
    TOOLKIT,
    KUSTOMIZE,
    HELM,
    CONTAINERD,
    CONTAINERD_2_0,
    PEER,
    NEWEST_CTK,
    DEVICE_PLUGIN,
    VALIDATOR,
    CRIO,
    CRI_DOCKERD,
    ORAS,
    KWOK,
    KUBERNETES,
)
"""What `make e2e` wants. What the image and `make check` need comes first: they would compile it beside the others."""


def folder_of(tool: Tool, cache: Path = CACHE) -> Path:
    """Return where a tool's programs are once they are built; a version has a folder of its own.

    So has each state of a module of the tests' own.
    """
    state = ""
    if tool.source is not None:
        files = (tool.source / name for name in ("go.mod", "go.sum", "main.go"))
        state = f"-{hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()[:8]}"
    return cache / f"{tool.name}-{tool.version}{state}"


def build(tool: Tool, cache: Path = CACHE) -> Path:
    """Return the folder of a tool's programs, built if they are not there yet; others may do so at the same time.

    Raises GoToolError.
    """
    folder = folder_of(tool, cache)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _require(tool)
            with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=cache) as work:
                made = Path(work) / "made"
                made.mkdir(mode=0o755)
                _make(tool, made)
                made.rename(folder)
    return folder


def _require(tool: Tool) -> None:
    """Raise GoToolError where something that builds it is not installed."""
    missing = [program for program in tool.needs if shutil.which(program) is None]
    if "pkg-config" not in missing:
        missing += [
            f"{library} (for pkg-config)"
            for library in tool.libraries
            if subprocess.run(["pkg-config", library], capture_output=True, check=False).returncode
        ]
    if missing:
        raise GoToolError(f"{tool.name} {tool.version} cannot be built, not installed: {', '.join(missing)}")


def _fetch(tool: Tool) -> None:
    """Fetch all that a tool is built of, while the processors have others to build. Raises GoToolError."""
    if not folder_of(tool).exists():
        with tempfile.TemporaryDirectory() as anywhere:
            source = _source(tool, Path(anywhere))
        _run(["go", "list", "-deps", *_choosing(tool), *tool.packages], source, _environment(tool))


def _source(tool: Tool, anywhere: Path) -> Path:
    """Return the folder of the module that a tool is built in, fetched if it is not the tests' own.

    Go is run `anywhere`, a folder that is in no module.
    """
    if tool.source is not None:
        return tool.source
    return Path(json.loads(_run(["go", "mod", "download", "-json", f"{tool.module}@{tool.version}"], anywhere))["Dir"])


def _choosing(tool: Tool) -> tuple[str, ...]:
    return "-mod=readonly", f"-tags={','.join(tool.tags)}"


def _environment(tool: Tool) -> dict[str, str]:
    # as many compilers as there are processors, each of which keeps to one: together they take a twentieth less
    return {"CGO_ENABLED": str(int(tool.cgo)), "GOWORK": "off", "GOMAXPROCS": "1", **_NO_GARBAGE}


def _make(tool: Tool, into: Path) -> None:
    """Fetch a tool's module and build its programs into a folder."""
    source = _source(tool, into)
    compiling = (f"-p={os.cpu_count()}", *(_INLINED if tool.inlined else _QUICKLY))
    flags = [*_choosing(tool), "-trimpath", *compiling, f"-ldflags={tool.linking}"]
    _run(["go", "build", *flags, "-o", f"{into}/", *tool.packages], source, _environment(tool))
    for name in tool.in_c:
        files = sorted(map(str, (source / name / "src").glob("*.c")))
        _run(["gcc", "-std=c99", "-Os", "-s", "-static", "-o", str(into / name), *files], source)
    for name in tool.names:
        (into / name).symlink_to(tool.module)
    if absent := set(tool.programs) - {path.name for path in into.iterdir()}:
        raise GoToolError(f"{tool.name} {tool.version} was built without {', '.join(sorted(absent))}")


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    return commands.output(command, GoToolError, seconds=_SECONDS, folder=folder, environment=environment)


if __name__ == "__main__":
    with ThreadPoolExecutor(1) as ahead:
        for each, fetched in [(each, ahead.submit(_fetch, each)) for each in ALL]:
            fetched.result()
            build(each)
