"""What containerd's files should be: a drop-in of our own, or an edit where every daemon in question sees it. Pure."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table, lookup, same
from toolkit_installer.engines import containerd_config, containerd_files, containerd_sources
from toolkit_installer.engines import containerd_views as views_of
from toolkit_installer.engines.base import Goal, Goals, Request
from toolkit_installer.engines.containerd_config import Part
from toolkit_installer.engines.containerd_survey import DROP_IN, DROP_IN_ROLE, ROOT_ROLE, ContainerdSurvey, role_of
from toolkit_installer.engines.containerd_tables import (
    BUILT_IN_RUNTIME,
    RUNTIME,
    SHORT,
    check,
    enable_cdi,
    plugins_in,
    shape,
)
from toolkit_installer.engines.containerd_versions import names_no_plugin, refuse_unread, version_of
from toolkit_installer.engines.containerd_views import (
    IMPORTS_BY_DEFAULT,
    MERGES_DEEPLY,
    READS_VERSION_3,
    Read,
    Release,
    View,
)
from toolkit_installer.engines.ownership import Ownership, low_level
from toolkit_installer.errors import ConfigurationError, located

_KNOWS_ENABLE_CDI: Release = (2, 1)
"""The last of which it is known; newer ones always resolve CDI devices."""


class Work:
    """One containerd's files without us, and what is asked for."""

    def __init__(self, survey: ContainerdSurvey, request: Request, without: Mapping[str, Goal], *, deep: bool) -> None:
        """`without`: the files without us, by role. `deep`: the daemon is down, and is known to merge deeply."""
        self.survey = survey
        self.request = request
        self.without = without
        self.deep = deep
        self.release = views_of.release_of(survey.live.version) if survey.live is not None else None
        self.roles: dict[str, str] = {}
        contents: list[bytes] = []
        self.files: list[Read] = []
        for role, path, content, relative in self._contents():
            with located(path):
                document, own = check(content)
            self.files.append(Read(path, document, own, relative))
            self.roles[path] = role
            contents.append(content)
        root = self.files[0]
        self.version = version_of(self.files, contents, self.release)
        refuse_unread(root, contents[0], self.version, self.release)
        self.new_version = self._new_version()
        self.views = views_of.views(self.release, self.new_version or self.version)
        if deep or self._is_for_2():
            self.views = (View.DEEP,)

    def _contents(self) -> list[tuple[str, str, bytes, bool]]:
        """Return role, path, content and manner of every file that the daemon reads, without us."""
        root = self.without[ROOT_ROLE]
        found = [(ROOT_ROLE, root.path, root.base or b"", False)]
        for each in self.survey.graph:
            role = role_of(each.path)
            goal = self.without.get(role)
            content = (goal.base or b"") if goal is not None else each.content
            found.append((role, each.path, content, each.by_relative_pattern))
        return found

    def _new_version(self) -> int | None:
        """Return the version line that the root gets, None if it stays as it is.

        One that says nothing of plugins means the same in version 1 and 2, and what is written for version 2 is read
        by every containerd.
        """
        if self.version is not None:
            return None
        if not self.files[0].document:
            return 3 if self.release is not None and self.release >= READS_VERSION_3 else 2
        older = self.release is None or self.release < READS_VERSION_3
        return 2 if older and names_no_plugin(self.files) else None

    def _is_for_2(self) -> bool:
        """Tell whether a file without version, of which no daemon is known, was written for a 2.x."""
        root = plugins_in(self.files[0].document)
        return self.release is None and self.version is None and RUNTIME in root and SHORT not in root

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
        made = containerd_sources.entries(
            self._lender(effective, plugin) or self._lender_of_version_1(plugin),
            plugin,
            self.request.handlers,
            runtime_type=settings.runtime_type,
            annotations=settings.container_annotations,
            override=settings.runtime_config_override,
        )
        tables = [views_of.plugin_table(view, self.files, plugin) for view in views]
        built_in = any(not views_of.has_runtimes(table, plugin) for table in tables)
        legacy = settings.use_legacy_config and plugin == SHORT
        cdi = settings.enable_cdi and self._wants_cdi(effective, plugin)
        copied = self._copied(plugin)
        built_in = built_in and all(name != BUILT_IN_RUNTIME for name, _ in copied)
        return Part(plugin, made, self.request.default, copied, built_in=built_in, legacy=legacy, cdi=cdi)

    def _copied(self, plugin: str) -> tuple[tuple[str, Table], ...]:
        """Return the runtimes that a file without version has under the name of version 1, for the newest name's table.

        2.0 to 2.2 read only that one there; newer ones read both, and then this one alone.
        """
        if plugin != RUNTIME or self.effective_version is not None or self.release is not None:
            return ()
        view = self.views[-1]
        if views_of.runtimes(views_of.plugin_table(view, self.files, RUNTIME), RUNTIME):
            return ()
        older = views_of.runtimes(views_of.plugin_table(view, self.files, SHORT), SHORT)
        ours = {handler.name for handler in self.request.handlers}
        return tuple((name, entry) for name, entry in older.items() if name not in ours)

    def _lender_of_version_1(self, plugin: str) -> Table:
        """Return the settings for a table that replaces the one of version 1."""
        if not self._copied(plugin):
            return {}
        return self._lender(views_of.plugin_table(self.views[-1], self.files, SHORT), SHORT)

    def _lender(self, effective: Table, plugin: str) -> Table:
        """Return the settings that the handlers get, from the first source that has any."""
        folder = self.request.toolkit_folder
        name = containerd_sources.default_name(effective, plugin)
        own = containerd_sources.lender(effective, plugin)
        others = dict(self.survey.sources)
        found = []
        for source in self.request.settings.config_sources or ("command", "file"):
            if source == "command":
                dump = self.survey.dump or {}
                found.append(containerd_sources.lender_elsewhere(dump, name or BUILT_IN_RUNTIME, folder))
            elif source == "file":
                found.append(own)
            else:
                path = source.partition("=")[2]
                with located(path):
                    document, _ = check(others.get(path) or b"")
                found.append(containerd_sources.lender_elsewhere(document, None, folder))
        return containerd_sources.chosen(found, own)

    def _wants_cdi(self, effective: Table, plugin: str) -> bool:
        """Tell whether `enable_cdi` has to be written: 2.0 and 2.1 have it on by default, newer ones do not know it."""
        said = lookup(effective, enable_cdi(plugin))
        if said is True or self.version == 4:  # noqa: PLR2004  # the version
            return False
        if self.release is None or self.release < READS_VERSION_3:
            return True
        return said is False and self.release <= _KNOWS_ENABLE_CDI

    def edited(self, goal: Goal, parts: Sequence[Part], version: int | None = None) -> Goal:
        """Return the goal for a file with these parts in it."""
        text, ownership = containerd_config.with_us(goal.base or b"", parts, version)
        return self.settled(goal, text, ownership)

    def settled(self, without: Goal, text: bytes, ownership: Ownership) -> Goal:
        """Return the goal for a file; one that says all this already, in somebody's own order, stays as it is."""
        role = without.role
        present = next((file.content for file in self.survey.files if file.role == role), None)
        if present is not None and same(toml_document.parse(present), toml_document.parse(text)):
            text = present
        return dataclasses.replace(without, target=text, ownership=ownership)

    def goals(self, files: Sequence[Goal], notes: Sequence[str]) -> Goals:
        """Return the goals, and what is to be served then."""
        view = self.views[-1]
        plugin = self.plugin(view)
        table = views_of.plugin_table(view, self.files, plugin)
        legacy = self.request.settings.use_legacy_config and plugin == SHORT
        return Goals(
            tuple(files),
            {handler.name: handler.executable for handler in self.request.handlers},
            None if legacy else self.request.default,  # such a default has no name
            low_level(table, shape(plugin)),
            tuple(notes),
        )


def by_drop_in(work: Work) -> Goals | None:
    """Put the handlers into a file of our own that the root imports; the root changes by one import at most.

    None where that is not sure to work: the daemon may not merge deeply, the root has no version that the drop-in
    could have too, or an imported file that may be read after ours speaks of what is ours.
    """
    root, drop_in = work.without[ROOT_ROLE], work.without[DROP_IN_ROLE]
    version = work.files[0].version
    known = work.deep or (work.release is not None and work.release >= MERGES_DEEPLY)
    if not known or version is None or version != work.version:
        return None
    if drop_in.base is not None and toml_document.parse(drop_in.base).get("version") != version:
        return None
    plugin = work.plugin(View.DEEP)
    if any(_contradicts(file, plugin, work.request) for file in work.files[1:]):
        return None
    new = version if not drop_in.base or not toml_document.parse(drop_in.base) else None
    settings = work.request.settings
    host_path = settings.drop_in_host_path or settings.drop_in or DROP_IN
    base = root.base or b""
    if containerd_files.covers(containerd_files.imports(base, root.path), posixpath.normpath(host_path)):
        text, ownership = base, Ownership()
    else:
        text, ownership = containerd_config.with_import(base, host_path)
    part = work.part(plugin, (View.DEEP,))
    files = [work.edited(drop_in, [part], new), work.settled(root, text, ownership)]
    untouched = [goal for role, goal in work.without.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    return work.goals([*untouched, *files], ())


def _contradicts(file: Read, plugin: str, request: Request) -> bool:
    """Tell whether an imported file names a default, or a handler of ours."""
    place = shape(plugin)
    known = views_of.runtimes(file.document, plugin)
    named = any(handler.name in known for handler in request.handlers)
    return named or (request.default is not None and bool(lookup(file.document, place.default)))


def in_place(work: Work) -> Goals:
    """Put the handlers into the file that has the table already, or into the root: where every daemon sees them.

    Raises ConfigurationError where no such edit is right for every containerd that may read the files.
    """
    wanted: dict[tuple[str, str], list[View]] = {}
    for view in work.views:
        plugin = work.plugin(view)
        file = views_of.owner(view, work.files, plugin)
        wanted.setdefault((file.path, plugin), []).append(view)
        if work.release is None and work.effective_version is None and plugin == SHORT and view is View.DEEP:
            wanted.setdefault((file.path, RUNTIME), []).append(view)
    root, drop_in = work.without[ROOT_ROLE], work.without[DROP_IN_ROLE]
    edited = dict(work.without)
    for path in dict.fromkeys(path for path, _ in wanted):
        role = work.roles[path]
        if role not in work.without:
            raise ConfigurationError(
                "configures the CRI plugin, and cannot be changed from here: it is a symlink to another mount",
                path=path,
                hint=f"move its CRI settings into {root.path}, or mount the node's / and use --node-root",
            )
        parts = [work.part(plugin, views) for (place, plugin), views in wanted.items() if place == path]
        version = work.new_version if role == ROOT_ROLE else None
        goal = work.edited(work.without[role], parts, version)
        if role == ROOT_ROLE and root.base is None and (work.release or (0, 0)) >= IMPORTS_BY_DEFAULT:
            goal = dataclasses.replace(goal, target=containerd_config.with_default_imports(goal.target or b""))
        edited[role] = goal
    _refuse_what_would_be_lost(work, edited)
    imported = [goal for role, goal in edited.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    notes = (f"{drop_in.path} is not used: containerd is not known to be 2.1 or later, so config.toml is edited",)
    return work.goals([*imported, edited[ROOT_ROLE], drop_in], notes if work.release is None else ())


def _refuse_what_would_be_lost(work: Work, edited: Mapping[str, Goal]) -> None:
    """Raise ConfigurationError if some daemon that may read the files would not have all it had, and our handlers."""
    after = [
        dataclasses.replace(file, document=toml_document.parse(edited[role].target or b""))
        if (role := work.roles[file.path]) in edited
        else file
        for file in work.files
    ]
    request = work.request
    for view in work.views:
        old, _ = views_of.served(view, work.files, work.version, work.release)
        new, default = views_of.served(view, after, work.effective_version, work.release)
        wrong = [
            f"it would not see the handler {handler.name}"
            for handler in request.handlers
            if lookup(new, (handler.name, "options", "BinaryName")) != handler.executable
        ]
        ours = {handler.name for handler in request.handlers}
        wrong += [
            f"its runtime {name} would not be what it was"
            for name, entry in old.items()
            if name not in ours and not same(containerd_sources.said(new.get(name)), containerd_sources.said(entry))
        ]
        legacy = request.settings.use_legacy_config and work.plugin(view) == SHORT
        if request.default is not None and not legacy and default != request.default:
            wrong.append(f"its default runtime would be {default!r}")
        if wrong:
            raise ConfigurationError(
                f"and what it imports cannot be edited such that {view} is served as well: {'; '.join(wrong)}",
                path=work.files[0].path,
                hint="put all of the CRI plugin's settings into one file, under the name that the file's version has",
            )
