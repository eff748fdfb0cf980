"""What another engine's file names stays, whatever cuts a command short; without that file all is given back.

Killed before any call that changes the node, or failed by any of them: no file of any engine names an executable that
is gone, at once, after a boot and after the next uninstall, which keeps the toolkit and says so with exit code 3.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from tests.node.faults import Fault, Plan
from tests.node.sweeps import soundness
from tests.node.sweeps.matrix import CLEANUP, INSTALL, MAKES, REINSTALL, UNINSTALL, Bench, Command, World
from tests.node.sweeps.soundness import Grounds
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, TOOLKIT, Entry
from toolkit_installer.errors import ExitCode

LIVE = pytest.mark.parametrize(
    "made",
    [pytest.param(make, id=make.name, marks=pytest.mark.xdist_group(make.name)) for make in MAKES if make.live],
    indirect=True,
)
NAMED = f"{TOOLKIT}/nvidia-container-runtime.legacy"
"""A program that the newer payload lacks: an upgrade would remove this one, too."""
_DOCKERS = f'{{"runtimes": {{"theirs": {{"path": "{NAMED}"}}}}}}\n'
_CONTAINERDS = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.theirs]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.theirs.options]
    BinaryName = "{NAMED}"
"""
COMMANDS = {"uninstall": UNINSTALL, "cleanup at SIGTERM": CLEANUP, "re-install": REINSTALL, "run": INSTALL}

Count = Callable[[int, Sequence[str]], None]


def elsewhere(made: Bench) -> tuple[str, str]:
    """Return the file of an engine that is not the make's, and what an operator wrote into it."""
    return (CONFIG_TOML, _CONTAINERDS) if made.make.engine == "docker" else (DAEMON_JSON, _DOCKERS)


def naming(made: Bench, world: World) -> World:
    """Return a world in which another engine's file names one of the toolkit's programs."""
    path, text = elsewhere(made)
    folder = path.rpartition("/")[0]
    added = {
        folder: world.tree.get(folder, Entry("d", 0o755, (0, 0), "", ())),
        path: Entry("-", 0o600, (0, 0), text.encode(), ()),
    }
    return World({**world.tree, **added}, world.served)


def without(made: Bench, world: World) -> World:
    """Return a world from which the operator has taken that file."""
    path, _ = elsewhere(made)
    gone = {path} if path.rpartition("/")[0] in made.original.tree else {path, path.rpartition("/")[0]}
    return World({name: entry for name, entry in world.tree.items() if name not in gone}, world.served)


class Judge:
    """Tells what is wrong with a world, now and once it is uninstalled, first with the other file and then without."""

    def __init__(self, made: Bench, stages: Sequence[World]) -> None:
        self.made = made
        self.stages = [stage.tree for stage in stages]
        self._known: dict[object, list[str]] = {}

    def problems(self, world: World) -> list[str]:
        key = world.key()
        if key not in self._known:
            booted = world.rebooted(self.made.make.engine)
            self._known[key] = [*self._at_once(world), *("after a boot: " + each for each in self._at_once(booted))]
        return self._known[key]

    def _at_once(self, world: World) -> list[str]:
        grounds = Grounds(self.made.make.engine, self.made.original.tree, self.stages)
        return soundness.judge(world.tree, grounds, world.served) + self._uninstalled(world)

    def _uninstalled(self, world: World) -> list[str]:
        done = self.made.whole(world, UNINSTALL)
        if done.outcome.code != ExitCode.BAD_CONFIGURATION:
            return [f"uninstall ends with {done.outcome.code}: {done.outcome.output}"]
        tree = done.world.tree
        wrong = [] if elsewhere(self.made)[0] in done.outcome.output else ["it is not said what names it"]
        wrong += [f"{NAMED} is gone"] if NAMED not in tree else []
        wrong += [] if soundness.state(tree) == "reverting" else [f"the receipt says {soundness.state(tree)}"]
        for path in soundness.FILES[self.made.make.engine]:
            if tree.get(path) != self.made.original.tree.get(path):
                wrong.append(f"{path} is not as it was")
        last = self.made.whole(without(self.made, done.world), UNINSTALL)
        if last.outcome.code != ExitCode.DONE:
            return [*wrong, f"without the file, uninstall ends with {last.outcome.code}: {last.outcome.output}"]
        tree = {path: entry for path, entry in last.world.tree.items() if not f"{path}/".startswith("/run/nvidia/")}
        return wrong + World(tree, last.world.served).differences(self.made.original)


def begun(made: Bench, command: Command) -> tuple[World, Judge, int]:
    """Return an installed world with the other file, its judge, and the exit code that the whole command ends with."""
    installed = made.after(made.original, INSTALL)
    assert NAMED in installed.tree
    before = naming(made, installed)
    whole = made.whole(before, command)
    expected = ExitCode.BAD_CONFIGURATION if command in (UNINSTALL, CLEANUP) else ExitCode.DONE
    assert whole.outcome.code == expected, whole.outcome.output
    return before, Judge(made, [before, whole.world]), expected


@LIVE
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_killed_at_any_instant_no_engines_file_names_a_program_that_is_gone(
    made: Bench, command: Command, count_instants: Count
) -> None:
    before, judge, expected = begun(made, command)
    whole, worlds = made.instants(before, command)
    assert whole.outcome.code == expected, whole.outcome.output
    wrong = {at: problems for at, world in enumerate([*worlds, whole.world]) if (problems := judge.problems(world))}
    count_instants(len(worlds) + 1, [str(at) for at in wrong])
    assert not wrong


@LIVE
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("fault", [Fault.ONCE, Fault.FULL], ids=["error", "full"])
def test_whichever_call_fails_no_engines_file_names_a_program_that_is_gone(
    made: Bench, command: Command, fault: Fault, count_instants: Count
) -> None:
    before, judge, _ = begun(made, command)
    calls = made.whole(before, command).outcome.calls
    wrong = {}
    for at in range(len(calls)):
        done = made.do(before, command, Plan(at, fault, errno.EIO))
        if problems := judge.problems(done.world):
            wrong[f"{at}, {calls[at]}"] = problems
    count_instants(len(calls), list(wrong))
    assert not wrong
