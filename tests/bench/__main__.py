"""Measures, prints one screen, and makes docs/performance.md.

python -m tests.bench               all but the fleet
python -m tests.bench --installed   commands of the program as pip installs it alone, in a minute
python -m tests.bench --short       counts alone, in a minute: what they come to is the exit code
python -m tests.bench --nri         the NRI plugin on a live containerd alone, in a minute: it is printed, and not kept
python -m tests.bench --fleet       the fleet alone; --nodes says how many
python -m tests.bench --page        makes the page of what was measured before
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench import (
    bursts,
    counts,
    fleet,
    growing,
    idling,
    image_root,
    machine,
    page,
    peer,
    pip_install,
    starting,
    table,
)
from tests.bench.figures import Figure
from tests.bench.made_node import Place
from tests.support import payloads


def _measure_installed(folder: Path, rounds: int) -> None:
    """Measure the commands of the program as pip installs it, print the figures, and write the data file."""
    program = pip_install.install(folder / "environment")
    figures = starting.figures(Place(folder / "installed", program=program), peer.built(), rounds)
    _keep(page.INSTALLED, {**machine.about(installed=program), "rounds": rounds, "figures": _rows(figures)})
    print("\n".join(table.lines(figures)))


def _measure(folder: Path, rounds: int) -> None:
    """Measure all figures, print them, and write the data file."""
    program = peer.built()
    with _place(folder) as place:
        payload = payloads.build(place.folder / "payload")
        figures = [
            *starting.figures(place.within("starting"), program, rounds),
            *idling.figures(folder, payload, program),
            *_bursts(folder, payload, program),
            *growing.of_edits(place, payload, program, rounds),
            *growing.of_payloads(place.within("payloads"), program, rounds),
            *growing.of_handlers(place, payload, program, rounds),
            *growing.of_imports(place, payload, rounds),
        ]
        data = {**machine.about(place.image), "rounds": rounds}
    left_out = {"left_out": bursts.missing(), "no_image": image_root.missing()}
    _keep(page.MEASURED, {**data, **left_out, "figures": _rows(figures)})
    print("\n".join(table.lines(figures)))


def _rows(figures: list[Figure]) -> list[dict[str, object]]:
    return [{name: value for name, value in vars(figure).items() if value is not None} for figure in figures]


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[Place]:
    """Yield where commands are measured: in the image's own files; else beside them, and say why."""
    if why := image_root.missing():
        print(f"the program is not measured in its image: {why}", file=sys.stderr)
        yield Place(folder / "nodes")
        return
    with image_root.unpacked(folder / "image") as image:
        yield Place(image / "nodes", image)


def _bursts(folder: Path, payload: Path, program: Path) -> list[Figure]:
    """Measure the NRI plugin beside a live engine, or say why that cannot be done here."""
    if why := bursts.missing():
        print(f"NRI on a live containerd is not measured: {why}", file=sys.stderr)
        return []
    return bursts.figures(folder / "bursts", payload, program)


def _keep(path: Path, data: object) -> None:
    """Write a data file, and the page anew."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n")
    if page.MEASURED.exists():
        page.write()


def main() -> int:
    """Return the exit code: 1 where a count is larger than it may be."""
    parser = argparse.ArgumentParser(prog="make bench")
    what = parser.add_mutually_exclusive_group()
    for name in ("--installed", "--short", "--nri", "--fleet", "--page"):
        what.add_argument(name, action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-bench-") as scratch:
        folder = Path(scratch)
        if options.page:
            page.write()
        elif options.installed:
            _measure_installed(folder, options.rounds)
        elif options.short:
            rows = [*counts.of_commands(folder), *fleet.counts(folder)]
            print("\n".join(row.line for row in rows))
            return int(any(not row.good for row in rows))
        elif options.nri:
            payload = payloads.build(folder / "payload")
            print("\n".join(table.lines(_bursts(folder, payload, peer.built()))))
        elif options.fleet:
            _keep(page.FLEET, {**machine.about(), **fleet.measured(folder, options.nodes)})
            print(page.FLEET.read_text())
        else:
            _measure_installed(folder, options.rounds)
            _measure(folder, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
