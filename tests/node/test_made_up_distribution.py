"""A distribution is a module and its name in a list: one that nobody knew is recognised, planned and configured."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode, Run

MADE = "/etc/slim/containerd.toml"
DROP_IN = "/etc/slim/containerd.d/99-nvidia.toml"
CRI = "io.containerd.cri.v1.runtime"
MODULE = f"""
from toolkit_installer.engines.containerd.layouts import GeneratingDistribution
from toolkit_installer.engines.containerd.layouts import Layout

class Slim(GeneratingDistribution):
    def layout(self, read, config):
        if config != self.config or read(config) is None:
            return None
        return Layout(
            name=self.name, units=self.units, generated=config, source=config, version=3, drop_in=self.drop_in,
            runcs=("/opt/slim/runc",),
        )

    def started_by(self, executable):
        return self.config if executable.startswith("/opt/slim/") else None

    def started_in(self, folder):
        return None

SLIM = Slim(
    name="slim",
    sockets=("/run/slim/containerd.sock",),
    config="{MADE}",
    drop_in="{DROP_IN}",
    units=("slim.service",),
    marks=("/opt/slim/",),
    configured="a drop-in, which slim merges",
)
"""
PROGRAM = """
import sys

import slim
from toolkit_installer.engines.containerd import distributions as listed

listed.DISTRIBUTIONS = (*listed.DISTRIBUTIONS, slim.SLIM)

from toolkit_installer.__main__ import toolkit_installer

sys.exit(toolkit_installer())
"""


class Slim:
    """A node of that distribution, and the program once it knows it."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        (folder / "slim.py").write_text(MODULE)
        node.write("/etc/systemd/system/slim.service", "[Service]\nExecStart=/opt/slim/slim\n")
        node.write("/opt/slim/runc", "#!/bin/sh\n", 0o755)
        node.write(MADE, f"version = 3\n[plugins.'{CRI}'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n")

    def do(self, *arguments: str) -> Run:
        run = Run([sys.executable, str(self.program), *arguments])
        try:
            run.finish()
        finally:
            run.close()
        assert run.process.returncode == 0, run.output
        return run

    def command(self, name: str, *more: str) -> Run:
        return self.do(*self.node.arguments(name, *more, engine="auto"))

    def tree(self) -> dict[str, Any]:
        return {path: each for path, each in self.node.snapshot().items() if not path.startswith("/run")}


@pytest.fixture
def slim(node: FakeNode, tmp_path: Path) -> Slim:
    return Slim(node, tmp_path)


def test_it_is_recognised_with_its_places(slim: Slim) -> None:
    shown = slim.do("detect", "--json", "--node-root", str(slim.node.root), "--reload-timeout", "5").output
    facts = json.loads(shown[shown.index("{") : shown.rindex("\n}") + 2])
    (decided,) = facts["decided"]
    assert (decided["engine"], decided["distribution"]) == ("containerd", "slim")
    assert (decided["socket"], decided["config"]) == ("/run/slim/containerd.sock", MADE)
    assert {each["path"] for each in decided["files"]} == {MADE, DROP_IN}


def test_its_drop_in_is_planned_and_the_file_that_it_makes_is_not(slim: Slim) -> None:
    before = slim.tree()
    planned = slim.command("plan").output
    assert f"+++ {DROP_IN}" in planned
    assert f"+++ {MADE}" not in planned
    assert slim.tree() == before


def test_it_is_configured_like_its_own_runtime_found_converged_and_given_back(slim: Slim) -> None:
    before = slim.tree()
    slim.command("run", "--no-daemon")
    document = tomllib.loads(slim.node.read(DROP_IN).decode())
    options = document["plugins"][CRI]["containerd"]["runtimes"]["nvidia"]["options"]
    assert options == {"SystemdCgroup": True, "BinaryName": f"{TOOLKIT}/nvidia-container-runtime"}
    assert slim.tree()[MADE] == before[MADE]
    assert b"/opt/slim/runc" in slim.node.read(f"{TOOLKIT}/nvidia-container-runtime")
    assert NOTHING_TO_DO in slim.command("plan").output
    slim.command("uninstall")
    assert slim.tree() == before
