"""The desired content of containerd's files, with and without our handlers. Pure.

For files of containerd's own: the handlers go into a drop-in of ours, or into the file where every daemon in question
sees them. For a distribution: they go into its drop-in or template, or are left to its own detection of the toolkit.
Their removal is the same for both. config.py edits the text of one file and chooses whose settings the handlers get;
own_files.py has how the files are read.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from toolkit_installer.documents import shown, toml_document
from toolkit_installer.documents.changes import ABSENT, Table, is_same, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState, EngineFile, RecordedFile
from toolkit_installer.engines.common import losses
from toolkit_installer.engines.containerd import config, config_files, layouts, tables, templates
from toolkit_installer.engines.containerd.config import Candidate, TableAdditions
from toolkit_installer.engines.containerd.inspection import (
    DROP_IN,
    DROP_IN_ROLE,
    ENDING,
    ROOT_ROLE,
    ContainerdInspection,
    DistributionInspection,
    is_import,
)
from toolkit_installer.engines.containerd.layouts import GENERATED_ROLE, TEMPLATE_ROLES, AdditionMethod
from toolkit_installer.engines.containerd.own_files import OwnFiles
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    CONTAINERD_2,
    CRI_TABLES,
    FILE_VERSIONS,
    LAST_WITH_ENABLE_CDI,
    MERGES_DEEPLY,
    RUNTIME,
    SHORT,
    VERSION,
    View,
    build_shape,
    check_version,
    enable_cdi,
    read_executable,
    runtimes_in,
)
from toolkit_installer.engines.ownership import MARKER, Ownership, is_blank, revert_content
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located


class DistributionEdit:
    """One distribution's containerd, its files without our changes by role, and the request."""

    def __init__(
        self,
        inspection: ContainerdInspection,
        distribution: DistributionInspection,
        request: Request,
        without: Mapping[str, DesiredFile],
    ) -> None:
        """Raise ConfigurationError for files that cannot be edited."""
        self.inspection = inspection
        self.distribution = distribution
        self.layout = layout = distribution.layout
        self.request = request
        self.without = {role: wanted for role, wanted in without.items() if role != GENERATED_ROLE}
        self.default = request.default
        self.served = request.served
        live = inspection.live
        bases = {role: wanted.base for role, wanted in self.without.items() if role in TEMPLATE_ROLES}
        there = {path: base for role, path in layout.templates.items() if (base := bases.get(role)) is not None}
        self.start = layout.next_start(there, live.version if live is not None else None)
        self.role = next((role for role, path in layout.templates.items() if path == self.start.template), "")
        self.notes = [*distribution.notes, *self.start.notes]
        if self.role in bases:
            with self._template() as wanted:
                templates.refuse_duplicates(wanted.base or b"", layout.detectable_handlers(request.toolkit_folder))
        self.document = layout.document(distribution.content, request.toolkit_folder)
        sources, folder = inspection.sources, request.toolkit_folder
        self.candidates = config.find_candidates(sources, self.document, layout.plugin, folder)

    def build_desired_state(self) -> DesiredState:
        """Return the desired content of the files. Raises ConfigurationError."""
        if self.start.method is AdditionMethod.DROP_IN:
            self._into_drop_in()
        elif not self.request.handlers:
            self.served = {}
        else:
            self._note_what_is_kept()
            if self.start.method is AdditionMethod.TEMPLATE:
                self._into_template()
            else:
                self._found_by_itself()
        own = self.inspection.live.own if self.inspection.live is not None else frozenset[str]()
        if own:
            self.notes.append(
                f"{self.layout.name} registers {', '.join(sorted(own))} by itself, as long as it finds their programs "
                "when it starts: cleanup leaves them to it"
            )
        built_in = next(iter(self.distribution.low_level), BUILT_IN_RUNTIME)
        low_level = config.list_low_level_runtimes(self.document, self.layout.plugin, built_in)
        return DesiredState(tuple(self.without.values()), self.served, self.default, low_level, tuple(self.notes))

    def _part(self, version: int) -> TableAdditions:
        """Return the additions to a file of this version."""
        settings = self.request.settings
        plugin = FILE_VERSIONS[version].plugin
        base_runtime = config.choose_base_runtime(self.candidates, self.document, self.layout.plugin)
        made = config.build_entries(base_runtime, plugin, self.request.handlers, settings)
        legacy = settings.use_legacy_config and plugin == SHORT
        cdi = self.request.enable_cdi and _distribution_wants_cdi(self.document, self.layout.plugin, version)
        return TableAdditions(plugin, made, self.default, legacy=legacy, cdi=cdi)

    def _into_drop_in(self) -> None:
        version = self.start.version
        part = self._part(version)
        self.notes += config.note_unused_sources(self.inspection.sources, self.candidates)
        if part.legacy:
            self.default = None  # a default of the legacy kind has no name
        elif self.request.settings.use_legacy_config:
            self.notes.append("--use-legacy-config is not used: only files of version 1 know such a default")
        wanted = self.without[self.layout.drop_in_role]
        with located(wanted.path):
            base = wanted.base or b""
            document = toml_document.parse(base)
            if document and (said := check_version(document.get("version", 1))) != version:
                raise ConfigurationError(
                    f"is of version {said!r}, and the file that imports it of version {version}",
                    line=toml_document.line_of(base, VERSION) or 1,
                    hint="move it away, or write it for that version",
                )
            text, owned = config.add_parts(base, [part], None if document else version)
        self.without[wanted.role] = wanted.with_target(text, toml_document.parse, owned)

    def _into_template(self) -> None:
        with self._template() as wanted:
            base = wanted.base if wanted.base is not None else templates.BASE
            part = self._part(self.start.version)
            self._refuse_another(part)
            text = templates.add_block(base, part)
            own = templates.find_own_runtimes(base, part)
        if self.layout.templates[self.role] in self.distribution.changed:
            # its result is still unknown: a restart would be the first to show it
            name = self.layout.name
            why = f"was changed after config.toml was made of it: {name} has not been started with it"
            self.notes.append(f"{wanted.path} {why}")
        if FILE_VERSIONS[self.layout.version].is_for_2 and not FILE_VERSIONS[self.start.version].is_for_2:
            newest = posixpath.basename(self.layout.template or "")
            self.notes.append(f"{wanted.path} is what {self.layout.name} reads next, as no {newest} is there")
        if templates.render(base, b"", part.plugin) is None:
            why = f"has actions that only {self.layout.name} fills in: what it makes of them is not checked"
            self.notes.append(f"{wanted.path} {why}")
        self.without[self.role] = msgspec.structs.replace(wanted, target=text)
        self._note_cdi(part)
        self.notes += config.note_unused_sources(self.inspection.sources, self.candidates)
        self._note_unused(own, f"{wanted.path} has their tables already")
        if templates.is_conditional(base):
            found = self.layout.detectable_handlers(self.request.toolkit_folder) & self.served.keys() - own
            self._note_unused(found, f"{self.layout.name} makes their tables itself if it finds them when it starts")

    @contextlib.contextmanager
    def _template(self) -> Iterator[DesiredFile]:
        """Yield the template that is read next; errors name it, and the missing template that takes precedence."""
        wanted = self.without[self.role]
        try:
            with located(wanted.path):
                yield wanted
        except ConfigurationError as error:
            first = self.layout.template
            if error.path == wanted.path and first is not None and self.start.template != first:
                why = f"it is what {self.layout.name} reads next, as {first} is not there"
                error.hint = "; ".join(filter(None, [error.hint, why]))
            raise

    def _found_by_itself(self) -> None:
        part = self._part(self.layout.version)
        self._refuse_another(part)
        self.served = self.layout.detected_handlers(self.request)
        name = self.layout.name
        self._note_cdi(part)
        self.notes.append(f"{name} has no place for additions: it finds the toolkit's folder when it starts")
        self._note_unused(self.served.keys(), f"{name} makes their tables itself")

    def _refuse_another(self, part: TableAdditions) -> None:
        """Raise ConfigurationError if the distribution has a runtime of our name with another executable."""
        if self.layout.detects_toolkit_in(self.request.toolkit_folder):
            return
        theirs = runtimes_in(self.document, self.layout.plugin)
        made = {name: read_executable(entry) for name, entry in part.handlers}
        others = [name for name in made if name in theirs and read_executable(theirs[name]) not in (None, made[name])]
        if others:
            raise ConfigurationError(
                f"{self.layout.name} registers a runtime {others[0]!r} of its own, which runs something else",
                path=self.layout.generated,
                hint="register under another name with --runtime-name",
            )

    def _note_cdi(self, part: TableAdditions) -> None:
        if part.cdi:
            self.notes.append(
                f"CDI stays off in the containerd of {self.layout.name}: its own configuration decides on that"
            )

    def _note_unused(self, handlers: Collection[str], why: str) -> None:
        """Add a note on the flags that do not apply to these handlers, whose tables are not ours."""
        settings = self.request.settings
        given = {
            "--runtime-type": settings.runtime_type is not None,
            "--runtime-config-override": bool(json.loads(settings.runtime_config_override)),
            "--config-source": bool(settings.config_sources),
            "--nvidia-container-runtime-modes.cdi.annotation-prefixes": bool(settings.container_annotations),
        }
        flags = [flag for flag, is_given in given.items() if is_given]
        if flags and handlers:
            verb = "is" if len(flags) == 1 else "are"
            self.notes.append(f"{', '.join(flags)} {verb} not used for {', '.join(sorted(handlers))}: {why}")

    def _note_what_is_kept(self) -> None:
        """Leave the default runtime to the distribution, and add notes on that and on a configured drop-in."""
        name, asked = self.layout.name, self.request.settings.drop_in
        if self.default is not None:
            self.default = None
            self.notes.append(f"{name} sets the default runtime itself (its --default-runtime): it stays as it is")
        if asked is not None and not any(asked in note for note in self.distribution.notes):
            self.notes.append(f"{asked} is not used: this {name} imports no drop-in")


def _distribution_wants_cdi(document: Table, plugin: str, version: int) -> bool:
    """Return whether CDI has to be turned on: files of version 2 may be a 1.7's, which has it off by default."""
    said = lookup(document, enable_cdi(plugin))
    return said is not True and (said is False or not FILE_VERSIONS[version].is_for_2)


def build_drop_in_state(work: OwnFiles) -> DesiredState | None:
    """Return the state with the handlers in our own drop-in, which the root imports; the root gets at most an import.

    None if that is not certain to work: the daemon may not merge deeply, the root's version is unsuitable for a
    drop-in, or an imported file that may be read after ours sets the same keys.
    """
    root, drop_in = work.without[ROOT_ROLE], work.without[DROP_IN_ROLE]
    version = work.files[0].version
    known = work.deep or (work.release is not None and work.release >= MERGES_DEEPLY)
    if not known or version is None or version != work.version:
        return None
    if drop_in.base is not None and toml_document.parse(drop_in.base).get("version") != version:
        return None
    plugin = work.plugin(View.DEEP)
    others = (file for file in work.files[1:] if file.role != DROP_IN_ROLE)
    for file in others:
        named = not work.request.served.keys().isdisjoint(runtimes_in(file.document, plugin))
        if named or (work.request.default is not None and lookup(file.document, build_shape(plugin).default)):
            return None
    new = version if not drop_in.base or not toml_document.parse(drop_in.base) else None
    host_path = work.inspection.drop_in_named or work.request.settings.drop_in or DROP_IN
    base = root.base or b""
    if config_files.covers(config_files.list_imports(base, root.path), posixpath.normpath(host_path)):
        text, ownership = base, Ownership()
    else:
        text, ownership = config.add_import(base, host_path)
    part = _part(work, plugin, (View.DEEP,))
    files = [_edit_file(drop_in, [part], new), root.with_target(text, toml_document.parse, ownership)]
    untouched = [wanted for role, wanted in work.without.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    return _build_state(work, [*untouched, *files], ())


def build_in_place_state(work: OwnFiles) -> DesiredState:
    """Return the state with the handlers in the file that has the table, or in the root: where every daemon sees them.

    Raises ConfigurationError if no such edit is right for every containerd that may read the files.
    """
    plugins: dict[tuple[str, str], list[View]] = {}
    for view in work.views:
        plugin = work.plugin(view)
        role = tables.find_last_with(view, work.files, plugin).role
        plugins.setdefault((role, plugin), []).append(view)
        if work.release is None and plugin == SHORT and view is View.DEEP:
            plugins.setdefault((role, RUNTIME), []).append(view)
    drop_in = work.without[DROP_IN_ROLE]
    edited = dict(work.without)
    for role in dict.fromkeys(role for role, _ in plugins):
        if role not in work.without:
            raise _not_editable_error(work, role)
        parts = [_part(work, plugin, views) for (place, plugin), views in plugins.items() if place == role]
        version = work.new_version if role == ROOT_ROLE else None
        edited[role] = _edit_file(work.without[role], parts, version)
    _refuse_losses(work, edited)
    imported = [wanted for role, wanted in edited.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    unknown = f"{drop_in.path} is not used: containerd is not known to be 2.1 or later, so config.toml is edited"
    unused = work.release is None and edited[DROP_IN_ROLE].target == drop_in.base
    return _build_state(work, [*imported, edited[ROOT_ROLE], edited[DROP_IN_ROLE]], (unknown,) if unused else ())


def _not_editable_error(work: OwnFiles, role: str) -> ConfigurationError:
    """Return the error for a file that must be edited and cannot be."""
    path = next(file.path for file in work.files if file.role == role)
    imported = next(each for each in work.inspection.graph if each.path == path)
    root = work.without[ROOT_ROLE].path
    if ENDING not in posixpath.basename(imported.file):
        leads = "" if imported.file == imported.place else f"it leads to {imported.file}, whose name"
        why = f"{leads or 'its name'} has no {ENDING}"
    else:
        why = f"it leads to {imported.file}, which is on another mount: the node's file may not be what is seen here"
    return ConfigurationError(
        f"configures the CRI plugin, and cannot be changed from here: {why}",
        path=imported.path,
        hint=f"move its CRI settings into {root}, or mount the node's / and use --node-root",
    )


def _refuse_losses(work: OwnFiles, edited: Mapping[str, DesiredFile]) -> None:
    """Raise ConfigurationError if some daemon that may read the files would lose a setting or miss our handlers."""
    after = [
        msgspec.structs.replace(file, document=toml_document.parse(edited[file.role].target or b""))
        if file.role in edited
        else file
        for file in work.files
    ]
    request = work.request
    for view in work.views:
        old, _ = tables.merge_served(view, work.files, work.version, work.release)
        new, default = tables.merge_served(view, after, work.effective_version, work.release)
        wrong = [
            f"it would not see the handler {name}"
            for name, path in request.served.items()
            if lookup(new, (name, "options", "BinaryName")) != path
        ]
        wrong += [
            f"its runtime {name} would not be what it was"
            for name, entry in old.items()
            if name not in request.served
            and not is_same(config.strip_defaults(new.get(name)), config.strip_defaults(entry))
        ]
        legacy = request.settings.use_legacy_config and work.plugin(view) == SHORT
        if request.default is not None and not legacy and default != request.default:
            wrong.append(f"its default runtime would be {default!r}")
        if wrong:
            raise ConfigurationError(
                f"and what it imports cannot be edited such that {view} is served as well: {'; '.join(wrong)}",
                path=work.files[0].path,
                line=toml_document.line_of(work.without[ROOT_ROLE].base or b"", ("plugins",)) or 1,
                hint="put all of the CRI plugin's settings into one file, under the name that the file's version has",
            )


# --- additions ---


def _part(work: OwnFiles, plugin: str, views: Sequence[View]) -> TableAdditions:
    """Return the additions to one plugin's table of a file, for daemons with these views."""
    settings = work.request.settings
    effective = tables.plugin_table(views[-1], work.files, plugin)
    older = _version_1_table(work, plugin)
    base_runtime = config.choose_base_runtime(_candidates(work, effective, plugin), effective, plugin)
    if not base_runtime and older:
        base_runtime = config.choose_base_runtime(_candidates(work, older, SHORT), older, SHORT)
    made = config.build_entries(base_runtime, plugin, work.request.handlers, settings)
    merged = [tables.plugin_table(view, work.files, plugin) for view in views]
    # without a map of runtimes, containerd 1.x uses its own runc
    built_in = any(lookup(table, build_shape(plugin).runtimes) is ABSENT for table in merged)
    legacy = settings.use_legacy_config and plugin == SHORT
    cdi = work.request.enable_cdi and _wants_cdi(work, effective, plugin)
    ours = work.request.served
    copied = tuple((name, entry) for name, entry in runtimes_in(older, SHORT).items() if name not in ours)
    built_in = built_in and all(name != BUILT_IN_RUNTIME for name, _ in copied)
    if not made:  # without a handler of ours the map of runtimes stays as it is
        return TableAdditions(plugin, (), None, cdi=cdi)
    return TableAdditions(plugin, made, work.request.default, copied, built_in=built_in, legacy=legacy, cdi=cdi)


def _version_1_table(work: OwnFiles, plugin: str) -> Table:
    """Return the table under version 1's plugin name, if runtimes in the newer plugin's table would hide its runtimes.

    2.0 to 2.2 read only the table with the newest name; later ones read both, and then the newest alone.
    """
    if plugin != RUNTIME or work.effective_version not in (None, 1) or work.release is not None:
        return {}
    known = runtimes_in(tables.plugin_table(work.views[-1], work.files, RUNTIME), RUNTIME)
    return {} if known else tables.plugin_table(work.views[-1], work.files, SHORT)


def _candidates(work: OwnFiles, effective: Table, plugin: str) -> list[Candidate]:
    """Return the base runtime of each source for this plugin's table."""
    return config.find_candidates(work.inspection.sources, effective, plugin, work.request.toolkit_folder)


def _wants_cdi(work: OwnFiles, effective: Table, plugin: str) -> bool:
    """Return whether `enable_cdi` has to be written: 2.0 and 2.1 have it on by default, newer ones do not know it."""
    said = lookup(effective, enable_cdi(plugin))
    if said is True or not FILE_VERSIONS[work.version or 1].has_enable_cdi:
        return False
    if work.release is None or work.release < CONTAINERD_2:
        return True
    return said is False and work.release <= LAST_WITH_ENABLE_CDI


def _edit_file(wanted: DesiredFile, parts: Sequence[TableAdditions], version: int | None) -> DesiredFile:
    """Return a file with these parts added."""
    text, ownership = config.add_parts(wanted.base or b"", parts, version)
    return wanted.with_target(text, toml_document.parse, ownership)


def _build_state(work: OwnFiles, files: Sequence[DesiredFile], notes: Sequence[str]) -> DesiredState:
    """Return the desired state of the files, the handlers to be served then, and notes.

    No note keeps the handlers from being registered.
    """
    plugin = work.plugin(work.views[-1])
    table = tables.plugin_table(work.views[-1], work.files, plugin)
    settings = work.request.settings
    told = [*notes, *config.note_unused_sources(work.inspection.sources, _candidates(work, table, plugin))]
    if work.release is None:  # trial.py checks the imports of a live containerd
        told += [
            f"{each.importer} imports {shown.named(each.path)}, which is not seen here: without it containerd does not "
            "start"
            for each in work.inspection.missing
        ]
    if settings.use_legacy_config and all(work.plugin(view) != SHORT for view in work.views):
        told.append("--use-legacy-config is not used: only files of version 1 know such a default")
    return DesiredState(
        tuple(files),
        work.request.served,
        None if settings.use_legacy_config and plugin == SHORT else work.request.default,  # such a default has no name
        config.list_low_level_runtimes(table, plugin),
        tuple(told),
        faults=tuple(map(str, work.faults)),
    )


def with_chosen_defaults(state: DesiredState, request: Request, records: Mapping[str, RecordedFile]) -> DesiredState:
    """Return the state with our handler as default where another program made it the default since.

    Such a default is not ours, and is removed with the handler. A default from the settings replaces it.
    """
    if request.default is not None or not records:
        return state
    files = []
    for wanted in state.files:
        recorded = records.get(wanted.path, RecordedFile())
        if wanted.role not in layouts.NOT_TOML and wanted.target:
            changes = config.keep_chosen_defaults(wanted.file.content or b"", recorded.ownership, request.served)
            text = toml_document.edit(wanted.target, changes, marker=MARKER)
            files.append(wanted.with_target(text, toml_document.parse, wanted.ownership))
        else:
            files.append(wanted)
    return msgspec.structs.replace(state, files=tuple(files))


def refuse_lost_root(inspection: ContainerdInspection, records: Mapping[str, RecordedFile]) -> None:
    """Raise ConfigurationError if the file that imported our drop-in without an edit of ours is gone.

    It had other settings, and there is no copy of it. A file that we edited is restored.
    """
    if inspection.distribution is not None:
        return
    root, drop_in = inspection.file(ROOT_ROLE), inspection.file(DROP_IN_ROLE)
    losses.refuse_lost_link(root, records)
    recorded = records.get(drop_in.path)
    if recorded is not None and recorded.written and root.path not in records and is_blank(root.content):
        raise ConfigurationError(
            f"is {'missing' if root.content is None else 'empty'}, and imported {drop_in.path} when the handlers were "
            "put there: with them alone containerd would lose all that it had",
            path=root.path,
            hint="put it back; or, if it is gone for good, run `toolkit-installer uninstall` and start this run again",
        )


# --- removal ---


def remove_ours(file: EngineFile, recorded: RecordedFile, toolkit_folder: str) -> DesiredFile:
    """Return a file without our changes: its target is its base. Raises ConfigurationError.

    If our text is untouched, the original bytes are restored; else our changes are removed from the text.
    """
    if file.role == layouts.GENERATED_ROLE:
        return DesiredFile(file, base=file.content, target=file.content)  # never ours, whatever a receipt says

    def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        if file.role not in layouts.TEMPLATE_ROLES:
            without = _remove_from_toml(file.role, content, recorded, toolkit_folder)
            edit = partial(toml_document.edit, marker=MARKER)
            chosen = config.keep_chosen_defaults(content, recorded.ownership, recorded.handlers)
            cut_off = losses.is_cut_off(content, recorded, edit, chosen, CRI_TABLES)
            return (recorded.before, (losses.CUT_OFF,)) if cut_off else without
        if losses.is_cut_off(content, recorded, None):
            return recorded.before, (losses.CUT_OFF,)
        created = recorded.before is None and templates.is_ours(content)
        # the file was created for us, and has no other content
        return (None if created else templates.remove_block(content)), ()

    with located(file.path):
        used_where_there = (
            file.role in layouts.TEMPLATE_ROLES
            or is_import(file.role)
            # another installer's own drop-in, which its cleanup removes
            or (file.role == DROP_IN_ROLE and config.has_nvidia_elsewhere(recorded.before or b"", toolkit_folder))
        )
        base, left = revert_content(
            file.content, recorded.before, recorded.written, without_ours, may_be_absent=used_where_there
        )
        if base is not None and file.role in layouts.TEMPLATE_ROLES:
            base, taken = templates.remove_handlers(base, toolkit_folder)  # an older installer's are never restored
            left = (*left, *taken)
    if file.role == DROP_IN_ROLE and recorded.before is None and base is not None and base != file.content:
        left = (*left, "the rest is somebody else's and stays; it counts only if config.toml imports it by itself")
    return DesiredFile(file, base=base, target=base, left=left, metadata=recorded.metadata)


def _remove_from_toml(
    role: str, content: bytes, recorded: RecordedFile, toolkit_folder: str
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return a containerd file or drop-in without our changes, None if it was created for us and has nothing else."""
    whole = role in (DROP_IN_ROLE, layouts.DROP_IN_ROLE)
    unmarked = whole and not recorded.written and not toml_document.find_marked_tables(content, MARKER)
    if unmarked and config.has_only_our_runtimes(content, toolkit_folder):
        return None, ()  # an older installer's file, whole: it wrote only its own content into it
    ownership = recorded.ownership
    if role == layouts.DROP_IN_ROLE and not ownership.keys:
        ownership = config.find_unrecorded(content, whole=True)
    base, left = config.remove_ours_from_text(content, ownership, toolkit_folder, recorded.before, recorded.handlers)
    made = recorded.before is None and (recorded.written or (whole and base != content))
    if made and not base.strip():
        return None, left  # the file was created for us, and has no other content
    return base, left


def find_unrecorded(inspection: ContainerdInspection, toolkit_folder: str) -> Mapping[str, Ownership]:
    """Return the ownership of our marked blocks, and of the import of a drop-in that is removed, without a receipt.

    containerd refuses to start with a literal import of a missing file. In a distribution's files, our entries are
    marked or lie in our toolkit folder, so nothing else has to be recognised. Raises ConfigurationError.
    """
    if inspection.distribution is not None:
        return {}
    root, drop_in = inspection.file(ROOT_ROLE), inspection.file(DROP_IN_ROLE)
    found = {}
    for file in inspection.files:
        with located(file.path):
            found[file.path] = config.find_unrecorded(file.content or b"", whole=file is drop_in)
    goes = remove_ours(drop_in, RecordedFile(ownership=found[drop_in.path]), toolkit_folder).base is None
    if goes and drop_in.content is not None:
        imports = config.find_imports(root.content or b"", sorted({*inspection.drop_in_names, drop_in.path}))
        known = found[root.path]
        found[root.path] = msgspec.structs.replace(known, keys=(*known.keys, *imports.keys))
    return found
