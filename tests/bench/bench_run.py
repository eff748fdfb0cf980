"""What a run costs, as ratios within one measurement, and what waiting costs: memory and wake-ups."""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script, from anywhere

from tests.support import payloads

PROGRAM = Path(sys.executable).parent / "toolkit-installer"
ROUNDS = 5
WATCHED_SECONDS = 65
MIRRORS = 'plugins."io.containerd.grpc.v1.cri".registry.mirrors'


def config(tables: int) -> str:
    mirrors = (f'[{MIRRORS}."r{n}.example"]\n  endpoint = ["https://m{n}.example"]\n' for n in range(tables))
    return "version = 2\n" + "".join(mirrors)


def seconds(node: Path, payload: Path, *more: str) -> float:
    """Return the processor time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [PROGRAM, "run", "--runtime", "containerd", "--node-root", node, "--toolkit-source-root", payload]
    subprocess.run([*command, "--no-daemon", *more], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def nothing() -> float:
    """Return the processor time of a program that only starts: the yardstick."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PROGRAM, "--version"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def node_with(folder: Path, tables: int) -> Path:
    path = folder / "etc/containerd/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(config(tables))
    return folder


def wakeups(pid: int) -> tuple[int, int]:
    """Return resident memory in kB and how often the process went to sleep so far (proc_pid_status(5))."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]), int(fields["voluntary_ctxt_switches"])


def waiting(node: Path, payload: Path) -> str:
    command = [PROGRAM, "run", "--runtime", "containerd", "--node-root", node, "--toolkit-source-root", payload]
    with subprocess.Popen([*command, "--cleanup", "never"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Waiting for signal" in line:
                break
        while Path(f"/proc/{process.pid}/comm").read_text().strip().startswith("toolkit-"):
            time.sleep(0.1)  # until it has become the idle process
        time.sleep(1)
        memory, start = wakeups(process.pid)
        time.sleep(WATCHED_SECONDS)
        memory, end = wakeups(process.pid)
        os.kill(process.pid, signal.SIGTERM)
    return f"waiting: {memory} kB resident, {end - start} wake-ups in {WATCHED_SECONDS} s"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-bench-") as scratch:
        folder = Path(scratch)
        payload = payloads.build(folder / "payload")
        figures: dict[str, list[float]] = {"first run": [], "second run": [], "3,000 tables": [], "start only": []}
        for number in range(ROUNDS):
            small = node_with(folder / f"small-{number}", 0)
            figures["first run"].append(seconds(small, payload))
            figures["second run"].append(seconds(small, payload))
            figures["3,000 tables"].append(seconds(node_with(folder / f"large-{number}", 3000), payload))
            figures["start only"].append(nothing())
        unit = statistics.median(figures["first run"])
        for name, values in figures.items():
            print(f"{name:14} {statistics.median(values) / unit:5.2f} x a first run (median of {ROUNDS})")
        print(waiting(node_with(folder / "idle", 0), payload))


if __name__ == "__main__":
    main()
