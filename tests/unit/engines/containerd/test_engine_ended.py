"""An engine that crashes again and again: its process may end while its files are read below its root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from toolkit_installer.engines.common import serving
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import CONFIG, ROOT_ROLE
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node


def test_the_faults_of_an_engine_that_ends_meanwhile_are_those_of_the_nodes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / CONFIG.lstrip("/")
    config.parent.mkdir(parents=True)
    config.write_text("version = 2\nroot = = 1\n")
    with subprocess.Popen(["sleep", "60"]) as child:
        ended = processes.inspect_process(child.pid)
        child.kill()
    assert ended is not None
    monkeypatch.setattr(serving, "find_process", lambda *_: ended)
    found = Containerd().find_faults(
        Node(str(tmp_path)), "/run/containerd.sock", None, {ROOT_ROLE: CONFIG}, as_written=False
    )
    assert [(fault.path, fault.line) for fault in found] == [(CONFIG, 2)]
