"""The help, as people read it. `HELP_FILES=write pytest …` writes the expected texts anew, to be read before use."""

from __future__ import annotations

import os
import pathlib
import shlex
import sys
import types
from collections.abc import Iterable

import pytest

import toolkit_installer
from toolkit_installer.cli import commands
from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.help import Page
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.errors import ExitCode
from toolkit_installer.settings import Program, Settings

DATA = pathlib.Path(__file__).parents[3] / "data" / "help"
CASES = [
    ("toolkit-installer", Program.TOOLKIT_INSTALLER, ["--help"]),
    ("toolkit-installer-run", Program.TOOLKIT_INSTALLER, ["run", "--help"]),
    ("toolkit-installer-refresh", Program.TOOLKIT_INSTALLER, ["refresh", "--help"]),
    ("toolkit-installer-plan", Program.TOOLKIT_INSTALLER, ["plan", "--help"]),
    ("toolkit-installer-uninstall", Program.TOOLKIT_INSTALLER, ["uninstall", "--help"]),
    ("toolkit-installer-status", Program.TOOLKIT_INSTALLER, ["status", "--help"]),
    ("toolkit-installer-detect", Program.TOOLKIT_INSTALLER, ["detect", "--help"]),
    ("toolkit-installer-report", Program.TOOLKIT_INSTALLER, ["report", "--help"]),
    ("toolkit-installer-wait-driver", Program.TOOLKIT_INSTALLER, ["wait-driver", "--help"]),
    ("toolkit-installer-delete-daemonset", Program.TOOLKIT_INSTALLER, ["delete-daemonset", "--help"]),
    ("toolkit-installer-run-all", Program.TOOLKIT_INSTALLER, ["run", "--help-all"]),
    ("toolkit-installer-uninstall-all", Program.TOOLKIT_INSTALLER, ["uninstall", "-help-all"]),
    ("nvidia-toolkit-all", Program.NVIDIA_TOOLKIT, ["--help-all"]),
    ("nvidia-toolkit", Program.NVIDIA_TOOLKIT, ["-h"]),
    ("nvidia-ctk-installer", Program.NVIDIA_CTK_INSTALLER, ["-help"]),
]
FILES = [
    (f"{name}-{width}.txt", program, arguments, width) for name, program, arguments in CASES for width in (80, 120)
]
PAGES = [*cli_help.COMMANDS.values(), *cli_help.OLD_NAMES.values()]


def shown(
    program: Program,
    arguments: list[str],
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    assert commands.main(program, arguments, {}) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name, program, arguments, width", FILES, ids=[case[0] for case in FILES])
def test_the_help_is_what_was_read_and_found_good(
    name: str,
    program: Program,
    arguments: list[str],
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = shown(program, arguments, width, capsys, monkeypatch)
    if os.environ.get("HELP_FILES") == "write":
        (DATA / name).write_text(text)
    assert text == (DATA / name).read_text()


@pytest.mark.parametrize("width, used", [(20, 80), (80, 80), (100, 100), (120, 120), (400, 120)])
def test_no_line_is_wider_than_the_terminal_or_than_one_can_read(
    width: int, used: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _, program, arguments in CASES:
        lines = shown(program, arguments, width, capsys, monkeypatch).splitlines()
        assert max(len(line) for line in lines) <= used
        assert [line for line in lines if line != line.rstrip()] == []


def test_the_help_of_run_shows_every_option_with_its_variables() -> None:
    words = set(cli_help.render(cli_help.RUN, "", Program.TOOLKIT_INSTALLER, width=120).replace(";", " ").split())
    words = {word.strip("[],") for word in words}
    for option in OPTIONS:
        expected = set(option.flags) | set(option.variables)
        if option.hidden:
            assert not set(option.variables) & words
        else:
            assert expected <= words, option.name


@pytest.mark.parametrize("page", PAGES, ids=[page.examples[0] for page in PAGES])
def test_the_short_help_has_a_dozen_options_at_most_and_says_how_many_there_are(page: Page) -> None:
    text = cli_help.render(page, "x", Program.TOOLKIT_INSTALLER, width=80, full=False)
    shown, every = page.shown(full=False), page.shown(full=True)
    assert len(shown) <= 12
    assert page.common is None or page.common == {row.name for row in shown}
    assert (f"Show the other {len(every) - len(shown)} options too." in text) == (len(every) > len(shown))


@pytest.mark.parametrize("words", [["help", "run"], ["help", "install"], ["run", "--help"]])
def test_the_command_help_shows_what_the_flag_shows(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(Program.TOOLKIT_INSTALLER, words, 80, capsys, monkeypatch)
    assert text.replace("install [OPTIONS]", "run [OPTIONS]") == (DATA / "toolkit-installer-run-80.txt").read_text()


def test_the_command_help_alone_shows_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(Program.TOOLKIT_INSTALLER, ["help"], 80, capsys, monkeypatch)
    assert text == (DATA / "toolkit-installer-80.txt").read_text()


def test_every_exit_code_is_explained() -> None:
    assert set(cli_help.EXIT_CODES) == set(ExitCode)
    text = cli_help.render_commands(width=80)
    for code, meaning in cli_help.EXIT_CODES.items():
        assert f"  {code.value}  {meaning}\n" in text


@pytest.mark.parametrize(
    "name, codes",
    [
        ("run", range(9)),
        ("refresh", range(9)),
        ("plan", range(9)),
        ("uninstall", range(7)),
        ("status", range(4)),
        ("detect", range(4)),
        ("diagnose", range(4)),
        ("report", range(4)),
        ("capture", range(4)),
        ("replay", range(4)),
        ("compare", range(4)),
        ("wait-driver", [0, 1, 2, 3, 8]),
        ("delete-daemonset", [0, 1, 2, 9]),
    ],
)
def test_the_help_of_a_command_lists_only_exit_codes_that_it_can_end_with(name: str, codes: Iterable[int]) -> None:
    text = cli_help.render(cli_help.COMMANDS[name], "", Program.TOOLKIT_INSTALLER, width=80)
    listed = {code.value for code, meaning in cli_help.EXIT_CODES.items() if f"  {code.value}  {meaning}\n" in text}
    assert listed == set(codes)


def test_emphasis_changes_nothing_but_the_looks() -> None:
    def marked(text: str) -> str:
        return f"*{text}*"

    for page in PAGES:
        plain = cli_help.render(page, "x", Program.NVIDIA_TOOLKIT, width=80)
        loud = cli_help.render(page, "x", Program.NVIDIA_TOOLKIT, width=80, emphasise=marked)
        assert loud.replace("*", "") == plain
        assert "*Exit codes:*" in loud


def test_every_example_can_be_run_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settings] = []

    def remember(settings: Settings, **_: object) -> int:
        asked.append(settings)
        return 0

    fake = types.ModuleType("toolkit_installer.cli.actions")
    for name in cli_help.COMMANDS:
        monkeypatch.setattr(fake, name.replace("-", "_"), remember, raising=False)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(toolkit_installer.cli, "actions", fake, raising=False)
    examples = [shlex.split(example) for page in PAGES for example in page.examples]
    for program, *arguments in examples:
        assert commands.main(Program(program), arguments, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == 0
    assert len(asked) == len(examples) >= len(PAGES)
