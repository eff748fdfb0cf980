"""One containerd's files without our changes, and how they are read: which version, plugin and view count. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.engines.api import DesiredFile, parse_release
from toolkit_installer.engines.containerd import config_files, faults, tables
from toolkit_installer.engines.containerd.config_files import ImportedFile
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, ContainerdInspection
from toolkit_installer.engines.containerd.tables import (
    CONTAINERD_2,
    GRPC,
    MIGRATES_EACH_FILE,
    RUNTIME,
    SHORT,
    VERSION,
    ConfigFile,
    Release,
    View,
    find_disabled,
    new_file_version,
    newest_readable_version,
    parse_checked,
    plugins_in,
)
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located

_PLUGIN_KEYS = ("plugins", "disabled_plugins", "required_plugins")
"""Keys with plugin names, which differ between version 1 and 2."""


class OwnFiles:
    """One containerd's files without our changes, and the request."""

    def __init__(
        self, inspection: ContainerdInspection, request: Request, without: Mapping[str, DesiredFile], *, deep: bool
    ) -> None:
        """`without`: files without our changes, by role. `deep`: the daemon is down, and our drop-in is in use."""
        self.inspection = inspection
        self.request = request
        self.without = without
        called = inspection.live.version if inspection.live is not None else inspection.binary_version
        self.release = parse_release(called)
        self.files = list(self._read())
        drop_in = without[DROP_IN_ROLE]
        with located(drop_in.path):
            parse_checked(drop_in.base or b"")
        # a drop-in with CRI settings of its own is edited in place: it is no evidence of how the daemon merges
        theirs = any(file.role == DROP_IN_ROLE and plugins_in(file.document) for file in self.files)
        self.deep = deep and not theirs
        root = self.files[0]
        self.version = _version_of(self.files, self.release)
        _refuse_unread(self.files, self.version, self.release)
        self._refuse_disabled()
        self.new_version = self._new_version()
        self.views = tables.possible_views(self.release, self.new_version or self.version)
        names = plugins_in(root.document)
        # a file without version may have been written for a 2.x if no daemon is known
        is_for_2 = self.release is None and self.version is None and RUNTIME in names and SHORT not in names
        if self.deep or is_for_2:
            self.views = (View.DEEP,)
        elif request.settings.use_legacy_config and self.release is None and self.effective_version in (None, 1):
            self.views = (View.OLDEST, View.SHALLOW)
        self.faults = faults.find_faults(self.files, self.views, self.effective_version, self.release, called)
        """The faults of the files without our changes."""
        # the CRI starts with us where our default replaces a missing one
        heals = request.default is not None and bool(request.handlers)
        fatal = next((fault for fault in self.faults if fault.stops and not (fault.mended and heals)), None)
        if fatal is not None:
            raise fatal.error()

    def _refuse_disabled(self) -> None:
        """Raise ConfigurationError for a disabled CRI plugin where Kubernetes is to use it."""
        found = find_disabled((file.path, file.document) for file in self.files)
        kubelet = self.inspection.kubelet
        if found is None or (kubelet is None and not self.inspection.detected):
            return
        path, name = found
        content = next(file.content for file in self.files if file.path == path)
        why = "Kubernetes will not work on it" if kubelet is None else f"the kubelet (PID {kubelet}) needs it"
        raise ConfigurationError(
            f"disabled_plugins has {name!r}, and without the CRI plugin {why}",
            path=path,
            line=toml_document.line_of(content, ("disabled_plugins",)),
            hint="take it out of disabled_plugins and restart containerd; or, on a node without a kubelet, name this "
            "engine with --runtime containerd",
        )

    def _read(self) -> Iterator[ConfigFile]:
        """Yield every file that the daemon reads, without our changes. Raises ConfigurationError."""
        root = self.without[ROOT_ROLE]
        yield tables.parse_file(ROOT_ROLE, root.path, root.base or b"")
        for each in self.inspection.graph:
            role = self.inspection.role_of(each)
            wanted = self.without.get(role)
            if each.drop_in and (wanted is None or wanted.base is None or self._imported_by_us(each)):
                continue
            content = (wanted.base or b"") if wanted is not None else each.content
            yield tables.parse_file(role, each.path, content, each.by_relative_pattern)

    def _imported_by_us(self, each: ImportedFile) -> bool:
        """Return whether a file is imported by our own line in the root file."""
        root = self.without[ROOT_ROLE]
        present = root.file.content or b""
        now, without = (config_files.list_imports(text, root.path) for text in (present, root.base or b""))
        return config_files.covers(set(now).difference(without), each.path)

    def _new_version(self) -> int | None:
        """Return the version line to write into the root file, None to leave it as it is.

        A file that names no plugin means the same in version 1 and 2, and every containerd reads version 2.
        """
        if self.version is not None:
            return None
        legacy = self.request.settings.use_legacy_config
        if legacy and (self.release is None or self.release < CONTAINERD_2):
            return None if self.files[0].document else 1
        if not self.files[0].document:
            return new_file_version(self.release)
        older = self.release is None or self.release < CONTAINERD_2
        named = any(file.document.get(key) for file in self.files for key in _PLUGIN_KEYS)
        return new_file_version(self.release) if older and not named else None

    @property
    def effective_version(self) -> int | None:
        """The version that counts once we have written."""
        return self.new_version or self.version

    def plugin(self, view: View) -> str:
        """Return the plugin whose table has the runtimes in this view."""
        return tables.find_plugin(view, self.files, self.effective_version, self.release)


def _version_of(files: Sequence[ConfigFile], release: Release | None) -> int | None:
    """Return the version that counts for all files, None if no file has that line.

    Raises ConfigurationError where the daemon is unknown and the files differ in version.
    """
    said = [file for file in files if file.version is not None]
    for file in said if release is None else ():
        if file.version != said[0].version:
            raise ConfigurationError(
                f"is of version {file.version}, and {said[0].path} of version {said[0].version}: what containerd "
                "makes of that depends on its release, which is not known as none runs",
                path=file.path,
                line=toml_document.line_of(file.content, VERSION),
                hint="write both for the same version, or start containerd",
            )
    return tables.last_version(files, release)


def _refuse_unread(files: Sequence[ConfigFile], version: int | None, release: Release | None) -> None:
    """Raise ConfigurationError if this daemon refuses or ignores files of this version."""
    root = files[0]
    deciding = next((file for file in reversed(files) if file.version == version), root)
    line = toml_document.line_of(deciding.content, VERSION) or 1
    if release is not None:
        name = f"containerd {release[0]}.{release[1]}, which runs here,"
        if version is not None and version > newest_readable_version(release):
            raise ConfigurationError(
                f"is of version {version}, and {name} reads versions 1 to {newest_readable_version(release)}",
                path=deciding.path,
                line=line,
                hint=f"write it for version {newest_readable_version(release)}, or upgrade containerd",
            )
        short = version == 1 or (version is None and SHORT in plugins_in(root.document))
        if short and CONTAINERD_2 <= release < MIGRATES_EACH_FILE:
            raise ConfigurationError(
                f"is of version 1, and {name} does not read what such a file says of the CRI plugin",
                path=deciding.path,
                line=line,
                hint="migrate it: `containerd config migrate` of a containerd 1.7, or by hand to version 2",
            )
    elif version is None and GRPC in plugins_in(root.document):
        raise ConfigurationError(
            "has no `version` line, which makes it a version 1 file, in which containerd 1.x does not read "
            f"[plugins.{GRPC!r}]",
            path=root.path,
            line=toml_document.line_of(root.content, ("plugins", GRPC)) or 1,
            hint="add the line `version = 2` at its top",
        )
