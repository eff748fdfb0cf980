"""What containerd's files should be: a drop-in of our own, or an edit where every daemon in question sees it. Pure."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import lookup, same
from toolkit_installer.engines.api import DesiredFile, DesiredState
from toolkit_installer.engines.containerd import config, sources
from toolkit_installer.engines.containerd import files as containerd_files
from toolkit_installer.engines.containerd import views as views_of
from toolkit_installer.engines.containerd.inspection import DROP_IN, DROP_IN_ROLE, ENDING, ROOT_ROLE
from toolkit_installer.engines.containerd.tables import RUNTIME, SHORT, runtimes_in, shape
from toolkit_installer.engines.containerd.views import MERGES_DEEPLY, View
from toolkit_installer.engines.containerd.work import Work
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.errors import ConfigurationError


def by_drop_in(work: Work) -> DesiredState | None:
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
    others = (file for file in work.files[1:] if work.roles[file.path] != DROP_IN_ROLE)
    names = {handler.name for handler in work.request.handlers}
    for file in others:
        named = not names.isdisjoint(runtimes_in(file.document, plugin))
        if named or (work.request.default is not None and lookup(file.document, shape(plugin).default)):
            return None
    new = version if not drop_in.base or not toml_document.parse(drop_in.base) else None
    settings = work.request.settings
    host_path = settings.drop_in_host_path or settings.drop_in or DROP_IN
    base = root.base or b""
    if containerd_files.covers(containerd_files.imports(base, root.path), posixpath.normpath(host_path)):
        text, ownership = base, Ownership()
    else:
        text, ownership = config.with_import(base, host_path)
    part = work.part(plugin, (View.DEEP,))
    files = [work.edited(drop_in, [part], new), root.with_us(text, toml_document.parse, ownership)]
    untouched = [wanted for role, wanted in work.without.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    return work.desired([*untouched, *files], ())


def in_place(work: Work) -> DesiredState:
    """Put the handlers into the file that has the table already, or into the root: where every daemon sees them.

    Raises ConfigurationError where no such edit is right for every containerd that may read the files.
    """
    plugins: dict[tuple[str, str], list[View]] = {}
    for view in work.views:
        plugin = work.plugin(view)
        role = work.roles[views_of.owner(view, work.files, plugin).path]
        plugins.setdefault((role, plugin), []).append(view)
        if work.release is None and plugin == SHORT and view is View.DEEP:
            plugins.setdefault((role, RUNTIME), []).append(view)
    drop_in = work.without[DROP_IN_ROLE]
    edited = dict(work.without)
    for role in dict.fromkeys(role for role, _ in plugins):
        if role not in work.without:
            raise _not_editable(work, role)
        parts = [work.part(plugin, views) for (place, plugin), views in plugins.items() if place == role]
        version = work.new_version if role == ROOT_ROLE else None
        edited[role] = work.edited(work.without[role], parts, version)
    _refuse_what_would_be_lost(work, edited)
    imported = [wanted for role, wanted in edited.items() if role not in (ROOT_ROLE, DROP_IN_ROLE)]
    unknown = f"{drop_in.path} is not used: containerd is not known to be 2.1 or later, so config.toml is edited"
    unused = work.release is None and edited[DROP_IN_ROLE].target == drop_in.base
    return work.desired([*imported, edited[ROOT_ROLE], edited[DROP_IN_ROLE]], (unknown,) if unused else ())


def _not_editable(work: Work, role: str) -> ConfigurationError:
    """Return the error for a file that counts and cannot be changed from here."""
    imported = next(each for each in work.inspection.graph if work.roles.get(each.path) == role)
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


def _refuse_what_would_be_lost(work: Work, edited: Mapping[str, DesiredFile]) -> None:
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
            if name not in ours and not same(sources.said(new.get(name)), sources.said(entry))
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
