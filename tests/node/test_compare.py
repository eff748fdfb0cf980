"""Two captures tell what became of a node: nothing that nobody planned, or what, and by which of its files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import distribution_cases, driver_roots, fake_ctk, payloads
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, STORE, FakeNode
from toolkit_installer.cli import commands
from toolkit_installer.settings import Program

SECRETIVE = """{
  "http-proxy": "http://someone:hunter22@proxy.example:3128",
  "log-opts": {"splunk-token": "0123456789abcdef0123456789abcdef", "labels": "a"},
  "log-level": "info",
  "default-runtime": "runc"
}
"""
ENGINE_FILES = {"docker": DAEMON_JSON, "containerd": CONFIG_TOML}
CONTENTS = {"docker": SECRETIVE, "containerd": 'version = 2\nroot = "/var/lib/containerd"\n'}
EDITS = {
    "docker": ('"log-level": "info"', '"log-level": "warn"'),
    "containerd": ('root = "/var/lib/containerd"', 'root = "/srv/containerd"'),
}


def started(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Return the exit code of the program, what it prints, and what it says."""
    variables = {"PATH": os.environ["PATH"], **environment}
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        code = commands.main(Program.TOOLKIT_INSTALLER, arguments, variables)
    return code, printed.getvalue(), said.getvalue()


class Rollout:
    """Captures of made nodes, before and after a run."""

    def __init__(self, folder: Path) -> None:
        self.before, self.after = folder / "before", folder / "after"
        for each in (self.before, self.after):
            each.mkdir()
        self.key = folder / "key"
        self.key.write_bytes(b"k" * 32)

    def capture(self, folder: Path, node: FakeNode, name: str = "n1", *more: str, engine: str = "docker") -> Path:
        """Capture a node under a name."""
        file = folder / f"{name}.capture"
        file.unlink(missing_ok=True)
        key = ("--key-file", str(self.key))
        code, _, said = started("capture", *flags(node, engine), *key, *more, str(file), NODE_NAME=name)
        assert code == 0, said
        return file

    def told(self) -> tuple[int, str, dict[str, Any]]:
        """Return the exit code of a comparison, its words, and its JSON."""
        code, words, said = started("compare", str(self.before), str(self.after))
        again, text, _ = started("compare", "--json", str(self.before), str(self.after))
        assert (again, said) == (code, "")
        return code, words, json.loads(text)


def flags(node: FakeNode, engine: str = "docker") -> Sequence[str]:
    return node.arguments("plan", engine=engine)[1:]


def install(node: FakeNode, engine: str = "docker", *more: str) -> None:
    code, _, said = started("run", *flags(node, engine), "--no-daemon", "--cleanup", "never", *more)
    assert code == 0, said


def edit(node: FakeNode, engine: str) -> None:
    """Change what is somebody's in an engine's file."""
    old, new = EDITS[engine]
    content = node.read(ENGINE_FILES[engine])
    assert old.encode() in content
    node.write(ENGINE_FILES[engine], content.replace(old.encode(), new.encode()))


@pytest.fixture
def rollout(tmp_path: Path) -> Rollout:
    return Rollout(tmp_path)


def zeros(summary: dict[str, Any], *others: str) -> dict[str, int]:
    """Return how many nodes there are of each kind that should have none."""
    return {name: number for name, number in summary["nodes"].items() if number and name not in {*others}}


BOTH = ("before", "after", "compared")


@pytest.mark.parametrize("more", [(), ("--keep-secrets",)], ids=["hidden", "kept"])
@pytest.mark.parametrize("engine", ENGINE_FILES)
def test_of_a_rollout_that_did_what_was_planned_nothing_is_told(
    engine: str, more: Sequence[str], node: FakeNode, rollout: Rollout
) -> None:
    node.write(ENGINE_FILES[engine], CONTENTS[engine])
    rollout.capture(rollout.before, node, "n1", *more, engine=engine)
    install(node, engine)
    rollout.capture(rollout.after, node, "n1", *more, engine=engine)
    code, words, summary = rollout.told()
    assert zeros(summary, *BOTH) == {}
    assert code == 0
    assert words == "1 node compared: 0 with a change that nobody planned, 0 with drift, 0 behind.\n"


def test_a_second_run_with_other_settings_is_planned_for_with_those(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    install(node)
    rollout.capture(rollout.before, node)
    install(node, "docker", "--set-as-default=false", "--runtime-name", "gpu")
    rollout.capture(rollout.after, node, "n1", "--set-as-default=false", "--runtime-name", "gpu")
    code, _, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (0, {}, [])


@pytest.mark.parametrize("engine", ENGINE_FILES)
def test_an_edit_between_the_capture_and_the_run_is_named(engine: str, node: FakeNode, rollout: Rollout) -> None:
    node.write(ENGINE_FILES[engine], CONTENTS[engine])
    rollout.capture(rollout.before, node, engine=engine)
    edit(node, engine)
    install(node, engine)
    rollout.capture(rollout.after, node, engine=engine)
    code, words, summary = rollout.told()
    assert code == 3
    assert zeros(summary, *BOTH) == {"unplanned": 1}
    (changed,) = summary["unplanned"]
    assert changed["path"] == ENGINE_FILES[engine]
    assert changed["since"] == "a run wrote it so: it was changed before that"
    old, new = EDITS[engine]
    assert re.search(rf"(?m)^-.*{re.escape(old)}", changed["diff"])
    assert re.search(rf"(?m)^\+.*{re.escape(new)}", changed["diff"])
    assert f"1 node UNPLANNED: {ENGINE_FILES[engine]} is not as in the plan" in words
    assert "hunter22" not in words
    assert not re.search(r"a0[0-9a-f]{30}", words), "what stands for a secret is no news"


@pytest.mark.parametrize("engine", ENGINE_FILES)
def test_an_edit_after_the_run_is_drift_and_one_diff_for_all_nodes_that_have_it(
    engine: str, node: FakeNode, rollout: Rollout
) -> None:
    node.write(ENGINE_FILES[engine], CONTENTS[engine])
    for name in ("n1", "n2", "n3"):
        rollout.capture(rollout.before, node, name, engine=engine)
    install(node, engine)
    rollout.capture(rollout.after, node, "n3", engine=engine)
    edit(node, engine)
    for name in ("n1", "n2"):
        rollout.capture(rollout.after, node, name, engine=engine)
    code, words, summary = rollout.told()
    assert code == 3
    assert zeros(summary, *BOTH) == {"unplanned": 2, "drifted": 2}
    assert summary["unplanned"][0]["since"] == "changed since a run wrote it"
    (file,) = summary["drift"]
    assert (file["path"], file["nodes"]) == (ENGINE_FILES[engine], 2)
    (group,) = file["groups"]
    assert group["nodes"] == ["n1", "n2"]
    assert group["state"] == "changed by somebody else"
    old, new = EDITS[engine]
    assert re.search(rf"(?m)^-.*{re.escape(old)}", group["diff"])
    assert re.search(rf"(?m)^\+.*{re.escape(new)}", group["diff"])
    assert f"2 nodes with DRIFT in {ENGINE_FILES[engine]}:" in words


def test_drift_of_a_handler_is_shown_as_what_was_written(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, "{}\n")
    install(node)
    rollout.capture(rollout.before, node)
    node.write(DAEMON_JSON, node.read(DAEMON_JSON).replace(b"toolkit/nvidia-container-runtime.cdi", b"toolkit/other"))
    rollout.capture(rollout.after, node)
    code, _, summary = rollout.told()
    assert code == 3
    (group,) = summary["drift"][0]["groups"]
    assert group["against"] == "what was written"
    assert re.search(r"(?m)^-.*nvidia-container-runtime.cdi", group["diff"])
    assert re.search(r"(?m)^\+.*toolkit/other", group["diff"])


def test_a_node_without_a_receipt_and_one_that_a_run_would_change_lag(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    for name in ("n1", "n2", "n3", "n4"):
        rollout.capture(rollout.before, node, name)
    rollout.capture(rollout.after, node, "n1")
    install(node)
    rollout.capture(rollout.after, node, "n2")
    receipt = node.read(f"{STORE}/receipt.json")
    node.write(f"{STORE}/receipt.json", re.sub(rb'"installer": "[0-9.]+', b'"installer": "0.0.1', receipt))
    rollout.capture(rollout.after, node, "n4")
    node.write(f"{STORE}/receipt.json", receipt)
    (node.root / "usr/local/nvidia/toolkit/nvidia-ctk").unlink()
    rollout.capture(rollout.after, node, "n3")
    code, words, summary = rollout.told()
    assert code == 3
    lagging = {said["nodes"][0]: said["reason"] for said in summary["lagging"]}
    assert set(lagging) == {"n1", "n3", "n4"}
    assert lagging["n1"] == "nothing is installed"
    assert "1 file installed" in lagging["n3"]
    assert lagging["n4"].startswith("toolkit-installer is 0.0.1 there, and ")
    assert "1 node BEHIND: nothing is installed\n  n1\n" in words


def test_nodes_of_one_set_alone_are_named_and_no_reason_to_fail(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    for name in ("n1", "gone"):
        rollout.capture(rollout.before, node, name)
    install(node)
    for name in ("n1", "new"):
        rollout.capture(rollout.after, node, name)
    code, words, summary = rollout.told()
    assert (code, summary["only_before"], summary["only_after"]) == (0, ["gone"], ["new"])
    assert "1 node only before: gone\n1 node only after: new\n" in words


def test_a_file_of_which_nobody_planned_anything_is_named(node: FakeNode, rollout: Rollout) -> None:
    node.write(CONFIG_TOML, 'version = 2\nimports = ["/etc/containerd/extra.toml"]\n')
    node.write("/etc/containerd/extra.toml", "version = 2\noom_score = 1\n")
    rollout.capture(rollout.before, node, engine="containerd")
    install(node, "containerd")
    node.write("/etc/containerd/extra.toml", "version = 2\noom_score = 2\n")
    rollout.capture(rollout.after, node, engine="containerd")
    code, _, summary = rollout.told()
    assert code == 3
    (changed,) = summary["unplanned"]
    assert (changed["path"], changed["against"]) == ("/etc/containerd/extra.toml", "the capture before")
    assert "+oom_score = 2" in changed["diff"]


def test_a_secret_that_was_changed_before_the_run_is_noticed_and_not_shown(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    rollout.capture(rollout.before, node)
    node.write(DAEMON_JSON, SECRETIVE.replace("hunter22", "hunter23"))
    install(node)
    rollout.capture(rollout.after, node)
    code, words, summary = rollout.told()
    assert code == 3
    (changed,) = summary["unplanned"]
    assert (changed["path"], changed["diff"]) == (DAEMON_JSON, "")
    assert "only what is not shown is another" in words
    assert "hunter2" not in words


def test_what_cannot_be_used_is_refused_by_its_name_and_two_of_one_node_too(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    file = rollout.capture(rollout.before, node)
    shutil.copy(file, rollout.before / "n1-again.capture")
    install(node)
    file = rollout.capture(rollout.after, node)
    (rollout.after / "cut-off.capture").write_bytes(file.read_bytes()[:400])
    code, words, summary = rollout.told()
    assert code == 3
    assert zeros(summary, *BOTH) == {"unusable": 2}
    assert f"{rollout.after / 'cut-off.capture'}: is damaged" in words
    assert "is a second capture of n1" in words


def test_many_nodes_are_compared_in_several_processes(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    names = [f"n{number}" for number in range(40)]
    for name in names:
        rollout.capture(rollout.before, node, name)
    install(node)
    for name in names:
        rollout.capture(rollout.after, node, name)
    assert rollout.told()[1].startswith("40 nodes compared: 0 with")


def test_the_comparison_is_of_captures_and_looks_at_no_node(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    rollout.capture(rollout.before, node)
    install(node)
    rollout.capture(rollout.after, node)
    here = rollout.told()
    shutil.rmtree(node.root)
    assert rollout.told() == here


@pytest.mark.parametrize("case", distribution_cases.cases(), ids=str)
def test_of_a_node_of_a_distribution_that_was_installed_nothing_is_told(
    case: distribution_cases.Case, node: FakeNode, rollout: Rollout
) -> None:
    case.put(node)
    rollout.capture(rollout.before, node, engine="auto")
    code, _, _ = started("run", *flags(node, "auto"), "--no-daemon", "--cleanup", "never")
    rollout.capture(rollout.after, node, engine="auto")
    compared, _, summary = rollout.told()
    assert zeros(summary, *BOTH, *(("lagging", "untold") if code else ())) == {}
    assert (compared == 0) == (code == 0)


def test_a_run_that_waits_on_the_node_is_no_change_and_no_lag(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    rollout.capture(rollout.before, node)
    node.waiting()
    rollout.capture(rollout.after, node)
    code, _, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (0, {}, [])


def test_a_newer_toolkit_from_elsewhere_changes_what_it_is_to_change(
    node: FakeNode, rollout: Rollout, tmp_path: Path
) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    install(node)
    rollout.capture(rollout.before, node)
    newer = tmp_path / "newer"
    shutil.copytree(node.payload, newer, symlinks=True)
    program = next(newer.rglob("nvidia-ctk"))
    program.write_bytes(program.read_bytes() + b"newer")
    install(node, "docker", "--toolkit-source-root", str(newer))
    rollout.capture(rollout.after, node, "n1", "--toolkit-source-root", str(newer))
    code, _, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (0, {}, [])


def test_a_specification_that_a_run_made_anew_for_another_driver_is_as_it_should_be(
    node: FakeNode, rollout: Rollout, tmp_path: Path
) -> None:
    node.payload = fake_ctk.into(payloads.build(tmp_path))
    node.write(DAEMON_JSON, "{}\n")
    fake_ctk.driver(node.place("/run/nvidia/driver"))
    install(node, "docker", "--cdi-enabled")
    rollout.capture(rollout.before, node, "n1", "--cdi-enabled")
    fake_ctk.driver(node.place("/run/nvidia/driver"), fake_ctk.NEWER)
    install(node, "docker", "--cdi-enabled")
    rollout.capture(rollout.after, node, "n1", "--cdi-enabled")
    code, _, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (0, {}, [])


@pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
def test_another_driver_is_named_with_both_versions(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, "{}\n")
    program = driver_roots.install(node.place(driver_roots.CONTAINER))
    install(node)
    rollout.capture(rollout.before, node)
    program.write_text(program.read_text().replace(driver_roots.VERSION, "590.1"))
    rollout.capture(rollout.after, node)
    code, words, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (3, {"unplanned": 1}, [])
    assert f"1 node UNPLANNED: the driver's version: {driver_roots.VERSION} before, 590.1 after\n" in words


def test_an_engine_that_was_left_for_another_is_given_back_as_planned(node: FakeNode, rollout: Rollout) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    node.write(CONFIG_TOML, "version = 2\n")
    install(node)
    rollout.capture(rollout.before, node)
    install(node, "containerd")
    rollout.capture(rollout.after, node, engine="containerd")
    code, _, summary = rollout.told()
    assert (code, zeros(summary, *BOTH), summary["untold"]) == (0, {}, [])


@pytest.mark.parametrize("installed", [False, True])
def test_a_capture_has_no_changes_against_itself(node: FakeNode, rollout: Rollout, *, installed: bool) -> None:
    node.write(DAEMON_JSON, SECRETIVE)
    if installed:
        assert node.do("run", "--no-daemon").process.returncode == 0
        node.write(DAEMON_JSON, node.read(DAEMON_JSON).replace(b'"nvidia-cdi"', b'"nvidia-other"'))
    file = rollout.capture(rollout.before, node)
    _, text, _ = started("compare", "--json", str(file), str(file))
    found = json.loads(text)
    assert (found["unplanned"], found["facts"], found["nodes"]["unplanned"]) == ([], [], 0)
    # that a run would change the node is no change between the two
    reasons = [each["reason"] for each in found["lagging"]]
    assert [each.partition(":")[0] for each in reasons] == [
        "a run would still change it" if installed else "nothing is installed"
    ]


@pytest.mark.parametrize("given, missing", [((), "BEFORE"), (("captures",), "AFTER")])
def test_a_set_that_is_not_given_is_named(given: Sequence[str], missing: str) -> None:
    code, _, said = started("compare", *given)
    assert (code, f"Missing argument '{missing}'" in said) == (2, True), said
