"""Killed before any call of a change to or from the NRI plugin: one way is whole then, and each way on is."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.node.conftest import in_memory
from tests.node.faults import Outcome, Plan, invoke, run
from tests.node.sweeps import soundness, trees, warm
from tests.node.sweeps.trees import Tree
from tests.support import fake_ctk
from tests.support.fake_node import CONFIG_TOML, DEADLINE, TOOLKIT, FakeNode
from tests.support.quick import Few
from tests.unit.nri.nri_engine import NriEngine
from toolkit_installer.node import signals

Count = Callable[[int, Sequence[str]], None]
SIGKILLED = -9
THEIRS = b"version = 2\n# theirs\n"
SPECIFICATION = "/etc/cdi/management.nvidia.com-gpu.yaml"
OURS = b"nvidia-cdi-hook"
NRI = ("run", "--method", "nri", "--nri-namespace", "gpu", "--cdi-output-dir", os.path.dirname(SPECIFICATION))
HANDLERS = ("run", "--no-daemon")
UNINSTALL = ("uninstall",)


class Machine:
    """A node whose engine takes plugins, and the program on it."""

    def __init__(self, folder: Path, payload: Path, engine: NriEngine) -> None:
        self.folder = folder
        self.node = FakeNode(folder / "node", payload)
        self.engine = engine
        self._present: Tree = trees.taken(self.node)

    def put(self, tree: Tree) -> None:
        """Make the node what the tree says."""
        trees.put(self.node.root, tree, self._present)
        self._present = tree

    def taken(self) -> Tree:
        """Return what the node is now."""
        self._present = trees.taken(self.node)
        return self._present

    def do(self, words: Sequence[str], plan: Plan | None = None) -> Outcome:
        """Run a command to its end, with the faults of a plan."""
        done = run(self.node, self.folder, *words, "--reload-budget", "999/1", engine="containerd", plan=plan)
        self.taken()
        return done

    def calls_until_it_waits(self, words: Sequence[str]) -> int:
        """Run a command until it waits, and kill it there; return how many calls it has made."""
        counted, counting = os.pipe()

        def count() -> None:
            os.write(counting, b".")

        plan = Plan(pause=count)
        said = self.folder / "said"
        said.write_text("")
        arguments = self.node.arguments(words[0], *words[1:], "--reload-budget", "999/1", engine="containerd")
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                output = os.open(said, os.O_WRONLY | os.O_TRUNC)
                for stream in (1, 2):
                    os.dup2(output, stream)
                signals.block()
                invoke(arguments, plan)
            os._exit(99)
        os.close(counting)
        deadline = time.monotonic() + DEADLINE
        while "event=waiting" not in said.read_text():
            assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, said.read_text()
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with open(counted, "rb") as file:
            number = len(file.read())
        self.taken()
        return number


@pytest.fixture
def machine(tmp_path: Path, with_ctk: Path) -> Iterator[Machine]:
    with in_memory(tmp_path) as folder, warm.quick():
        root = folder / "node"
        for inside in ("etc/containerd", "etc/cdi", "run", "usr/local", "var"):
            (root / inside).mkdir(parents=True)
        (root / "var/run").symlink_to("/run")
        fake_ctk.driver(root / fake_ctk.DRIVER.lstrip("/"))
        with NriEngine(root / "run/nri/nri.sock") as engine:
            made = Machine(folder, with_ctk, engine)
            made.node.write(CONFIG_TOML, THEIRS, 0o640)
            made.taken()
            yield made
            made.node.close()


def ways(tree: Tree) -> list[str]:
    """Return which ways a container has to the GPU: those that are whole."""
    toolkit = tree.get(TOOLKIT) is not None
    specification, config = tree.get(SPECIFICATION), tree[CONFIG_TOML].content
    assert isinstance(config, bytes)
    found = []
    if toolkit and specification is not None and isinstance(specification.content, bytes):
        found += ["nri"] if OURS in specification.content else []
    return found + (["handlers"] if toolkit and b"nvidia" in config else [])


class Ways:
    """What must hold of a node on which a command was killed: at once, and after each of the ways on."""

    def __init__(self, machine: Machine, original: Tree, *, whole: bool) -> None:
        self.machine = machine
        self.original = original
        self.whole = whole
        """Whether there was a way to the GPU before, which is to be there at each instant."""
        self._known: dict[object, list[str]] = {}

    def problems(self, tree: Tree) -> list[str]:
        """Return what is wrong; of trees that are alike, one is looked at."""
        key = frozenset(tree.items())
        if key not in self._known:
            self._known[key] = [*self._at_once(tree), *self._ways_on(tree)]
        return self._known[key]

    def _at_once(self, tree: Tree) -> Iterator[str]:
        if self.whole and not ways(tree):
            yield "there is no way to the GPU"
        self.machine.put(tree)
        yield from (f"{handler} does not run" for handler in self.machine.node.broken_runtimes())

    def _ways_on(self, tree: Tree) -> Iterator[str]:
        machine = self.machine
        machine.put(tree)
        yield from self._given_back("taken back")
        machine.put(tree)
        done = machine.do(HANDLERS)
        if done.code != 0 or ways(machine.taken()) != ["handlers"]:
            yield f"by handlers: exit {done.code}, there is {ways(machine.taken())}: {done.output}"
        yield from self._given_back("by handlers, taken back")
        machine.put(tree)
        again = machine.node.waiting(*NRI[1:], engine="containerd")
        if ways(machine.taken()) != ["nri"] or machine.node.read(CONFIG_TOML) != THEIRS:
            yield f"by the plugin: there is {ways(machine.taken())}: {again.output}"
        code = again.stop()
        if code != 0 or (wrong := differences(machine.taken(), self.original)):
            yield f"by the plugin, at its end: exit {code}, {wrong}: {again.output}"

    def _given_back(self, when: str) -> Iterator[str]:
        done = self.machine.do(UNINSTALL)
        if done.code != 0:
            yield f"{when}: exit {done.code}: {done.output}"
        yield from (f"{when}: {wrong}" for wrong in differences(self.machine.taken(), self.original))
        yield from (f"{when}: {path} is left over" for path in soundness.leftovers(self.machine.taken()))


def differences(tree: Tree, original: Tree) -> list[str]:
    """Return how a node that was given back differs from what it was: the reloads are counted on, until the boot."""
    folder = os.path.dirname(trees.RELOADS)
    left = {path: entry for path, entry in tree.items() if path != trees.RELOADS}
    if folder not in original and not any(path.startswith(f"{folder}/") for path in left):
        left.pop(folder, None)
    return trees.differences(left, original)


def swept(machine: Machine, words: Sequence[str], judge: Ways, calls: int, few: Few, count_instants: Count) -> None:
    """Kill a command before each of its calls, and judge what is left."""
    before = machine.taken()
    attempts = few(range(calls))
    wrong, broken = [], set()
    for at in attempts:
        machine.put(before)
        killed = machine.do(words, Plan(at))
        assert killed.code == SIGKILLED, killed.output
        problems = judge.problems(machine.taken())
        wrong += [f"killed before call {at} of {calls}: {problem}" for problem in problems]
        broken |= {str(at)} if problems else set()
    count_instants(len(attempts), sorted(broken))
    shown = "\n".join(wrong[:30])
    assert not wrong, f"{len(broken)} of {len(attempts)} instants are broken:\n{shown}"


@pytest.mark.parametrize("whole", [False, True], ids=["first-install", "from-handlers"])
def test_killed_at_any_instant_of_the_change_to_the_plugin_one_method_works(
    machine: Machine, few: Few, count_instants: Count, *, whole: bool
) -> None:
    original = machine.taken()
    if whole:
        assert machine.do(HANDLERS).code == 0
    before = machine.taken()
    calls = machine.calls_until_it_waits(NRI)
    machine.put(before)
    swept(machine, NRI, Ways(machine, original, whole=whole), calls, few, count_instants)


@pytest.mark.parametrize("words", [HANDLERS, UNINSTALL], ids=["to-handlers", "uninstall"])
def test_killed_at_any_instant_of_going_from_the_plugin_each_way_on_is_whole(
    machine: Machine, few: Few, count_instants: Count, words: Sequence[str]
) -> None:
    original = machine.taken()
    machine.calls_until_it_waits(NRI)
    before = machine.taken()
    assert ways(before) == ["nri"]
    calls = len(machine.do(words).calls)
    machine.put(before)
    swept(machine, words, Ways(machine, original, whole=words is HANDLERS), calls, few, count_instants)
