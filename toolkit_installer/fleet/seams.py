"""Through which functions a plan learns anything of a node: each is a seam at which that is recorded, or played.

A plan asks nothing beside them. A function stands here with what of its arguments tells one question from
another, and with what of its answer may hold a secret. Of one that calls others, only its own answer is kept: a
container's specification, with all the variables in it, is looked at on the node, and never carried off.

Looks at all of a node that a plan may ask about, under whatever flags, while somebody records it. Writes nothing.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import posixpath
import types
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from toolkit_installer.applying import gpu_containers, impact
from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.engines import registry
from toolkit_installer.engines.adapters import get_adapter
from toolkit_installer.engines.detect import own_container
from toolkit_installer.engines.detect.unit_files import TABLE
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.fleet import values
from toolkit_installer.node import machine, owners
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.planning import prepare
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import diagnosis
from toolkit_installer.reporting.support_bundle import explain_blocked_queries
from toolkit_installer.run import dry_run
from toolkit_installer.run.dry_run import DryRun
from toolkit_installer.settings import AUTO, EngineName, Settings, WithoutGpu


class Hides(enum.Enum):
    """What of an answer may hold a secret."""

    NOTHING = "nothing"
    TEXT = "the bytes and words of a file, or of a program's output"
    PUBLIC = "nothing: it is a file of the payload, as NVIDIA ships it"
    JSON = "an object of names and values"
    WORDS = "the words of a command line"


class Seam(msgspec.Struct, frozen=True):
    """A function, or a method, of this program. `asked` are the parameters that tell one question from another."""

    module: str
    name: str
    asked: tuple[str, ...] = ()
    hides: Hides = Hides.NOTHING
    again: bool = False
    """It is an engine's answer, which may have to be waited for: the last one counts, and not the first."""
    keeps: Callable[[Any], Any] | None = None
    """Returns what of the answer is kept, None: all of it."""
    valid: Callable[[Any], bool] | None = None
    """Tells whether a replay may use an answer, beyond the ranges that hold for its type (values.py)."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def says_why(self) -> bool:
        """Whether it raises NodeError, with the path and a hint, in place of the system's errors."""
        return self.module in _OF_FILES and self.name not in _RAISE_ERRORS_OF_THE_SYSTEM

    def owner(self) -> tuple[Any, str]:
        """Return the module, or the class, that has it, and what it is called there."""
        place: Any = importlib.import_module(f"toolkit_installer.{self.module}")
        *around, name = self.name.split(".")
        for each in around:
            place = getattr(place, each)
        return place, name


_OF_FILES = frozenset({"node.files", "node.reading", "node.root"})
"""Modules whose functions read files of the node."""
_RAISE_ERRORS_OF_THE_SYSTEM: Final = frozenset({"Root.mount_of", "read_bounded"})


class Question(msgspec.Struct, frozen=True):
    """A seam's function, and how its arguments are read."""

    seam: Seam
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    defaults: dict[str, Any]
    answer: Any
    """The type of what it returns."""

    @classmethod
    def of(cls, seam: Seam) -> Question:
        """Return the question that is asked at a seam."""
        place, name = seam.owner()
        function = vars(place)[name]
        parameters = inspect.signature(function).parameters
        defaults = {
            key: each.default for key, each in parameters.items() if each.default is not inspect.Parameter.empty
        }
        said = types.SimpleNamespace(__annotations__={"return": function.__annotations__["return"]})
        # what a module names for the type checker alone
        hints = typing.get_type_hints(said, function.__globals__, {"Process": Process})
        return cls(seam, function, tuple(parameters), defaults, hints["return"])

    def arguments(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """Return the arguments that tell this question from others."""
        told = dict(zip(self.parameters, given, strict=False)) | named
        return [told[name] if name in told else self.defaults[name] for name in self.seam.asked]


_PROCESSES: Final = ("containerd-shim", "conmon", "kubelet", "cri-dockerd")
"""How the names of the processes begin that anything is looked for of; a node has hundreds of others."""
_INFO: Final = frozenset(
    {"CDISpecDirs", "ContainersRunning", "DefaultRuntime", "LiveRestoreEnabled", "OperatingSystem", "Runtimes"}
    | {"SecurityOptions", "ServerVersion"}
)
"""What is read of docker's answer, which has much more."""
_VARIABLES: Final = frozenset({"HOME", "PATH", "XDG_CONFIG_HOME"})
_VARIABLES_OF_CRIO: Final = "CONTAINER_"


def _engines_processes(found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    # the kubelets that are part of another process are those of containerd's distributions, which the registry has not
    embedded = (name for row in TABLE for name in row.kubelets)
    wanted = (*_PROCESSES, *embedded, *(name for engine in registry.ENGINES for name in engine.processes))
    return [(pid, name) for pid, name in found if name.startswith(wanted)]


def _read_of_environment(found: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name in _VARIABLES or name.startswith(_VARIABLES_OF_CRIO)}


def _read_of_info(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in _INFO}


_ROOT: Final = "node.root"
_READING: Final = "node.reading"
_LOOK: Final = "node.root"
_COMMAND_LINE: Final = "engines.common.command_line"
_OWN: Final = "engines.detect.own_container"
_SELF: Final = ("self",)
_SELF_PATH: Final = ("self", "path")

SEAMS: Final = (
    # files
    Seam(_ROOT, "Root.canonical", _SELF_PATH, valid=values.is_path),
    Seam(_ROOT, "Root.mount_of", _SELF_PATH, valid=values.is_word),
    *(Seam(_READING, f"Reader.{name}", _SELF_PATH) for name in ("status", "own_status", "digest", "link_target")),
    Seam(_READING, "Reader.list", _SELF_PATH, valid=values.are_names),
    Seam(_READING, "Reader.mount_flags", _SELF_PATH, valid=values.is_word),
    Seam(_READING, "Reader.read_file", _SELF_PATH, Hides.TEXT),
    Seam(_READING, "read_bounded", ("path",), Hides.TEXT, valid=values.is_config),
    Seam(_READING, "Tree.read", ("self", "path", "limit"), Hides.PUBLIC, valid=values.is_config),
    Seam("node.files", "find_obstacle", ("root", "path")),
    *(Seam(_LOOK, name, ("path",)) for name in ("is_folder", "is_present", "leads_to_file", "may_run")),
    Seam(_LOOK, "real", ("path",), valid=values.is_path),
    *(
        Seam("node.places", f"PathTranslator.{name}", _SELF_PATH, valid=values.is_path_if_any)
        for name in ("on_node", "reachable")
    ),
    Seam("node.places", "PathTranslator.seen_here", ("self", "path", "given"), valid=values.is_path_if_any),
    # whom of the node we believe, and its programs
    Seam("node.owners", "list_trusted_users", valid=values.are_users),
    Seam("node.trust", "is_program", ("root", "path")),
    Seam("node.trust", "find_trust_level", ("pid",)),
    Seam("node.programs", "Programs.find_program", ("self", "name"), valid=values.is_path_if_any),
    Seam("node.programs", "Programs.refusal", ("self", "name")),
    Seam("node.programs", "Programs.run", ("self", "command", "given", "keep"), Hides.TEXT),
    # processes, sockets, locks, clocks
    Seam("node.processes", "names", keeps=_engines_processes, valid=values.are_processes),
    Seam("node.processes", "inspect_process", ("pid",), Hides.WORDS),
    Seam("node.processes", "inspect_visible", ("pid",), Hides.WORDS),
    Seam("node.processes", "has_root", ("process", "root")),
    Seam("node.processes", "parent_of", ("process",), valid=values.is_pid_if_any),
    Seam("node.processes", "environment", ("process",), Hides.JSON, keeps=_read_of_environment),
    Seam("node.descriptors", "list_bound_sockets", ("pid",)),
    Seam("node.descriptors", "list_open_files", ("process",)),
    Seam("node.descriptors", "content", ("pid", "name", "limit"), valid=values.is_config),
    Seam("node.sockets", "find_responding_process", ("root", "path"), Hides.WORDS, again=True),
    Seam("node.sockets", "refuse_untrusted", ("root", "path")),
    Seam("node.sockets", "is_listening", ("root", "path")),
    Seam("node.locks", "find_instance", ("files", "path"), valid=values.is_pid_if_any),
    *(Seam("node.machine", name) for name in ("boot_id", "boot")),
    *(Seam("node.machine", name, valid=values.is_time) for name in ("boot_seconds", "now")),
    Seam("node.machine", "architecture"),
    # the engines, and what they see
    Seam(
        *("engines.docker.client", "query_info", ("root", "path"), Hides.JSON),
        again=True,
        keeps=_read_of_info,
        valid=values.is_dockers,
    ),
    Seam("engines.common.cri", "query_status", ("root", "path"), Hides.JSON, again=True),
    Seam("engines.common.cri", "query_pods", ("root", "path"), Hides.JSON, again=True),
    Seam("engines.crio.places", "query_configuration", ("root", "path"), Hides.TEXT, again=True),
    Seam("engines.crio.engine", "usual_socket", ("node",)),
    Seam("engines.common.serving", "is_same_socket", ("one", "path", "other", "socket")),
    Seam(_COMMAND_LINE, "place", ("process", "name")),
    Seam(_COMMAND_LINE, "is_same_file", ("node", "process", "theirs", "ours")),
    Seam(_COMMAND_LINE, "is_in_folder", ("node", "process", "folder", "ours")),
    Seam("engines.detect.kubelet", "_listed", ("process", "folder", "ending")),
    Seam(_OWN, "_is_marked"),
    Seam(_OWN, "_is_inits_root_elsewhere"),
    Seam(_OWN, "_is_on_own_root", ("node", "folder")),
    Seam(_OWN, "_mounts"),
    Seam(_OWN, "_is_system", ("place",)),
    # the driver and its GPUs
    Seam("driver.gpus", "find_gpus", ("node",)),
    Seam("driver.roots", "find_driver", ("node", "toolkit")),
    Seam("driver.roots", "_seen_at", ("node", "toolkit", "place")),
    Seam("driver.roots", "_complete_roots", ("node", "toolkit", "place", "seen_at")),
    Seam("driver.cdi", "SpecificationGenerator.missing_nodes", _SELF),
    Seam("driver.cdi", "SpecificationGenerator.specification", ("self", "nodes_to_come"), Hides.TEXT),
    # its illnesses: the findings alone, and not what was read for them
    Seam("reporting.diagnosis", "diagnose", ("node",)),
    # containers, and what needs the toolkit
    Seam("node.idling", "identity", ("path",)),
    Seam("planning.other_installer", "find_running", ("node", "install_dir")),
    Seam("applying.impact", "find_running_containers", ("node", "name", "folder")),
    Seam("applying.gpu_containers", "find_busy_reasons", ("node", "folder", "by_default")),
    Seam("planning.toolkit_users", "list_users", ("node", "folder")),
    Seam("planning.files_naming", "find_naming_files", ("node", "folder", "instead")),
)

DIGEST: Final = Seam("documents.changes", "sha256")
"""By which contents are compared with what a receipt remembers: of a text without its secrets, too, it is that of the
text as it was."""
REST: Final = Seam("node.signals", "sleep")
MONOTONIC: Final = Seam("node.machine", "monotonic")
"""How time passes while somebody waits for an engine."""


def questions() -> Iterator[Question]:
    """Yield the questions of all seams."""
    return map(Question.of, SEAMS)


def trials() -> Iterator[tuple[EngineName, Seam]]:
    """Yield each engine, and where its own binary is asked about a configuration.

    Without the node, it can be asked about those alone that it was asked about there.
    """
    return _of_adapters("try_out")


def talks() -> Iterator[tuple[EngineName, Seam]]:
    """Yield each engine, and where what it says of itself, its version among that, is put together."""
    return _of_adapters("ask")


def _of_adapters(method: str) -> Iterator[tuple[EngineName, Seam]]:
    for row in registry.ENGINES:
        module, _, kind = row.adapter.partition(":")
        yield row.name, Seam(module.removeprefix("toolkit_installer."), f"{kind}.{method}")


Show = Callable[[Node, Settings, DryRun], object]
"""Makes what `plan` shows, which looks at the node as well."""


def observe(node: Node, settings: Settings, show: Show) -> None:
    """Look at all of it: what these settings ask about first, then what others would.

    Raises ConfigurationError where an engine would be started by being asked. What a plan would refuse is no error:
    the capture is to say the same.
    """
    _refuse_starting(node, settings)
    owners.list_trusted_users()  # asked about symlinks alone, which another payload may have
    for each in _asked(settings):
        with contextlib.suppress(InstallerError):
            _look(node, each, show)
    with contextlib.suppress(InstallerError):
        own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
        diagnosis.diagnose(node, settings)


def _refuse_starting(node: Node, settings: Settings) -> None:
    """Raise ConfigurationError where an engine that somebody stopped would be started by being asked."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    why = explain_blocked_queries(node, settings, trust.load_if_usable(node, store))
    if why is not None:
        raise ConfigurationError(f"{why}: nothing is captured", hint="start it, or mask its socket unit")


def _asked(settings: Settings) -> Iterator[Settings]:
    """Yield these settings, and those that ask about what these leave out."""
    yield settings
    replaced = msgspec.structs.replace
    yield replaced(settings, without_gpu=WithoutGpu.IDLE)
    # another payload is compared with the files themselves, and not with what the receipt knows of them
    yield replaced(settings, toolkit=replaced(settings.toolkit, verify_payload=True))
    sought = dict.fromkeys(("driver_root", "driver_root_ctr_path", "dev_root", "dev_root_ctr_path"), AUTO)
    yield replaced(settings, toolkit=replaced(settings.toolkit, **sought))
    for runtimes in ((), *((name,) for name in registry.names())):
        if runtimes != settings.runtimes:
            yield replaced(settings, runtimes=runtimes)


def _look(node: Node, settings: Settings, show: Show) -> None:
    """Look at what a plan with these settings asks about. Raises InstallerError where it would be refused."""
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    holds = dry_run.find_running_installer(settings, node)
    found = dry_run.simulate_run(settings, node)
    show(node, settings, msgspec.structs.replace(found, stops=holds or found.stops))
    if found.seen is None:
        return
    for look_at in _further(node, settings, found.seen):
        with contextlib.suppress(InstallerError):  # what would be refused is looked at all the same
            look_at()


def _further(node: Node, settings: Settings, seen: Prepared) -> Iterator[Callable[[], object]]:
    """Yield looks at what a plan asks about only where something is to be changed, a reload is due, or files go."""
    folder, store = seen.plan.toolkit.folder, ReceiptStore(node, settings.toolkit.install_dir)
    yield partial(prepare.require_places, node, seen.target, seen.plan, unchanged=True)
    yield partial(dry_run.require_recordable, settings, node, store, seen)
    yield ReloadBudget(node.files, settings.pid_file, settings.reload_budget).require_reload
    yield partial(machine.read_time_zone, node)
    for work in seen.plan.engines:
        for file in (*work.inspection.files, *(wanted.file for wanted in work.desired.files)):
            # which of them is changed, and when it was last, may count for another version of the engine alone
            yield partial(node.files.status, file.path)
            yield partial(node.files.missing_folders, posixpath.dirname(file.path))
        yield partial(impact.find_impact, node, work.name, work.inspection, work.reload, folder)
        if work.inspection.live is not None:
            adapter = get_adapter(work.name)
            yield partial(adapter.stranded, node, work.inspection, (), lambda live: set(live.handlers))
    for by_default in (False, True):
        yield partial(gpu_containers.find_busy_reasons, node, folder, by_default=by_default)
    yield seen.facts.toolkit.in_use
    changing = {wanted.path for work in seen.plan.engines for wanted in work.desired.files}
    yield partial(seen.facts.toolkit.named, changing)
