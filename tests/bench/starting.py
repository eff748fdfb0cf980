"""Figures of single commands: a start, status, a converged run, a first install of a real payload's size, uninstall."""

from __future__ import annotations

from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.made_node import Place, payload_of
from tests.bench.measuring import medians, seconds
from tests.bench.peer import Peer

MEGABYTES = 84
"""As NVIDIA's packages of release 1.19."""


def figures(place: Place, program: Path, rounds: int) -> list[Figure]:
    """Measure them, ours and the peer's in turn."""
    payload = payload_of(place.folder / "payload", MEGABYTES)
    node = place.node("ours", payload)
    peer = Peer(program, place.node("theirs", payload))
    found = medians(
        rounds,
        {
            "start": lambda: place.cost("--version"),
            "their start": lambda: seconds([str(program), "--version"]),
            "first": node.first,
            "their first": peer.first,
            "converged": node.converged,
            "their converged": peer.converged,
            "status": lambda: node.cost("status"),
            "uninstall": lambda: node.cost("uninstall"),
        },
    )
    size = f"{MEGABYTES} MB"
    return [
        Figure("start: --version", "s", found["start"], found["their start"]),
        Figure(f"converged run, {size}", "s", found["converged"], found["their converged"], 2.5, of_ratio=True),
        Figure(f"first install, {size}", "s", found["first"], found["their first"], 5.0, of_ratio=True),
        Figure("uninstall", "s", found["uninstall"]),
        Figure("status", "s", found["status"]),
    ]
