"""Layouts: where a Kubernetes distribution keeps its containerd's files, and how handlers get into them.

Every start reads the table of all distributions; a layout is built only for a distribution that is there.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Table, apply_changes
from toolkit_installer.engines.containerd import tables
from toolkit_installer.engines.ownership import Ownership, remove_ours
from toolkit_installer.engines.registry import Distribution
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, root_of
from toolkit_installer.node.root import NodeError, may_run
from toolkit_installer.settings import EngineName, EngineSettings

if TYPE_CHECKING:
    pass


ReadContent = Callable[[str], bytes | None]
"""Returns a file's content, None for a missing file."""


class GeneratingDistribution(Distribution, frozen=True, kw_only=True):
    """A distribution that generates its containerd's files and offers its own place for additions.

    `programs` and `roots` are patterns of its containerd's executable and of its `root` folder
    (containerd-config.toml(5)), each with the configuration file of such a containerd (a template for re.Match.expand).
    """

    engine: EngineName = EngineName.CONTAINERD
    programs: tuple[str, str] | None = None
    roots: tuple[str, str] | None = None

    @property
    def started_with(self) -> str:
        """The file that its containerd is started with by default."""
        return self.config

    def layout(self, read: ReadContent, config: str) -> Layout | None:
        """Return the layout if `config`, a containerd's configuration file, is this distribution's, else None.

        `config` is the file that the containerd is started with, or was named by the operator. Raises
        ConfigurationError where its files cannot be determined yet.
        """
        raise NotImplementedError(self.name)

    def started_by(self, executable: str) -> str | None:
        """Return the configuration file of a containerd with this executable, None if the executable does not match."""
        return _expand_rule(self.programs, executable)

    def started_in(self, folder: str) -> str | None:
        """Return the configuration file of the containerd whose `root` is this folder, None if it does not match."""
        return _expand_rule(self.roots, folder)


def _expand_rule(rule: tuple[str, str] | None, text: str) -> str | None:
    found = re.match(rule[0], text) if rule is not None else None
    return found.expand(rule[1]) if rule is not None and found is not None else None


def not_generated_error(name: str, config: str) -> ConfigurationError:
    """Return the error for a file that a distribution only generates when it is first started."""
    return ConfigurationError(
        f"{name} has not made it yet, so its version is not known", path=config, hint=f"start {name} once, then again"
    )


DROP_IN = "99-nvidia.toml"
RUNC = "runc"
GENERATED_ROLE = "generated"
DROP_IN_ROLE = "distribution's drop-in"
TEMPLATE_ROLE = "distribution's template"
OLDER_TEMPLATE_ROLE = "distribution's older template"
TEMPLATE_ROLES = frozenset({TEMPLATE_ROLE, OLDER_TEMPLATE_ROLE})
FILE_ROLE = "distribution's file"
"""A file of the distribution itself that the additions are written into: microk8s' template."""
ROLES = TEMPLATE_ROLES | {GENERATED_ROLE, DROP_IN_ROLE, FILE_ROLE}
NOT_TOML = TEMPLATE_ROLES | {GENERATED_ROLE}
"""The roles of files that are never ours, or are Go templates."""


class AdditionMethod(enum.StrEnum):
    """How additions reach containerd. NONE: the distribution detects the toolkit itself and accepts no additions."""

    DROP_IN = "drop-in"
    TEMPLATE = "template"
    NONE = "none"


def version_of(path: str, content: bytes) -> int:
    """Return the version of the file at `path`. Raises ConfigurationError naming the file."""
    with located(path):
        return tables.check_version(toml_document.parse(content).get("version", 1))


class Detection(msgspec.Struct, frozen=True):
    """Self-registration of a distribution at its start: the folder that it checks, and the handlers it may register."""

    folder: str
    handlers: frozenset[str]


class NextStart(msgspec.Struct, frozen=True):
    """What a distribution generates its containerd's file from at its next start, and how additions get into that file.

    `version`: the generated file's. `template`: the template that is read, or is to be created; None: no template.
    `base`: the version of the distribution's own template, which the template may include.
    """

    method: AdditionMethod
    version: int
    template: str | None = None
    notes: tuple[str, ...] = ()
    base: int = 0


class Layout(msgspec.Struct, frozen=True):
    """The files of one distribution's containerd."""

    name: str
    generated: str
    version: int
    drop_in: str = ""
    template: str | None = None
    older_template: str | None = None
    """The template that is read where `template` is absent."""
    method: AdditionMethod = AdditionMethod.DROP_IN
    reloads_itself: bool = False
    detection: Detection | None = None
    """The folder and handlers by which the distribution registers the toolkit itself, None if it does not."""
    runcs: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    source: str = ""
    """The file that contains the distribution's own runtimes."""
    in_place: bool = False
    """`drop_in` is a file of the distribution itself, with more in it than our additions."""

    def next_start(self, templates: Mapping[str, bytes], release: str | None) -> NextStart:  # noqa: ARG002  # overridden
        """Return what the next start reads. `templates`: the templates that exist, by path, without our additions.

        `release`: the live containerd's, None if none runs. Pure. Raises ConfigurationError where it cannot be
        determined.
        """
        notes = (f"{self.name} merges the drop-in and restarts its containerd by itself",)
        return NextStart(self.method, self.version, self.template, notes if self.reloads_itself else ())

    def may_set_default(self, read: Callable[[str], bytes | None]) -> bool:  # noqa: ARG002  # overridden
        """Return whether the default runtime in the generated file may come from an option of the distribution."""
        return True

    def may_be_copied(self, config: str, socket: str, is_there: Callable[[str], bool]) -> bool:  # noqa: ARG002  # some
        """Return whether `config` may be a plain containerd's file that began as a copy of a generated file.

        `is_there` returns whether a path exists on the node.
        """
        return False

    def drop_in_for(self, settings: EngineSettings) -> tuple[str, tuple[str, ...]]:
        """Return the drop-in's path (the configured one if the distribution reads it, else its own), and notes."""
        asked = settings.drop_in
        if asked is None or asked == self.drop_in:
            return self.drop_in, ()
        host = settings.drop_in_host_path or asked
        if not self.in_place and posixpath.basename(posixpath.dirname(host)) == posixpath.basename(
            posixpath.dirname(self.drop_in)
        ):
            return asked, ()
        return self.drop_in, (f"{asked} is not used: {self.name} does not read it",)

    def document(self, content: bytes | None, toolkit_folder: str) -> Table:
        """Return the distribution's configuration without our runtimes; `content` is that of `source`.

        Raises ConfigurationError.
        """
        with located(self.source):
            document, _ = tables.parse_checked(content or b"")
            if not toolkit_folder:
                return document
            # drop our toolkit's runtimes, whichever program wrote them
            return apply_changes(
                document, remove_ours(document, tables.build_shape(self.plugin), Ownership(), toolkit_folder)[0]
            )

    @property
    def templates(self) -> dict[str, str]:
        """The templates' paths by role, in the order in which the distribution looks for them."""
        found = {TEMPLATE_ROLE: self.template, OLDER_TEMPLATE_ROLE: self.older_template}
        return {role: path for role, path in found.items() if path is not None}

    @property
    def drop_in_role(self) -> str:
        """The role of the file that `drop_in` names."""
        return FILE_ROLE if self.in_place else DROP_IN_ROLE

    @property
    def plugin(self) -> str:
        """The plugin that has the runtimes in the generated file."""
        return tables.FILE_VERSIONS[self.version].plugin

    def detects_toolkit_in(self, toolkit_folder: str) -> bool:
        """Return whether the distribution itself detects a toolkit in this folder."""
        return self.detection is not None and toolkit_folder == self.detection.folder

    def detectable_handlers(self, toolkit_folder: str) -> frozenset[str]:
        """Return the runtimes that the distribution may register itself once a toolkit is in this folder."""
        return (
            self.detection.handlers
            if self.detection is not None and self.detects_toolkit_in(toolkit_folder)
            else frozenset()
        )

    def detected_handlers(self, request: Request) -> dict[str, str]:
        """Return the handler that it registers when it restarts. Raises ConfigurationError if that is not ours."""
        handler = request.handlers[0]
        if not self.detects_toolkit_in(request.toolkit_folder) or handler.name != "nvidia":
            found = (
                f", and finds by itself only {self.detection.folder}, as nvidia" if self.detection is not None else ""
            )
            template = posixpath.basename(self.template or "")
            raise ConfigurationError(
                f"this {self.name} takes no additions{found}",
                path=self.generated,
                hint=f"write a {template} beside it, upgrade {self.name}, or install there",
            )
        return {handler.name: handler.executable}

    def unit(self, node: Node, process: Process) -> str | None:
        """Return the unit to restart: the process's own unit, else the active one of the distribution's units."""
        if process.unit in self.units or not self.units:
            return process.unit
        active = (unit for unit in self.units if node.services.property(unit, "ActiveState") == "active")
        return next(active, process.unit)

    def low_level(self, node: Node, process: Process | None) -> tuple[str, ...]:
        """Return the absolute path of the distribution's own runc, which is only in the distribution's PATH."""
        paths = [path for path in self.runcs if _is_executable(node, path)]
        if not paths and process is not None:
            beside, root = posixpath.join(posixpath.dirname(process.executable), RUNC), root_of(process)
            with contextlib.suppress(NodeError):  # the process ended meanwhile, or hides its files
                paths = [beside] if self.runcs and may_run(root.outside(root.canonical(beside))) else []
        return tuple(paths[:1])


def _is_executable(node: Node, path: str) -> bool:
    """Return whether an executable file is at `path`; False if a parent of `path` is not a folder."""
    try:
        return node.files.is_executable(path)
    except NodeError as error:
        if error.number != errno.ENOTDIR:
            raise
        return False
