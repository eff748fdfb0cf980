"""What k3s and RKE2 share: an agent that makes config.toml anew at each start, of a template if there is one.

Sources: k3s-io/k3s `pkg/agent/config` (the folders below its data folder) and `cmd/k3s` (the executable).
"""

from __future__ import annotations

import dataclasses
import re
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
_ROOT = "/agent/containerd"
"""Below the data folder: the root folder of their containerd."""
_UNPACKED = re.compile(r"(?P<data>/.+)/data/[^/]+/bin/[^/]+\Z")
"""Where they unpack their programs below their data folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rancher(Generating):
    """k3s, or RKE2, which has k3s in it."""

    beside: tuple[str, ...] = BESIDE
    state: str | None = _STATE
    sockets: tuple[str, ...] = (f"{_STATE}/containerd.sock",)
    configured: str = (
        "a drop-in in config-v3.toml.d or config.toml.d, where the generated config.toml imports it; else the template "
        "config-v3.toml.tmpl or config.toml.tmpl; config.toml itself is never edited"
    )

    def started_by(self, executable: str) -> str | None:
        """Return the file that is made below the data folder into which the executable was unpacked."""
        unpacked = _UNPACKED.match(executable)
        return f"{unpacked['data']}/{MADE}" if unpacked is not None else None

    def started_in(self, folder: str) -> str | None:
        """Return the file that is made below the data folder that has this root folder."""
        return f"{folder.removesuffix(_ROOT)}/{MADE}" if folder.endswith(_ROOT) else None

    def layout(self, read: Read, config: str) -> Layout | None:
        """Return the layout of a file that this one of the two made, or is to make, or of a template that was named."""
        from toolkit_installer.engines.containerd.distributions import rancher_layout  # noqa: PLC0415  # see generating

        return rancher_layout.layout_of(self, read, config)
