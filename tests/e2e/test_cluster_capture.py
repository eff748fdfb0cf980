"""The five lines of docs/fleet.md on a real cluster: each node is captured, foretold, and becomes what was foretold."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.cluster.rollout import RealCluster
from tests.e2e.program import SCRIPTS
from tests.support.manifests import PROJECT

pytestmark = pytest.mark.cluster

BLOCK = re.compile(r"^### Every node of a cluster$.*?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Somebody who copies the lines into a shell, in a folder that has the project's `daemonset/`."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        kubectl = programs / "kubectl"
        enter, command = cluster.plane.hardware.enter, cluster.plane.kubectl_command()
        # who enters the network of the control plane begins in another folder
        back = f"""sh -c 'cd "$0" && exec {shlex.join(command[len(enter) :])} "$@"' "$PWD" "$@\""""
        kubectl.write_text(f"#!/bin/sh\nexec {shlex.join(enter)} {back}\n")
        kubectl.chmod(0o755)
        (folder / "daemonset").symlink_to(PROJECT / "daemonset")
        self._environment = {"PATH": f"{programs}:{SCRIPTS}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder)}

    def do(self, command: Sequence[str], codes: Sequence[int] = (0,)) -> str:
        """Run a command, and return what it printed; it must end with one of the codes."""
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    def copy_the_lines(self, name: str) -> str:
        """Do what the lines say, and return what was printed; captures and page are kept by this name."""
        found = BLOCK.search((PROJECT / "docs/fleet.md").read_text())
        assert found is not None
        said = self.do(["sh", "-eu", "-c", found[1]])
        (self.folder / "captures").rename(self.folder / name)
        (self.folder / "fleet.html").rename(self.folder / f"{name}.html")
        return said


def test_the_five_lines_foretell_each_node_and_the_rollout_then_does_as_foretold(
    cluster: RealCluster, tmp_path: Path
) -> None:
    reader, count = Reader(cluster, tmp_path), len(cluster.nodes)
    assert f"{count} nodes: 0 converged, {count} changed, 0 refused." in reader.copy_the_lines("before")
    assert sorted(f.suffix for f in (tmp_path / "before").iterdir()) == [".capture"] * count
    page = (tmp_path / "before.html").read_text()
    assert all(name in page for name in cluster.nodes)
    cluster.assert_untouched()
    cluster.apply()
    cluster.wait_until_ready()
    cluster.assert_configured()
    assert f"{count} nodes: {count} converged, 0 changed, 0 refused." in reader.copy_the_lines("after")
    compared = reader.do(["toolkit-installer", "compare", "before", "after"])
    assert "UNPLANNED" not in compared
    cluster.remove_installation()
    cluster.assert_as_before()
