"""What `status` says of a run that failed and is over: when, with which code, why, and what to do about it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.faults import Fault, Outcome, Plan, run
from tests.support.fake_node import DAEMON_JSON, PID_FILE, SCRIPTS, FakeNode
from toolkit_installer.errors import ExitCode
from toolkit_installer.node import machine
from toolkit_installer.reporting.outcome import FILE

RUN_FOLDER = os.path.dirname(PID_FILE)
RECORD = f"{RUN_FOLDER}/{FILE}"
HALF = f"{RUN_FOLDER}/.{FILE}.toolkit-installer.tmp"
SECRET = "hunter2-hunter2"  # noqa: S105  # made up, to be looked for
BAD = b'{\n  "debug": true\n  "mtu": 1400\n}\n'
GOOD = b'{\n  "debug": true\n}\n'


def status(node: FakeNode, *more: str) -> dict[str, Any]:
    """Return what `status --json` says."""
    command = [str(SCRIPTS / "toolkit-installer"), *node.arguments("status", "--json", *more)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body: dict[str, Any] = json.loads(done.stdout)
    return body | {"stderr": done.stderr}


def last(node: FakeNode, *more: str) -> Any:
    return status(node, *more)["last_run"]


@pytest.fixture
def known(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node whose run folder is there, and every command on it is told of a ready file in that folder."""
    given = node.arguments
    ready = ("--ready-file", str(node.place(f"{RUN_FOLDER}/ready")))
    monkeypatch.setattr(node, "arguments", lambda *words, **more: [*given(*words, **more), *ready])
    node.place(RUN_FOLDER).mkdir(parents=True)
    node.write(DAEMON_JSON, BAD)
    return node


def refused(node: FakeNode) -> None:
    done = node.do("run", "--no-daemon")
    assert done.process.returncode == ExitCode.BAD_CONFIGURATION, done.output


def test_a_run_that_was_refused_is_told_of_with_its_code_its_place_and_its_remedy(known: FakeNode) -> None:
    before = known.snapshot()
    refused(known)
    said = last(known)
    assert (said["command"], said["exit_code"], said["event"]) == ("run", 3, "bad-configuration")
    assert (said["file"], said["line"]) == (DAEMON_JSON, 3)
    assert said["reason"]
    assert said["remedy"]
    assert said["ended"] <= machine.text(machine.now())
    shown = known.do("status").output
    assert f"`run` failed at {said['ended']} with exit code 3 (bad-configuration)" in shown
    assert f"{DAEMON_JSON}:3: {said['reason']}" in shown
    assert f"-> {said['remedy']}" in shown
    assert known.do("status", "--check").process.returncode == 1
    after = known.snapshot()
    assert (after[RECORD].mode, after[RECORD].owner) == (0o600, (0, 0))
    assert {path: entry for path, entry in after.items() if path != RECORD} == before


@pytest.mark.parametrize("folder", [False, True], ids=["", "that has the run folder"])
def test_a_run_that_was_refused_leaves_nothing_on_the_node(node: FakeNode, tmp_path: Path, *, folder: bool) -> None:
    node.write(DAEMON_JSON, BAD)
    if folder:
        node.place(RUN_FOLDER).mkdir(parents=True)
    before = node.snapshot()
    assert "/run" in before
    refused(node)
    assert last(node) is None
    own = tmp_path / "of the pod"
    own.mkdir()
    ready = ("--ready-file", str(own / "ready"))
    assert node.do("run", "--no-daemon", *ready).process.returncode == ExitCode.BAD_CONFIGURATION
    assert node.snapshot() == before
    assert last(node, *ready)["exit_code"] == 3
    node.write(DAEMON_JSON, GOOD)
    assert node.do("run", "--no-daemon", *ready).process.returncode == 0
    assert last(node, *ready) is None
    assert FILE not in os.listdir(own)


def test_a_change_that_was_taken_back_is_told_of_with_what_the_engine_said(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, GOOD)
    flags = ("--socket", SOCKET, "--reload-timeout", "1")
    with FakeDockerd(node, Runtimes={"runc": {"path": "runc"}}):
        done = run(node, tmp_path, "run", "--no-daemon", *flags)
        assert done.code == ExitCode.ENGINE_REJECTED, done.output
        said = last(node)
        assert (said["exit_code"], said["event"]) == (5, "engine-rejected")
        assert said["reason"] in done.output
        assert f"the last `run` failed at {said['ended']}: " in node.do("status").output
    node.place(SOCKET).unlink()
    with FakeDockerd(node):
        assert run(node, tmp_path, "run", "--no-daemon", *flags).code == 0
        assert last(node) is None
        assert not node.exists(RECORD)


def test_a_run_that_succeeds_and_waits_makes_it_go_at_once(known: FakeNode) -> None:
    refused(known)
    known.write(DAEMON_JSON, GOOD)
    waiting = known.waiting()
    assert last(known) is None
    assert not known.exists(RECORD)
    waiting.stop()


@pytest.mark.parametrize("mended", [False, True])
def test_an_uninstall_leaves_no_trace_of_it(known: FakeNode, *, mended: bool) -> None:
    known.place(DAEMON_JSON).unlink()
    before = known.snapshot()
    known.write(DAEMON_JSON, BAD)
    refused(known)
    assert known.exists(RECORD)
    known.write(HALF, b"half")  # of one that was killed while it wrote it
    known.place(DAEMON_JSON).unlink()
    if mended:
        assert known.do("run", "--no-daemon").process.returncode == 0
    assert known.do("uninstall").process.returncode == 0
    assert known.snapshot() == before


@pytest.mark.parametrize("old_name", [False, True], ids=["", "under an old name"])
def test_options_that_make_no_sense_are_told_of_and_make_no_good_node_bad(known: FakeNode, *, old_name: bool) -> None:
    known.write(DAEMON_JSON, GOOD)
    assert known.do("run", "--no-daemon").process.returncode == 0
    before = status(known)["verdict"]
    program = [str(SCRIPTS / ("nvidia-toolkit" if old_name else "toolkit-installer"))]
    ready = ("--ready-file", str(known.place(f"{RUN_FOLDER}/ready")))
    command = [*program, *([] if old_name else ["install"]), "--node-root", str(known.root), *ready, "--runtime"]
    done = subprocess.run([*command, f"password={SECRET}"], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE
    seen = status(known)
    assert (seen["last_run"]["exit_code"], seen["last_run"]["command"]) == (2, "run")
    assert "is not allowed" in seen["last_run"]["reason"]
    assert seen["verdict"] == before
    assert SECRET not in known.read(RECORD).decode()
    assert "is not allowed" in known.do("status").output


@pytest.mark.parametrize(
    "words",
    [
        ("plan",),
        ("status", "--bogus"),
        ("wait-driver", "--timeout", "x"),
        ("run", "--node-root", "relative"),
        ("run", "--pid-file", "/run/nvidia/other.pid"),
    ],
    ids=" ".join,
)
def test_what_changes_nothing_or_does_not_say_which_node_it_means_keeps_nothing(
    known: FakeNode, words: tuple[str, ...]
) -> None:
    before = known.snapshot()
    done = known.do(*words)
    assert done.process.returncode in (2, 3), done.output
    assert known.snapshot() == before


def test_a_second_run_that_finds_another_one_at_work_says_nothing_of_the_node(known: FakeNode) -> None:
    known.write(DAEMON_JSON, GOOD)
    first = known.waiting()
    assert known.do("run", "--no-daemon").process.returncode == ExitCode.ALREADY_RUNNING
    assert known.do("run", "--runtime", "podman").process.returncode == ExitCode.USAGE
    assert last(known) is None
    assert not known.exists(RECORD)
    assert first.stop() == 0


# --- whom we believe ---


def by_somebody_else(node: FakeNode) -> None:
    os.chown(node.place(RECORD), 1000, 1000)


def writable(node: FakeNode) -> None:
    node.place(RECORD).chmod(0o666)


def a_link(node: FakeNode) -> None:
    node.place(RECORD).rename(node.place("/elsewhere"))
    node.place(RECORD).symlink_to(node.place("/elsewhere"))


def with_another_name(node: FakeNode) -> None:
    os.link(node.place(RECORD), node.place("/elsewhere"))


def in_a_folder_of_everybodys(node: FakeNode) -> None:
    node.place(RUN_FOLDER).chmod(0o777)


def a_pipe(node: FakeNode) -> None:
    node.place(RECORD).unlink()
    os.mkfifo(node.place(RECORD))


def a_folder(node: FakeNode) -> None:
    node.place(RECORD).unlink()
    node.place(RECORD).mkdir()


def rewritten(**changes: object) -> Callable[[FakeNode], None]:
    def rewrite(node: FakeNode) -> None:
        body = json.loads(node.read(RECORD)) | changes
        node.write(RECORD, json.dumps(body), 0o600)

    return rewrite


def holding(content: bytes) -> Callable[[FakeNode], None]:
    return lambda node: node.write(RECORD, content, 0o600)


UNBELIEVED = {
    "of somebody else": by_somebody_else,
    "writable": writable,
    "a link": a_link,
    "with another name": with_another_name,
    "in a folder of everybody's": in_a_folder_of_everybodys,
    "a pipe": a_pipe,
    "a folder": a_folder,
    "empty": holding(b""),
    "no JSON": holding(b"\xff{"),
    "a list": holding(b"[]"),
    "deep": holding(b"[" * 60_000),
    "large": holding(b" " * 1_000_000),
    "of a newer form": rewritten(form=2),
    "with a code that is none": rewritten(exit_code="x"),
    "without a reason": rewritten(reason=None),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="files are given away: run as root")
@pytest.mark.parametrize("change", UNBELIEVED.values(), ids=UNBELIEVED)
def test_a_record_that_is_not_roots_or_is_malformed_is_ignored_and_stops_nothing(
    known: FakeNode, change: Callable[[FakeNode], None]
) -> None:
    refused(known)
    change(known)
    seen = status(known)
    assert seen["last_run"] is None
    assert "What the last run came to is not known" in seen["stderr"]
    assert RECORD in seen["stderr"]


def test_a_record_of_another_boot_is_over(known: FakeNode) -> None:
    refused(known)
    rewritten(boot="another")(known)
    seen = status(known)
    assert (seen["last_run"], seen["stderr"]) == (None, "")


def test_what_it_says_is_obeyed_by_no_terminal(known: FakeNode) -> None:
    refused(known)
    rewritten(reason="\x1b[2J\nVerdict: OK", remedy="\x1b]0;x\x07")(known)
    shown = known.do("status").output
    assert "\x1b" not in shown
    assert "\nVerdict: OK" not in shown


# --- at every instant ---


def keeping(calls: tuple[str, ...]) -> list[int]:
    """Return the numbers of the calls by which the record is kept: all that come once both PID files have gone."""
    gone = max(at for at, call in enumerate(calls) if call == f"unlink {os.path.basename(PID_FILE)}")
    assert calls[gone + 1] == "fsync"
    return list(range(gone + 2, len(calls)))


def test_killed_at_any_instant_the_record_is_the_old_one_or_the_new_one(known: FakeNode, tmp_path: Path) -> None:
    known.write(DAEMON_JSON, b"[]\n")
    whole = run(known, tmp_path, "run", "--no-daemon")
    assert whole.code == ExitCode.BAD_CONFIGURATION, whole.output
    old = known.read(RECORD)
    instants = keeping(whole.calls)
    assert len(instants) > 3, whole.calls
    known.write(DAEMON_JSON, BAD)
    seen = set()
    for at in instants:
        known.write(RECORD, old, 0o600)
        known.place(HALF).unlink(missing_ok=True)
        assert run(known, tmp_path, "run", "--no-daemon", plan=Plan(at=at)).code == -9
        assert known.exists(RECORD)
        line = last(known)["line"]
        assert line in (1, 3)
        seen.add(line)
    assert seen == {1, 3}
    refused(known)
    assert os.listdir(known.place(RUN_FOLDER)) == [FILE]


def test_whatever_fails_while_it_is_kept_the_run_ends_as_it_would(known: FakeNode, tmp_path: Path) -> None:
    whole = run(known, tmp_path, "run", "--no-daemon")
    for at in keeping(whole.calls):
        known.place(RECORD).unlink(missing_ok=True)
        done = run(known, tmp_path, "run", "--no-daemon", plan=Plan(at=at, fault=Fault.ONCE))
        assert done.code == ExitCode.BAD_CONFIGURATION
        assert f"file={DAEMON_JSON}" in done.output
    full = run(known, tmp_path, "run", "--no-daemon", plan=Plan(at=keeping(whole.calls)[0], fault=Fault.FULL))
    assert full.code == ExitCode.BAD_CONFIGURATION
    assert "How this ended cannot be kept" in full.output


def test_a_record_that_cannot_be_removed_is_said_and_stops_nothing(known: FakeNode, tmp_path: Path) -> None:
    def mended(plan: Plan) -> Outcome:
        assert run(known, tmp_path, "uninstall").code == 0
        known.write(DAEMON_JSON, BAD)
        refused(known)
        known.write(DAEMON_JSON, GOOD)
        return run(known, tmp_path, "run", "--no-daemon", plan=plan)

    at = mended(Plan()).index(f"unlink {FILE}")
    done = mended(Plan(at=at, fault=Fault.ONCE))
    assert done.code == 0, done.output
    assert "What an earlier run came to cannot be forgotten" in done.output


# --- the support bundle ---


def test_the_report_has_it(known: FakeNode) -> None:
    refused(known)
    command = [str(SCRIPTS / "toolkit-installer"), *known.arguments("report", "-")]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        name = next(name for name in archive.getnames() if name.endswith("status.json"))
        member = archive.extractfile(name)
        assert member is not None
        assert json.loads(member.read())["last_run"]["exit_code"] == 3
