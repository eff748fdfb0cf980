"""What a large payload costs, as ratios within one measurement: processor time and peak memory, and the peer's beside.

Both are to grow as the payload does, or less. NVIDIA's own installer is measured where make e2e has built it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script, from anywhere

from tests.support import payloads
from tests.support.built import go_tools

PROGRAM = Path(sys.executable).parent / "toolkit-installer"
PEER = go_tools.folder_of(go_tools.PEER) / go_tools.PEER.programs[0]
ROUNDS = 5
MEGABYTES = (10, 100, 600)
BESIDE_THE_PEER = 84
"""The megabytes of release 1.19's packages."""


def payload_of(folder: Path, megabytes: int) -> Path:
    """Write a payload of this size; its files are equally large, and of bytes that no file system can leave out."""
    payload = payloads.build(folder)
    files = [path for path in payload.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".toml"]
    for path in files:
        with path.open("ab") as stream:
            for _ in range(megabytes * 16 // len(files)):
                stream.write(os.urandom(1_000_000 // 16))
    return payload


def measured(command: list[str]) -> tuple[float, int]:
    """Return the processor time of a program in seconds, and its largest resident memory in kB."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def ours(node: Path, payload: Path) -> list[str]:
    where = ["--node-root", str(node), "--toolkit-source-root", str(payload)]
    return [str(PROGRAM), "run", "--runtime", "containerd", "--no-daemon", *where]


def theirs(node: Path, payload: Path) -> list[str]:
    return [
        *(str(PEER), "--no-daemon", "--runtime", "containerd", "--restart-mode", "none"),
        *("--config", str(node / "etc/containerd/config.toml"), "--drop-in-config", str(node / "99-nvidia.toml")),
        *("--toolkit-install-dir", str(node / "nvidia"), "--toolkit-source-root", str(payload)),
        *("--pid-file", str(node / "toolkit.pid"), "--socket", str(node / "socket")),
    ]


def node_in(folder: Path) -> Path:
    path = folder / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("version = 2\n")
    return folder


def growth(folder: Path) -> None:
    """Print what a first install and one that finds nothing to do cost for each size."""
    seconds: dict[tuple[str, int], float] = {}
    memory: dict[tuple[str, int], float] = {}
    for megabytes in MEGABYTES:
        payload = payload_of(folder / f"payload-{megabytes}", megabytes)
        figures: dict[str, list[tuple[float, int]]] = {"first run": [], "second run": []}
        for number in range(ROUNDS):
            node = node_in(folder / f"node-{megabytes}-{number}")
            for values in figures.values():
                values.append(measured(ours(node, payload)))
            shutil.rmtree(node)
        for name, values in figures.items():
            seconds[name, megabytes] = statistics.median(second for second, _ in values)
            memory[name, megabytes] = statistics.median(kilobytes for _, kilobytes in values)
        shutil.rmtree(payload)
    smallest = MEGABYTES[0]
    for (name, megabytes), value in seconds.items():
        times, kept = value / seconds[name, smallest], memory[name, megabytes] / memory[name, smallest]
        more = f"{times:5.2f} x the processor time, {kept:5.2f} x the memory"
        figure = f"{value:.2f} s, {memory[name, megabytes] / 1000:.0f} MB"
        print(f"{name:10} {megabytes:4} MB: {more} of {smallest} MB ({figure}; median of {ROUNDS})")


def beside_the_peer(folder: Path) -> None:
    """Print what a first install costs, as a multiple of the peer's."""
    payload = payload_of(folder / "payload", BESIDE_THE_PEER)
    figures: dict[str, list[tuple[float, int]]] = {"ours": [], "theirs": []}
    for number in range(ROUNDS):
        for name, command in (("ours", ours), ("theirs", theirs)):
            node = node_in(folder / f"{name}-{number}")
            figures[name].append(measured(command(node, payload)))
            shutil.rmtree(node)
    times, kept = (
        statistics.median(each[which] for each in figures["ours"])
        / statistics.median(each[which] for each in figures["theirs"])
        for which in (0, 1)
    )
    more = f"{times:5.2f} x the processor time, {kept:5.2f} x the memory"
    print(f"first run  {BESIDE_THE_PEER:4} MB: {more} of the peer's (median of {ROUNDS})")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-bench-") as scratch:
        growth(Path(scratch) / "growth")
        if PEER.exists():
            beside_the_peer(Path(scratch) / "peer")
        else:
            print(f"first run  {BESIDE_THE_PEER:4} MB: the peer is not built: make e2e does that, with Go")


if __name__ == "__main__":
    main()
