"""The interface that every engine's adapter implements, its data types, and the adapter of an engine by its name."""

from __future__ import annotations

import functools
import importlib
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from toolkit_installer.documents.changes import Table, is_same
from toolkit_installer.engines.ownership import CgroupSetting, Fault, ListedRuntime, Ownership
from toolkit_installer.engines.registry import get_row
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Found, Metadata
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode


class EngineSilentError(InstallerError):
    """The engine does not respond (yet). The text is the engine's own, or the connection's."""


class LiveState(msgspec.Struct, frozen=True):
    """The state that the running engine reports.

    `handlers` maps a handler's name to its executable, None if the engine does not report the path.
    """

    version: str
    handlers: Mapping[str, str | None]
    default: str | None
    process: Process | None = None
    own: frozenset[str] = frozenset()
    """Handlers that a distribution registered because it found the toolkit when the engine started.

    They are not ours, and disappear when the engine restarts without the toolkit.
    """
    containers_outlive_it: bool | None = True
    """Whether running containers survive the engine's end, as with most engines; None if not reported."""
    running: int | None = None
    """Number of running containers, if the engine reports it in the same response."""
    cdi_folders: tuple[str, ...] | None = None
    """Folders that the engine searches for CDI specifications; (): CDI is off. None if it does not report them."""
    cdi_folders_if_on: tuple[str, ...] = ()
    """Folders that the engine would search if CDI were on, if it reports them."""
    cgroup_drivers: Mapping[str, str] = {}
    """The cgroup driver of each handler's containers, systemd or cgroupfs, if the engine reports it."""

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        """Raise ConfigurationError if the reload signal would kill the engine when it reads a file with `content`.

        Most engines survive it. The error's line is the line in `seen`, the file's current content; `content` is the
        future one. Pure.
        """

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor of a version such as "v2.1.4" or "1.6.20~ds1", None if unknown."""
        return parse_release(self.version)


def parse_release(version: str) -> tuple[int, int] | None:
    """Return major and minor of an engine's version, None if unknown. Pure."""
    match = re.match(r"v?(\d+)\.(\d+)", version) if version else None
    return (int(match[1]), int(match[2])) if match else None


class Reload(msgspec.Struct, frozen=True):
    """How to make this engine load its configuration. `unit` is set for systemd.

    `restarts`: another process serves afterwards, so the old process's responses prove nothing.
    """

    mode: ReloadMode
    unit: str | None = None
    restarts: bool = False
    by_itself: bool = False
    """The engine loads the change without a request."""
    ends_after_calls: bool = False
    """The engine ends only after it has answered every call; a kubelet that is stopping us waits for us in turn."""
    watched_by: str = ""
    """A distribution that sees the change and restarts the engine itself; the run only waits for it."""


HOOK_ROLE = "hook"
"""The role of an OCI hook, which is a file of an engine but not configuration."""


class EngineFile(msgspec.Struct, frozen=True):
    """The current state of one engine file. `path` is canonical; `role` identifies it among the engine's files."""

    role: str
    path: str
    found: Found | None

    @property
    def content(self) -> bytes | None:
        """The file's bytes, None if it does not exist."""
        return None if self.found is None else self.found.content


class Inspection(msgspec.Struct, frozen=True):
    """The state of an engine on the node. `live` is None if its socket does not respond; `silence` says why."""

    socket: str
    files: tuple[EngineFile, ...]
    live: LiveState | None
    silence: str = ""
    imported: tuple[tuple[str, bytes], ...] = ()
    """Further files that the engine reads: path and content, in reading order."""
    elsewhere: str = ""
    """The file that the running engine reads instead of the file of `--config`; empty: that file, or unknown."""

    def file(self, role: str) -> EngineFile:
        """Return the file with that role."""
        return next(file for file in self.files if file.role == role)

    @property
    def process(self) -> Process | None:
        """The process that responded, None if none did or it is unknown."""
        return self.live.process if self.live is not None else None


class RecordedFile(msgspec.Struct, frozen=True):
    """The receipt's record of a file.

    `before`: the saved base, which cleanup restores (None: no file). `written`: the SHA-256 of every content that we
    may have written. `ownership`: our values in it. `handlers`: our handlers in all of the engine's files. `defaults`:
    the original default runtimes of the engine's files, by role. `metadata`: the file's metadata when `before` was
    read. `kept`: the path of the copy of `before`. `role`: the file's role.
    """

    before: bytes | None = None
    written: frozenset[str] = frozenset()
    ownership: Ownership = Ownership()
    handlers: frozenset[str] = frozenset()
    defaults: tuple[tuple[str, str], ...] = ()
    metadata: Metadata | None = None
    kept: str = ""
    role: str = ""


class DesiredFile(msgspec.Struct, frozen=True):
    """The desired content of a file; `file` is its current state.

    `base`: what cleanup leaves (None: no file). `target`: the content while we are installed.
    `left`: our values that are left alone because another program or an administrator changed them, in words.
    `notes`: further messages about the file after our values are removed.
    `metadata`: the metadata to create a missing file with; None: the default.
    """

    file: EngineFile
    base: bytes | None
    target: bytes | None
    ownership: Ownership = Ownership()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metadata: Metadata | None = None

    @property
    def role(self) -> str:
        """The role that identifies the file among the engine's files."""
        return self.file.role

    @property
    def path(self) -> str:
        """The file's canonical path."""
        return self.file.path

    @property
    def changes(self) -> bool:
        """Whether the file's current content differs from `target`."""
        return self.target != self.file.content

    def with_target(self, text: bytes, parse: Callable[[bytes], Table], ownership: Ownership) -> DesiredFile:
        """Return the file with `text` as its target, or its current content if that means the same."""
        present = self.file.content
        target = present if present is not None and is_same(parse(present), parse(text)) else text
        return msgspec.structs.replace(self, target=target, ownership=ownership)


class DesiredState(msgspec.Struct, frozen=True):
    """The desired content of all files of an engine, in writing order; cleanup goes backwards."""

    files: tuple[DesiredFile, ...]
    served: Mapping[str, str]
    """Handlers by name, with the executables that the live engine should report for them."""
    default: str | None
    low_level: tuple[str, ...] = ()
    """The executables that the engine itself runs containers with, the default runtime's first."""
    notes: tuple[str, ...] = ()
    restart_why: str = ""
    """Changes that only a restart loads, in words; empty: none. Used only if the reload is a restart."""
    dangers: tuple[str, ...] = ()
    """Risks of reloading the engine, in words."""
    cdi_on: bool = False
    """Whether CDI should be on in the live engine."""
    faults: tuple[str, ...] = ()
    """Faults in the engine's files without our values, with file and line; they are no reason to refuse the files."""
    freed: str = ""
    """The folder in which no handler of the live engine may have its executable any more; empty: none."""


_Found = TypeVar("_Found", bound=Inspection)


class Trials(msgspec.Struct, frozen=True):
    """The result of running a short container through each handler.

    `faults`: the handlers that do not work, and why, in the engine's words. `unknown`: why no handler could be tried.
    """

    faults: Mapping[str, str]
    unknown: str = ""


class Adapter(Protocol[_Found]):
    """An engine's adapter. `_Found` is the type of its inspections."""

    @property
    def name(self) -> EngineName:
        """The engine that this adapter is for."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The usual folders in which the engine reads every file, whatever its name; most engines have none."""
        return ()

    def has_role(self, role: str) -> bool:
        """Tell whether a file of this engine may have that role. Pure."""

    def allows_name(self, role: str, name: str) -> bool:
        """Tell whether a file with that role, in any folder, may have the name `name`. Pure."""

    def inspect(self, node: Node, target: EngineTarget) -> _Found:
        """Read the engine's files and query the live engine. Writes nothing. Raises ConfigurationError."""

    def build_desired_state(
        self, inspection: _Found, request: Request, records: Mapping[str, RecordedFile]
    ) -> DesiredState:
        """Return the desired state of the files; pure. Raises ConfigurationError for files that it cannot handle."""

    def find_unrecorded(self, inspection: _Found, toolkit_folder: str) -> Mapping[str, Ownership]:
        """Return our values that are identified by path without a receipt, besides the runtimes in our toolkit folder.

        Pure. Raises ConfigurationError.
        """

    def remove_ours(self, file: EngineFile, recorded: RecordedFile, toolkit_folder: str) -> DesiredFile:
        """Return the desired file after cleanup: its target is its base. Pure. Raises ConfigurationError."""

    def read_default(self, file: EngineFile) -> str | None:  # noqa: ARG002  # for engines with several files
        """Return the default runtime that a file names, which we may leave unedited; None if it names none. Pure.

        Raises ConfigurationError.
        """
        return None

    def find_files_naming(
        self,
        node: Node,  # noqa: ARG002  # for engines with several files
        live: LiveState | None,  # noqa: ARG002
        known: Mapping[str, str],  # noqa: ARG002
        handlers: Collection[str],  # noqa: ARG002
        defaults: Mapping[str, str],  # noqa: ARG002
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the engine's files, other than `known`, whose default runtime is one of the `handlers` to be removed.

        `known` are the recorded files, role to path. `live` is None also if the engine was not queried. Each file comes
        with the values to remove from it: an engine does not start with an unknown default runtime. An unreadable file
        counts as naming none.
        """
        return ()

    def choose_reload(self, node: Node, inspection: Inspection, settings: EngineSettings) -> Reload:
        """Return how to reload the engine. Raises ConfigurationError if the requested mode is not possible."""

    def try_out(self, node: Node, inspection: _Found, desired: DesiredState) -> None:
        """Let the live daemon's own binary read the new configuration. Writes nothing.

        Raises ConfigurationError if the binary refuses the configuration or loses values by it; returns if the binary
        cannot be run that way.
        """

    def find_restart_obstacle(self, node: Node, process: Process) -> str | None:
        """Return why the engine's process, if restarted now, would refuse its files on the node.

        None if no reason is known. Writes nothing.
        """

    def describe_reload_risks(self, node: Node, inspection: Inspection, reload: Reload) -> tuple[str, ...]:  # noqa: ARG002  # most have none
        """Return warnings about this way of reloading, one sentence each."""
        return ()

    def build_transitional_content(self, content: bytes | None) -> bytes | None:  # noqa: ARG002  # for docker
        """Return the content with which the engine may be signalled instead of `content`; None: `content` itself."""
        return None

    def ask(self, node: Node, socket: str, seconds: float) -> LiveState:
        """Query the live engine. Raises EngineSilentError."""

    def find_other_config(self, node: Node, live: LiveState, files: Mapping[str, str]) -> str:
        """Return the file that the live engine reads if it reads none of `files`, our files' paths by role.

        Empty if it reads one of them, or if that is unknown. Raises NodeError.
        """

    def find_faults(
        self,
        node: Node,  # noqa: ARG002  # most engines report none
        socket: str,  # noqa: ARG002
        live: LiveState | None,  # noqa: ARG002
        files: Mapping[str, str],  # noqa: ARG002
        *,
        as_written: bool,  # noqa: ARG002
    ) -> tuple[Fault, ...]:
        """Return the faults in the engine's current files, our values included. Reads only, and raises nothing.

        A file that cannot be parsed is a fault, also a file that we do not manage.

        `live` is None if the engine does not respond. `files`: the files that we manage, by role; `as_written`: they
        are unchanged since a run checked them.
        """
        return ()

    def find_other_files(
        self,
        node: Node,  # noqa: ARG002  # most engines have no others
        asked: EngineSettings,  # noqa: ARG002
        files: Mapping[str, str],  # noqa: ARG002
        toolkit_folder: str,  # noqa: ARG002
        defaults: Mapping[str, str],  # noqa: ARG002
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the files other than `files` (by role) that the engine reads and that name our folder.

        Other programs may have copied our handlers there, without a receipt. Our value in such a file is a default that
        names such a handler; `defaults` are the original defaults of the recorded files, by role. Raises
        ConfigurationError.
        """
        return ()

    def find_serving_files(
        self,
        node: Node,  # noqa: ARG002  # most engines report it
        live: LiveState,  # noqa: ARG002
        toolkit_folder: str,  # noqa: ARG002
    ) -> str:
        """Return the file and line that keep handlers in our folder registered after a restart; "" for none."""
        return ""

    def list_runtimes(self, files: Sequence[tuple[str, bytes]], version: str) -> Sequence[ListedRuntime]:  # noqa: ARG002
        """Return the runtimes of these files, which the engine reads in this order. Pure. Raises ConfigurationError.

        `version` is the engine's, "" if unknown.
        """
        return ()

    def read_cgroup_driver(self, files: Sequence[tuple[str, bytes]], version: str) -> CgroupSetting | None:  # noqa: ARG002
        """Return the cgroup driver that these files name, None if they name none. Pure. Raises ConfigurationError."""
        return None

    def describe_cgroup_edit(self, driver: str) -> str:
        """Return in words the edit that makes the engine use a cgroup driver, `systemd` or `cgroupfs`. Pure."""
        return f"make {self.name} use the cgroup driver {driver}"

    def describe_cdi_edit(self) -> str:
        """Return in words the edit that switches CDI on in the engine. Pure."""
        return f"switch CDI on in {self.name}"

    def stranded(
        self,
        node: Node,  # noqa: ARG002  # for CRI-O
        inspection: Inspection,  # noqa: ARG002
        desired: Sequence[DesiredFile],  # noqa: ARG002
        is_ours: Callable[[LiveState], set[str]],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Return in words the pods that the engine could neither stop nor delete with its files as `desired`.

        None for most engines: dockerd stores how each container was started, and containerd's shims know their
        runtimes. Only pods of the handlers that `is_ours` names count. `inspection.live` is None if the engine was not
        queried yet, or does not run. Raises EngineSilentError.
        """
        return ()

    def try_handlers(self, node: Node, socket: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
        """Start a short container through each handler, check that it runs, and remove it in every case.

        The values of `handlers` say whether a container has to see the node's GPUs; the name "" is the engine's default
        runtime. Containers that a killed run left are removed too. Raises EngineSilentError.
        """

    def signal(self, node: Node, process: Process) -> None:
        """Signal the live engine's process to reload. Raises ConfigurationError."""

    def parse(self, content: bytes) -> Table:
        """Parse one of the engine's files; most are TOML. Raises DocumentError."""
        from toolkit_installer.documents import toml_document  # noqa: PLC0415  # docker has no TOML

        return toml_document.parse(content)

    def write_value(self, value: Any) -> str:
        """Return a value in the syntax of the engine's files, for the receipt; most engines use TOML."""
        from toolkit_installer.documents import toml_text  # noqa: PLC0415  # docker has no TOML

        return f"value = {toml_text.write(value)}"

    def read_value(self, text: str) -> Any:
        """Return the value that `write_value` wrote. Raises DocumentError."""
        from toolkit_installer.documents import toml_document  # noqa: PLC0415  # as above

        return toml_document.parse(text.encode())["value"]


Engine: TypeAlias = Adapter[Any]
"""Any engine's adapter, with its own type of inspection."""


def choose_quarantine(engine: Engine, store: str) -> str | None:
    """Return the quarantine folder for displaced files, or None if a leftover next to the original is harmless.

    CRI-O reads every file in its folder. `store`: the receipt's folder, which is removed with the receipt. Pure.
    """
    return posixpath.dirname(store) if engine.folders else None


@functools.cache
def get_adapter(name: EngineName) -> Engine:
    """Return the engine's adapter, always the same object; it is imported on first use."""
    module, _, kind = get_row(name).adapter.partition(":")
    made: Engine = getattr(importlib.import_module(module), kind)()
    return made
