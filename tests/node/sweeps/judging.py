"""What must hold once a command was cut short: at once, after a boot, after the next run, after a cleanup of either."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.node.sweeps import soundness, trees
from tests.node.sweeps.matrix import UNINSTALL, Bench, Command, World
from tests.node.sweeps.soundness import Grounds
from tests.support.fake_node import STORE


class Judge:
    """Tells what is wrong with a world that a command was cut short on, and with what follows."""

    def __init__(self, made: Bench, stages: Sequence[World], finishing: Command) -> None:
        """`stages`: the whole worlds that the cut one may be between; `finishing`: what the next run is asked for."""
        self.bench = made
        self.grounds = Grounds(made.make.engine, made.original.tree, [stage.tree for stage in stages])
        self.finishing = finishing
        self.goal = made.after(made.original, finishing)
        self._known: dict[object, list[str]] = {}

    def problems(self, world: World) -> list[str]:
        """Return what is wrong now, after a boot, after the next run, and after a cleanup of either."""
        key = world.key()
        if key not in self._known:
            engine = self.bench.make.engine
            self._known[key] = [*self._at_once(world), *self._at_once(world.rebooted(engine), "after a boot: ")]
        return self._known[key]

    def _at_once(self, world: World, when: str = "") -> list[str]:
        wrong = soundness.judge(world.tree, self.grounds, world.served)
        wrong += [f"finished: {problem}" for problem in self._finished(world)]
        wrong += [f"taken back: {problem}" for problem in self.taken_back(world)]
        return [when + problem for problem in wrong]

    def _finished(self, world: World) -> list[str]:
        """Return what is wrong once the next run is done."""
        done = self.bench.whole(world, self.finishing)
        if done.outcome.code != 0:
            return [f"exit {done.outcome.code}: {done.outcome.output}"]
        wrong = [f"{path} is left over" for path in soundness.leftovers(done.world.tree)]
        wrong += _lasting(done.world).differences(_lasting(self.goal))
        if (state := soundness.state(done.world.tree)) != "installed":
            wrong.append(f"the receipt says {state}")
        again = self.bench.whole(done.world, self.finishing)
        touched = {path for call in again.outcome.trace for path in call.paths if not self._passing(path)}
        if again.outcome.code != 0 or touched or again.world.key() != done.world.key():
            wrong.append(f"another run ends with {again.outcome.code} and touches {sorted(touched)}")
        return wrong + [f"and then taken back: {problem}" for problem in self.taken_back(done.world)]

    def _passing(self, path: str) -> bool:
        node_path = path.removeprefix(str(self.bench.node.root))
        return node_path == "/run" or node_path.startswith(("/run/nvidia", "/run/.nvidia.toolkit-installer."))

    def taken_back(self, world: World) -> list[str]:
        """Return what is wrong after an uninstall: all but the count of reloads is to be as before."""
        done = self.bench.whole(world, UNINSTALL)
        if done.outcome.code != 0:
            return [f"exit {done.outcome.code}: {done.outcome.output}"]
        tree = dict(done.world.tree)
        if tree.pop(trees.RELOADS, None) is not None:
            tree.pop(os.path.dirname(trees.RELOADS))
        return World(tree, done.world.served).differences(self.bench.original)


def _lasting(world: World) -> World:
    """Return what two ways to the same end have in common: not how the receipt came about, nor what lies in /run."""
    receipt = f"{STORE}/receipt.json"
    tree = {path: entry for path, entry in world.tree.items() if path != receipt and not path.startswith("/run/")}
    return World(tree, world.served)
