"""Shell completion: the scripts for the shells, and the responses to their requests."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.settings import Program

SHELLS = ("bash", "zsh", "fish")
_FILES = frozenset({Kind.PATH, Kind.LOCAL_PATH, Kind.ROOT, Kind.EXECUTABLE, Kind.INSTALL_DIR, Kind.PID_FILE})


def script(shell: str, command: click.Command, variable: str) -> str:
    """Return the completion script of a shell, one of SHELLS; it sets `variable` to request completions."""
    made = _make_completer(shell, command, variable)
    # not source(), which would start bash to check its version
    return (made.source_template % made.source_vars()).strip()


def parse_instruction(instruction: str) -> str | None:
    """Return the shell whose script has set this, or None if it is no request of a known shell."""
    shell, _, asked = instruction.partition("_")
    return shell if asked == "complete" and shell in SHELLS else None


def complete_line(shell: str, command: click.Command) -> str:
    """Return the completions of the command line that the shell has put into its own variables."""
    return _make_completer(shell, command, "").complete()


def complete_value(row: Option, begun: str) -> list[CompletionItem]:
    """Return the completions of an option's value that begins with `begun`."""
    if row.choices:
        return [CompletionItem(word) for word in row.choices if word.startswith(begun)]
    return [CompletionItem(begun, type="file")] if row.kind in _FILES else []


def _make_completer(shell: str, command: click.Command, variable: str) -> ShellComplete:
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # click has one for each of SHELLS
    return kind(command, {}, Program.TOOLKIT_INSTALLER, variable)
