"""Copies of what a distribution generated: such a file still says who made it, and nobody makes it anew."""

from __future__ import annotations

import posixpath

from toolkit_installer.engines.common import serving
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

_USUAL = "/etc/containerd/config.toml"
_AGENTS = f"/agent{_USUAL}"
"""Ends the path of k3s' and RKE2's file, whatever their data folder is called."""
_BESIDE = ("config.toml.tmpl", "config-v3.toml.tmpl", "config.toml.d", "config-v3.toml.d")
"""What only k3s and RKE2 read, in the folder of the file that they make."""
_NAMES = frozenset({"k3s", "rke2"})


def is_copy(node: Node, layout: Layout, config: str, socket: str) -> bool:
    """Tell whether `config` is a plain containerd's file that began as a copy of one that k3s or RKE2 generated.

    Its header alone says so then: it lies where neither puts one, nothing of theirs is beside it, the socket is not
    theirs, and nobody serves there. Elsewhere, as in a container's mounts, the header is all there is to go by.
    """
    if not layout.header or not config.endswith(_USUAL) or config.endswith(_AGENTS):
        return False
    folder = posixpath.dirname(config)
    return (
        _NAMES.isdisjoint(socket.split("/"))
        and all(node.files.status(posixpath.join(folder, name)) is None for name in _BESIDE)
        and serving.process_of(node, EngineName.CONTAINERD, socket) is None
    )
