"""The real containerds print what they make of every golden case: what they had and our handlers, nothing else.

The machine's own, those of newer Debian releases, and the newest one, which tests/support/built/go_tools.py builds.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.containerd_binaries import Binary, differences, dump
from tests.support.containerd_cases import HANDLERS, TOOLKIT, Case, cases
from tests.support.containerd_links import CASES, put
from toolkit_installer.engines.api import Inspection, LiveState
from toolkit_installer.engines.containerd import inspection as containerd_inspection
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = ("1.6", "1.7", "2.1", "2.4")


def spared(case: Case) -> frozenset[str]:
    variables = case.about.get("variables", {})
    keys = {"RUNTIME_ENABLE_CDI": "enable_cdi", "CONTAINERD_USE_LEGACY_CONFIG": "default_runtime"}
    return frozenset(key for variable, key in keys.items() if variable in variables)


def series(binary: Binary) -> str:
    """Return the release that a case names for this binary: a newer 2.x than those measured reads as the newest."""
    return binary.release if binary.release in RELEASES else RELEASES[-1]


@pytest.mark.parametrize("case", [case for case in cases() if not case.refused], ids=str)
def test_every_containerd_that_reads_the_files_has_what_it_had_and_our_handlers(
    case: Case, binaries: list[Binary], tmp_path: Path
) -> None:
    asked = [binary for binary in binaries if series(binary) in case.about["reads"]]
    for binary in asked:
        before, after = (
            dump(binary, files, tmp_path / f"{binary}-{which}")
            for which, files in (("before", case.before() or {"config.toml": b""}), ("after", case.after()))
        )
        assert before is not None, f"{binary} refuses the original"
        assert after is not None, f"{binary} refuses ours"
        assert differences(before, after, spared=spared(case)) == [], binary


@pytest.mark.parametrize("case", [case for case in cases() if not case.refused], ids=str)
def test_no_containerd_that_took_the_files_refuses_them_or_loses_a_runtime(
    case: Case, binaries: list[Binary], tmp_path: Path
) -> None:
    for binary in binaries:
        before = dump(binary, case.before() or {"config.toml": b""}, tmp_path / f"{binary}-before")
        if before is None or case.about.get("live", binary.release)[:2] != binary.release[:2]:
            continue
        after = dump(binary, case.after(), tmp_path / f"{binary}-after")
        assert after is not None, f"{binary} refuses ours"
        assert names(before) <= names(after), binary


@pytest.mark.parametrize("live", [True, False], ids=["live", "down"])
@pytest.mark.parametrize("name", CASES)
def test_files_that_are_linked_give_every_containerd_what_it_had_and_our_handlers(
    name: str, binaries: list[Binary], tmp_path: Path, *, live: bool
) -> None:
    for binary in binaries:
        root = tmp_path / str(binary)
        put(name, root)
        before = printed(binary, root)
        if before is None:
            assert "leads nowhere" in name  # 1.x refuses it at once, and 2.x when it starts
            continue
        answers = LiveState(f"{binary.release}.0", {"runc": None}, "runc") if live else None
        target = EngineTarget(EngineName.CONTAINERD)
        answer = Inspection("/run/containerd/containerd.sock", (), answers)
        inspection = containerd_inspection.inspect_own(Node(str(root)), target, answer)
        goals = Containerd().build_desired_state(inspection, Request(target, HANDLERS, "nvidia", TOOLKIT), {})
        for goal in goals.files:
            if goal.target is not None:
                place = root / goal.path.lstrip("/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(goal.target)
        after = printed(binary, root)
        assert after is not None, f"{binary} refuses ours"
        assert differences(before, after, spared=frozenset()) == [], binary


def printed(binary: Binary, root: Path) -> dict[str, Any] | None:
    """Return what it makes of the files below `root`, of which a copy has its absolute paths changed."""
    copy = root.parent / f"{root.name}-read"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy, symlinks=True)
    for place in copy.rglob("*"):
        if place.is_file() and not place.is_symlink():
            place.write_bytes(place.read_bytes().replace(b'"/etc/', b'"' + os.fsencode(copy) + b"/etc/"))
    return dump(binary, {}, copy / "etc/containerd")


def names(dumped: dict[str, Any]) -> set[str]:
    plugins = dumped.get("plugins", {})
    return {
        name
        for plugin in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
        for name in plugins.get(plugin, {}).get("containerd", {}).get("runtimes", {})
    }
