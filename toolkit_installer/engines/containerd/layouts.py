"""What a distribution says of itself that makes its containerd's files.

Every start reads the table of all distributions: what a layout is made with, TOML's parser among it, is imported only
where there is one.

Where a distribution keeps its containerd's files, and how handlers get into them.
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
from toolkit_installer.documents.changes import Table, apply
from toolkit_installer.engines.containerd import tables
from toolkit_installer.engines.ownership import Ownership, strip
from toolkit_installer.engines.registry import Distribution
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node import root as look
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, root_of
from toolkit_installer.node.root import NodeError
from toolkit_installer.settings import EngineName, EngineSettings

if TYPE_CHECKING:
    pass


Read = Callable[[str], bytes | None]
"""Returns a file's content, None where there is none."""


class Generating(Distribution, frozen=True, kw_only=True):
    """A distribution that makes its containerd's files, and has a place of its own for what is added.

    `programs` and `roots` are patterns of its containerd's executable and of its `root` folder
    (containerd-config.toml(5)), each with the file that such a containerd is started with (re.Match.expand).
    """

    engine: EngineName = EngineName.CONTAINERD
    programs: tuple[str, str] | None = None
    roots: tuple[str, str] | None = None

    @property
    def started_with(self) -> str:
        """The file that its containerd is started with where nobody moved it."""
        return self.config

    def layout(self, read: Read, config: str) -> Layout | None:
        """Return where its files are if its containerd is started with `config`, or somebody named that file of its.

        None if that is not its own. Raises ConfigurationError where its files cannot be told yet.
        """
        raise NotImplementedError(self.name)

    def started_by(self, executable: str) -> str | None:
        """Return the file that a containerd with this executable is started with, None if that does not tell."""
        return _expanded(self.programs, executable)

    def started_in(self, folder: str) -> str | None:
        """Return the file of the containerd whose `root` is this folder, None likewise."""
        return _expanded(self.roots, folder)


def _expanded(rule: tuple[str, str] | None, text: str) -> str | None:
    found = re.match(rule[0], text) if rule is not None else None
    return found.expand(rule[1]) if rule is not None and found is not None else None


def not_made(name: str, config: str) -> ConfigurationError:
    """Return the error for a file that a distribution makes when it is first started."""
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
"""A file of the distribution's own that has the additions in it: microk8s'."""
ROLES = TEMPLATE_ROLES | {GENERATED_ROLE, DROP_IN_ROLE, FILE_ROLE}
NOT_TOML = TEMPLATE_ROLES | {GENERATED_ROLE}
"""The roles of files that are never ours, or are Go templates."""


class Way(enum.StrEnum):
    """How additions reach containerd. NONE: the distribution looks for the toolkit itself, and takes nothing else."""

    DROP_IN = "drop-in"
    TEMPLATE = "template"
    NONE = "none"


def version_of(path: str, content: bytes) -> int:
    """Return the version of the file at `path`. Raises ConfigurationError naming it."""
    with located(path):
        return tables.made_version(toml_document.parse(content).get("version", 1))


class Detection(msgspec.Struct, frozen=True):
    """What a distribution does by itself when it starts: the folder in which it looks, the handlers that may follow."""

    folder: str
    handlers: frozenset[str]


class Start(msgspec.Struct, frozen=True):
    """What a distribution generates its containerd's file from at its next start, and how additions get into it.

    `version`: the generated file's. `template`: the template that is read, or that is to be created; None: none.
    `base`: the version of the distribution's own template, as that one may have it in it.
    """

    way: Way
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
    way: Way = Way.DROP_IN
    reloads_itself: bool = False
    detects: Detection | None = None
    """It registers the toolkit by itself when it finds it."""
    runcs: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    source: str = ""
    """The file in which it has its own runtimes."""
    in_place: bool = False
    """`drop_in` is a file of its own that has more in it: what it makes the rest of."""

    def next_start(self, templates: Mapping[str, bytes], release: str | None) -> Start:  # noqa: ARG002  # others look
        """Return what the next start reads. `templates`: those that are there, by path, without what is ours.

        `release`: the live containerd's, None if none runs. Pure. Raises ConfigurationError where it cannot be told.
        """
        notes = (f"{self.name} merges the drop-in and restarts its containerd by itself",)
        return Start(self.way, self.version, self.template, notes if self.reloads_itself else ())

    def may_set_default(self, read: Callable[[str], bytes | None]) -> bool:  # noqa: ARG002  # others look
        """Tell whether the default runtime in the generated file may be an option of the distribution's own."""
        return True

    def may_be_copied(self, config: str, socket: str, is_there: Callable[[str], bool]) -> bool:  # noqa: ARG002  # some
        """Tell whether `config` may be a plain containerd's file that began as a copy of one of these.

        `is_there` tells whether the node has anything at a path.
        """
        return False

    def drop_in_for(self, settings: EngineSettings) -> tuple[str, tuple[str, ...]]:
        """Return the drop-in's path: the one that was asked for where it is read, and what there is to say if not."""
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
        """Return what the engine reads without us. Raises ConfigurationError. `content` is that of `source`."""
        with located(self.source):
            document, _ = tables.parse_checked(content or b"")
            if not toolkit_folder:
                return document
            # without the runtimes of our toolkit, whoever wrote them there
            return apply(document, strip(document, tables.shape(self.plugin), Ownership(), toolkit_folder)[0])

    @property
    def templates(self) -> dict[str, str]:
        """The templates' paths by role, in the order in which the distribution looks for them."""
        found = {TEMPLATE_ROLE: self.template, OLDER_TEMPLATE_ROLE: self.older_template}
        return {role: path for role, path in found.items() if path is not None}

    @property
    def drop_in_role(self) -> str:
        """The role of the file that `drop_in` is."""
        return FILE_ROLE if self.in_place else DROP_IN_ROLE

    @property
    def plugin(self) -> str:
        """The plugin that has the runtimes in what is made."""
        return tables.CRI_PLUGIN[self.version]

    def finds(self, toolkit_folder: str) -> bool:
        """Tell whether the distribution finds a toolkit in this folder by itself."""
        return self.detects is not None and toolkit_folder == self.detects.folder

    def finding(self, toolkit_folder: str) -> frozenset[str]:
        """Return the runtimes that it may register by itself once a toolkit is in this folder."""
        return self.detects.handlers if self.detects is not None and self.finds(toolkit_folder) else frozenset()

    def found_by_itself(self, request: Request) -> dict[str, str]:
        """Return the handler that it registers once it is restarted. Raises ConfigurationError if that is not ours."""
        handler = request.handlers[0]
        if not self.finds(request.toolkit_folder) or handler.name != "nvidia":
            found = f", and finds by itself only {self.detects.folder}, as nvidia" if self.detects is not None else ""
            template = posixpath.basename(self.template or "")
            raise ConfigurationError(
                f"this {self.name} takes no additions{found}",
                path=self.generated,
                hint=f"write a {template} beside it, upgrade {self.name}, or install there",
            )
        return {handler.name: handler.executable}

    def unit(self, node: Node, process: Process) -> str | None:
        """Return the unit to restart: the one that the process is in, else the one of its units that is active."""
        if process.unit in self.units or not self.units:
            return process.unit
        active = (unit for unit in self.units if node.services.property(unit, "ActiveState") == "active")
        return next(active, process.unit)

    def low_level(self, node: Node, process: Process | None) -> tuple[str, ...]:
        """Return the distribution's own runc by its absolute path: it is in no PATH but the distribution's."""
        paths = [path for path in self.runcs if _is_executable(node, path)]
        if not paths and process is not None:
            beside, root = posixpath.join(posixpath.dirname(process.executable), RUNC), root_of(process)
            with contextlib.suppress(NodeError):  # it ended meanwhile, or hides
                paths = [beside] if self.runcs and look.may_run(root.outside(root.canonical(beside))) else []
        return tuple(paths[:1])


def _is_executable(node: Node, path: str) -> bool:
    """Tell whether an executable file is at `path`; below something that is no folder, there is none."""
    try:
        return node.files.is_executable(path)
    except NodeError as error:
        if error.number != errno.ENOTDIR:
            raise
        return False
