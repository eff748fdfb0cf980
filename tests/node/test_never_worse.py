"""A run that fails, or is made with other settings, leaves the node no worse than it was found."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

import pytest

from tests.node.faults import Fault, Outcome, Plan, run
from tests.support import payloads
from tests.support.fake_node import DAEMON_JSON, DOCKER, STORE, TOOLKIT, FakeNode
from tests.support.quick import Few

LEGACY = "nvidia-container-runtime.legacy"
TOOLKIT_CONFIG = f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml"


class Bench:
    """A docker node, and twins of it on which a whole run shows which calls it makes."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.folder = folder
        node.write(DAEMON_JSON, DOCKER)

    def install(self, *more: str, plan: Plan | None = None, engine: str = "docker") -> Outcome:
        return run(self.node, self.folder, "run", "--no-daemon", *more, plan=plan, engine=engine)

    def uninstall(self, *more: str) -> Outcome:
        return run(self.node, self.folder, "uninstall", *more)

    def calls(self, *more: str, engine: str = "docker") -> list[str]:
        """Return the calls that an installation would make on the node as it is now."""
        root = self.folder / "twin"
        shutil.copytree(self.node.root, root, symlinks=True)
        twin = FakeNode(root, self.node.payload)
        return list(run(twin, self.folder, "run", "--no-daemon", *more, engine=engine).calls)

    def payload(self, name: str, **given: str | tuple[str, ...]) -> None:
        """Let the next runs install another payload."""
        version = str(given.get("version", payloads.VERSION))
        self.node.payload = payloads.build(self.folder / name, version=version, without=given.get("without", ()))


@pytest.fixture
def bench(node: FakeNode, tmp_path: Path) -> Bench:
    made = Bench(node, tmp_path)
    assert made.install().code == 0
    return made


@pytest.fixture
def container(node: FakeNode) -> None:
    """Leave on the node what containerd keeps of a container that was started through the legacy handler."""
    node.write("/run/containerd/io.containerd.runtime.v2.task/k8s.io/c0ffee/runtime", f"{TOOLKIT}/{LEGACY}")


# --- rollback ---


def test_a_full_disk_does_not_take_the_toolkit_of_an_installation_without_a_receipt(bench: Bench) -> None:
    shutil.rmtree(bench.node.place(STORE))
    at = next(number for number, call in enumerate(bench.calls()) if "receipt.json" in call)
    assert bench.install(plan=Plan(at, Fault.FULL)).code == 3
    assert bench.node.broken_runtimes() == []


def test_a_failing_run_does_not_take_the_toolkit_that_the_last_cleanup_kept(bench: Bench) -> None:
    assert bench.uninstall("--keep-toolkit").code == 0
    kept = {path for path in bench.node.snapshot() if path.startswith(TOOLKIT)}
    at = next(number for number, call in enumerate(bench.calls()) if "exchange .daemon.json" in call)
    assert bench.install("--keep-toolkit", plan=Plan(at, Fault.ONCE, errno.EIO)).code == 3
    assert kept <= bench.node.snapshot().keys()


def test_after_a_failed_removal_no_configuration_names_the_obsolete_handler(bench: Bench) -> None:
    bench.payload("smaller", without=(LEGACY,))
    at = bench.calls().index(f"unlink {LEGACY}")
    bench.install(plan=Plan(at, Fault.ONCE, errno.EIO))
    assert bench.node.broken_runtimes() == []


def test_the_folders_of_a_failed_change_of_engine_go_with_the_next_cleanup(bench: Bench) -> None:
    more = ("--config", "/etc/new/config.toml")
    calls = bench.calls(*more, engine="containerd")
    # the last one: the toolkit has a file of that name as well
    at = max(number for number, call in enumerate(calls) if call == "link .config.toml.toolkit-installer.tmp")
    assert bench.install(*more, engine="containerd", plan=Plan(at, Fault.ONCE, errno.EIO)).code == 3
    assert bench.uninstall().code == 0
    assert not bench.node.exists("/etc/new")


# --- other settings, another payload ---


def test_a_handler_that_stays_configured_keeps_its_executable(bench: Bench) -> None:
    bench.payload("smaller", without=(LEGACY,))
    assert bench.install("--no-runtime-config").code == 0
    assert bench.node.broken_runtimes() == []


def test_a_run_without_an_engine_keeps_the_low_level_runtime_of_the_configured_one(bench: Bench) -> None:
    assert bench.uninstall().code == 0
    bench.node.write(DAEMON_JSON, b'{"default-runtime": "crun", "runtimes": {"crun": {"path": "/opt/bin/crun"}}}')
    assert bench.install().code == 0
    assert b"/opt/bin/crun" in bench.node.read(TOOLKIT_CONFIG)
    assert bench.install("--no-runtime-config").code == 0
    assert b"/opt/bin/crun" in bench.node.read(TOOLKIT_CONFIG)


@pytest.mark.usefixtures("container")
def test_an_upgrade_leaves_running_containers_the_runtime_that_stops_them(bench: Bench) -> None:
    bench.payload("smaller", without=(LEGACY,))
    assert bench.install().code == 0
    assert bench.node.exists(f"{TOOLKIT}/{LEGACY}")


def test_libraries_of_a_kept_toolkit_go_with_a_later_one(bench: Bench) -> None:
    assert bench.uninstall("--keep-toolkit").code == 0
    bench.payload("newer", version="1.20.0")
    assert bench.install().code == 0
    assert bench.uninstall().code == 0
    assert not [path for path in bench.node.snapshot() if "libnvidia-container" in path]


# --- cleanup ---


def test_a_file_that_was_replaced_by_a_symlink_is_given_back_through_it(bench: Bench) -> None:
    place = bench.node.place(DAEMON_JSON)
    place.rename(place.with_name("real.json"))
    place.symlink_to("real.json")
    assert bench.uninstall().code == 0
    assert bench.node.read(DAEMON_JSON) == DOCKER


def test_an_order_to_a_run_that_was_killed_does_not_count_for_the_next_one(bench: Bench) -> None:
    bench.node.write(f"{STORE}/order.json", b"remove\n", 0o600)
    waiting = bench.node.waiting("--cleanup", "never")
    assert waiting.stop(signal.SIGTERM) == 0
    assert "nvidia" in bench.node.docker().get("runtimes", {})


def test_a_folder_that_somebody_else_made_after_a_boot_is_not_removed(bench: Bench) -> None:
    shutil.rmtree(bench.node.place("/run"))
    bench.node.place("/run/nvidia").mkdir(parents=True)
    assert bench.uninstall().code == 0
    assert bench.node.exists("/run/nvidia")


# --- another engine ---


def test_a_change_of_engine_that_fails_leaves_the_old_one_with_its_handlers(bench: Bench) -> None:
    bench.node.write("/etc/containerd/config.toml", "version = 2\n")
    calls = bench.calls(engine="containerd")
    at = next(number for number, call in enumerate(calls) if call.startswith("exchange .config.toml"))
    assert bench.install(engine="containerd", plan=Plan(at, Fault.ONCE, errno.EIO)).code == 3
    assert bench.node.docker()["default-runtime"] == "nvidia"
    assert bench.node.broken_runtimes() == []
    assert bench.node.read("/etc/containerd/config.toml") == b"version = 2\n"


def test_a_change_of_engine_gives_the_old_one_back_once_the_new_one_has_its_handlers(bench: Bench, few: Few) -> None:
    bench.node.write("/etc/containerd/config.toml", "version = 2\n")
    calls = bench.calls(engine="containerd")
    theirs, ours = (
        max(number for number, call in enumerate(calls) if call.startswith(f"exchange .{name}."))
        for name in ("daemon.json", "config.toml")
    )
    assert ours < theirs
    for at in few(range(ours, len(calls), 3)):
        killed = bench.install(engine="containerd", plan=Plan(at))
        assert killed.code == -9
        assert bench.node.broken_runtimes() == []
        assert bench.install(engine="containerd").code == 0
        assert bench.node.read(DAEMON_JSON) == DOCKER
        assert b"nvidia" in bench.node.read("/etc/containerd/config.toml")
        assert bench.install().code == 0
        assert bench.node.read("/etc/containerd/config.toml") == b"version = 2\n"
    assert bench.uninstall().code == 0
    assert bench.node.read(DAEMON_JSON) == DOCKER


# --- half made files ---


def test_what_a_killed_upgrade_left_goes_even_if_the_next_run_has_the_old_payload(bench: Bench) -> None:
    older = bench.node.payload
    bench.payload("newer", version="1.20.0")
    calls = bench.calls()
    for at in [number for number, call in enumerate(calls) if call.startswith(("rename .", "rename_new ."))]:
        assert bench.install(plan=Plan(at)).code == -9
        newer, bench.node.payload = bench.node.payload, older
        assert bench.install().code == 0
        assert [path for path in bench.node.snapshot() if ".toolkit-installer." in path] == []
        bench.node.payload = newer
