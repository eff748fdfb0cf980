"""The commands: what reaches the actions, and how errors leave."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer.cli import commands
from toolkit_installer.errors import ConfigurationError, EngineDownError, ExitCode
from toolkit_installer.reporting import versions
from toolkit_installer.settings import DeletionSettings, EngineName, Program, Settings

OURS = Program.TOOLKIT_INSTALLER
OLD = Program.NVIDIA_TOOLKIT
CTK = Program.NVIDIA_CTK_INSTALLER

Call = tuple[str, Settings, bool | None]
Main = Callable[..., int]


class Actions(types.ModuleType):
    """Stands in for the real one, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("toolkit_installer.cli.actions")
        self.calls: list[Call] = []
        self.answer: int | BaseException = 0
        self.prints = ""
        self.seconds: float | None = None
        self.unless_installed: bool | None = None
        self.check: bool | None = None

    def _do(self, name: str, settings: Settings, *, as_json: bool | None = None) -> int:
        self.calls.append((name, settings, as_json))
        if self.prints:
            print(self.prints)  # noqa: T201  # as the real one does
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def run(self, settings: Settings) -> int:
        return self._do("run", settings)

    def plan(self, settings: Settings, *, as_json: bool) -> int:
        return self._do("plan", settings, as_json=as_json)

    def uninstall(self, settings: Settings) -> int:
        return self._do("uninstall", settings)

    def status(self, settings: Settings, *, as_json: bool, check: bool) -> int:
        self.check = check
        return self._do("status", settings, as_json=as_json)

    def refresh(self, settings: Settings, *, seconds: float | None) -> int:
        self.seconds = seconds
        return self._do("refresh", settings)

    def detect(self, settings: Settings, *, as_json: bool) -> int:
        return self._do("detect", settings, as_json=as_json)

    def wait_driver(self, settings: Settings, *, seconds: float | None, unless_installed: bool) -> int:
        self.seconds, self.unless_installed = seconds, unless_installed
        return self._do("wait-driver", settings)

    def report(self, settings: Settings, *, file: str, looking: Settings) -> int:
        self.file, self.looking = file, looking
        return self._do("report", settings)

    def delete_daemonset(self, settings: Settings, *, deletion: DeletionSettings, seconds: float) -> int:
        self.deletion, self.seconds = deletion, seconds
        return self._do("delete-daemonset", settings)

    @property
    def asked(self) -> Settings:
        ((_, settings, _),) = self.calls
        return settings


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> Actions:
    fake = Actions()
    monkeypatch.setitem(sys.modules, "toolkit_installer.cli.actions", fake)
    monkeypatch.setattr(toolkit_installer.cli, "actions", fake, raising=False)
    return fake


def start(program: Program, *arguments: str, **environment: str) -> int:
    return commands.main(program, arguments, {"LOG_FORMAT": "json", **environment})


def error_of(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The one line that was logged."""
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    event = json.loads(line)
    assert event["level"] == "error"
    assert isinstance(event, dict)
    return event


# --- commands ---


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


# --- version ---


@pytest.mark.parametrize("program", list(Program))
@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version(program: Program, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(program, flag) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"toolkit-installer {toolkit_installer.__version__}"
    assert second.startswith("payload: ")


@pytest.mark.parametrize(
    "content, shown",
    [
        (b"0123456789abcdef0123456789abcdef01234567\n", " (revision 0123456789abcdef0123456789abcdef01234567)"),
        (b"", ""),
        (b"\x1b[31mred\n", ""),
        (None, ""),
    ],
)
def test_an_image_says_of_which_commit_it_is(
    content: bytes | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "revision").write_bytes(content)
    monkeypatch.setattr(versions, "_REVISION_FILE", str(tmp_path / "revision"))
    assert versions.own_version() == toolkit_installer.__version__ + shown


def test_the_command_version_says_what_the_flag_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(OURS, "--version") == 0
    said = capsys.readouterr().out
    assert start(OURS, "version") == 0
    assert capsys.readouterr().out == said


def test_what_a_shell_sets_and_asks_nothing_with_is_no_question(actions: Actions) -> None:
    assert start(OURS, "plan", "--runtime", "docker", _TOOLKIT_INSTALLER_COMPLETE="ksh_complete") == 0
    assert [name for name, *_ in actions.calls] == ["plan"]


# --- errors ---


def test_without_a_command_the_help_is_shown_and_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(OURS) == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "Commands:" in said.err
    assert "no command is given" in said.err.splitlines()[-1]


def test_install_is_another_word_for_run(actions: Actions) -> None:
    assert start(OURS, "install", "--runtime", "docker") == 0
    assert [name for name, *_ in actions.calls] == ["run"]


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
    assert "test_commands.py" in error


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


# --- speed ---


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
