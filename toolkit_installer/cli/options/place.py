"""Which node a command line is about, where the rest of it makes no sense. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from toolkit_installer.cli.options.resolve import Sources
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import Program


class Place(msgspec.Struct, frozen=True):
    """Where the node is seen, where its PID file is there, and where the ready file is here; as in `Settings`."""

    node_root: str | None
    host_root: str
    pid_file: str
    ready_file: str | None


def place(values: Mapping[str, Sequence[str]], environment: Mapping[str, str], program: Program) -> Place | None:
    """Return the node that `values`, the options' texts by name, and the variables name; None where they do not."""
    sources = Sources(values, environment, program)
    try:
        said = {name: sources.answer(BY_NAME[name]).value for name in Place.__struct_fields__}
    except UsageError:
        return None
    return msgspec.convert(said, Place)
