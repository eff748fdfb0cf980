"""One containerd's files without us, how they are read, and what is to be put into each of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Table, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState
from toolkit_installer.engines.containerd import config, sources
from toolkit_installer.engines.containerd import files as containerd_files
from toolkit_installer.engines.containerd import views as views_of
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.files import Imported
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, ContainerdInspection
from toolkit_installer.engines.containerd.sources import Candidate
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    GRPC,
    RUNTIME,
    SHORT,
    VERSION,
    disabled,
    enable_cdi,
    parse_checked,
    plugins_in,
    runtimes_in,
    shape,
)
from toolkit_installer.engines.containerd.views import (
    MIGRATES_EACH_FILE,
    READS_VERSION_3,
    READS_VERSION_4,
    Read,
    Release,
    View,
)
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located

_IDENTIFIERS = ("plugins", "disabled_plugins", "required_plugins")
"""What names plugins, whose names differ between version 1 and 2."""
_KNOWS_ENABLE_CDI: Release = (2, 1)
"""The last of which it is known; newer ones always resolve CDI devices."""


class Work:
    """One containerd's files without us, and what is asked for."""

    def __init__(
        self, inspection: ContainerdInspection, request: Request, without: Mapping[str, DesiredFile], *, deep: bool
    ) -> None:
        """`without`: the files without us, by role. `deep`: the daemon is down, and our drop-in is in use."""
        self.inspection = inspection
        self.request = request
        self.without = without
        self.release = inspection.live.release if inspection.live is not None else None
        self.sources = inspection.sources
        self.roles: dict[str, str] = {}
        contents: list[bytes] = []
        self.files: list[Read] = []
        for role, path, content, relative in self._contents():
            with located(path):
                document, own = parse_checked(content)
            self.files.append(Read(path, document, own, relative))
            self.roles[path] = role
            contents.append(content)
        drop_in = without[DROP_IN_ROLE]
        with located(drop_in.path):
            parse_checked(drop_in.base or b"")
        # one that has the CRI plugin's settings by itself is edited in place: that tells nothing of the daemon
        theirs = any(self.roles[file.path] == DROP_IN_ROLE and plugins_in(file.document) for file in self.files)
        self.deep = deep and not theirs
        root = self.files[0]
        self.version = _version_of(self.files, contents, self.release)
        _refuse_unread(root, contents[0], self.version, self.release)
        self.disabled = disabled((file.path, file.document) for file in self.files)
        self._refuse_disabled(contents)
        self.new_version = self._new_version()
        self.views = views_of.views(self.release, self.new_version or self.version)
        names = plugins_in(root.document)
        # a file without version, of which no daemon is known, may have been written for a 2.x
        is_for_2 = self.release is None and self.version is None and RUNTIME in names and SHORT not in names
        if self.deep or is_for_2:
            self.views = (View.DEEP,)
        elif request.settings.use_legacy_config and self.release is None and self.effective_version in (None, 1):
            self.views = (View.OLDEST, View.SHALLOW)

    def _refuse_disabled(self, contents: Sequence[bytes]) -> None:
        """Raise ConfigurationError for a CRI plugin that is off where Kubernetes is to use it."""
        if self.disabled is None:
            return
        path, name = self.disabled
        kubelet = self.inspection.kubelet
        if kubelet is None and not self.inspection.recognised:
            return
        content = next(text for file, text in zip(self.files, contents, strict=True) if file.path == path)
        why = "Kubernetes will not work on it" if kubelet is None else f"the kubelet (PID {kubelet}) needs it"
        raise ConfigurationError(
            f"disabled_plugins has {name!r}, and without the CRI plugin {why}",
            path=path,
            line=toml_document.line_of(content, ("disabled_plugins",)),
            hint="take it out of disabled_plugins and restart containerd; or, on a node without a kubelet, name this "
            "engine with --runtime containerd",
        )

    def _contents(self) -> list[tuple[str, str, bytes, bool]]:
        """Return role, path, content and manner of every file that the daemon reads, without us."""
        root = self.without[ROOT_ROLE]
        found = [(ROOT_ROLE, root.path, root.base or b"", False)]
        for each in self.inspection.graph:
            role = self.inspection.role_of(each)
            wanted = self.without.get(role)
            if each.drop_in and (wanted is None or wanted.base is None or self._imported_by_us(each)):
                continue
            content = (wanted.base or b"") if wanted is not None else each.content
            found.append((role, each.path, content, each.by_relative_pattern))
        return found

    def _imported_by_us(self, each: Imported) -> bool:
        """Tell whether it is our own line in the root that imports a file."""
        root = self.without[ROOT_ROLE]
        present = root.file.content or b""
        now, without = (containerd_files.imports(text, root.path) for text in (present, root.base or b""))
        return containerd_files.covers(set(now).difference(without), each.path)

    def _new_version(self) -> int | None:
        """Return the version line that the root gets, None if it stays as it is.

        One that says nothing of plugins means the same in version 1 and 2, and what is written for version 2 is read
        by every containerd.
        """
        if self.version is not None:
            return None
        legacy = self.request.settings.use_legacy_config
        if legacy and (self.release is None or self.release < READS_VERSION_3):
            return None if self.files[0].document else 1
        if not self.files[0].document:
            return 3 if self.release is not None and self.release >= READS_VERSION_3 else 2
        older = self.release is None or self.release < READS_VERSION_3
        named = any(file.document.get(key) for file in self.files for key in _IDENTIFIERS)
        return 2 if older and not named else None

    @property
    def effective_version(self) -> int | None:
        """The version that counts once we have written."""
        return self.new_version or self.version

    def plugin(self, view: View) -> str:
        """Return the plugin from whose table the runtimes are taken."""
        return views_of.plugin_of(view, self.files, self.effective_version, self.release)

    # --- what is put in ---

    def part(self, plugin: str, views: Sequence[View]) -> Part:
        """Return what goes into one plugin's table of a file, for daemons with these views."""
        settings = self.request.settings
        effective = views_of.plugin_table(views[-1], self.files, plugin)
        older = self._of_version_1(plugin)
        base_runtime = sources.chosen_base_runtime(self._candidates(effective, plugin), effective, plugin)
        if not base_runtime and older:
            base_runtime = sources.chosen_base_runtime(self._candidates(older, SHORT), older, SHORT)
        made = config.entries(base_runtime, plugin, self.request.handlers, settings)
        tables = [views_of.plugin_table(view, self.files, plugin) for view in views]
        # without a map of runtimes, containerd 1.x takes its own runc
        built_in = any(lookup(table, shape(plugin).runtimes) is ABSENT for table in tables)
        legacy = settings.use_legacy_config and plugin == SHORT
        cdi = settings.enable_cdi and self._wants_cdi(effective, plugin)
        ours = {handler.name for handler in self.request.handlers}
        copied = tuple((name, entry) for name, entry in runtimes_in(older, SHORT).items() if name not in ours)
        built_in = built_in and all(name != BUILT_IN_RUNTIME for name, _ in copied)
        return Part(plugin, made, self.request.default, copied, built_in=built_in, legacy=legacy, cdi=cdi)

    def _of_version_1(self, plugin: str) -> Table:
        """Return what files say under the name of version 1, where the plugin's table gets runtimes that hide those.

        2.0 to 2.2 read only the newest name's table there; newer ones read both, and then that one alone.
        """
        if plugin != RUNTIME or self.effective_version not in (None, 1) or self.release is not None:
            return {}
        known = runtimes_in(views_of.plugin_table(self.views[-1], self.files, RUNTIME), RUNTIME)
        return {} if known else views_of.plugin_table(self.views[-1], self.files, SHORT)

    def _candidates(self, effective: Table, plugin: str) -> list[Candidate]:
        """Return what each source has as a base runtime for this plugin's table."""
        return sources.candidates(self.sources, effective, plugin, self.request.toolkit_folder)

    def _wants_cdi(self, effective: Table, plugin: str) -> bool:
        """Tell whether `enable_cdi` has to be written: 2.0 and 2.1 have it on by default, newer ones do not know it."""
        said = lookup(effective, enable_cdi(plugin))
        if said is True or self.version == 4:  # noqa: PLR2004  # the version
            return False
        if self.release is None or self.release < READS_VERSION_3:
            return True
        return said is False and self.release <= _KNOWS_ENABLE_CDI

    def edited(self, wanted: DesiredFile, parts: Sequence[Part], version: int | None = None) -> DesiredFile:
        """Return a file as it is to be with these parts in it."""
        text, ownership = config.with_us(wanted.base or b"", parts, version)
        return wanted.with_us(text, toml_document.parse, ownership)

    def desired(self, files: Sequence[DesiredFile], notes: Sequence[str]) -> DesiredState:
        """Return the desired state: the files, and what is to be served then."""
        view = self.views[-1]
        plugin = self.plugin(view)
        table = views_of.plugin_table(view, self.files, plugin)
        legacy = self.request.settings.use_legacy_config and plugin == SHORT
        return DesiredState(
            tuple(files),
            {handler.name: handler.executable for handler in self.request.handlers},
            None if legacy else self.request.default,  # such a default has no name
            sources.low_level(table, plugin),
            (*notes, *self._notes(table, plugin)),
        )

    def _notes(self, table: Table, plugin: str) -> list[str]:
        """Return what else there is to say: nothing of it keeps the handlers from being registered.

        `table`: the plugin's table that counts, without us.
        """
        notes = sources.unused(self.sources, self._candidates(table, plugin))
        if self.release is None:  # a live one is asked what it misses
            notes += [
                f"{each.importer} imports {each.path}, which is not seen here: without it containerd does not start"
                for each in self.inspection.missing
            ]
        if self.request.settings.use_legacy_config and all(self.plugin(view) != SHORT for view in self.views):
            notes.append("--use-legacy-config is not used: only files of version 1 know such a default")
        return notes


def _version_of(files: Sequence[Read], contents: Sequence[bytes], release: Release | None) -> int | None:
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


def _refuse_unread(root: Read, content: bytes, version: int | None, release: Release | None) -> None:
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
