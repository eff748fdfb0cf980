"""Names of low-level runtimes are looked for as the engine's own process would look for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.started import wait_until_it_shows
from toolkit_installer.engines.common import command_line
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node

FOLDER = "/usr/local/nvidia/toolkit"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("runc", "youki"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(0o755)
    return tmp_path


def test_the_engines_own_search_path_counts(place: Path) -> None:
    # as a distribution starts its engine, which brings a runc along
    with subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"relative:{place}/none:{place}/bin:/usr/bin"}) as engine:
        try:
            wait_until_it_shows(engine.pid, "sleep")
            process = processes.inspect_process(engine.pid)
            assert process is not None
            found = command_line.locate_low_level_runtimes(Node("/"), ("youki", "/opt/own", "gone"), FOLDER, process)
        finally:
            engine.kill()
    assert found[:4] == (f"{place}/bin/youki", "/opt/own", "gone", f"{place}/bin/runc")


def test_without_a_process_the_nodes_usual_folders_count(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "sbin" / "runc"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert command_line.locate_low_level_runtimes(Node(str(tmp_path)), (), FOLDER, None) == ("/usr/sbin/runc",)


def test_a_process_that_is_gone_is_no_error(tmp_path: Path) -> None:
    gone = processes.Process(2**22 + 1, "dockerd", "/usr/bin/dockerd", (), 1.0, None)
    assert not os.path.exists(f"/proc/{gone.pid}")
    assert command_line.locate_low_level_runtimes(Node(str(tmp_path)), ("own",), FOLDER, gone) == ("own",)
