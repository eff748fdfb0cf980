from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit_installer import references
from toolkit_installer.node.node import Node

TOOLKIT = f"/usr/local/nvidia-{uuid.uuid4().hex}/toolkit"
"""No other test's: processes are looked for on the whole machine."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "node" / TOOLKIT[1:]).mkdir(parents=True)
    return Node.open(str(tmp_path / "node"), "/host")


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Path]:
    """A process that looks like a containerd shim: its name, and a bundle as its working directory."""
    bundle = tmp_path / "bundles" / "c0ffee"
    bundle.mkdir(parents=True)
    sleep = shutil.which("sleep")
    assert sleep is not None
    program = tmp_path / "containerd-shim-runc-v2"
    shutil.copy(sleep, program)
    process = subprocess.Popen([program, "60"], cwd=bundle)
    yield bundle
    process.kill()
    process.wait()


def test_a_container_that_was_started_through_our_handler_holds_the_toolkit(node: Node, shim: Path) -> None:
    runtime = f"{TOOLKIT}/nvidia-container-runtime"
    (shim / "runtime").write_text(runtime.format(TOOLKIT))
    # the runtime exists neither here nor there, so it cannot be told apart
    (held,) = references.holders(node, TOOLKIT)
    assert "c0ffee" in held
    assert runtime in held


@pytest.mark.parametrize("runtime", ["runc", "/usr/bin/runc", "{}-of-another/nvidia-container-runtime"])
def test_an_ordinary_container_holds_nothing(node: Node, shim: Path, runtime: str) -> None:
    (shim / "runtime").write_text(runtime.format(TOOLKIT))
    assert references.holders(node, TOOLKIT) == []


def test_a_container_of_another_node_with_the_same_paths_holds_nothing(node: Node, shim: Path) -> None:
    (shim / "runtime").write_text(sys.executable)
    assert references.holders(node, str(Path(sys.executable).parent)) == []


def test_a_cdi_specification_that_names_the_toolkit_holds_it(node: Node) -> None:
    folder = Path(node.root.folder) / "etc/cdi"
    folder.mkdir(parents=True)
    (folder / "nvidia.yaml").write_text(f"hooks: [{{path: {TOOLKIT}/nvidia-cdi-hook}}]")
    (folder / "other.json").write_text('{"path": "/usr/bin/nvidia-cdi-hook"}')
    (folder / "notes.txt").write_text(f"{TOOLKIT}/nvidia-cdi-hook")
    (held,) = references.holders(node, TOOLKIT)
    assert "/etc/cdi/nvidia.yaml" in held


def test_a_conmon_names_its_runtime_and_its_container() -> None:
    arguments = ["/usr/bin/conmon", "-b", "/run/x", "-c", "abc", "-r", f"{TOOLKIT}/nvidia-container-runtime"]
    assert references._of_monitor(arguments) == (f"{TOOLKIT}/nvidia-container-runtime", "abc")
