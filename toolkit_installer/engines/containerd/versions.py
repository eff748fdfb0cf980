"""Whether a containerd reads files of the version that these are of, and which version that is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.engines.containerd.tables import GRPC, SHORT, VERSION, plugins_in
from toolkit_installer.engines.containerd.views import (
    MIGRATES_EACH_FILE,
    READS_VERSION_3,
    READS_VERSION_4,
    Read,
    Release,
)
from toolkit_installer.errors import ConfigurationError

_IDENTIFIERS = ("plugins", "disabled_plugins", "required_plugins")
"""What names plugins, whose names differ between version 1 and 2."""


def version_of(files: Sequence[Read], contents: Sequence[bytes], release: Release | None) -> int | None:
    """Return the version that counts for all files, None if none has that line.

    Until 2.2 it is the last one that any of them says; then each file counts by its own.
    Raises ConfigurationError where the daemon is not known, and the files are not all of one version.
    """
    said = [(file, content) for file, content in zip(files, contents, strict=True) if file.version is not None]
    if not said:
        return None
    first, last = said[0][0], said[-1][0]
    if release is None:
        for file, content in said:
            if file.version != first.version:
                raise ConfigurationError(
                    f"is of version {file.version}, and {first.path} of version {first.version}: what containerd "
                    "makes of that depends on its release, which is not known as none runs",
                    path=file.path,
                    line=toml_document.line_of(content, VERSION),
                    hint="write both for the same version, or start containerd",
                )
    return first.version if release is not None and release >= MIGRATES_EACH_FILE else last.version


def refuse_unread(root: Read, content: bytes, version: int | None, release: Release | None) -> None:
    """Raise ConfigurationError if this daemon refuses or ignores files of this version."""
    line = toml_document.line_of(content, VERSION) or 1
    if release is not None:
        name = f"containerd {release[0]}.{release[1]}, which runs here,"
        if version is not None and version > _newest(release):
            raise ConfigurationError(
                f"is of version {version}, and {name} reads versions 1 to {_newest(release)}",
                path=root.path,
                line=line,
                hint=f"write it for version {_newest(release)}, or upgrade containerd",
            )
        short = version == 1 or (version is None and SHORT in plugins_in(root.document))
        if short and READS_VERSION_3 <= release < MIGRATES_EACH_FILE:
            raise ConfigurationError(
                f"is of version 1, and {name} does not read what such a file says of the CRI plugin",
                path=root.path,
                line=line,
                hint="migrate it: `containerd config migrate` of a containerd 1.7, or by hand to version 2",
            )
    elif version is None and GRPC in plugins_in(root.document):
        raise ConfigurationError(
            "has no `version` line, which makes it a version 1 file, in which containerd 1.x does not read "
            f"[plugins.{GRPC!r}]",
            path=root.path,
            line=toml_document.line_of(content, ("plugins", GRPC)) or 1,
            hint="add the line `version = 2` at its top",
        )


def _newest(release: Release) -> int:
    if release < READS_VERSION_3:
        return 2
    return 3 if release < READS_VERSION_4 else 4


def names_no_plugin(files: Sequence[Read]) -> bool:
    """Tell whether no file names any plugin: such files mean the same in version 1 and in version 2."""
    return not any(file.document.get(key) for file in files for key in _IDENTIFIERS)
