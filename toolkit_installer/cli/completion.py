"""What a shell shows while a command line is typed: the scripts for the shells, and the answers to them."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.settings import Program

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({Kind.PATH, Kind.LOCAL_PATH, Kind.ROOT, Kind.EXECUTABLE, Kind.INSTALL_DIR, Kind.PID_FILE})


def script(shell: str, command: click.Command, variable: str) -> str:
    """Return the script that has a shell, one of SHELLS, ask how a command line goes on: by setting a variable."""
    made = _of(shell, command, variable)
    # not source(), which would start a bash to see how old it is
    return (made.source_template % made.source_vars()).strip()


def asking(instruction: str) -> str | None:
    """Return the shell whose script has set this, or None where it is no question of a shell that is known."""
    shell, _, asked = instruction.partition("_")
    return shell if asked == "complete" and shell in SHELLS else None


def answer(shell: str, command: click.Command) -> str:
    """Return how the command line may go on that the shell has put into its own variables."""
    return _of(shell, command, "").complete()


def values(row: Option, begun: str) -> list[CompletionItem]:
    """Return what an option's value may be that begins so."""
    if row.choices:
        return [CompletionItem(word) for word in row.choices if word.startswith(begun)]
    return [CompletionItem(begun, type="file")] if row.kind in _FILES else []


def _of(shell: str, command: click.Command, variable: str) -> ShellComplete:
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # it is one of those that click has
    return kind(command, {}, Program.TOOLKIT_INSTALLER, variable)
