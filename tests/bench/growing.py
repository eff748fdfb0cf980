"""Figures of growth: a first install as a payload, a configuration, its handlers or its imported files become more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.made_node import PLAIN, Node, Place, payload_of
from tests.bench.measuring import medians
from tests.bench.peer import Peer

_CRI = 'plugins."io.containerd.grpc.v1.cri"'


def _measured(  # a curve is that much
    program: Path | None, rounds: int, curve: str, unit: str, sizes: Sequence[int], made: Callable[[int, str], Node]
) -> list[Figure]:
    """Measure one curve; `program` is the peer's, None where it has no counterpart. Nodes are made by size and name."""
    measured = {}
    for size in sizes:
        measured[f"ours {size}"] = made(size, "ours").first
        if program is not None:
            measured[f"theirs {size}"] = Peer(program, made(size, "theirs")).first
    found = medians(rounds, measured)
    return [
        Figure(
            f"{curve}: {size:,} {unit}", "s", found[f"ours {size}"], found.get(f"theirs {size}"), curve=curve, size=size
        )
        for size in sizes
    ]


def of_payloads(place: Place, program: Path, rounds: int) -> list[Figure]:
    """Measure payloads of 10 to 600 MB."""
    sizes = (10, 100, 600)
    payloads = {size: payload_of(place.folder / f"payload-{size}", size) for size in sizes}
    return _measured(
        *(program, rounds, "payload", "MB", sizes),
        lambda size, name: place.node(f"{name}-{size}", payloads[size]),
    )


def of_edits(place: Place, payload: Path, program: Path, rounds: int) -> list[Figure]:
    """Measure the edit of a config.toml of 1 kB to 4 MB."""

    def config(kilobytes: int) -> str:
        tables = (
            f'[{_CRI}.registry.mirrors."r{n:05}.example"]\n  endpoint = ["https://m{n:05}.example"]\n'
            for n in range(kilobytes * 10)
        )
        text = PLAIN
        for table in tables:
            if len(text) + len(table) > kilobytes * 1000:
                break
            text += table
        return text

    return _measured(
        *(program, rounds, "edit", "kB", (1, 1000, 4000)),
        lambda size, name: place.node(f"edit-{name}-{size}", payload, config(size)),
    )


def of_handlers(place: Place, payload: Path, program: Path, rounds: int) -> list[Figure]:
    """Measure a config.toml that has 1 to 1,000 handlers of others."""

    def config(count: int) -> str:
        runtimes = (
            f'[{_CRI}.containerd.runtimes.r{n}]\n  runtime_type = "io.containerd.runc.v2"\n' for n in range(count)
        )
        return PLAIN + "".join(runtimes)

    return _measured(
        *(program, rounds, "handlers", "of others", (1, 300, 1000)),
        lambda size, name: place.node(f"handlers-{name}-{size}", payload, config(size)),
    )


def of_imports(place: Place, payload: Path, rounds: int) -> list[Figure]:
    """Measure a config.toml that imports 1 to 1,000 files. The peer does not read them."""
    return _measured(
        *(None, rounds, "imports", "files", (1, 300, 1000)),
        lambda size, name: place.node(f"imports-{name}-{size}", payload, parts=size),
    )
