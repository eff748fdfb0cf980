"""What a run on a node that is as it should be asks of the kernel: counted, where seconds would say nothing.

What the interpreter does at its start is its own, and what the modules cost is in `tests/data/imports`.
"""

from __future__ import annotations

import collections
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.tracing import SECONDS, STRACE
from tests.support.engines.daemons import PATH
from tests.support.fake_node import CONFIG_TOML, CRIO_SITE, DAEMON_JSON, NOTHING_TO_DO, SCRIPTS, FakeNode

_CALL = re.compile(r"\d+ +(\w+)\((.*)")
FILES = {"docker": DAEMON_JSON, "containerd": CONFIG_TOML, "crio": CRIO_SITE}
CONTENT = {"docker": "{}\n", "containerd": "version = 2\n", "crio": "[crio.runtime]\n"}
# engine, command: system calls on the node, of these files opened, and system calls on the payload. A tenth more than
# was counted last: who makes it more has to say why here.
BUDGETS = {
    ("docker", "run"): (1330, 160, 465),
    ("containerd", "run"): (1620, 165, 465),
    ("crio", "run"): (1350, 165, 465),
    # it parses what the engine reads, and looks for the kubelet's cgroup driver and for the low-level runtimes
    ("docker", "status"): (710, 30, 0),
    ("containerd", "status"): (730, 32, 0),
    ("crio", "status"): (790, 36, 0),
}


@pytest.fixture(autouse=True)
def _strace() -> None:
    if shutil.which("strace", path=PATH) is None:
        pytest.skip("not installed: strace")


def counted(command: list[str], trace: Path, node: Path, payload: Path) -> tuple[dict[str, int], str]:
    """Run a command; return its system calls on the node and on the payload, its files, and its programs."""
    traced = [STRACE, "-f", "-qq", "-y", "-s", "4096", "-o", str(trace), *command]
    done = subprocess.run(traced, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    counts: collections.Counter[str] = collections.Counter()
    for name, arguments in _CALL.findall(trace.read_text()):
        counts["programs"] += name == "execve" and arguments.endswith(" = 0")
        if str(node) in arguments:
            counts["on the node"] += 1
            # O_PATH opens nothing: it finds what is there
            counts["opened"] += name.startswith("open") and not re.search("O_PATH| = -1 ", arguments)
        elif str(payload) in arguments:
            counts["on the payload"] += 1
    return dict(counts), done.stdout + done.stderr


@pytest.mark.parametrize("engine,command", BUDGETS)
def test_a_node_that_is_as_it_should_be_costs_so_many_system_calls_and_no_program(
    engine: str, command: str, tmp_path: Path, payload: Path
) -> None:
    node = FakeNode(tmp_path / "node", payload)
    node.write(FILES[engine], CONTENT[engine])
    program = str(SCRIPTS / "toolkit-installer")
    install = [program, *node.arguments("run", "--no-daemon", engine=engine)]
    subprocess.run(install, capture_output=True, check=True, timeout=SECONDS)
    asked = install if command == "run" else [program, *node.arguments(command, engine=engine)]
    counts, said = counted(asked, tmp_path / "trace", node.root, payload)
    assert command != "run" or NOTHING_TO_DO in said
    assert counts.pop("programs") == 1, "another program than the installer was started"
    calls, opened, read = BUDGETS[engine, command]
    budget = {"on the node": calls, "opened": opened, "on the payload": read}
    assert all(counts.get(what, 0) <= most for what, most in budget.items()), f"{counts}, and at most {budget}"
