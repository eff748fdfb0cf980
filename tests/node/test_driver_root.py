"""`--driver-root auto`: the root in which nvidia-smi works, and the device root and the paths here that go with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.node.faults import run
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, install
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, FakeNode
from toolkit_installer.settings import AUTO, ToolkitSettings

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
TO_BE_FOUND = ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO, dev_root=AUTO, dev_root_ctr_path=AUTO)
CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"
NOTHING = ("/run/nvidia/driver: there is no such folder", "/: there is no nvidia-smi")


def configured_root(node: FakeNode) -> str:
    root: str = tomllib.loads(node.read(CONFIG).decode())["nvidia-container-cli"]["root"]
    return root


@runs_drivers
@pytest.mark.parametrize("root", [CONTAINER, HOST])
def test_a_run_writes_the_root_that_it_found(node: FakeNode, tmp_path: Path, root: str) -> None:
    install(node.place(root))
    done = run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert configured_root(node) == root
    assert f'"@{root.rstrip("/")}/sbin/ldconfig'.encode() in node.read(CONFIG)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_without_a_driver_nothing_is_changed_and_the_exit_code_says_it(
    node: FakeNode, tmp_path: Path, command: str
) -> None:
    node.write(DAEMON_JSON, "{}")
    before = node.snapshot()
    done = run(node, tmp_path, command, "--driver-root", "auto")
    assert done.code == 8
    assert all(reason in done.output for reason in NOTHING)
    assert "--wait-for-driver" in done.output
    assert node.snapshot() == before


@runs_drivers
def test_a_driver_that_is_being_replaced_changes_nothing_on_a_node_that_is_right(
    node: FakeNode, tmp_path: Path
) -> None:
    program = install(node.place(CONTAINER))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    stamps = node.stamps()
    program.unlink()
    done = run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert NOTHING_TO_DO in done.output
    assert "the installed root stays" in done.output
    assert {path: stamp for path, stamp in node.stamps().items() if CONTAINER not in path} == {
        path: stamp for path, stamp in stamps.items() if CONTAINER not in path
    }


@runs_drivers
def test_another_driver_is_taken_over_by_the_next_run(node: FakeNode, tmp_path: Path) -> None:
    program = install(node.place(CONTAINER))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    program.unlink()
    install(node.place(HOST))
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 0
    assert configured_root(node) == HOST


@pytest.mark.parametrize("content", ["[nvidia-container-cli\n", "nvidia-container-cli = 1\n", "x = 1\n"])
def test_a_damaged_config_of_the_toolkit_says_nothing_of_the_driver(
    node: FakeNode, tmp_path: Path, content: str
) -> None:
    node.write(CONFIG, content)
    assert run(node, tmp_path, "run", "--no-daemon", "--driver-root", "auto").code == 8


def test_a_cleanup_needs_no_driver(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, "{}")
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    done = run(node, tmp_path, "uninstall", "--driver-root", "auto")
    assert done.code == 0, done.output
    assert {path for path in node.snapshot() if not path.startswith("/run")} == {
        path for path in before if not path.startswith("/run")
    }
