"""k3s and RKE2: an agent that makes config.toml anew at each start, of a template if there is one.

The server and the agent of k3s have a kubelet in them; that of RKE2 is a process of its own. They share a socket.

Sources: k3s-io/k3s `pkg/agent/config` (the folders below its data folder) and `cmd/k3s` (the executable).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer.engines.containerd.distributions.generating import Generating, Read

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

MADE = "agent/etc/containerd/config.toml"
"""Below the data folder: the file that is made."""
TEMPLATES = {1: "config.toml.tmpl", 2: "config.toml.tmpl", 3: "config-v3.toml.tmpl", 4: "config-v3.toml.tmpl"}
FOLDERS = {1: "config.toml.d", 2: "config.toml.d", 3: "config-v3.toml.d", 4: "config-v3.toml.d"}
BESIDE = (*dict.fromkeys(TEMPLATES.values()), *(f"{name}/*.toml" for name in dict.fromkeys(FOLDERS.values())))
_STATE = "/run/k3s/containerd"


class Rancher(Generating, frozen=True, kw_only=True):
    """k3s, or RKE2, which has k3s in it."""

    # they unpack their programs below their data folder, where the root folder of their containerd is, too
    programs: tuple[str, str] | None = (r"(?P<data>/.+)/data/[^/]+/bin/[^/]+\Z", rf"\g<data>/{MADE}")
    roots: tuple[str, str] | None = (r"(?P<data>.*)/agent/containerd\Z", rf"\g<data>/{MADE}")
    beside: tuple[str, ...] = BESIDE
    state: str | None = _STATE
    sockets: tuple[str, ...] = (f"{_STATE}/containerd.sock",)
    configured: str = (
        "a drop-in in config-v3.toml.d or config.toml.d, where the generated config.toml imports it; else the template "
        "config-v3.toml.tmpl or config.toml.tmpl; config.toml itself is never edited"
    )

    def layout(self, read: Read, config: str) -> Layout | None:
        """Return the layout of a file that this one of the two made, or is to make, or of a template that was named."""
        from toolkit_installer.engines.containerd.distributions import rancher_layout  # noqa: PLC0415  # see generating

        return rancher_layout.layout_of(self, read, config)


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
RKE2 = Rancher(
    name="rke2",
    config="/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    drop_in="/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml",
    units=("rke2-server.service", "rke2-agent.service"),
    binaries=("/usr/local/bin/rke2", "/usr/bin/rke2", "/opt/rke2/bin/rke2"),
    files=("/etc/rancher/rke2/config.yaml",),
    kubelet_options="/etc/rancher/rke2/config.yaml",
    marks=("/rancher/rke2/", "/rke2/data/"),
)
