"""The peer: NVIDIA's own nvidia-ctk-installer, which is given the paths of a made-up node by its options."""

from __future__ import annotations

from pathlib import Path

from tests.bench.made_node import Node
from tests.bench.measuring import seconds
from tests.support.built import go_tools


def built() -> Path:
    """Return the program, built by Go where it is not there yet. Raises GoToolError."""
    tool = go_tools.NEWEST_PEER
    return go_tools.build(tool) / tool.programs[0]


class Peer:
    """It on a node of its own."""

    def __init__(self, program: Path, node: Node) -> None:
        self.program = program
        self.node = node

    def command(self, *more: str) -> list[str]:
        """Return its command, which configures the node and, without --no-daemon, waits."""
        root = self.node.folder
        return [
            *(str(self.program), "--runtime", "containerd", "--restart-mode", "none", "--config-source", "file"),
            *("--config", str(root / "etc/containerd/config.toml"), "--drop-in-config", str(root / "99-nvidia.toml")),
            *("--toolkit-install-dir", str(root / "nvidia"), "--toolkit-source-root", str(self.node.payload)),
            *("--pid-file", str(root / "toolkit.pid"), "--socket", str(root / "socket"), *more),
        ]

    def first(self) -> float:
        """Return what a first install costs."""
        self.node.fresh()
        return self.converged()

    def converged(self) -> float:
        """Return what the next run costs: the peer copies and writes all of it again."""
        return seconds(self.command("--no-daemon"))
