"""How shells complete a command line: what they are offered, and the scripts by which they query the program."""

from __future__ import annotations

import re

import pytest

from toolkit_installer.cli import commands, completion
from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.settings import Program

OURS = Program.TOOLKIT_INSTALLER


def completed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what bash is offered at the end of a line."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert commands.main(OURS, [], {"_TOOLKIT_INSTALLER_COMPLETE": "bash_complete"}) == 0
    return [each.partition(",")[2] for each in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "line, offered",
    [
        ("toolkit-installer un", ["uninstall"]),
        ("toolkit-installer st", ["status"]),
        ("toolkit-installer run --cleanup a", ["always", "auto"]),
        ("toolkit-installer run --cleanup au", ["auto"]),
        ("toolkit-installer run --on-dr", ["--on-drift"]),
        ("toolkit-installer completion ", ["bash", "zsh", "fish"]),
        ("toolkit-installer completion z", ["zsh"]),
    ],
)
def test_a_shell_is_told_how_a_line_may_go_on(
    line: str, offered: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(completed(line, capsys, monkeypatch)) == sorted(offered)


@pytest.mark.parametrize("row", [row for row in OPTIONS if not row.choices], ids=lambda row: row.name)
def test_a_shell_completes_a_path_itself_and_nothing_where_no_file_is_asked_for(row: Option) -> None:
    asks = re.search("PATH|FILE|DIR", row.kind) is not None and row.kind is not Kind.FILE_NAME
    offered = [(each.value, each.type) for each in completion.complete_value(row, "/etc/con")]
    assert offered == ([("/etc/con", "file")] if asks else [])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(OURS, ["completion", shell], {}) == 0
    assert f"_TOOLKIT_INSTALLER_COMPLETE={shell}_complete" in capsys.readouterr().out
