"""RKE2, whose kubelet is a process of its own. Its socket is k3s'."""

from __future__ import annotations

from toolkit_installer.engines.containerd.distributions.rancher import Rancher

RKE2 = Rancher(
    name="rke2",
    config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    drop_in="/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml",
    units=("rke2-server.service", "rke2-agent.service"),
    binaries=("/usr/local/bin/rke2", "/usr/bin/rke2", "/opt/rke2/bin/rke2"),
    files=("/etc/rancher/rke2/config.yaml",),
    marks=("/rancher/rke2/", "/rke2/data/"),
)
