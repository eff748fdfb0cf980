"""docs/performance.md and its plots, made of the data files alone. Pure but for reading and writing these.

python -m tests.bench --page        makes the page anew, and measures nothing
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from tests.bench import plots
from tests.bench.figures import STEEPEST, Figure, curves, loaded, power

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "performance.md"
FOLDER = PROJECT / "docs" / "performance"
INSTALLED, MEASURED, FLEET = (FOLDER / f"{name}.json" for name in ("installed", "measured", "fleet"))
UNITS = {"payload": "MB", "edit": "kB", "handlers": "handlers", "imports": "files"}
TITLES = {
    "payload": "First install, by the payload's size",
    "edit": "First install, by the size of config.toml",
    "handlers": "First install, by the handlers of others in config.toml",
    "imports": "First install, by the files that config.toml imports",
}
_HEAD = """\
# What it costs

`make bench` measures this and makes this page. Seconds are of processor time, with that of every program that was
started. The peer is NVIDIA's own `nvidia-ctk-installer`, on a node like ours; both were measured in turn in each round,
and medians are shown. What has no counterpart in the peer, such as metrics, has a "-". An answer of ours takes the
milliseconds that its client waits; beside it stands how many times as long that is as with a bare server, a loop in
Python that says the same text whatever it is asked. Memory is PSS: what other processes have in common with one counts
in part, so that it is less while others of the same Python run on the machine.
"""
_INSTALLED = """\
## Installed by pip

The program as `pip install` puts it into a fresh virtual environment. What a run costs beyond this on a node with
hundreds of processes is the look at each of them in /proc.
"""
_IN_THE_IMAGE = """\
## In the image, and waiting

The commands and the curves are of the program as the image has it, with the image's own Python, in a folder with the
image's files. The rows of waiting processes, "idle" and "metrics" and "NRI", are of a development environment.
"""
_BURSTS = """\
The rows "NRI, 100 at once" are of a live containerd 2.4 that starts 100 containers at the same time, none of which asks
for a device, which keeps all processors busy; the peer's NRI plugin was measured likewise, in turn. The 99th percentile
is of what the engine waits for an answer, from the end of its question on: the plugin's work, and its wait for a
processor. The engine's mean is by its own metrics, which end when the engine itself got a processor to read the answer.
"""
_REST = """\
What the rest is: the peer is a compiled program, and its start costs next to nothing. Ours is a Python program. What it
costs beyond the peer, in a run with nothing to do, is the start of the interpreter and the import of what the command
needs, and then the comparison of the node with what it should be; the peer compares nothing, and writes everything
again. Half of a first install is the import of 270 modules, nearly all of which it uses. A single file with the
bytecode of all modules was tried: it saves a fiftieth in the image, and is not worth an importer of our own. Three
tenths are the copying itself, by which the peer's time is made, and the flush of each file to the disk before its name
is there, which the peer does not do. A first install also writes the receipt, and parses each edited file a second
time. A development environment, whose Python looks at the time of each source, takes a tenth more.

Lazy modules (lazy.py) take the place of a few parts of libraries that no run uses. Without those of asyncio, a run with
nothing to do costs 0.4 times the peer's more, without the others 0.15 times. Other import tricks were measured and
dropped: patterns that are compiled at their first use, in libraries and here, and placeholders for parts of structlog,
msgspec and click. They saved 0.4 times the peer's CPU, all together.

The waiting process has some 2.6 MB of its own, and a Python that does nothing but wait has 2.56: 1.3 are libpython's
data, whose addresses are put in at the start, and 1.2 the types, names and modules that any start makes. What it waits
with takes 0.07. The other 5.8 MB are pages of files, which the kernel takes back where it needs them: 3.6 of libpython,
the rest of libc, libm and the locale. PSS divides these by the number of processes that have them mapped. So it is the
larger the fewer other Python programs run on the machine, up to 8.5 MB where there is none.
"""
_GROWTH = f"""\
## Growth

What the smallest size costs is paid at every size. A curve's power is that by which it grows above this, between its
two largest sizes: 1 is a straight line. Up to {STEEPEST:g} counts as straight, as the noise of a shared machine is
that large. A curve that has hardly risen at its second largest size has no power: it is too level for its form to be
told.
"""
_FLEET = """\
Each node is a folder with a docker of its own, which counts its reloads, and a run of the real program with `--cleanup
auto`. 50 runs are on at a time; the API server is a local one that counts what it is asked. Each run is forked from a
Python that has the program already, waits as the idle process, and is told to stop: it wakes by a start from scratch,
asks whether the DaemonSet still wants the node, and leaves. The reloads are those of all nodes together.
"""


def read(path: Path) -> dict[str, Any]:
    """Return a data file, {} where it was not made yet."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def made(installed: dict[str, Any], measured: dict[str, Any], fleet: dict[str, Any]) -> dict[Path, str]:
    """Return the content of the page and of each plot."""
    figures = loaded(measured["figures"])
    found = {
        FOLDER / f"{name}.svg": plots.drawn(TITLES[name], UNITS[name], points)
        for name, points in curves(figures).items()
    }
    parts = [
        _HEAD,
        _INSTALLED,
        _about(installed),
        "\n".join(_table(loaded(installed["figures"]))) + "\n",
        *_where(measured),
        _about(measured),
        "\n".join(_table(figures)) + "\n",
        *_bursts(measured, figures),
        _REST,
        *_growth(figures),
    ]
    if fleet:
        parts += _fleet(fleet)
    return {PAGE: "\n".join(parts), **found}


def write() -> None:
    """Write the page and its plots anew."""
    for path, text in made(read(INSTALLED), read(MEASURED), read(FLEET)).items():
        path.write_text(text)


def _where(data: dict[str, Any]) -> list[str]:
    """Return which program was measured; nothing of older data, which does not say."""
    reason = data.get("no_image")
    if reason is None:
        return []
    beside = f"The program of a development environment was measured, not that of the image: {reason}."
    return [f"{beside}\n" if reason else _IN_THE_IMAGE]


def _about(data: dict[str, Any]) -> str:
    machine = data["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    rounds = f" Medians of {data['rounds']} rounds." if "rounds" in data else ""
    words = (
        f"Measured on {data['date']}, on {machine['processors']} x {machine['model']}, {machine['memory']} GB of "
        f"memory, Linux {machine['kernel']}: {versions}.{rounds}"
    )
    return textwrap.fill(words, 120) + "\n"


def _table(figures: list[Figure]) -> list[str]:
    rows = ["| figure | ours | peer | ratio | goal |", "|---|---:|---:|---:|---|"]
    return rows + [f"| {' | '.join(figure.cells)} |" for figure in figures]


def _bursts(data: dict[str, Any], figures: list[Figure]) -> list[str]:
    """Return what the rows of the NRI plugin on a live engine are, or why there are none; nothing of older data."""
    if any(figure.name.startswith("NRI, ") for figure in figures):
        return [_BURSTS]
    reason = data.get("left_out")
    return [f"The NRI plugin on a live containerd was not measured: {reason}.\n"] if reason else []


def _growth(figures: list[Figure]) -> list[str]:
    found = [_GROWTH, "| curve | power | straight or better |\n|---|---:|---|"]
    for name, points in curves(figures).items():
        value = power([(point.size, point.ours) for point in points])
        found.append(f"| {name} | {_judged(value)} |")
    pictures = [f"![{TITLES[name]}](performance/{name}.svg)" for name in curves(figures)]
    return ["\n".join(found) + "\n", "\n".join(pictures) + "\n"]


def _judged(value: float | None) -> str:
    """Return the cells of a curve's power and of what that says."""
    if value is None:
        return "- | too level to tell"
    return f"{value:.2f} | {'yes' if value <= STEEPEST else 'NO'}"


def _fleet(data: dict[str, Any]) -> list[str]:
    rows = ["| what happens | nodes | engine reloads | API requests a node | CPU a node | outcome |"]
    rows.append("|---|---:|---:|---:|---:|---|")
    for each in data["scenarios"]:
        requests = " + ".join(f"{count:g} {name}" for name, count in each["requests"].items()) or "0"
        cells = (each["name"], each["nodes"], each["reloads"], requests, f"{each['seconds']:.2f} s", each["outcome"])
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return [
        "## A fleet\n",
        _FLEET,
        _about(data),
        "\n".join(rows) + "\n",
    ]
