"""What is added to a containerd of a distribution: into which of its files, and what the distribution does by itself.

Pure: from what was found, and what is asked for, to what the files should be.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Collection, Iterator, Mapping

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState
from toolkit_installer.engines.containerd import config, templates
from toolkit_installer.engines.containerd import sources as containerd_sources
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.inspection import ContainerdInspection, Placed
from toolkit_installer.engines.containerd.layouts import GENERATED_ROLE, TEMPLATE_ROLES, Way
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    CRI_PLUGIN,
    SHORT,
    VERSION,
    enable_cdi,
    executable,
    made_version,
    runtimes_in,
)
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located

_ON_BY_DEFAULT = 3
"""The first version of containerd's files whose daemons have CDI on unless they are told otherwise."""


class Placing:
    """One distribution's containerd, its files without us by role, and what is asked for."""

    def __init__(
        self, inspection: ContainerdInspection, placed: Placed, request: Request, without: Mapping[str, DesiredFile]
    ) -> None:
        """Raise ConfigurationError for what cannot be worked with."""
        self.inspection = inspection
        self.placed = placed
        self.layout = layout = placed.layout
        self.request = request
        self.without = {role: wanted for role, wanted in without.items() if role != GENERATED_ROLE}
        self.default = request.default
        self.served = request.served
        live = inspection.live
        bases = {role: wanted.base for role, wanted in self.without.items() if role in TEMPLATE_ROLES}
        there = {path: base for role, path in layout.templates.items() if (base := bases.get(role)) is not None}
        self.start = layout.next_start(there, live.version if live is not None else None)
        self.role = next((role for role, path in layout.templates.items() if path == self.start.template), "")
        self.notes = [*placed.notes, *self.start.notes]
        if self.role in bases:
            with self._template() as wanted:
                templates.refuse_twice(wanted.base or b"", layout.finding(request.toolkit_folder))
        self.document = layout.document(placed.content, request.toolkit_folder)
        sources, folder = inspection.sources, request.toolkit_folder
        self.candidates = containerd_sources.candidates(sources, self.document, layout.plugin, folder)

    def desired(self) -> DesiredState:
        """Return what the files should be. Raises ConfigurationError."""
        if self.start.way is Way.DROP_IN:
            self._into_drop_in()
        elif not self.request.handlers:
            self.served = {}
        else:
            self._note_what_is_kept()
            if self.start.way is Way.TEMPLATE:
                self._into_template()
            else:
                self._found_by_itself()
        own = self.inspection.live.own if self.inspection.live is not None else frozenset[str]()
        if own:
            self.notes.append(
                f"{self.layout.name} registers {', '.join(sorted(own))} by itself, as long as it finds their programs "
                "when it starts: cleanup leaves them to it"
            )
        built_in = next(iter(self.placed.low_level), BUILT_IN_RUNTIME)
        low_level = containerd_sources.low_level(self.document, self.layout.plugin, built_in)
        return DesiredState(tuple(self.without.values()), self.served, self.default, low_level, tuple(self.notes))

    def _part(self, version: int) -> Part:
        """Return what is registered in a file of this version."""
        settings = self.request.settings
        plugin = CRI_PLUGIN[version]
        base_runtime = containerd_sources.chosen_base_runtime(self.candidates, self.document, self.layout.plugin)
        made = config.entries(base_runtime, plugin, self.request.handlers, settings)
        legacy = settings.use_legacy_config and plugin == SHORT
        cdi = self.request.enable_cdi and _wants_cdi(self.document, self.layout.plugin, version)
        return Part(plugin, made, self.default, legacy=legacy, cdi=cdi)

    def _into_drop_in(self) -> None:
        version = self.start.version
        part = self._part(version)
        self.notes += containerd_sources.unused(self.inspection.sources, self.candidates)
        if part.legacy:
            self.default = None  # such a default has no name
        elif self.request.settings.use_legacy_config:
            self.notes.append("--use-legacy-config is not used: only files of version 1 know such a default")
        wanted = self.without[self.layout.drop_in_role]
        with located(wanted.path):
            base = wanted.base or b""
            document = toml_document.parse(base)
            if document and (said := made_version(document.get("version", 1))) != version:
                raise ConfigurationError(
                    f"is of version {said!r}, and the file that imports it of version {version}",
                    line=toml_document.line_of(base, VERSION) or 1,
                    hint="move it away, or write it for that version",
                )
            text, owned = config.with_us(base, [part], None if document else version)
        self.without[wanted.role] = wanted.holding(text, toml_document.parse, owned)

    def _into_template(self) -> None:
        with self._template() as wanted:
            base = wanted.base if wanted.base is not None else templates.BASE
            part = self._part(self.start.version)
            self._refuse_another(part)
            text = templates.with_block(base, part)
            own = templates.named(base, part)
        if self.layout.templates[self.role] in self.placed.changed:
            # nobody knows yet what it makes: a restart would be the first to tell
            name = self.layout.name
            why = f"was changed after config.toml was made of it: {name} has not been started with it"
            self.notes.append(f"{wanted.path} {why}")
        if self.start.version < _ON_BY_DEFAULT <= self.layout.version:
            newest = posixpath.basename(self.layout.template or "")
            self.notes.append(f"{wanted.path} is what {self.layout.name} reads next, as no {newest} is there")
        if templates.render(base, b"", part.plugin) is None:
            why = f"has actions that only {self.layout.name} fills in: what it makes of them is not checked"
            self.notes.append(f"{wanted.path} {why}")
        self.without[self.role] = msgspec.structs.replace(wanted, target=text)
        self._note_cdi(part)
        self.notes += containerd_sources.unused(self.inspection.sources, self.candidates)
        self._note_unused(own, f"{wanted.path} has their tables already")
        if templates.is_conditional(base):
            found = self.layout.finding(self.request.toolkit_folder) & self.served.keys() - own
            self._note_unused(found, f"{self.layout.name} makes their tables itself if it finds them when it starts")

    @contextlib.contextmanager
    def _template(self) -> Iterator[DesiredFile]:
        """Yield the template that is read next, and name it in errors, and the one that was looked for before it."""
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
        self.served = self.layout.found_by_itself(self.request)
        name = self.layout.name
        self._note_cdi(part)
        self.notes.append(f"{name} has no place for additions: it finds the toolkit's folder when it starts")
        self._note_unused(self.served.keys(), f"{name} makes their tables itself")

    def _refuse_another(self, part: Part) -> None:
        """Raise ConfigurationError for a runtime of one of our names that runs something else."""
        if self.layout.finds(self.request.toolkit_folder):
            return
        theirs = runtimes_in(self.document, self.layout.plugin)
        made = {name: executable(entry) for name, entry in part.made}
        others = [name for name in made if name in theirs and executable(theirs[name]) not in (None, made[name])]
        if others:
            raise ConfigurationError(
                f"{self.layout.name} registers a runtime {others[0]!r} of its own, which runs something else",
                path=self.layout.generated,
                hint="register under another name with --runtime-name",
            )

    def _note_cdi(self, part: Part) -> None:
        if part.cdi:
            self.notes.append(
                f"CDI stays off in the containerd of {self.layout.name}: its own configuration decides on that"
            )

    def _note_unused(self, handlers: Collection[str], why: str) -> None:
        """Say which flags were given in vain for these handlers, as their tables are somebody else's."""
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
        """Leave the default to the distribution, and say so; a drop-in that was asked for is not read."""
        name, asked = self.layout.name, self.request.settings.drop_in
        if self.default is not None:
            self.default = None
            self.notes.append(f"{name} sets the default runtime itself (its --default-runtime): it stays as it is")
        if asked is not None and not any(asked in note for note in self.placed.notes):
            self.notes.append(f"{asked} is not used: this {name} imports no drop-in")


def _wants_cdi(document: Table, plugin: str, version: int) -> bool:
    """Tell whether CDI has to be turned on: files of version 2 may be a 1.7's, which has it off unless told."""
    said = lookup(document, enable_cdi(plugin))
    return said is not True and (said is False or version < _ON_BY_DEFAULT)
