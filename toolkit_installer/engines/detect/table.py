"""Where each distribution keeps its engine: one ordered table.

A row is found by its probes. Rows of the same engine that share a socket are told apart by their `marks`; a row that
stands earlier is asked first. Sources: the distributions' own documentation and code (docs/detection.md).
"""

from __future__ import annotations

from toolkit_installer.engines.containerd.distributions.all import DISTRIBUTIONS
from toolkit_installer.engines.registry import ENGINES, Distribution, plain
from toolkit_installer.settings import EngineName

TABLE: tuple[Distribution, ...] = (
    *DISTRIBUTIONS,
    # docker brings a containerd along, and is looked at after all others
    *(row for each in sorted(ENGINES, key=lambda each: each.name is EngineName.DOCKER) for row in each.distributions),
)

BY_NAME = {row.name: row for row in TABLE}

UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Where units lie (systemd.unit(5), "Unit File Load Path")."""


def with_marks(words: str, engine: EngineName | None = None) -> Distribution | None:
    """Return the row that a process's executable and arguments tell of, None if they tell of none."""
    rows = (row for row in TABLE if engine in (None, row.engine))
    return next((row for row in rows if any(mark in words for mark in row.marks)), None)


def with_socket(socket: str) -> tuple[Distribution, ...]:
    """Return the rows that serve this socket, in the table's order; those that are configured alone, if there are."""
    rows = tuple(row for row in TABLE if row.serves(socket))
    return tuple(row for row in rows if row.refused is None) or rows


def engine_of_socket(socket: str) -> EngineName | None:
    """Return the engine that a socket is usually named after, wherever it lies; None where the name does not tell."""
    name = plain(socket).rpartition("/")[2]
    return next((each.name for each in ENGINES if name in each.socket_names), None)
