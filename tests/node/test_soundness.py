"""The checker of the matrix finds what may be wrong with a node: else that nothing is found would say nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.engines.rules import Served
from tests.node.faults import Plan
from tests.node.sweeps import soundness
from tests.node.sweeps.matrix import INSTALL, MAKES, UNINSTALL, Bench, World
from tests.node.sweeps.soundness import Grounds
from tests.node.sweeps.trees import Tree
from tests.support.fake_node import STORE, TOOLKIT, Entry

RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
Damage = Callable[[Tree, str], Tree]


def changed(tree: Tree, path: str, **fields: Any) -> Tree:
    return {**tree, path: dataclasses.replace(tree[path], **fields)}


def without(tree: Tree, path: str) -> Tree:
    return {other: entry for other, entry in tree.items() if other != path}


def cut(tree: Tree, path: str) -> Tree:
    return changed(tree, path, content=tree[path].content[:-1])


def grounds(made: Bench, *stages: World) -> Grounds:
    return Grounds(made.make.engine, made.original.tree, [stage.tree for stage in stages])


WITH_A_FILE = pytest.mark.parametrize("made", [make for make in MAKES if make.content], indirect=True, ids=str)

DAMAGES: dict[str, Damage] = {
    "half of the engine's file": cut,
    "no engine's file": without,
    "an engine's file that others can read": lambda tree, path: changed(tree, path, mode=0o646),
    "an engine's file of another owner": lambda tree, path: changed(tree, path, owner=(7, 7)),
    "an engine's file without its attributes": lambda tree, path: changed(tree, path, xattrs=(("user.x", b""),)),
    "half a program": lambda tree, _: cut(tree, f"{RUNTIME}.real"),
    "half a wrapper": lambda tree, _: cut(tree, RUNTIME),
    "half a library": lambda tree, _: cut(tree, f"{TOOLKIT}/libnvidia-container.so.1.19.0"),
    "no program behind the wrapper": lambda tree, _: without(tree, f"{RUNTIME}.real"),
    "no wrapper": lambda tree, _: without(tree, RUNTIME),
    "a wrapper that cannot be executed": lambda tree, _: changed(tree, RUNTIME, mode=0o644),
    "no configuration": lambda tree, _: without(tree, soundness.CONFIG),
    "half a configuration": lambda tree, _: cut(tree, soundness.CONFIG),
    "no library": lambda tree, _: without(tree, f"{TOOLKIT}/libnvidia-container.so.1.19.0"),
    "no hook": lambda tree, _: without(tree, f"{TOOLKIT}/nvidia-container-runtime-hook"),
    "a receipt for all to read": lambda tree, _: changed(tree, f"{STORE}/receipt.json", mode=0o644),
    "a file of nobody's": lambda tree, _: {**tree, "/usr/local/extra": Entry("-", 0o644, (0, 0), b"", ())},
    "another engine's file that names a program which is gone": lambda tree, _: {
        **tree,
        "/etc/other.toml": Entry("-", 0o644, (0, 0), f'path = "{TOOLKIT}/absent"'.encode(), ()),
    },
    "no folder that was there": lambda tree, _: without(tree, "/usr/local"),
}


def test_whole_states_are_sound(made: Bench) -> None:
    installed = made.after(made.original, INSTALL)
    gone = made.after(installed, UNINSTALL)
    for world in (made.original, installed, gone):
        assert soundness.judge(world.tree, grounds(made, made.original, installed), world.served) == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_found(made: Bench, damage: Damage) -> None:
    installed = made.after(made.original, INSTALL)
    files = [path for path in soundness.FILES[made.make.engine] if path in installed.tree]
    damaged = damage(installed.tree, files[0])
    assert soundness.judge(damaged, grounds(made, installed), installed.served) != []


def test_a_runtime_that_only_the_live_engine_names_is_missed(made: Bench) -> None:
    served = Served((("nvidia", RUNTIME), ("runc", "runc")))
    assert soundness.judge(made.original.tree, grounds(made, made.original), Served()) == []
    assert soundness.judge(made.original.tree, grounds(made, made.original), served) != []


def test_an_engine_that_is_down_is_found(made: Bench) -> None:
    assert soundness.judge(made.original.tree, grounds(made, made.original), Served((), "", "panicked")) != []


@WITH_A_FILE
def test_a_temporary_file_that_shows_more_than_the_original_is_found(made: Bench) -> None:
    path = made.make.path
    folder, _, name = path.rpartition("/")
    entry = dataclasses.replace(made.original.tree[path], mode=0o644)
    for mode, found in ((0o644, True), (0o640, False), (0o600, False)):
        temporary = dataclasses.replace(entry, mode=mode)
        tree = {**made.original.tree, f"{folder}/.{name}.toolkit-installer.tmp": temporary}
        assert bool(soundness.judge(tree, grounds(made, made.original))) is found


@WITH_A_FILE
def test_content_in_the_receipt_counts_for_docker_only_and_needs_the_operators_keys(
    made: Bench,
) -> None:
    path = made.make.path
    content = made.original.tree[path].content
    assert isinstance(content, bytes)
    for text, lost in ((content + b"\n", False), (b"{}" if made.make.engine == "docker" else b"", True)):
        record = {"path": path, "written": [hashlib.sha256(text).hexdigest()]}
        body = json.dumps({"engines": [{"files": [record]}]}).encode()
        receipt = Entry("-", 0o600, (0, 0), body, ())
        tree = {**changed(made.original.tree, path, content=text), f"{STORE}/receipt.json": receipt}
        wrong = soundness.judge(tree, grounds(made, made.original))
        assert bool(wrong) is (lost or made.make.engine != "docker")


def test_a_kill_leaves_what_was_there_when_the_call_was_about_to_be_made(made: Bench) -> None:
    whole, worlds = made.instants(made.original, INSTALL)
    assert whole.outcome.code == 0
    assert len(worlds) == len(whole.outcome.calls) > 100
    assert len({world.key() for world in worlds}) > 50
    at = len(worlds) // 2
    killed = made.do(made.original, INSTALL, Plan(at))
    assert killed.outcome.code == -9
    assert killed.world.differences(worlds[at]) == []
    assert worlds[at].differences(whole.world) != []
