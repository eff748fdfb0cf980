"""Killed, or failed by the disk, while CRI-O's files change: CRI-O would start, though it reads hidden files too."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.faults import Fault, Outcome, Plan, run
from tests.support.crio_reading import Reading, read, start
from tests.support.fake_node import TOOLKIT, Entry, FakeNode
from tests.support.quick import Few

DROP_INS = "/etc/crio/crio.conf.d"
DROP_IN = f"{DROP_INS}/99-nvidia.toml"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"
SITE = """\
# of the site
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
monitor_path = "/usr/libexec/crio/conmon"
"""
OPERATORS = '# theirs\n[crio.runtime]\nlog_level = "debug"\n'
STRIDE = 29
"""Of the calls that concern only the toolkit's own files, every so many is tried: other tests try them all."""
OTHER_NAME = ("--runtime-name", "gpu")
HOOK_MODE = ("--config-mode", "hook")


class Bench:
    """Makes one node after the other, all alike, and runs the program on them."""

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder = folder
        self.payload = payload
        self.made = 0

    def fresh(self, drop_in: str | None = None) -> FakeNode:
        self.made += 1
        root = self.folder / f"node-{self.made}"
        for path in ("run", "usr/local"):
            (root / path).mkdir(parents=True)
        node = FakeNode(root, self.payload)
        node.write(f"{DROP_INS}/10-site.conf", SITE)
        if drop_in is not None:
            node.write(DROP_IN, drop_in, 0o600)
        return node

    def installed(self, drop_in: str | None = None) -> FakeNode:
        node = self.fresh(drop_in)
        self.good(node, "run", "--no-daemon")
        return node

    def do(self, node: FakeNode, command: str, *flags: str, plan: Plan | None = None) -> Outcome:
        return run(node, self.folder, command, *flags, engine="crio", plan=plan)

    def good(self, node: FakeNode, command: str, *flags: str) -> None:
        outcome = self.do(node, command, *flags)
        assert outcome.code == 0, outcome.output


@pytest.fixture
def bench(tmp_path: Path, payload: Path) -> Bench:
    return Bench(tmp_path, payload)


def instants(outcome: Outcome) -> list[int]:
    """Return the numbers of the calls to be tried: all that concern CRI-O's files, and some of the others."""
    assert outcome.code == 0, outcome.output
    concern = [number for number, call in enumerate(outcome.calls) if "99-nvidia" in call or "oci-nvidia-hook" in call]
    assert concern
    return sorted({*concern, *(number + 1 for number in concern[:-1]), *range(0, len(outcome.calls), STRIDE)})


def started(node: FakeNode) -> Reading:
    """Return what CRI-O would run with if it were started now, all hidden files read as well. Fails if it would not."""

    def find(path: str, name: str) -> str | None:
        if not path.startswith(f"{TOOLKIT}/"):
            return path or f"/usr/bin/{name}"
        parts = (path, f"{path}.real", f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
        complete = all(node.place(part).is_file() for part in parts)
        return path if complete and os.access(node.place(path), os.X_OK) else None

    reading = read(node.place("/etc/crio/crio.conf"), node.place(DROP_INS))
    result = start(reading, find)
    assert result.runtimes.keys() == reading.runtimes.keys(), "a handler has no complete executable"
    assert result.runtimes["crun"]["runtime_path"] == "/usr/libexec/crio/crun"
    hook = node.place(HOOK)
    assert not hook.exists() or node.place(f"{TOOLKIT}/nvidia-container-runtime-hook.real").is_file()
    return result


def left_over(node: FakeNode) -> list[str]:
    return [path for path in node.snapshot() if ".toolkit-installer." in path]


def check_gone(node: FakeNode, before: dict[str, Entry]) -> None:
    """Fail if anything is otherwise than before, but for empty folders, and /run, which does not survive a boot."""
    now = node.snapshot().items()
    assert {
        path: entry for path, entry in now if path in before or (entry.kind != "d" and not path.startswith("/run/"))
    } == before


@pytest.mark.parametrize(
    "drop_in, mode",
    [(None, ()), (OPERATORS, ()), (None, HOOK_MODE)],
    ids=["handlers", "handlers in the operator's file", "hook"],
)
def test_killed_anywhere_in_an_installation(bench: Bench, few: Few, drop_in: str | None, mode: tuple[str, ...]) -> None:
    for at in few(instants(bench.do(bench.fresh(drop_in), "run", "--no-daemon", *mode))):
        node = bench.fresh(drop_in)
        before = node.snapshot()
        assert bench.do(node, "run", "--no-daemon", *mode, plan=Plan(at)).code == -9
        started(node)
        bench.good(node, "run", "--no-daemon", *mode)
        assert left_over(node) == []
        assert started(node).default == ("crun" if mode else "nvidia")
        bench.good(node, "uninstall")
        check_gone(node, before)


@pytest.mark.parametrize("flags", [OTHER_NAME, HOOK_MODE], ids=["another name", "hook mode"])
def test_killed_anywhere_in_a_change_of_what_is_registered(bench: Bench, flags: tuple[str, ...]) -> None:
    hidden = set()
    for at in instants(bench.do(bench.installed(OPERATORS), "run", "--no-daemon", *flags)):
        node = bench.installed(OPERATORS)
        assert bench.do(node, "run", "--no-daemon", *flags, plan=Plan(at)).code == -9
        now = started(node)
        hidden |= {name for name in map(os.path.basename, now.files) if name.startswith(".")}
        assert now.rest[".crio.runtime.log_level"] == "debug"
        bench.good(node, "uninstall")
        assert left_over(node) == []
        assert node.read(DROP_IN).decode() == OPERATORS
        assert not node.exists(HOOK)
    assert hidden == {".99-nvidia.toml.toolkit-installer.tmp", ".99-nvidia.toml.toolkit-installer.swap"}, "CRI-O read"


def test_a_new_version_has_no_name_in_the_folder_before_it_is_whole(bench: Bench) -> None:
    calls = bench.do(bench.fresh(), "run", "--no-daemon").calls
    named = next(index for index, call in enumerate(calls) if ".99-nvidia.toml.toolkit-installer.tmp" in call)
    assert not calls[named].startswith("create")


@pytest.mark.parametrize("drop_in", [None, OPERATORS], ids=["no file", "the operator's file"])
def test_killed_anywhere_in_the_cleanup(bench: Bench, few: Few, drop_in: str | None) -> None:
    for at in few(instants(bench.do(bench.installed(drop_in), "uninstall"))):
        node = bench.fresh(drop_in)
        before = node.snapshot()
        bench.good(node, "run", "--no-daemon")
        assert bench.do(node, "uninstall", plan=Plan(at)).code == -9
        started(node)
        bench.good(node, "uninstall")
        check_gone(node, before)


@pytest.mark.parametrize(
    "fault, error", [(Fault.ONCE, errno.EIO), (Fault.ONCE, errno.EROFS), (Fault.FULL, errno.ENOSPC)]
)
@pytest.mark.parametrize("make", [Bench.fresh, Bench.installed], ids=["first", "change"])
def test_failed_by_the_disk_anywhere(
    bench: Bench, few: Few, make: Callable[..., FakeNode], fault: Fault, error: int
) -> None:
    flags = OTHER_NAME if make is Bench.installed else ()
    for at in few(instants(bench.do(make(bench, OPERATORS), "run", "--no-daemon", *flags))):
        node = make(bench, OPERATORS)
        failed = bench.do(node, "run", "--no-daemon", *flags, plan=Plan(at, fault, error))
        assert "Traceback" not in failed.output
        assert failed.code in (0, 3, 5), failed.output
        started(node)
        bench.good(node, "uninstall")
        assert node.read(DROP_IN).decode() == OPERATORS


def test_an_edit_that_a_killed_run_took_away_is_kept_where_cri_o_does_not_read_it(bench: Bench) -> None:
    node = bench.installed(OPERATORS)
    outcome = bench.do(node, "run", "--no-daemon", *OTHER_NAME)
    exchange = next(at for at, call in enumerate(outcome.calls) if call.startswith("exchange .99-nvidia"))
    node = bench.installed(OPERATORS)
    assert bench.do(node, "run", "--no-daemon", *OTHER_NAME, plan=Plan(exchange + 1)).code == -9
    edits = [node.read(DROP_IN).decode() + text for text in ("# the first edit\n", "# and the next\n")]
    (beside,) = [path for path in left_over(node) if path.endswith(".swap")]
    node.write(beside, edits[0])
    node.write(DROP_IN, edits[1])
    bench.good(node, "run", "--no-daemon", *OTHER_NAME)
    assert [path for path in node.snapshot() if path.startswith(DROP_INS) and ".toolkit-installer." in path] == []
    bench.good(node, "uninstall")
    (kept,) = left_over(node)
    assert node.read(kept).decode() == edits[0]
    assert node.read(DROP_IN).decode().splitlines()[-1] == "# and the next"
