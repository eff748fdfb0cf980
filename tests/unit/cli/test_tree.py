"""The commands as click objects: which function is called, with which settings, and what is shown instead."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

import toolkit_installer
from tests.unit.cli.fake_actions import OLD, OURS, Actions, error_of, start
from toolkit_installer.cli import actions as real_actions
from toolkit_installer.cli import run_options, tree
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.errors import ExitCode
from toolkit_installer.node import idling
from toolkit_installer.settings import DeletionSettings, EngineName, Program

CTK = Program.NVIDIA_CTK_INSTALLER


@pytest.mark.parametrize("command", ["run", "refresh", "plan", "uninstall", "status", "detect", "wait-driver"])
def test_each_command_reaches_its_part_of_the_lifecycle_and_returns_its_exit_code(
    actions: Actions, command: str
) -> None:
    actions.answer = 6
    assert start(OURS, command, "/opt/nvidia", "--node-root", "/host") == 6
    ((name, settings, as_json),) = actions.calls
    assert name == command
    assert settings.toolkit.install_dir == "/opt/nvidia"
    assert settings.node_root == "/host"
    assert as_json is (False if command in ("plan", "status", "detect") else None)


def test_a_report_has_a_file_and_both_the_settings_of_run_and_those_of_status(actions: Actions) -> None:
    assert start(OURS, "report", "/tmp/r", "--node-root", "/host") == 0  # noqa: S108  # nothing is written
    assert actions.file == "/tmp/r"  # noqa: S108  # as above
    assert (actions.asked.node_root, actions.looking.node_root) == ("/host", "/host")
    assert (actions.asked.toolkit.driver_root, actions.looking.toolkit.driver_root) == ("/run/nvidia/driver", "auto")


@pytest.mark.parametrize("arguments", [[], ["/a", "/b"]], ids=str)
def test_a_report_needs_one_file(
    actions: Actions, arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(OURS, "report", *arguments) == ExitCode.USAGE
    assert actions.calls == []
    assert "rgument" in str(error_of(capsys)["msg"])


def test_a_daemon_set_is_deleted_by_its_name_where_the_pod_finds_the_api_server(actions: Actions) -> None:
    actions.answer = 9
    found = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443", "DAEMONSET_NAME": "other"}
    assert start(OURS, "delete-daemonset", "a.b", "--timeout", "90", "--service-account-dir=/a", **found) == 9
    assert actions.deletion == DeletionSettings("a.b", "fd00::1", 6443, "/a")
    assert actions.seconds == 90


def test_a_daemon_set_may_take_a_little_less_than_ten_minutes(actions: Actions) -> None:
    assert start(OURS, "delete-daemonset", "a", KUBERNETES_SERVICE_HOST="::1") == 0
    assert actions.seconds == 540
    assert actions.deletion == DeletionSettings("a", "::1")
    assert start(OURS, "delete-daemonset", "a", KUBERNETES_SERVICE_HOST="::1", DELETION_TIMEOUT="9") == 0
    assert actions.seconds == 9


@pytest.mark.parametrize(
    "arguments, environment, words",
    [
        (["a"], {}, "KUBERNETES_SERVICE_HOST is not set"),
        (["A"], {"KUBERNETES_SERVICE_HOST": "::1"}, "NAME: 'A' is not allowed"),
        ([], {"KUBERNETES_SERVICE_HOST": "::1"}, "rgument 'NAME'"),
        (["a", "b"], {"KUBERNETES_SERVICE_HOST": "::1"}, "b"),
        (["a", "--timeout", "soon"], {"KUBERNETES_SERVICE_HOST": "::1"}, "--timeout: 'soon'"),
    ],
)
def test_a_deletion_that_makes_no_sense_is_refused(
    actions: Actions,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    environment: dict[str, str],
    words: str,
) -> None:
    assert start(OURS, "delete-daemonset", *arguments, **environment) == ExitCode.USAGE
    assert actions.calls == []
    assert words in str(error_of(capsys)["msg"])


@pytest.mark.parametrize(
    "arguments, as_json", [(["--json"], True), (["--json=false"], False), (["-json"], True), (["--json", "/a"], True)]
)
def test_status_speaks_json_when_asked(actions: Actions, arguments: Sequence[str], *, as_json: bool) -> None:
    assert start(OURS, "status", *arguments) == 0
    assert actions.calls[0][2] is as_json


@pytest.mark.parametrize(
    "arguments, environment, seconds",
    [
        ([], {}, None),
        (["--timeout", "90"], {}, 90.0),
        (["--timeout=0.5"], {"DRIVER_TIMEOUT": "7"}, 0.5),
        ([], {"DRIVER_TIMEOUT": "7"}, 7.0),
    ],
)
def test_the_driver_is_waited_for_as_long_as_was_asked(
    actions: Actions, arguments: Sequence[str], environment: dict[str, str], seconds: float | None
) -> None:
    assert start(OURS, "wait-driver", *arguments, **environment) == 0
    assert actions.seconds == seconds


@pytest.mark.parametrize(
    "arguments, environment, unless_installed",
    [
        ([], {}, False),
        (["--unless-installed"], {}, True),
        (["--unless-installed", "/opt/nvidia", "--timeout", "9"], {}, True),
        ([], {"UNLESS_INSTALLED": "true"}, True),
        ([], {"UNLESS_INSTALLED": ""}, False),
        (["--unless-installed=false"], {"UNLESS_INSTALLED": "true"}, False),
    ],
)
def test_a_node_that_has_the_toolkit_is_waited_for_unless_it_was_asked_otherwise(
    actions: Actions, arguments: Sequence[str], environment: dict[str, str], *, unless_installed: bool
) -> None:
    assert start(OURS, "wait-driver", *arguments, **environment) == 0
    assert actions.unless_installed is unless_installed


@pytest.mark.parametrize("command", ["run", "plan", "uninstall", "status", "detect"])
def test_no_other_command_has_the_options_of_wait_driver(
    actions: Actions, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert start(OURS, command, "--unless-installed") == 2
    assert actions.calls == []
    assert "--unless-installed" in str(error_of(capsys))


@pytest.mark.parametrize("program", [OLD, CTK])
def test_the_old_names_are_one_command(actions: Actions, program: Program) -> None:
    assert start(program, "-n", "/opt/nvidia", "-r", "containerd") == 0
    ((name, settings, _),) = actions.calls
    assert name == "run"
    assert settings.program is program
    assert (settings.daemon, settings.runtimes) == (False, (EngineName.CONTAINERD,))
    assert settings.toolkit.install_dir == "/opt/nvidia"


def test_an_old_name_without_arguments_lives_on_variables(actions: Actions) -> None:
    assert start(OLD, RUNTIME="containerd", ROOT="/opt/nvidia", RUNTIME_ARGS="") == 0
    assert actions.asked.toolkit.install_dir == "/opt/nvidia"


def test_a_string_of_flags_may_begin_with_a_dash(actions: Actions) -> None:
    assert start(OLD, "-u", "--socket /x", "-t", "--driver-root /y") == 0
    assert actions.asked.engine.socket == "/x"
    assert actions.asked.toolkit.driver_root == "/y"


def test_lists_may_be_repeated_and_comma_separated(actions: Actions) -> None:
    flag = "--nvidia-container-runtime.runtimes"
    assert start(OURS, "run", flag, "runc,crun", f"{flag}=youki") == 0
    assert actions.asked.toolkit.low_level_runtimes == ("runc", "crun", "youki")


def test_of_a_repeated_flag_the_last_one_counts(actions: Actions) -> None:
    assert start(OURS, "run", "--no-daemon", "--no-daemon=false", "--root", "/a", "--toolkit-install-dir=/b") == 0
    assert actions.asked.daemon
    assert actions.asked.toolkit.install_dir == "/b"


@pytest.mark.parametrize("command", ["uninstall", "status"])
def test_a_pod_that_asks_for_too_little_can_still_be_cleaned_up(actions: Actions, command: str) -> None:
    assert start(OURS, command, ENABLE_NRI_PLUGIN="true", RUNTIME="crio") == 0
    assert actions.asked.runtimes == (EngineName.CRIO,)


@pytest.mark.parametrize("program", list(Program))
@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version(program: Program, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(program, flag) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"toolkit-installer {toolkit_installer.__version__}"
    assert second.startswith("payload: ")


def test_the_command_version_says_what_the_flag_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(OURS, "--version") == 0
    said = capsys.readouterr().out
    assert start(OURS, "version") == 0
    assert capsys.readouterr().out == said


def test_what_a_shell_sets_and_asks_nothing_with_is_no_question(actions: Actions) -> None:
    assert start(OURS, "plan", "--runtime", "docker", _TOOLKIT_INSTALLER_COMPLETE="ksh_complete") == 0
    assert [name for name, *_ in actions.calls] == ["plan"]


def test_without_a_command_the_help_is_shown_and_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(OURS) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "Commands:" in said.err
    assert "no command is given" in said.err.splitlines()[-1]


def test_install_is_another_word_for_run(actions: Actions) -> None:
    assert start(OURS, "install", "--runtime", "docker") == 0
    assert [name for name, *_ in actions.calls] == ["run"]


# --- options of single commands ---


def test_each_option_of_one_command_is_a_parameter_of_its_function() -> None:
    for name, page in cli_help.COMMANDS.items():
        parameters = set(inspect.signature(getattr(real_actions, name.replace("-", "_"))).parameters)
        own = set(tree._OWN_OPTIONS.get(name, {}))
        assert own <= parameters, name
        listed = {row.name for row in page.options if row.name not in BY_NAME}
        assert {option.name for option in tree._OWN_OPTIONS.get(name, {}).values()} == listed, name


def test_a_capture_has_the_texts_that_its_settings_are_made_of(actions: Actions) -> None:
    assert start(OURS, "capture", "x.capture", "--runtime", "docker", "--keep-secrets", RUNTIME="crio") == 0
    environment = {"LOG_FORMAT": "json", "RUNTIME": "crio"}
    given = {"runtime": ("docker",)}
    own = {"file": "x.capture", "given": given, "environment": environment, "keep_secrets": True, "key_file": None}
    assert actions.own == own
    assert actions.asked.runtimes == (EngineName.DOCKER,)


def test_a_replay_has_all_captures_and_the_options_to_plan_with(actions: Actions) -> None:
    assert start(OURS, "replay", "a", "b", "--runtime", "docker", "--json", "--engine-version", "docker=28.0") == 0
    assert actions.own["archive"] == ("a", "b")
    assert actions.own["given"] == {"runtime": ("docker",)}
    assert (actions.own["as_json"], actions.own["each"], actions.own["payload"]) == (True, False, None)
    assert actions.own["engine_versions"] == ("docker=28.0",)


def test_a_comparison_has_both_sets_of_captures(actions: Actions) -> None:
    assert start(OURS, "compare", "old", "new") == 0
    assert actions.own == {"before": "old", "after": "new", "as_json": False}
    assert start(OURS, "compare", "old") == ExitCode.USAGE
    assert len(actions.calls) == 1


# --- what else a start does ---


@pytest.mark.parametrize("command, warns", [("run", True), ("plan", True), ("detect", False)])
def test_a_variable_that_is_misspelt_is_told_of_where_it_would_count(
    actions: Actions, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, *, warns: bool
) -> None:
    place = ("--node-root", str(tmp_path))
    assert start(OURS, command, *place, CONTAINERD_SOCKT="/x") == 0
    assert ('"variable-unknown"' in capsys.readouterr().err) is warns
    assert start(OURS, command, *place, CONTAINERD_SOCKT="/x", **{idling.RESUME: "x"}) == 0
    assert "variable-unknown" not in capsys.readouterr().err
    assert len(actions.calls) == 2


@pytest.mark.parametrize(
    "command, is_completed",
    [("plan", True), ("status", True), ("uninstall", True), ("run", False), ("detect", False), ("diagnose", False)],
)
def test_only_commands_about_the_installation_take_its_options(
    actions: Actions, monkeypatch: pytest.MonkeyPatch, command: str, *, is_completed: bool
) -> None:
    def complete(values: dict[str, Sequence[str]], *_: object) -> dict[str, Sequence[str]]:
        return values | {"runtime": ("crio",)}

    monkeypatch.setattr(run_options, "complete_options", complete)
    assert start(OURS, command, RUNTIME="docker") == 0
    assert actions.asked.runtimes == ((EngineName.CRIO,) if is_completed else (EngineName.DOCKER,))


def test_help_of_a_command_is_the_same_in_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(OURS, "run", "--help") == 0
    shown = capsys.readouterr().out
    assert start(OURS, "help", "run") == 0
    assert capsys.readouterr().out == shown
    assert start(OURS, "help", "install") == 0
    assert capsys.readouterr().out == shown.replace("toolkit-installer run [", "toolkit-installer install [")
    assert start(OURS, "run", "--help-all") == 0
    assert len(capsys.readouterr().out) > 2 * len(shown)


@pytest.mark.parametrize("environment, is_bold", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_headings_are_bold_unless_the_environment_forbids_it(environment: dict[str, str], *, is_bold: bool) -> None:
    assert (tree._emphasis(environment)("Usage") != "Usage") is is_bold


def test_only_a_shell_that_asks_gets_completions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", "toolkit-installer unin")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert tree.complete({}) is None
    assert tree.complete({tree.COMPLETE_VARIABLE: "ksh_complete"}) is None
    assert tree.complete({tree.COMPLETE_VARIABLE: "bash_complete"}) == 0
    assert "uninstall" in capsys.readouterr().out
