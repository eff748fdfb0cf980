"""Files that containerd imports, through the command line: the one that counts is edited, and is given back whole."""

from __future__ import annotations

import pytest

from tests.support.containerd_cases import FOLDER, Case, cases
from tests.support.fake_node import NOTHING_TO_DO, STORE, FakeNode

SEVERAL = [case for case in cases() if len(case.after()) > 1 and not case.refused and "live" not in case.about]
BY_NAME = {str(case): case for case in cases()}


def put(node: FakeNode, case: Case) -> None:
    for name, content in case.before().items():
        node.write(f"{FOLDER}/{name}", content)


def found(node: FakeNode, case: Case) -> dict[str, bytes]:
    return {name: node.read(f"{FOLDER}/{name}") for name in case.after()}


def flags(case: Case) -> list[str]:
    known = {"RUNTIME_CONFIG_SOURCES": "--config-source", "RUNTIME_CONFIG_SOURCE": "--config-source"}
    return [f"{known[name]}={value}" for name, value in case.about.get("variables", {}).items()]


@pytest.mark.parametrize("case", [case for case in SEVERAL if str(case).startswith(("v1", "v2"))], ids=str)
def test_the_file_that_counts_is_edited_once_and_given_back_whole(case: Case, node: FakeNode) -> None:
    put(node, case)
    before = node.snapshot()
    run = node.do("run", "--no-daemon", *flags(case), engine="containerd")
    assert run.process.returncode == 0, run.output
    assert found(node, case) == case.after()
    stamps = node.stamps()
    again = node.do("run", "--no-daemon", *flags(case), engine="containerd")
    assert NOTHING_TO_DO in again.output
    assert node.stamps() == stamps
    assert node.do("uninstall", engine="containerd").process.returncode == 0
    assert node.snapshot() == before


def test_a_file_no_longer_imported_is_restored_and_the_root_gets_the_handlers(node: FakeNode) -> None:
    case = BY_NAME["v2-import-owns-the-table"]
    put(node, case)
    node.do("run", "--no-daemon", engine="containerd")
    assert b"nvidia" in node.read(f"{FOLDER}/site/a.toml")
    root = case.before()["config.toml"].replace(b'imports = ["site/a.toml"]\n', b"")
    node.write(f"{FOLDER}/config.toml", root)
    run = node.do("run", "--no-daemon", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert node.read(f"{FOLDER}/site/a.toml") == case.before()["site/a.toml"]
    assert b"nvidia" in node.read(f"{FOLDER}/config.toml")
    assert node.do("uninstall", engine="containerd").process.returncode == 0
    assert found(node, case) == case.before() | {"config.toml": root}


def test_an_imported_file_that_is_gone_is_no_reason_to_leave_anything_behind(node: FakeNode) -> None:
    case = BY_NAME["v2-relative-pattern"]
    put(node, case)
    node.do("run", "--no-daemon", engine="containerd")
    node.place(f"{FOLDER}/conf.d/b.toml").unlink()
    run = node.do("uninstall", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert not node.exists(STORE)
    assert not node.exists(f"{FOLDER}/conf.d/b.toml")
    assert node.read(f"{FOLDER}/config.toml") == case.before()["config.toml"]


def test_a_receipt_that_was_lost_leaves_no_handler_in_an_imported_file(node: FakeNode) -> None:
    case = BY_NAME["v2-import-owns-the-table"]
    put(node, case)
    node.do("run", "--no-daemon", engine="containerd")
    for path in sorted(node.place(STORE).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    node.place(STORE).rmdir()
    run = node.do("uninstall", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert found(node, case) == case.before()


def test_an_operators_file_in_the_drop_ins_place_is_edited_while_the_engine_is_down(
    node: FakeNode,
) -> None:
    case = BY_NAME["v2-somebodys-drop-in"]
    put(node, case)
    before = node.snapshot()
    assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    theirs = node.read(f"{FOLDER}/conf.d/99-nvidia.toml")
    node.write(f"{FOLDER}/conf.d/99-nvidia.toml", theirs + b"# seen\n")
    assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    assert found(node, case) == case.after() | {"conf.d/99-nvidia.toml": theirs + b"# seen\n"}
    assert node.do("uninstall", engine="containerd").process.returncode == 0
    left = case.before()["conf.d/99-nvidia.toml"] + b"# seen\n"
    assert node.read(f"{FOLDER}/conf.d/99-nvidia.toml") == left
    node.write(f"{FOLDER}/conf.d/99-nvidia.toml", case.before()["conf.d/99-nvidia.toml"])
    assert node.snapshot() == before
