"""k3s, whose server and agent have a kubelet in them."""

from __future__ import annotations

from toolkit_installer.engines.containerd.distributions.rancher import Rancher

K3S = Rancher(
    name="k3s",
    config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    drop_in="/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml",
    units=("k3s.service", "k3s-agent.service"),
    binaries=("/usr/local/bin/k3s", "/usr/bin/k3s", "/opt/bin/k3s"),
    files=("/etc/rancher/k3s/config.yaml",),
    marks=("/rancher/k3s/", "/k3s/data/", "/bin/k3s"),
    kubelets=frozenset({"k3s-server", "k3s-agent", "k3s"}),
    kubelet_options="/etc/rancher/k3s/config.yaml",
)
