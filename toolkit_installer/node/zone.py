"""The node's time zone: what its clocks show is not what those of the installer's container do."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node

if TYPE_CHECKING:
    import datetime as dt

_FILE = "/etc/localtime"
"""localtime(5): a link to a file of the zone database, or a copy of one; UTC where it is absent."""
_DATABASE = "/zoneinfo/"
UTC = "UTC"


def of_node(node: Node) -> tuple[str, dt.tzinfo]:
    """Return the node's time zone, by its name or the file that it is from. Raises ConfigurationError, NodeError."""
    import datetime as dt  # noqa: PLC0415  # only where somebody asks for a time of the node's
    import zoneinfo  # noqa: PLC0415  # likewise

    for files in reversed(node.readers()):
        found = files.read_file(_FILE)
        if found is None:
            continue
        _, of_database, name = files.canonical(_FILE).partition(_DATABASE)
        try:
            zone = zoneinfo.ZoneInfo.from_file(io.BytesIO(found.content))
        except (ValueError, EOFError, LookupError, ArithmeticError, struct.error) as error:
            raise ConfigurationError(
                "is no time zone",
                path=_FILE,
                hint="a window of --reload-when is one of the node's time: link it to a file below /usr/share/zoneinfo",
            ) from error
        return (name if of_database else _FILE), zone
    return UTC, dt.UTC
