"""What an engine with NRI has in the tests: its configuration, and devices that are made up."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.engines.containers import PodContainers
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine

DOMAIN = "nvidia.cdi.k8s.io"
OWN = "example.com/mgmt"
CONTAINERD = """version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]

[plugins."io.containerd.nri.v1.nri"]
disable = false
plugin_path = "@FOLDER@/nri/plugins"
plugin_config_path = "@FOLDER@/nri/conf.d"
socket_path = "@FOLDER@/nri/nri.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.example/pause:1"
disable_apparmor = true
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ["@FOLDER@/cdi"]

[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "@FOLDER@/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
NoPivotRoot = true
"""
CRIO = """[crio.runtime]
default_runtime = "runc"
hooks_dir = ["@FOLDER@/hooks.d"]
cdi_spec_dirs = ["@FOLDER@/cdi"]

[crio.runtime.runtimes.runc]
runtime_path = "/usr/sbin/runc"
runtime_type = "oci"
runtime_root = "@FOLDER@/runc"
monitor_path = "/usr/bin/conmon"

[crio.image]
pause_image = "registry.example/pause:1"
"""


def specify(folder: Path) -> None:
    """Make up devices of three kinds: each container's environment says which it has."""
    folder.mkdir()
    for kind in ("example.com/gpu", "management.nvidia.com/gpu", OWN):
        devices = [
            {
                "name": name,
                "containerEdits": {
                    "env": [f"HAS_{name}={kind}"],
                    "deviceNodes": [{"path": f"/dev/made-up-{name}", "hostPath": "/dev/null"}],
                },
            }
            for name in ("0", "1", "all")
        ]
        text = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})
        (folder / f"{kind.replace('/', '-')}.json").write_text(text)


def nri(engine: ContainerdEngine | CrioEngine) -> Path:
    return engine.folder / "nri" / "nri.sock"


def devices(pods: PodContainers, name: str) -> list[str]:
    """Return what a container has of what was made up: the device nodes, and the kinds that its environment tells."""
    nodes = [word for word in pods.execute(name, "ls", "/dev").split() if word.startswith("made-up-")]
    lines = pods.execute(name, "env").splitlines()
    kinds = [line.removeprefix("HAS_") for line in lines if line.startswith("HAS_")]
    assert sorted(f"made-up-{kind.partition('=')[0]}" for kind in kinds) == sorted(nodes)
    return sorted(kinds)
