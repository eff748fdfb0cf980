"""The manual page, made of the table of options and of what the help says: docs/toolkit-installer.8.

python -m tests.support.man_page        writes it anew
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit_installer.cli.options import help as cli_help
from toolkit_installer.cli.options.help import Page
from toolkit_installer.cli.options.model import HelpSection, Kind, Option
from toolkit_installer.settings import Program

PAGE = Path(__file__).parents[2] / "docs" / "toolkit-installer.8"
_PROGRAM = Program.TOOLKIT_INSTALLER
_INTRODUCTION = (
    "Makes a node able to run GPU containers: installs the NVIDIA container toolkit, registers its handlers with "
    "docker, containerd or CRI-O, has the engine take them over, and gives the node back when it is told to stop."
)
_FILES = (
    ("/usr/local/nvidia/toolkit", "the toolkit"),
    ("/usr/local/nvidia/.toolkit-installer", "the receipt, and copies of the files as they were before"),
    ("/run/nvidia/toolkit.pid", "the PID file of the run that is at work"),
)


def escaped(text: str) -> str:
    """Return a text such that roff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def page() -> str:
    """Return the manual page. Pure."""
    lines = ['.TH TOOLKIT\\-INSTALLER 8 "" "toolkit\\-installer" "System administration"']
    lines += [".SH NAME", "toolkit\\-installer \\- makes a node able to run GPU containers"]
    lines += [".SH SYNOPSIS", ".B toolkit\\-installer", ".I COMMAND", "[OPTIONS] [INSTALL_DIR]"]
    lines += [".SH DESCRIPTION", escaped(_INTRODUCTION), ".SH COMMANDS"]
    for name, about in {
        **{name: each.about for name, each in cli_help.COMMANDS.items()},
        **cli_help.ABOUT_THE_PROGRAM,
    }.items():
        lines += [".TP", f".B {escaped('run, install' if name == 'run' else name)}", escaped(about)]
    lines += list(_options(cli_help.RUN, ".SH OPTIONS OF RUN AND PLAN"))
    for name in (name for name in cli_help.COMMANDS if name not in {"run", "plan"}):
        known = {row.name for row in cli_help.RUN.options}
        own = [row for row in cli_help.COMMANDS[name].options if row.name not in known]
        shared = [row.flags[0] for row in cli_help.COMMANDS[name].shown(full=True) if row.name in known]
        lines += [f".SH OPTIONS OF {escaped(name.upper())}"]
        for row in own:
            lines += _option(row)
        lines += [".PP", f"And, as above: {escaped(', '.join(shared))}."]
    for note in cli_help.RUN.notes:
        lines += [".PP", escaped(note)]
    lines += [".SH EXIT STATUS"]
    for code, meaning in cli_help.EXIT_CODES.items():
        lines += [".TP", f".B {code.value}", escaped(meaning)]
    lines += [".SH FILES"]
    for path, what in _FILES:
        lines += [".TP", f".I {escaped(path)}", escaped(what)]
    lines += [".SH EXAMPLES"]
    for each in cli_help.COMMANDS.values():
        lines += [line for example in each.examples for line in (".PP", ".EX", escaped(example), ".EE")]
    return "\n".join([*lines, ""])


def _options(about: Page, title: str) -> Iterator[str]:
    yield title
    for section in HelpSection:
        rows = [row for row in about.shown(full=True) if row.section is section]
        if rows:
            yield f".SS {escaped(section.value)}"
        for row in rows:
            yield from _option(row)


def _option(row: Option) -> Iterator[str]:
    placeholder = "|".join(row.choices) if row.kind is Kind.CHOICE else row.kind.value
    default = row.default_note or row.default_under(_PROGRAM)
    facts = [f"Default: {'none' if default is None else default}."]
    if row.variables:
        facts.insert(0, f"Variable{'s' if len(row.variables) > 1 else ''}: {', '.join(row.variables)}.")
    yield ".TP"
    yield f".B {escaped(', '.join(row.flags))} {escaped(placeholder)}".rstrip()
    yield escaped(f"{row.help} {' '.join(facts)}")


if __name__ == "__main__":
    PAGE.write_text(page())
