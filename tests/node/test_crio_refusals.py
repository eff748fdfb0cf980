"""What CRI-O's adapter refuses, by name, before anything is written; and what it does with older callers' words."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.node import faults
from tests.support.fake_node import CRIO_DROP_IN, CRIO_FOLDER, CRIO_SITE, TOOLKIT, FakeNode

HOOK = ("--config-mode", "hook")


def do(node: FakeNode, folder: Path, command: str, *flags: str) -> faults.Outcome:
    return faults.run(node, folder, command, *flags, engine="crio")


def check_refused(node: FakeNode, folder: Path, *flags: str) -> str:
    """Fail unless both ways of asking end with the same refusal and write nothing; return what was said."""
    before = node.stamps()
    for command in (("run", "--no-daemon"), ("plan",)):
        outcome = do(node, folder, *command, *flags)
        assert outcome.code in (2, 3), outcome.output
        assert "Traceback" not in outcome.output
    assert {path: stamp for path, stamp in node.stamps().items() if not path.startswith("/run")} == {
        path: stamp for path, stamp in before.items() if not path.startswith("/run")
    }
    return outcome.output


@pytest.mark.parametrize("name", [".hidden", "10-site.conf", "50-site.d/90.backup", "zz.conf"])
@pytest.mark.parametrize(
    "text, line, reason",
    [
        ("# one\n# two\n[crio.runtime\n", 3, "TOML"),
        ("[crio.runtime]\nlog_level = 'debug'\nlog_level = 'info'\n", 3, "TOML"),
        ("[crio.runtime]\n\ndefault_runtime = 5\n", 3, "must be a string"),
        ("[crio.runtime.runtimes]\nx = 'y'\n", 2, "must be a table"),
    ],
)
def test_a_broken_drop_in_of_somebody_elses_is_named_with_its_line(
    node: FakeNode, tmp_path: Path, name: str, text: str, line: int, reason: str
) -> None:
    node.write(f"{CRIO_FOLDER}/00-good.conf", "[crio.runtime]\nlog_level = 'debug'\n")
    node.write(f"{CRIO_FOLDER}/{name}", text)
    said = check_refused(node, tmp_path)
    assert f"file={CRIO_FOLDER}/{name} line={line}" in said
    assert reason in said


def test_a_broken_root_file_is_named_with_its_line(node: FakeNode, tmp_path: Path) -> None:
    node.write("/etc/crio/crio.conf", "[crio]\n[crio.runtime\n")
    assert "file=/etc/crio/crio.conf line=2" in check_refused(node, tmp_path)


@pytest.mark.parametrize("source", ["command", "command,command"])
def test_a_source_that_nobody_answers_for_is_refused_and_files_need_nobody(
    node: FakeNode, tmp_path: Path, source: str
) -> None:
    node.write(CRIO_SITE, "[crio.runtime.runtimes.crun]\nmonitor_path = '/of/the/files'\n")
    said = check_refused(node, tmp_path, "--config-source", source)
    assert "no crio was found on the node" in said
    outcome = do(node, tmp_path, "run", "--no-daemon", "--config-source", "command,file")
    assert outcome.code == 0, outcome.output
    ours = tomllib.loads(node.read(CRIO_DROP_IN).decode())["crio"]["runtime"]["runtimes"]["nvidia"]
    assert ours["monitor_path"] == "/of/the/files"
    assert do(node, tmp_path, "uninstall", "--config-source", "command").code == 0


def test_a_hook_that_crio_would_never_read_is_refused(node: FakeNode, tmp_path: Path) -> None:
    assert "end in .json" in check_refused(node, tmp_path, *HOOK, "--hook-filename", "oci-nvidia-hook.conf")


def test_names_of_crios_own_runtimes_are_no_names_for_ours(node: FakeNode, tmp_path: Path) -> None:
    assert "is CRI-O's own runtime" in check_refused(node, tmp_path, "--runtime-name", "crun")


def test_a_drop_in_named_as_the_configuration_is_written_and_goes_again(node: FakeNode, tmp_path: Path) -> None:
    node.write(CRIO_SITE, "[crio.runtime.runtimes.crun]\nmonitor_path = '/of/the/files'\n")
    before = node.snapshot()
    older = f"{CRIO_FOLDER}/99-nvidia.conf"
    outcome = do(node, tmp_path, "run", "--no-daemon", "--config", older)
    assert outcome.code == 0, outcome.output
    runtime = tomllib.loads(node.read(older).decode())["crio"]["runtime"]
    assert runtime["default_runtime"] == "nvidia"
    assert runtime["runtimes"]["nvidia"]["monitor_path"] == "/of/the/files"
    assert not node.exists(CRIO_DROP_IN)
    assert do(node, tmp_path, "uninstall", "--config", older).code == 0
    assert node.snapshot() == before


def test_a_root_file_elsewhere_has_its_drop_ins_beside_it(node: FakeNode, tmp_path: Path) -> None:
    node.write("/opt/crio/crio.conf", "[crio.runtime]\ndefault_runtime = 'runc'\n[crio.runtime.runtimes.runc]\n")
    before = node.snapshot()
    outcome = do(node, tmp_path, "run", "--no-daemon", "--config", "/opt/crio/crio.conf")
    assert outcome.code == 0, outcome.output
    assert TOOLKIT in node.read("/opt/crio/crio.conf.d/99-nvidia.toml").decode()
    assert not node.exists("/etc/crio")
    assert do(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before


def test_a_node_that_has_crun_alone_runs_crun_at_once(node: FakeNode, tmp_path: Path) -> None:
    node.write("/usr/bin/crun", "", 0o755)
    for _ in range(2):
        outcome = do(node, tmp_path, "run", "--no-daemon")
        assert outcome.code == 0, outcome.output
        config = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
        assert config["nvidia-container-runtime"]["runtimes"][0] == "/usr/bin/crun"
        assert "'/usr/bin/crun'" in node.read(f"{TOOLKIT}/nvidia-container-runtime").decode()


def test_a_named_file_lends_its_settings_and_a_broken_one_is_named_with_its_line(
    node: FakeNode, tmp_path: Path
) -> None:
    node.write(CRIO_SITE, "[crio.runtime.runtimes.crun]\nmonitor_path = '/of/the/files'\n")
    node.write("/etc/site.toml", "[crio.runtime.runtimes.crun]\nmonitor_path = '/of/the/site'\n")
    outcome = do(node, tmp_path, "run", "--no-daemon", "--config-source", "file=/etc/site.toml,file")
    assert outcome.code == 0, outcome.output
    ours = tomllib.loads(node.read(CRIO_DROP_IN).decode())["crio"]["runtime"]["runtimes"]["nvidia"]
    assert ours["monitor_path"] == "/of/the/site"
    assert do(node, tmp_path, "uninstall").code == 0
    node.write("/etc/site.toml", "# site\n[crio.runtime\n")
    assert "file=/etc/site.toml line=2" in check_refused(node, tmp_path, "--config-source", "file=/etc/site.toml")
