"""Several instances at once: exactly one works, the others leave it alone, and the node is right afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest import mock

import pytest

from tests.node.faults import run
from tests.node.instants import Raced, Stopping, begin, first_to_end, race, stopping
from tests.support.fake_node import DAEMON_JSON, DOCKER, NOTHING_TO_DO, PID_FILE, STORE, TOOLKIT, WAITING, FakeNode
from tests.support.quick import Few

pytestmark = pytest.mark.real_start

OTHER = "/run/other/toolkit.pid"
ROUNDS = int(os.environ.get("ROUNDS", "50")) // 2
"""How often two instances are started at once, on fresh nodes and on installed ones."""

SAVES = "rename .receipt.json.toolkit-installer.tmp receipt.json"
EXCHANGES = "exchange .daemon.json.toolkit-installer.swap daemon.json"
ASKING = "Asking the running instance"


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)


def lasting(node: FakeNode) -> dict[str, object]:
    """Return the node without /run."""
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")}


# --- two at once ---


def settled(raced: list[Raced]) -> tuple[Raced, Raced]:
    """Return who works and who does not; fail unless it is one each, and the second says who the first is."""
    (winner,) = (one for one in raced if one.code is None)
    (loser,) = (one for one in raced if one.code is not None)
    assert loser.code == 4, loser.output
    assert f"PID {winner.pid}" in loser.output
    assert "Traceback" not in loser.output
    return winner, loser


@pytest.mark.parametrize(
    "pid_files, installed",
    [
        pytest.param((PID_FILE, PID_FILE), False, id="same-pid-file-fresh"),
        pytest.param((PID_FILE, PID_FILE), True, id="same-pid-file-installed"),
        pytest.param((PID_FILE, OTHER), False, id="two-pid-files-fresh"),
        pytest.param((PID_FILE, OTHER), True, id="two-pid-files-installed"),
    ],
)
def test_of_two_instances_started_at_once_one_works_and_the_other_exits_4(
    node: FakeNode, tmp_path: Path, pid_files: tuple[str, str], few: Few, *, installed: bool
) -> None:
    before = lasting(node)
    for _ in few(range(ROUNDS)):
        if installed:
            assert run(node, tmp_path, "run", "--no-daemon").code == 0
        stamps = node.stamps()
        starts = [node.arguments("run", "--pid-file", path) for path in pid_files]
        with race(tmp_path, starts) as raced:
            winner, _ = settled(raced)
            held = pid_files[raced.index(winner)]
            assert node.read(held) == f"{winner.pid}\n".encode()
            assert [path for path in {*pid_files} if node.exists(path)] == [held]
            assert node.docker()["default-runtime"] == "nvidia"
            assert node.broken_runtimes() == []
            if installed:
                assert NOTHING_TO_DO in winner.output
                assert {path: stamp for path, stamp in node.stamps().items() if not path.startswith("/run/")} == {
                    path: stamp for path, stamp in stamps.items() if not path.startswith("/run/")
                }
        assert run(node, tmp_path, "uninstall").code == 0
        assert lasting(node) == before  # the winner was killed: what it left in /run goes with the next boot


def test_an_instance_that_finds_all_done_by_one_that_began_after_it_exits_4(node: FakeNode, tmp_path: Path) -> None:
    other = begin(node, "run")
    other.wait_for(WAITING)
    # when this one looked for the folder that it locks, the other had not made it yet
    with mock.patch("toolkit_installer.run.instance.locked", return_value=False):
        late = run(node, tmp_path, "run", "--no-daemon", "--pid-file", OTHER)
    assert late.code == 4, late.output
    assert f"PID {other.pid}" in late.output
    assert NOTHING_TO_DO not in late.output
    assert other.stop() == 0


def test_a_run_that_finds_another_ones_finished_work_checks_again_with_the_lock(node: FakeNode, tmp_path: Path) -> None:
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    with mock.patch("toolkit_installer.run.instance.locked", return_value=False):
        late = run(node, tmp_path, "run", "--no-daemon", "--pid-file", OTHER)
    assert late.code == 0, late.output
    assert late.output.count(NOTHING_TO_DO) == 1


@pytest.mark.parametrize("second", [PID_FILE, OTHER], ids=["same-pid-file", "two-pid-files"])
def test_of_two_processes_started_at_once_one_waits_and_the_other_exits_4(node: FakeNode, second: str) -> None:
    before = node.snapshot()
    pair = [begin(node, "run"), begin(node, "run", "--pid-file", second)]
    loser = first_to_end(pair)
    (winner,) = (one for one in pair if one is not loser)
    winner.wait_for(WAITING)
    assert loser.finish() == 4
    assert f"PID {winner.pid}" in loser.output
    assert node.broken_runtimes() == []
    assert winner.stop() == 0
    assert node.snapshot() == before


# --- a run that looked at the node before another one changed it ---

PREPARES = "mkdir .nvidia.toolkit-installer.tmp"
"""The first call after the other PID file: the plan is made, and the receipt's folder is not locked yet."""


def test_a_plan_that_another_instance_has_overtaken_is_made_again(node: FakeNode, tmp_path: Path) -> None:
    before = node.snapshot()
    with stopping(node, PREPARES, "run", "--no-daemon", "--pid-file", OTHER) as late:
        assert run(node, tmp_path, "run", "--no-daemon", "--runtime-name", "early").code == 0
        assert "early" in node.docker()["runtimes"]
        late.go_on()
        assert late.finish() == 0, late.output
    assert set(node.docker()["runtimes"]) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert node.docker()["default-runtime"] == "nvidia"
    assert node.broken_runtimes() == []
    assert run(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before


def test_a_plan_made_before_another_instance_cleaned_up_restores_nothing_of_it(node: FakeNode, tmp_path: Path) -> None:
    before = node.snapshot()
    assert run(node, tmp_path, "run", "--no-daemon", "--runtime-name", "early").code == 0
    with stopping(node, "open_or_create toolkit.pid", "run", "--no-daemon", "--pid-file", OTHER) as late:
        assert run(node, tmp_path, "uninstall").code == 0
        assert node.read(DAEMON_JSON) == DOCKER
        late.go_on()
        assert late.finish() == 0, late.output
    assert run(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before


def test_who_comes_second_to_a_new_receipts_folder_leaves_it_to_the_first(node: FakeNode) -> None:
    before = node.snapshot()
    with (
        stopping(node, PREPARES, "run", "--pid-file", OTHER) as second,
        stopping(node, "mkdir .originals.toolkit-installer.tmp", "run") as first,
    ):
        second.go_on()
        assert second.finish() == 4
        assert f"PID {first.pid}" in second.output
        first.go_on()
        first.wait_for(WAITING)
        assert first.stop() == 0
    assert node.snapshot() == before


# --- uninstall beside a run ---


def asked(node: FakeNode, stopped: Stopping, code: int = 0) -> None:
    """Let `uninstall` ask the stopped run to leave, then let that go on; fail unless both end as they should."""
    uninstall = begin(node, "uninstall")
    uninstall.wait_for(ASKING)
    stopped.go_on()
    assert stopped.finish() == code, stopped.output
    assert uninstall.finish() == 0, uninstall.output
    assert "Traceback" not in stopped.output + uninstall.output


@pytest.mark.parametrize(
    "at",
    [
        "truncate",
        "8",
        "mkdir .originals.toolkit-installer.tmp",
        SAVES,
        "rename .nvidia-ctk.real.toolkit-installer.tmp nvidia-ctk.real",
        EXCHANGES,
        "unlink .daemon.json.toolkit-installer.swap",
    ],
)
def test_uninstall_ends_a_run_that_installs_at_any_instant(node: FakeNode, at: str) -> None:
    before = node.snapshot()
    with stopping(node, at, "run") as installing:
        asked(node, installing)
    assert node.snapshot() == before


@pytest.mark.parametrize("at", ["8", EXCHANGES])
@pytest.mark.parametrize("flags", [("--cleanup", "never"), ("--no-daemon",)], ids=["cleanup-never", "no-daemon"])
def test_uninstall_takes_back_what_a_run_would_leave_that_it_asked_to_leave(
    node: FakeNode, flags: tuple[str, ...], at: str
) -> None:
    before = node.snapshot()
    with stopping(node, at, "run", *flags) as installing:
        # past the exchange the work is done to its end before it is taken back
        early = at == "8" and "--no-daemon" in flags
        asked(node, installing, 128 + signal.SIGTERM if early else 0)
    assert node.snapshot() == before


@pytest.mark.parametrize(
    "at",
    [SAVES, EXCHANGES, "unlink nvidia-ctk", "unlink receipt.json", "rmdir .toolkit-installer", "unlink toolkit.pid"],
)
def test_uninstall_waits_for_a_run_that_cleans_up_and_finds_nothing_left(node: FakeNode, at: str) -> None:
    before = node.snapshot()
    with stopping(node, at, "run", woken=True) as cleaning:
        cleaning.wait_for(WAITING)
        cleaning.process.send_signal(signal.SIGTERM)
        cleaning.wait_until_stopped()
        asked(node, cleaning)
    assert node.snapshot() == before


@pytest.mark.parametrize(
    "at", ["link .order.json.toolkit-installer.tmp", "rename .order.json.toolkit-installer.tmp order.json", "signal"]
)
def test_a_run_that_leaves_by_itself_while_it_is_asked_to_is_no_failure(node: FakeNode, at: str) -> None:
    before = node.snapshot()
    waiting = node.waiting()
    with stopping(node, at, "uninstall") as uninstall:
        assert waiting.stop() == 0
        uninstall.go_on()
        assert uninstall.finish() == 0, uninstall.output
    assert node.snapshot() == before


@pytest.mark.parametrize("at", ["8", SAVES, EXCHANGES])
def test_a_run_that_is_killed_while_uninstall_waits_for_it_is_finished_by_uninstall(node: FakeNode, at: str) -> None:
    before = lasting(node)
    with stopping(node, at, "run") as installing:
        uninstall = begin(node, "uninstall")
        uninstall.wait_for(ASKING)
        installing.process.kill()
        assert uninstall.finish() == 0, uninstall.output
    assert lasting(node) == before
    assert not node.exists(PID_FILE)


def test_an_order_to_a_run_that_was_killed_is_not_taken_by_the_next_one(node: FakeNode) -> None:
    waiting = node.waiting("--cleanup", "never")
    with stopping(node, "signal", "uninstall") as uninstall:
        uninstall.process.kill()
    waiting.stop(signal.SIGKILL)
    assert node.exists(f"{STORE}/order.json")
    again = node.waiting("--cleanup", "never")
    assert again.stop() == 0
    assert node.docker()["default-runtime"] == "nvidia"
    assert not node.exists(f"{STORE}/order.json")


# --- several uninstalls, and a run that starts meanwhile ---


@pytest.mark.parametrize(
    "at", [SAVES, EXCHANGES, "unlink receipt.json", "rmdir .toolkit-installer", "unlink toolkit.pid"]
)
def test_a_second_uninstall_waits_for_the_first_and_finds_nothing_left(node: FakeNode, tmp_path: Path, at: str) -> None:
    before = node.snapshot()
    run(node, tmp_path, "run", "--no-daemon")
    with stopping(node, at, "uninstall") as first:
        asked(node, first)
    assert node.snapshot() == before


def test_two_uninstalls_started_at_once_both_end_well(node: FakeNode, tmp_path: Path) -> None:
    before = node.snapshot()
    for _ in range(3):
        run(node, tmp_path, "run", "--no-daemon")
        pair = [begin(node, "uninstall") for _ in range(2)]
        ended = [one.finish() for one in pair]
        assert ended in ([0, 0], [0, 4], [4, 0]), [one.output for one in pair]
        assert node.snapshot() == before


@pytest.mark.parametrize("path", [PID_FILE, OTHER], ids=["same-pid-file", "another-pid-file"])
@pytest.mark.parametrize("at", [EXCHANGES, "unlink nvidia-ctk"])
def test_a_run_that_starts_while_uninstall_works_exits_4_and_spoils_nothing(
    node: FakeNode, tmp_path: Path, path: str, at: str
) -> None:
    before = node.snapshot()
    run(node, tmp_path, "run", "--no-daemon")
    with stopping(node, at, "uninstall") as uninstall:
        half = node.snapshot()
        late = run(node, tmp_path, "run", "--pid-file", path)
        assert late.code == 4, late.output
        assert f"PID {uninstall.pid}" in late.output
        assert node.snapshot() == half
        uninstall.go_on()
        assert uninstall.finish() == 0
    assert node.snapshot() == before


# --- somebody edits while a run waits ---

THEIRS = b'{\n\t"log-driver": "syslog"}'


def rename_over(node: FakeNode) -> None:
    node.write("/etc/docker/.daemon.json.swp", THEIRS)
    node.place("/etc/docker/.daemon.json.swp").rename(node.place(DAEMON_JSON))


def test_an_edit_between_our_write_and_the_wait_is_reported_as_well(node: FakeNode) -> None:
    with stopping(node, "unlink .daemon.json.toolkit-installer.swap", "run") as installing:
        rename_over(node)
        installing.go_on()
        installing.wait_for("Somebody changed the file")
        installing.wait_for(WAITING)
        assert installing.stop() == 0
    assert node.read(DAEMON_JSON) == THEIRS


def test_an_edit_between_our_write_and_the_wait_is_repaired_where_that_was_asked_for(node: FakeNode) -> None:
    with stopping(node, "unlink .daemon.json.toolkit-installer.swap", "run", "--on-drift", "repair") as installing:
        rename_over(node)
        installing.go_on()
        installing.wait_for(WAITING)
        assert (node.docker()["default-runtime"], node.docker()["log-driver"]) == ("nvidia", "syslog")
        assert installing.stop() == 0
    assert node.read(DAEMON_JSON) == THEIRS


def test_an_edit_that_cannot_be_repaired_is_tried_once_and_the_wait_goes_on(node: FakeNode) -> None:
    with stopping(node, "unlink .daemon.json.toolkit-installer.swap", "run", "--on-drift", "repair") as installing:
        node.write(DAEMON_JSON, b"{")
        installing.go_on()
        installing.wait_for("Could not converge")
        installing.wait_for(WAITING)
        assert installing.output.count("Could not converge") == 1
        node.write(DAEMON_JSON, DOCKER)
        installing.wait_for(WAITING)
        assert node.docker()["default-runtime"] == "nvidia"
        assert installing.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER


def test_an_editors_rename_while_waiting_is_reported_repaired_on_hangup_and_kept(node: FakeNode) -> None:
    with stopping(node, "never", "run", woken=True) as waiting:
        waiting.wait_for(WAITING)
        rename_over(node)
        waiting.wait_for("Somebody changed the file")
        waiting.wait_for(WAITING)
        assert node.read(DAEMON_JSON) == THEIRS
        waiting.process.send_signal(signal.SIGHUP)
        waiting.wait_for(WAITING)
        assert (node.docker()["default-runtime"], node.docker()["log-driver"]) == ("nvidia", "syslog")
        assert waiting.stop() == 0
    assert node.read(DAEMON_JSON) == THEIRS
    assert not node.exists(TOOLKIT)


def test_an_editors_rename_while_we_wait_is_repaired_where_that_was_asked_for(node: FakeNode) -> None:
    with stopping(node, "never", "run", "--on-drift", "repair", woken=True) as waiting:
        waiting.wait_for(WAITING)
        rename_over(node)
        waiting.wait_for("looking again")
        waiting.wait_for(WAITING)
        assert (node.docker()["default-runtime"], node.docker()["log-driver"]) == ("nvidia", "syslog")
        assert waiting.stop() == 0
    assert node.read(DAEMON_JSON) == THEIRS
