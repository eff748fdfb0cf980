"""What `plan` and `detect` show, as people read it. `SHOWN_FILES=write make test ARGS=…` writes it anew, to be read.

Neither of them breaks its lines, whatever the width of the terminal: a diff that is broken is none.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, SCRIPTS, FakeNode

DATA = Path(__file__).parents[1] / "data"
SECRETIVE = """\
version = 2

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = true # as the kubelet has it

[plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example".auth]
password = "hunter2"
"""


def fresh_docker(node: FakeNode) -> list[str]:
    node.write(DAEMON_JSON, '{\n  "log-driver": "json-file"\n}\n')
    return ["--runtime", "docker"]


def fresh_containerd(node: FakeNode) -> list[str]:
    node.write(CONFIG_TOML, SECRETIVE)
    return ["--runtime", "containerd", "--set-as-default=false"]


def converged(node: FakeNode) -> list[str]:
    node.write(DAEMON_JSON, "{}\n")
    assert node.do("run", "--no-daemon").process.returncode == 0
    return ["--runtime", "docker"]


def damaged(node: FakeNode) -> list[str]:
    given = converged(node)
    node.place("/usr/local/nvidia/toolkit/nvidia-ctk").unlink()
    node.write(DAEMON_JSON, "{}\n")
    return given


def refused(node: FakeNode) -> list[str]:
    node.write(DAEMON_JSON, '{\n  "runtimes": {},\n}\n')
    return ["--runtime", "docker"]


def nothing(_node: FakeNode) -> list[str]:
    return []


def two_engines(node: FakeNode) -> list[str]:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    return []


def live_docker(node: FakeNode) -> list[str]:
    return [*fresh_docker(node), "--socket", SOCKET]


PLANS = (fresh_docker, fresh_containerd, converged, damaged, refused)
DETECTED = (nothing, fresh_docker, two_engines)


def shown(node: FakeNode, *arguments: str) -> str:
    """Return what a command prints, log lines included, without what differs each time."""
    given = ["--node-root", str(node.root)]
    run = node._started([str(SCRIPTS / "toolkit-installer"), *arguments, *given])
    code = run.finish()
    text = run.output.replace(str(node.root), "NODE").replace(str(node.payload), "PAYLOAD")
    text = text.replace(f"{platform.machine()}-linux-gnu", "MACHINE-linux-gnu")
    text = re.sub(r'runtimes = \["/[^\]]*\]', "runtimes = [THE MACHINE'S]", text)
    timeless = re.sub(r"time=\S+ ", "", text)
    return f"{timeless}(exit code {code})\n"


def compare(folder: str, case: Callable[[FakeNode], list[str]], text: str) -> None:
    file = DATA / folder / f"{case.__name__.replace('_', '-')}.txt"
    if os.environ.get("SHOWN_FILES") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_is_what_was_read_and_found_good(node: FakeNode, case: Callable[[FakeNode], list[str]]) -> None:
    given = case(node)
    before = node.snapshot()
    text = shown(node, "plan", "--toolkit-source-root", str(node.payload), *given)
    assert "hunter2" not in text
    assert node.snapshot() == before
    compare("plan", case, text)


def test_a_plan_beside_an_engine_that_answers_says_what_its_reload_touches(node: FakeNode) -> None:
    given = live_docker(node)
    with FakeDockerd(node, LiveRestoreEnabled=False, ContainersRunning=0):
        before = node.snapshot()
        compare("plan", live_docker, shown(node, "plan", "--toolkit-source-root", str(node.payload), *given))
        assert node.snapshot() == before


@pytest.mark.parametrize("case", DETECTED)
def test_what_is_detected_is_told_as_was_read_and_found_good(
    node: FakeNode, case: Callable[[FakeNode], list[str]]
) -> None:
    given = [word for word in case(node) if not word.startswith("--set-as")]
    compare("detect", case, shown(node, "detect", *given))
