"""Nodes, commands and states for trying every instant: a node is a value, so each is tried from where it stands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

from tests.node.engines.live import SOCKET, FakeContainerd, FakeCrio, FakeDockerd, LiveEngine
from tests.node.engines.rules import Served, started
from tests.node.faults import NEVER, RENAMES, Call, Outcome, Plan
from tests.node.sweeps import soundness, trees
from tests.node.sweeps.trees import Tree
from tests.node.sweeps.warm import Warm
from tests.support import fake_ctk, payloads
from tests.support.fake_node import CONFIG_TOML, CRIO_SITE, DAEMON_JSON, STORE, TOOLKIT, Entry, FakeNode
from toolkit_installer.driver import cdi
from toolkit_installer.node import programs
from toolkit_installer.node.programs import CompletedProgram

OWNER = (4321, 1234) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
XATTRS = (("user.origin", b"config management \x00\xff"),)

_DOCKER = b"""{
\t"log-driver": "json-file",

\t"log-opts": { "max-size": "10m" },   "big": 12345678901234567890123
}"""
_VERSION_2 = b"""\
version = 2
# what the operator thinks
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc" # keep
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[debug]
level = "info"\
"""
_VERSION_3 = b"""\
version = 3
imports = ["/etc/containerd/site.d/*.toml"]
# what the operator thinks
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
"""
_CRIO = b"""\
# what the operator thinks
[crio.runtime]
default_runtime = "crun" # keep
[crio.runtime.runtimes.crun]
  runtime_path = "/usr/libexec/crio/crun"
  monitor_path = "/usr/libexec/crio/conmon"
"""
SPECIFICATION = "/etc/cdi/management.nvidia.com-gpu.yaml"
_TEMPLATE = b'[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig.real"\n'


@dataclasses.dataclass(frozen=True)
class Make:
    """One kind of node: the engine, its file (None: not even a folder), and whether the engine lives."""

    name: str
    engine: str
    path: str
    content: bytes | None
    live: Callable[[FakeNode], LiveEngine] | None = None
    flags: tuple[str, ...] = ()
    specification: bytes | None = None
    """Somebody's CDI specification where ours is to be; None: CDI is off."""
    by_method: bool = False
    """Whether ours is written is for `--method` to say."""

    def __str__(self) -> str:
        return self.name


MAKES = (
    Make("docker", "docker", DAEMON_JSON, _DOCKER, FakeDockerd, ("--socket", SOCKET)),
    Make("docker-down-without-file", "docker", DAEMON_JSON, None),
    Make("containerd", "containerd", CONFIG_TOML, _VERSION_3, FakeContainerd, ("--socket", "/run/containerd.sock")),
    Make("crio-down", "crio", CRIO_SITE, _CRIO),
    Make("containerd-down-in-place", "containerd", CONFIG_TOML, _VERSION_2),
    Make("docker-down-with-cdi", "docker", DAEMON_JSON, _DOCKER, specification=b"kind: management.nvidia.com/gpu\n"),
)


_READS = os.path.dirname(SPECIFICATION)
_CDI_IS_OFF = b"[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"
_THEIRS = b"kind: management.nvidia.com/gpu\n"
METHOD_MAKES = (
    Make(
        "docker-that-reads-cdi",
        "docker",
        DAEMON_JSON,
        _DOCKER,
        lambda node: FakeDockerd(node, CDISpecDirs=[_READS]),
        ("--socket", SOCKET),
        _THEIRS,
        by_method=True,
    ),
    Make(
        "containerd-that-reads-cdi",
        "containerd",
        CONFIG_TOML,
        _VERSION_3,
        lambda node: FakeContainerd(node, (_READS,)),
        ("--socket", "/run/containerd.sock"),
        _THEIRS,
        by_method=True,
    ),
    Make(
        "containerd-with-cdi-off",
        "containerd",
        CONFIG_TOML,
        _VERSION_3 + _CDI_IS_OFF,
        lambda node: FakeContainerd(node, (_READS,)),
        ("--socket", "/run/containerd.sock"),
        _THEIRS,
        by_method=True,
    ),
    Make(
        "crio",
        "crio",
        CRIO_SITE,
        _CRIO,
        lambda node: FakeCrio(node, (_READS,)),
        ("--socket", "/run/crio.sock"),
        _THEIRS,
        by_method=True,
    ),
)
"""Nodes on which both methods can be had; in one of them CDI is switched off."""


@dataclasses.dataclass(frozen=True)
class Command:
    """One way to call the program. `older` names its payload; `stopped`: a SIGTERM is there when it starts."""

    words: tuple[str, ...]
    older: bool = True
    stopped: bool = False
    stop_at: int = NEVER


OTHER = ("--runtime-name=gpu", "--set-as-default=false", "--nvidia-container-runtime-debug=/var/log/nvidia.log")
INSTALL = Command(("run", "--no-daemon"))
REINSTALL = Command(("run", "--no-daemon"), older=False)
CONVERGE = Command(("run", "--no-daemon", *OTHER))
CLEANUP = Command(("run",), stopped=True)
UNINSTALL = Command(("uninstall",))
BY_CDI = Command(("run", "--no-daemon", "--method=cdi"))


@dataclasses.dataclass(frozen=True)
class World:
    """A node and its live engine, between two commands."""

    tree: Tree
    served: Served | None

    def rebooted(self, engine: str) -> World:
        """Return it after a power cut: nothing in /run survives, and the engine reads its files anew."""
        tree = trees.rebooted(self.tree)
        return World(tree, None if self.served is None else started(engine, tree))

    def differences(self, wanted: World) -> list[str]:
        """Return in words how it differs from another."""
        wrong = trees.differences(self.tree, wanted.tree)
        if self.served is not None and wanted.served is not None and self.served.again() != wanted.served.again():
            wrong.append(f"the engine serves {self.served}, not {wanted.served}")
        return wrong

    def key(self) -> tuple[object, ...]:
        """Return what tells it from others; two with the same one lead to the same."""
        return frozenset(self.tree.items()), self.served and self.served.again()


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command did."""

    outcome: Outcome
    world: World


@contextlib.contextmanager
def _asked_once(inside: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Have what nvidia-ctk makes of a driver made once: neither changes, and the fork for it is a tenth of a run."""
    known = dict[tuple[tuple[str, ...], bytes], CompletedProgram]()

    def run(command: Sequence[str], *, seconds: float, given: bytes = b"") -> CompletedProgram:
        if "cdi" not in command:
            return programs.run(command, seconds=seconds, given=given)
        key = (tuple(command), given)
        if key not in known:
            known[key] = programs.run(command, seconds=seconds, given=given)
        return known[key]

    with inside(), mock.patch.object(cdi, "run", run):
        yield


class Bench:
    """Runs commands on worlds of one make, and remembers what the whole ones lead to."""

    def __init__(self, folder: Path, make: Make, images: tuple[Path, ...]) -> None:
        self.make = make
        self.images = images
        self.drivers: tuple[Path, ...] = ()
        if make.specification is not None:
            copies = (shutil.copytree(image, folder / image.name, symlinks=True) for image in images)
            self.images = tuple(map(fake_ctk.into, copies))
            versions = (fake_ctk.VERSION, fake_ctk.NEWER)
            self.drivers = tuple(fake_ctk.driver(folder / version, version) for version in versions)
        self.node = FakeNode(folder / "node", images[0])
        self.node.root.mkdir(parents=True)
        self._present: Tree = {}
        self.original = World(self._original(), None)
        self._place(self.original.tree)
        self.live = make.live(self.node) if make.live is not None else None
        if self.live is not None:
            self.original = World(self.original.tree, started(make.engine, self.original.tree).again())
        inside = self.live.inside if self.live is not None else contextlib.nullcontext
        self.warm = Warm(functools.partial(_asked_once, inside) if self.drivers else inside)
        self._done: dict[object, Done] = {}

    @property
    def toolkit(self) -> str:
        """Where the toolkit's folder is, outside the node."""
        return self.outside(TOOLKIT)

    def outside(self, path: str) -> str:
        """Return where a node's path is, outside the node."""
        return str(self.node.place(path))

    def close(self) -> None:
        self.warm.close()
        if self.live is not None:
            self.live.close()

    def do(self, world: World, command: Command, plan: Plan | None = None) -> Done:
        """Run a command on a world, with the faults of a plan; return what became of both."""
        self.place(world)
        plan = plan or Plan()
        plan.stop_at = command.stop_at
        outcome = self.warm.run(self.arguments(command), plan, stopped=command.stopped)
        return Done(outcome, self.taken())

    def instants(self, world: World, command: Command) -> tuple[Done, list[World]]:
        """Run a command, and return also what there was before each of its calls: what a kill there leaves."""
        found: list[World] = []
        self.place(world)
        outcome = self.warm.run(
            self.arguments(command),
            Plan(stop_at=command.stop_at),
            stopped=command.stopped,
            at_each=lambda: found.append(self.taken()),
        )
        return Done(outcome, self.taken()), found

    def place(self, world: World) -> None:
        """Make the node, and its live engine, what the world says."""
        self._place(world.tree)
        if self.live is not None:
            assert world.served is not None
            self.live.put(world.served)

    def taken(self) -> World:
        """Return what the node and its live engine are now."""
        self._present = trees.taken(self.node)
        return World(self._present, self.live.take() if self.live is not None else None)

    def whole(self, world: World, command: Command) -> Done:
        """Run a command without faults; what was run before from an equal world is not run again."""
        key = (world.key(), command)
        if key not in self._done:
            self._done[key] = self.do(world, command)
        return self._done[key]

    def after(self, world: World, *commands: Command) -> World:
        """Return what whole commands make of a world; each must end well."""
        for command in commands:
            done = self.whole(world, command)
            assert done.outcome.code == 0, done.outcome.output
            world = done.world
        return world

    def arguments(self, command: Command) -> list[str]:
        """Return the command line."""
        which = 0 if command.older else 1
        self.node.payload = self.images[which]
        by_cdi = self._cdi(self.drivers[which]) if self.drivers else ()
        if self.make.by_method:
            by_cdi = tuple(flag for flag in by_cdi if flag != "--cdi-enabled")
        # an engine that does not come back is waited for once in each of the matrix's many runs
        flags = (*self.make.flags, *by_cdi, "--reload-budget", "999/1", "--reload-timeout", "5")
        return self.node.arguments(*command.words, *flags, engine=self.make.engine, log_format="json")

    @staticmethod
    def _cdi(driver: Path) -> tuple[str, ...]:
        folder = os.path.dirname(SPECIFICATION)
        return "--cdi-enabled", f"--cdi-output-dir={folder}", f"--driver-root-ctr-path={driver}"

    def _place(self, tree: Tree) -> None:
        trees.put(self.node.root, tree, self._present)
        self._present = tree

    def _original(self) -> Tree:
        own = (os.geteuid(), os.getegid())
        folders = ["/etc", "/run", "/usr", "/usr/local"]
        tree: dict[str, Entry] = {}
        if self.make.content is not None:
            folders += _between("/etc", os.path.dirname(self.make.path))
            tree[self.make.path] = Entry("-", 0o640, OWNER, self.make.content, XATTRS)
        if self.make.specification is not None:
            folders.append(os.path.dirname(SPECIFICATION))
            tree[SPECIFICATION] = Entry("-", 0o640, OWNER, self.make.specification, XATTRS)
        return tree | {folder: Entry("d", 0o755, own, "", ()) for folder in folders}


def _between(folder: str, last: str) -> Iterator[str]:
    """Yield the folders beneath `folder` that lead to `last`, which is one of them."""
    parts = os.path.relpath(last, folder).split("/")
    yield from (os.path.join(folder, *parts[: count + 1]) for count in range(len(parts)))


@contextlib.contextmanager
def bench(folder: Path, make: Make, images: tuple[Path, Path]) -> Iterator[Bench]:
    """Yield a bench; what it started ends with it."""
    made = Bench(folder, make, images)
    try:
        yield made
    finally:
        made.close()


def build_images(folder: Path) -> tuple[Path, Path]:
    """Build two payloads, the second a newer one that has a handler less."""
    absent = ("nvidia-container-runtime.cdi", "nvidia-ctk")
    go = "libnvidia-container-go.so.1"
    older = payloads.build(
        folder / "older", version="1.19.0", config=_TEMPLATE, without=(*absent, go, f"{go[:-2]}.1.19.0")
    )
    without = (*absent, "nvidia-container-runtime.legacy", go, f"{go[:-2]}.1.20.0")
    newer = payloads.build(folder / "newer", version="1.20.0", config=_TEMPLATE, without=without)
    return older, newer


# --- the commands that are cut short ---


@dataclasses.dataclass(frozen=True)
class Deed:
    """A command, what it starts from, and what the next run after it is asked for."""

    name: str
    before: tuple[Command, ...]
    command: Command
    finishing: Command

    def __str__(self) -> str:
        return self.name


DEEDS = (
    Deed("first install", (), INSTALL, INSTALL),
    Deed("re-install", (INSTALL,), REINSTALL, REINSTALL),
    Deed("other settings", (INSTALL,), CONVERGE, CONVERGE),
    Deed("back to the former settings", (CONVERGE,), INSTALL, INSTALL),
    Deed("cleanup at SIGTERM", (INSTALL,), CLEANUP, INSTALL),
    Deed("uninstall", (INSTALL,), UNINSTALL, INSTALL),
    Deed("uninstall of other settings", (CONVERGE,), UNINSTALL, CONVERGE),
)

METHOD_DEEDS = (
    Deed("first install by cdi", (), BY_CDI, BY_CDI),
    Deed("from handlers to cdi", (INSTALL,), BY_CDI, BY_CDI),
    Deed("from handlers to cdi, and back to handlers", (INSTALL,), BY_CDI, INSTALL),
    Deed("from cdi to handlers", (BY_CDI,), INSTALL, INSTALL),
    Deed("from cdi to handlers, and back to cdi", (BY_CDI,), INSTALL, BY_CDI),
    Deed("uninstall by cdi", (BY_CDI,), UNINSTALL, BY_CDI),
)


def interrupted(made: Bench) -> Command:
    """Return a first install that is told to stop when the toolkit is in place and the engine is next."""
    trace = made.whole(made.original, INSTALL).outcome.trace
    last = max(at for at, call in enumerate(trace) if brings(call, made.toolkit))
    return dataclasses.replace(INSTALL, words=("run",), stop_at=last)


def brings(call: Call, path: str) -> bool:
    """Tell whether a call makes `path`, or something beneath it, another one at once."""
    return call.name in RENAMES and any(f"{end}/".startswith(f"{path}/") for end in call.paths)


def removes(call: Call, path: str) -> bool:
    """Tell whether a call removes `path`, or something beneath it."""
    return call.name in ("unlink", "rmdir") and any(f"{end}/".startswith(f"{path}/") for end in call.paths)


@dataclasses.dataclass(frozen=True)
class Half:
    """A state that a killed command left: which command, and at which of its calls it was killed."""

    name: str
    deed: Deed
    at: Callable[[Bench, Sequence[Call]], int]

    def __str__(self) -> str:
        return self.name


def _receipts(made: Bench, trace: Sequence[Call]) -> list[int]:
    receipt = made.outside(f"{STORE}/receipt.json")
    return [at for at, call in enumerate(trace) if brings(call, receipt)]


def _middle(made: Bench, trace: Sequence[Call]) -> int:
    """Return the call in the middle of those that change the toolkit."""
    found = [at for at, call in enumerate(trace) if brings(call, made.toolkit) or removes(call, made.toolkit)]
    return found[len(found) // 2]


def _switches(made: Bench, trace: Sequence[Call]) -> list[int]:
    """Return the calls that change one of the engine's files."""
    paths = [made.outside(path) for path in soundness.FILES[made.make.engine]]
    return [at for at, call in enumerate(trace) if any(brings(call, path) or removes(call, path) for path in paths)]


def deed_of(command: Command) -> Deed:
    """Return the first deed that is this command's."""
    return next(deed for deed in DEEDS if deed.command == command)


_TO_CDI, _TO_HANDLERS = METHOD_DEEDS[1], METHOD_DEEDS[3]

METHOD_HALVES = (
    Half("after the engine's file goes to cdi", _TO_CDI, lambda made, trace: _switches(made, trace)[-1] + 1),
    Half("before the receipt is settled by cdi", _TO_CDI, lambda made, trace: _receipts(made, trace)[-1]),
    Half("after the engine's file goes to handlers", _TO_HANDLERS, lambda made, trace: _switches(made, trace)[-1] + 1),
    Half("before the receipt is settled with handlers", _TO_HANDLERS, lambda made, trace: _receipts(made, trace)[-1]),
)

_INSTALL, _REINSTALL, _UNINSTALL = deed_of(INSTALL), deed_of(REINSTALL), deed_of(UNINSTALL)

HALVES = (
    Half("before the receipt", _INSTALL, lambda made, trace: _receipts(made, trace)[0]),
    Half("after the receipt", _INSTALL, lambda made, trace: _receipts(made, trace)[0] + 1),
    Half("amid the toolkit", _INSTALL, _middle),
    Half("amid another toolkit", _REINSTALL, _middle),
    Half("after the engine's file", _INSTALL, lambda made, trace: _switches(made, trace)[-1] + 1),
    Half("before the receipt is settled", _INSTALL, lambda made, trace: _receipts(made, trace)[-1]),
    Half("before the engine's file goes back", _UNINSTALL, lambda made, trace: _switches(made, trace)[0]),
    Half("amid cleanup", _UNINSTALL, _middle),
)
