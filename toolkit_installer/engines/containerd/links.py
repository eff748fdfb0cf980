"""Several names of one file among those that containerd reads: it reads each, and there is one file to edit. Pure.

containerd tells files apart by their paths alone: one that a symlink of another name leads to is read once more.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Sequence

from toolkit_installer.engines.api import EngineFile, Survey
from toolkit_installer.engines.containerd import survey as containerd_survey
from toolkit_installer.engines.containerd.files import Imported
from toolkit_installer.engines.containerd.survey import ENDING
from toolkit_installer.errors import ConfigurationError


def role_of(survey: Survey, imported: Imported) -> str:
    """Return the role of the file that is imported under whatever name."""
    known = next((file.role for file in survey.files if file.path == imported.file), None)
    return known if known is not None else containerd_survey.role_of(imported)


def why_not_editable(imported: Imported) -> str:
    """Return in words why an imported file that has no role of its own cannot be changed from here."""
    same = imported.file == imported.place
    if ENDING not in posixpath.basename(imported.file):
        return f"its name has no {ENDING}" if same else f"it leads to {imported.file}, whose name has no {ENDING}"
    return f"it leads to {imported.file}, which is on another mount: the node's file may not be what is seen here"


def refuse_one_for_two(files: Sequence[EngineFile]) -> None:
    """Raise ConfigurationError if two of the engine's files are one: what is for the one would stand in the other."""
    for one, other in itertools.combinations(files, 2):
        if one.path == other.path:
            raise ConfigurationError(
                f"is named as {other.role} as well, or a symlink of that name leads here",
                path=one.path,
                hint="remove the symlink, or name another file with --drop-in-config",
            )
