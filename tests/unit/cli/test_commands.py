"""Command lines that fail: each error leaves as one line, with its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.unit.cli.fake_actions import OLD, OURS, Actions, error_of, start
from toolkit_installer.errors import ConfigurationError, EngineDownError, ExitCode


@pytest.mark.parametrize(
    "arguments, environment",
    [
        (["status", "--check", "--jsn"], {}),
        (["status", "--jsn", "--check"], {}),
        (["status", "--check=true", "--runtime", "dokcer"], {}),
        (["status", "--check"], {"RUNTIME": "dokcer"}),
        (["status", "--check"], {"LOG_FORMAT": "xml"}),
        (["status", "-check", "--json"], {"RUNTIME": "dokcer"}),
        (["status", "--chek"], {}),
        (["status", "--check", "a", "b"], {}),
    ],
)
def test_an_error_of_a_check_is_never_read_as_a_verdict(
    actions: Actions, arguments: list[str], environment: Mapping[str, str]
) -> None:
    assert start(OURS, *arguments, **environment) == 3
    actions.answer = RuntimeError("oops")
    assert start(OURS, "status", "--check") == 3


def test_an_error_without_a_check_keeps_its_exit_code(actions: Actions) -> None:
    assert start(OURS, "status", "--jsn") == 2
    assert start(OURS, "plan", "--check") == 2
    actions.answer = RuntimeError("oops")
    assert start(OURS, "status") == 1
    actions.answer = EngineDownError("down")
    assert start(OURS, "status", "--check") == 6


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["instal"], ["'instal'", "'install'"]),
        (["unistall"], ["'unistall'", "'uninstall'"]),
        (["frobnicate"], ["'frobnicate'"]),
        (["help", "instal"], ["'instal'", "'install'"]),
        (["completion", "tcsh"], ["'tcsh'", "bash, zsh and fish are known"]),
        (["completion", "zhs"], ["'zhs'", "did you mean 'zsh'?"]),
        (["completion"], ["which shell?", "bash, zsh and fish are known"]),
        (["run", "--cleanup", "alway"], ["'alway'"]),
        (["run", "--runtme", "docker"], ["--runtme", "--runtime"]),
        (["run", "-x"], ["-x"]),
        (["run", "--socket"], ["--socket", "argument"]),
        (["run", "/a", "/b"], ["/b"]),
        (["run", ""], ["INSTALL_DIR", "''"]),
        (["run", "relative"], ["INSTALL_DIR", "'relative'"]),
        (["run", "--no-daemon=perhaps"], ["--no-daemon", "'perhaps'"]),
        (["run", "--socket="], ["--socket", "''"]),
        (["run", "--enable-nri-plugin"], ["--enable-nri-plugin", "NRI_NAMESPACE"]),
        (["plan", "--cleanup", "auto"], ["--cleanup auto", "DAEMONSET_NAME"]),
        (["run", "--timeout", "5"], ["--timeout"]),
        (["wait-driver", "--timeout", "soon"], ["--timeout", "'soon'"]),
        (["status", "--json=perhaps"], ["--json", "'perhaps'"]),
        (["run", "--json"], ["--json"]),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    actions: Actions, arguments: Sequence[str], words: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(OURS, *arguments) == ExitCode.USAGE
    event = error_of(capsys)
    for word in words:
        assert word in str(event["msg"])
    assert event["hint"]
    assert actions.calls == []


def test_an_expected_failure_names_the_file_and_the_line_and_has_its_own_exit_code(
    actions: Actions, capsys: pytest.CaptureFixture[str]
) -> None:
    actions.answer = ConfigurationError("is cut off", path="/etc/docker/daemon.json", line=7, hint="restore it")
    assert start(OURS, "run") == ExitCode.BAD_CONFIGURATION
    event = error_of(capsys)
    assert {key: event[key] for key in ("msg", "file", "line", "hint")} == {
        "msg": "is cut off",
        "file": "/etc/docker/daemon.json",
        "line": 7,
        "hint": "restore it",
    }


def test_the_worst_failure_keeps_its_exit_code(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.answer = EngineDownError("containerd does not answer")
    assert start(OLD) == ExitCode.ENGINE_DOWN
    assert error_of(capsys)["msg"] == "containerd does not answer"


def test_a_bug_is_one_line_without_a_traceback(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.answer = KeyError("surprise")
    assert start(OURS, "run") == ExitCode.BUG
    event = error_of(capsys)
    assert event["msg"] == "this is a bug: KeyError: 'surprise'"
    assert "--debug" in str(event["hint"])


@pytest.mark.parametrize("arguments, environment", [(["--debug"], {}), ([], {"TOOLKIT_DEBUG": "true"})])
def test_a_bug_shows_its_traceback_with_debug(
    actions: Actions,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    actions.answer = KeyError("surprise")
    assert start(OURS, "run", *arguments, **environment) == ExitCode.BUG
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "fake_actions.py" in error


def test_an_interrupted_plan_leaves_no_traceback(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.answer = KeyboardInterrupt()
    assert start(OURS, "plan") == 130
    assert capsys.readouterr().err == ""


def test_a_broken_pipe_that_is_not_the_readers_is_a_bug(actions: Actions, capsys: pytest.CaptureFixture[str]) -> None:
    actions.answer = BrokenPipeError(32, "Broken pipe")
    assert start(OURS, "plan") == ExitCode.BUG
    assert "this is a bug" in str(error_of(capsys)["msg"])


PRINTING_A_LOT = """
import sys, types
from toolkit_installer.cli import commands
from toolkit_installer.settings import Program
actions = types.ModuleType("toolkit_installer.cli.actions")
actions.plan = actions.run = lambda settings, **_: print("x" * 1_000_000) or 0
sys.modules["toolkit_installer.cli.actions"] = actions
sys.exit(commands.main(Program.TOOLKIT_INSTALLER, sys.argv[1:], {"LOG_FORMAT": "json"}))
"""


def outcome_when_nobody_reads(command: str) -> tuple[int, str]:
    """The exit code and the stderr of a command whose stdout was closed before it said a word."""
    started = [sys.executable, "-c", PRINTING_A_LOT, command]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        error = process.stderr.read()
    return process.returncode, error


def test_a_plan_that_nobody_reads_to_the_end_is_no_error() -> None:
    assert outcome_when_nobody_reads("plan") == (ExitCode.DONE, "")


def test_a_run_that_stopped_at_a_broken_pipe_does_not_claim_success() -> None:
    code, error = outcome_when_nobody_reads("run")
    assert code == ExitCode.BUG
    assert json.loads(error.splitlines()[0])["msg"].startswith("this is a bug: BrokenPipeError")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"]])
def test_help_brings_in_nothing_heavy(arguments: Sequence[str]) -> None:
    script = (
        "import sys\n"
        "from toolkit_installer.cli import commands\n"
        "from toolkit_installer.settings import Program\n"
        "code = commands.main(Program.TOOLKIT_INSTALLER, sys.argv[1:])\n"
        "heavy = {'grpc', 'docker', 'psutil', 'tomlkit', 'structlog', 'google.protobuf'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
