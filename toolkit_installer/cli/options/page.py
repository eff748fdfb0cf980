"""What the help of a command says, as a value. Pure."""

from __future__ import annotations

import msgspec

from toolkit_installer.cli.options.model import Option
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.errors import ExitCode

_PRECEDENCE = (
    "A flag on the command line wins over one in --toolkit-args or --runtime-args, and that over a variable. An empty "
    "variable counts as unset. Of several variables the first that is set counts; one that is named after an engine "
    "counts for that engine only (with --runtime auto: for the engine that is found)."
)
_SPELLING = (
    "Booleans are written true or false (or 1, 0, t, f, yes, no, on, off): --flag, --flag=true, --flag=false. A list "
    "may be given as a comma list, by repeating the flag, or both. A long flag may be written with one dash."
)


INSPECTING = (ExitCode.DONE, ExitCode.BUG, ExitCode.USAGE, ExitCode.BAD_CONFIGURATION)
"""The exit codes of a command that only inspects."""
RUNNING = tuple(code for code in ExitCode if code is not ExitCode.NOT_DELETED)
"""Those of a run, and of what reports how one would end."""


class Page(msgspec.Struct, frozen=True):
    """What the help of one command says, apart from its usage line."""

    about: str
    examples: tuple[str, ...]
    options: tuple[Option, ...] = OPTIONS
    notes: tuple[str, ...] = (_PRECEDENCE, _SPELLING)
    argument: str | None = None
    """What it has to be given beside options, as the usage line names it; None: where to install, if at all."""
    common: frozenset[str] | None = None
    """The names of the options that `--help` shows, the others being for `--help-all`; None: it shows all."""

    codes: tuple[ExitCode, ...] = INSPECTING
    """The exit codes that the command can end with."""
    codes_note: str = ""
    """What else there is to say of them."""

    def shown(self, *, full: bool) -> list[Option]:
        """Return the options that the help shows."""
        wanted = None if full else self.common
        return [row for row in self.options if not row.hidden and (wanted is None or row.name in wanted)]
