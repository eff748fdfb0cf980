"""k0s, which merges drop-ins into its generated file and restarts its containerd by itself.

Source: k0sproject/k0s `pkg/constant`.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from toolkit_installer.engines.containerd.layouts import GeneratingDistribution, ReadContent, not_generated_error

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

_ROOT = "/etc/k0s/containerd.toml"
_GENERATED = "/run/k0s/containerd-cri.toml"
_PROGRAMS = "/var/lib/k0s/bin/"
_MANAGED = b"# k0s_managed=true"
"""First line of the file that k0s generates; a file without it is the operator's own, and k0s merges nothing."""


class _K0s(GeneratingDistribution, frozen=True, kw_only=True):
    def layout(self, read: ReadContent, config: str) -> Layout | None:
        """Return the layout of a file that k0s manages."""
        from toolkit_installer.engines.containerd import layouts  # noqa: PLC0415  # imported when a layout is built

        root = _ROOT if config == _GENERATED else config
        content = read(root)
        if content is None and root == _ROOT:
            raise not_generated_error(self.name, root)
        if content is None or not content.lstrip().startswith(_MANAGED):
            return None
        return layouts.Layout(
            name=self.name,
            units=self.units,
            generated=root,
            source=_GENERATED,
            version=layouts.version_of(root, content),
            drop_in=posixpath.join(posixpath.dirname(root), "containerd.d", layouts.DROP_IN),
            reloads_itself=True,
            runcs=(f"{_PROGRAMS}runc",),
        )


K0S = _K0s(
    name="k0s",
    sockets=("/run/k0s/containerd.sock",),
    config=_ROOT,
    programs=(_PROGRAMS, _ROOT),
    roots=(r"/var/lib/k0s/containerd\Z", _ROOT),
    drop_in="/etc/k0s/containerd.d/99-nvidia.toml",
    state="/run/k0s/containerd",
    units=("k0sworker.service", "k0scontroller.service"),
    binaries=("/usr/local/bin/k0s", "/usr/bin/k0s"),
    files=("/etc/k0s/k0s.yaml",),
    kubelet_socket_flag="--cri-socket",
    marks=("/k0s/bin/", "/etc/k0s/", "/lib/k0s/"),
    configured="a drop-in, which k0s merges, restarting containerd by itself",
)
