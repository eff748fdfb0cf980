"""What every engine's adapter offers, and the values that it works with."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from toolkit_installer.documents.changes import Table, same
from toolkit_installer.engines.ownership import CgroupSetting, Fault, ListedRuntime, Ownership
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Found, Metadata
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode


class EngineSilentError(InstallerError):
    """The engine does not answer (yet). The text is its own, or the connection's."""


class Live(msgspec.Struct, frozen=True):
    """What the running engine says of itself.

    `handlers` maps a handler's name to its executable, None where the engine does not tell the path.
    """

    version: str
    handlers: Mapping[str, str | None]
    default: str | None
    process: Process | None = None
    own: frozenset[str] = frozenset()
    """Handlers that a distribution registered on its own, because it found the toolkit when the engine started.

    They are none of ours, and go when it is started again without the toolkit.
    """
    containers_outlive_it: bool | None = True
    """Whether running containers go on when it ends, as they do with most; None where it does not tell."""
    running: int | None = None
    """How many containers run, where it tells that with the rest."""
    cdi_folders: tuple[str, ...] | None = None
    """Where it looks for CDI specifications; nowhere: CDI is off in it. None where it does not tell."""
    cdi_folders_if_on: tuple[str, ...] = ()
    """Where it would look if CDI were not off in it, as far as it tells."""
    cgroup_drivers: Mapping[str, str] = {}
    """Who makes the control groups of each handler's containers, as far as it tells: systemd, or cgroupfs."""

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        """Raise ConfigurationError if the engine would die of the signal that makes it read a file with `content`.

        Most do not. The line is the one in `seen`: the file as it stands, where `content` is what is to come. Pure.
        """

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor of a version such as "v2.1.4" or "1.6.20~ds1", None where it is not known."""
        return release_of(self.version)


def release_of(version: str) -> tuple[int, int] | None:
    """Return major and minor of an engine's version, None where it is not known. Pure."""
    match = re.match(r"v?(\d+)\.(\d+)", version) if version else None
    return (int(match[1]), int(match[2])) if match else None


class Reload(msgspec.Struct, frozen=True):
    """How this engine is made to take its configuration over. `unit` is set for systemd.

    `restarts`: another process serves afterwards, so the old one's answers prove nothing.
    """

    mode: ReloadMode
    unit: str | None = None
    restarts: bool = False
    by_itself: bool = False
    """The engine takes the change over without being asked."""
    ends_after_calls: bool = False
    """The engine ends once it has answered every call: that of a kubelet which stops us waits for us in turn."""
    watched_by: str = ""
    """A distribution that sees the change and restarts the engine on its own: it is waited for, no more."""


HOOK_ROLE = "hook"
"""The role of an OCI hook, which is a file of an engine but no configuration."""


class EngineFile(msgspec.Struct, frozen=True):
    """One of the engine's files as it is now. `path` is canonical; `role` names it among the engine's files."""

    role: str
    path: str
    found: Found | None

    @property
    def content(self) -> bytes | None:
        """The bytes, None where there is no file."""
        return None if self.found is None else self.found.content


class Inspection(msgspec.Struct, frozen=True):
    """An engine as it was found. `live` is None where nothing answers on its socket; `silence` says what was heard."""

    socket: str
    files: tuple[EngineFile, ...]
    live: Live | None
    silence: str = ""
    imported: tuple[tuple[str, bytes], ...] = ()
    """Files that the engine reads beside its own: path and content, in the order in which they are read."""
    elsewhere: str = ""
    """The file that the running engine reads in place of the one that `--config` names; empty: that one, or unknown."""

    def file(self, role: str) -> EngineFile:
        """Return the file of that role."""
        return next(file for file in self.files if file.role == role)

    @property
    def process(self) -> Process | None:
        """The process that answered, None where none did or it is not known."""
        return self.live.process if self.live is not None else None


class Recorded(msgspec.Struct, frozen=True):
    """What the receipt remembers of a file.

    `before`: the base that was kept, which cleanup puts back (None: no file). `written`: the SHA-256 of every content
    of ours that may stand there. `ownership`: what of those is ours, value by value. `handlers`: those of the engine,
    in whatever file. `defaults`: the default runtimes of the engine's files before us, by role. `metadata`: what the
    file carried when `before` was read. `kept`: where the copy of `before` lies. `role`: that of the file.
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
    """What a file is to be; `file` is what it is now.

    `base`: what cleanup leaves (None: no file). `target`: what stands there while we are installed.
    `left`: what of ours is left alone because somebody changed it since, in words.
    `notes`: what else there is to say once the file is without us.
    `metadata`: what a file gets that is missing; None: what a new one has.
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
        """What names the file among the engine's files."""
        return self.file.role

    @property
    def path(self) -> str:
        """The file's canonical path."""
        return self.file.path

    @property
    def changes(self) -> bool:
        """Whether the file does not hold `target` already."""
        return self.target != self.file.content

    def holding(self, text: bytes, parse: Callable[[bytes], Table], ownership: Ownership) -> DesiredFile:
        """Return the file with `text` as its target, or with what it holds now if that says the same otherwise."""
        present = self.file.content
        target = present if present is not None and same(parse(present), parse(text)) else text
        return msgspec.structs.replace(self, target=target, ownership=ownership)


class DesiredState(msgspec.Struct, frozen=True):
    """What all files of an engine are to be, in the order in which they are written; cleanup goes backwards."""

    files: tuple[DesiredFile, ...]
    served: Mapping[str, str]
    """Handlers, by name, and the executables that the live engine should show for them."""
    default: str | None
    low_level: tuple[str, ...] = ()
    """The executables that the engine itself runs containers with, the default runtime's first."""
    notes: tuple[str, ...] = ()
    restart_why: str = ""
    """What the live engine takes over by a restart only, in words; empty: nothing. Where it is restarted at all."""
    dangers: tuple[str, ...] = ()
    """What may go wrong when the engine is reloaded, in words."""
    cdi_on: bool = False
    """The live engine is to have CDI on."""
    faults: tuple[str, ...] = ()
    """What is wrong with the engine's files without us, with file and line; no reason to refuse them."""
    freed: str = ""
    """The folder in which no handler of the live engine is to have its executable any more; empty: none is named."""


_Found = TypeVar("_Found", bound=Inspection)


class Trials(msgspec.Struct, frozen=True):
    """What became of short containers through some handlers.

    `faults`: the handlers that do not work, and why, in the engine's words. `unknown`: why nothing is known of any.
    """

    faults: Mapping[str, str]
    unknown: str = ""


class Adapter(Protocol[_Found]):
    """An engine's adapter. `_Found` is what it finds of its engine, and works with."""

    @property
    def name(self) -> EngineName:
        """The engine that this adapter is for."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The usual folders of which the engine reads every file, whatever its name; none for most."""
        return ()

    def has_role(self, role: str) -> bool:
        """Tell whether a file of this engine's may have that role. Pure."""

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role, wherever it lies, may be called `name`. Pure."""

    def inspect(self, node: Node, target: EngineTarget) -> _Found:
        """Look at the engine: read its files, ask the live one. Writes nothing. Raises ConfigurationError."""

    def desired(self, inspection: _Found, request: Request, records: Mapping[str, Recorded]) -> DesiredState:
        """Return what the files should be; pure. Raises ConfigurationError for what it cannot work with."""

    def recognised(self, inspection: _Found, toolkit_folder: str) -> Mapping[str, Ownership]:
        """Return what is ours by path though no receipt says so, beside the runtimes in our toolkit folder.

        Pure. Raises ConfigurationError.
        """

    def without_us(self, file: EngineFile, recorded: Recorded, toolkit_folder: str) -> DesiredFile:
        """Return what a file should be once we are gone: its target is its base. Pure. Raises ConfigurationError."""

    def default_of(self, file: EngineFile) -> str | None:  # noqa: ARG002  # what engines with several files need
        """Return the default runtime that a file names, which this installer may leave unedited; None for none. Pure.

        Raises ConfigurationError.
        """
        return None

    def others_naming(
        self,
        node: Node,  # noqa: ARG002  # what engines with several files need
        live: Live | None,  # noqa: ARG002
        known: Mapping[str, str],  # noqa: ARG002
        handlers: Collection[str],  # noqa: ARG002
        defaults: Mapping[str, str],  # noqa: ARG002
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the engine's files beside the `known` ones whose default runtime is one of `handlers`, which go.

        `known` are the recorded ones, role to path. `live` is None also where the engine was not asked. Each file comes
        with what is to go of it: an engine does not start with a default that it does not know. One that cannot be read
        counts as naming none.
        """
        return ()

    def reload(self, node: Node, inspection: Inspection, settings: EngineSettings) -> Reload:
        """Decide how the engine is reloaded. Raises ConfigurationError where it cannot be as asked."""

    def try_out(self, node: Node, inspection: _Found, desired: DesiredState) -> None:
        """Let the live daemon's own binary read the new configuration. Writes nothing.

        Raises ConfigurationError if it refuses it, or would lose something by it; says nothing if it cannot be asked.
        """

    def refusal(self, node: Node, process: Process) -> str | None:
        """Return why the engine's process, started again now, would not take its files as they are on the node.

        None where nothing is known against it. Writes nothing.
        """

    def dangers(self, node: Node, inspection: Inspection, reload: Reload) -> tuple[str, ...]:  # noqa: ARG002  # most have none
        """Return warnings about this way of reloading, one sentence each."""
        return ()

    def transitional(self, content: bytes | None) -> bytes | None:  # noqa: ARG002  # what docker needs
        """Return the text on which the engine may be signalled instead of `content`; None: on `content` itself."""
        return None

    def ask(self, node: Node, socket: str, seconds: float) -> Live:
        """Ask the live engine. Raises EngineSilentError."""

    def reads_instead(self, node: Node, live: Live, files: Mapping[str, str]) -> str:
        """Return what the live engine reads where it reads none of our files, whose paths are given by their roles.

        Empty where it reads one of them, or that cannot be told. Raises NodeError.
        """

    def faults(
        self,
        node: Node,  # noqa: ARG002  # some engines have files whose faults are known
        socket: str,  # noqa: ARG002
        live: Live | None,  # noqa: ARG002
        files: Mapping[str, str],  # noqa: ARG002
        *,
        as_written: bool,  # noqa: ARG002
    ) -> tuple[Fault, ...]:
        """Return what is wrong with the engine's files as they are, ours included. Reads, and raises nothing.

        A file that cannot be parsed is among it, also one that the engine reads beside ours.

        `live` is None where the engine does not answer. `files`: those that we manage, by their roles; `as_written`:
        nobody changed them since a run checked them.
        """
        return ()

    def other_files(
        self,
        node: Node,  # noqa: ARG002  # most engines have no others
        asked: EngineSettings,  # noqa: ARG002
        files: Mapping[str, str],  # noqa: ARG002
        toolkit_folder: str,  # noqa: ARG002
        defaults: Mapping[str, str],  # noqa: ARG002
    ) -> Sequence[tuple[EngineFile, Ownership]]:
        """Return the files that the engine reads beside `files`, which are given by role, and that name our folder.

        Other programs may have copied our handlers there, without a receipt of it. What is ours in a file is a default
        that names such a handler; `defaults` are those that the recorded files named before us, by role. Raises
        ConfigurationError.
        """
        return ()

    def still_serving(
        self,
        node: Node,  # noqa: ARG002  # most engines tell by their answer
        live: Live,  # noqa: ARG002
        toolkit_folder: str,  # noqa: ARG002
    ) -> str:
        """Return which file and line keeps handlers in the toolkit's folder served after a restart; "" for none."""
        return ""

    def listed(self, files: Sequence[tuple[str, bytes]], version: str) -> Sequence[ListedRuntime]:  # noqa: ARG002
        """Return the runtimes of these files, which the engine reads in this order. Pure. Raises ConfigurationError.

        `version` is the engine's own, "" where it is not known.
        """
        return ()

    def cgroup_driver(self, files: Sequence[tuple[str, bytes]], version: str) -> CgroupSetting | None:  # noqa: ARG002
        """Return the cgroup driver of these files, None where they name none. Pure. Raises ConfigurationError."""
        return None

    def cgroup_switch(self, driver: str) -> str:
        """Return in words the edit that makes the engine use a cgroup driver, `systemd` or `cgroupfs`. Pure."""
        return f"make {self.name} use the cgroup driver {driver}"

    def cdi_switch(self) -> str:
        """Return in words the edit that switches CDI on in the engine. Pure."""
        return f"switch CDI on in {self.name}"

    def stranded(
        self,
        node: Node,  # noqa: ARG002  # what CRI-O needs
        inspection: Inspection,  # noqa: ARG002
        desired: Sequence[DesiredFile],  # noqa: ARG002
        is_ours: Callable[[Live], set[str]],  # noqa: ARG002
    ) -> tuple[str, ...]:
        """Return in words the pods that the engine could neither stop nor delete once its files are `desired`.

        None for most: dockerd remembers how each container was started, and containerd's shims know their runtimes.
        Only pods of the handlers that `is_ours` names count. Of `inspection`, `live` is None where the engine was not
        asked yet, or does not run. Raises EngineSilentError.
        """
        return ()

    def try_handlers(self, node: Node, socket: str, seconds: float, handlers: Mapping[str, bool]) -> Trials:
        """Start a short container through each handler, see whether it runs, and remove it in every case.

        The value of `handlers` tells whether a container has to see the node's GPUs; the name "" is the engine's
        default. What a killed run left is removed too. Raises EngineSilentError.
        """

    def signal(self, node: Node, process: Process) -> None:
        """Signal the live engine's process to reload. Raises ConfigurationError."""

    def parse(self, content: bytes) -> Table:
        """Return what one of the engine's files means; most are TOML. Raises DocumentError."""
        from toolkit_installer.documents import toml_document  # noqa: PLC0415  # docker needs none of it

        return toml_document.parse(content)

    def write_value(self, value: Any) -> str:
        """Return a value of the engine's files in their own syntax, for the receipt; most have TOML."""
        from toolkit_installer.documents import toml_text  # noqa: PLC0415  # docker needs none of it

        return f"value = {toml_text.write(value)}"

    def read_value(self, text: str) -> Any:
        """Return the value that `write_value` wrote. Raises DocumentError."""
        from toolkit_installer.documents import toml_document  # noqa: PLC0415  # as above

        return toml_document.parse(text.encode())["value"]


Engine: TypeAlias = Adapter[Any]
"""Any engine's adapter, with what itself has found."""


def quarantine(engine: Engine, store: str) -> str | None:
    """Return the quarantine folder for displaced files, or None if a leftover beside the original is harmless.

    CRI-O reads every file in its folder. `store`: the receipt's folder, which goes with the receipt. Pure.
    """
    return posixpath.dirname(store) if engine.folders else None
