"""What is added to a containerd whose files a distribution generates: runtimes in a file of our own. Pure.

The generated file is read, and never written; whoever reads our file merges it with that one, table by table.
"""

from __future__ import annotations

from typing import Any

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table, apply, lookup
from toolkit_installer.engines.containerd import config
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.tables import CRI_PLUGIN, VERSION, executable, shape
from toolkit_installer.engines.ownership import Ownership, strip
from toolkit_installer.errors import ConfigurationError


def version_of(document: Table) -> int:
    """Return the version of a file; one that does not say is of version 1. Raises ConfigurationError for others."""
    return known_version(document.get("version", 1))


def known_version(version: Any) -> int:
    """Return what a file says of its version. Raises ConfigurationError for one that nobody knows here."""
    if type(version) is not int or version not in CRI_PLUGIN:
        raise ConfigurationError(
            f"is of version {version!r}; versions {min(CRI_PLUGIN)} to {max(CRI_PLUGIN)} are known",
            hint="use an installer that is as new as the distribution",
        )
    return version


def runtimes(document: Table, plugin: str) -> Table:
    """Return the runtimes' tables of a document, by name."""
    found = lookup(document, shape(plugin).runtimes)
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}


def without_ours(document: Table, plugin: str, toolkit_folder: str) -> Table:
    """Return what a document means without the runtimes of our toolkit, whoever wrote them there."""
    return apply(document, strip(document, shape(plugin), Ownership(), toolkit_folder)[0])


def with_us(base: bytes, version: int, part: Part) -> tuple[bytes, Ownership]:
    """Return a drop-in with the part in it, and what of it is ours. Raises ConfigurationError for one that is not fit.

    `version`: that of the file which imports it.
    """
    document = toml_document.parse(base)
    if document and version_of(document) != version:
        raise ConfigurationError(
            f"is of version {document.get('version', 1)!r}, and the file that imports it of version {version}",
            line=toml_document.line_of(base, VERSION) or 1,
            hint="move it away, or write it for that version",
        )
    return config.with_us(base, [part], None if document else version)


def disagrees(document: Table, plugin: str, part: Part) -> str | None:
    """Return the name of a runtime that somebody else has under a name of ours, and that runs something else."""
    for name, entry in part.made:
        other = runtimes(document, plugin).get(name)
        if other is not None and executable(other) not in (None, executable(entry)):
            return name
    return None
