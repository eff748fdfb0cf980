"""What `detect` prints of its evidence and its decision, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.cli import show_detect
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.errors import ExitCode
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, Settings

DOCKER = Settings(runtimes=(EngineName.DOCKER,))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path))


def decided(**changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "engine": "docker",
        "distribution": "docker",
        "why": "it runs",
        "how": "in place",
        "socket": "/s",
        "unit": None,
        "files": [],
        "version": None,
        "trouble": None,
    }
    return known | changed


def facts(**changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"decided": [], "error": None, "method": None, "evidence": [], "gpus": ["none is seen"]}
    return known | changed


def test_a_node_without_any_engine_is_undecided_and_the_reason_is_part_of_the_answer(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_detect.show(node, Settings(), as_json=True) == ExitCode.BAD_CONFIGURATION
    shown = json.loads(capsys.readouterr().out)
    assert (shown["decided"], shown["method"]) == ([], None)
    assert shown["error"]["reason"]
    assert show_detect.show(node, Settings(), as_json=False) == ExitCode.BAD_CONFIGURATION
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Seen: nothing of any engine"
    assert any(line.startswith("Not decided: ") for line in lines)


def test_an_engine_that_is_named_is_decided_for(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").write_text("{}")
    assert show_detect.show(node, DOCKER, as_json=True) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    (found,) = shown["decided"]
    assert (found["engine"], found["version"]) == ("docker", None)
    assert [(file["path"], file["exists"]) for file in found["files"]] == [("/etc/docker/daemon.json", True)]
    assert found["trouble"]
    assert shown["method"]["name"] == "handlers"
    assert list(shown["method"]["cdi_is_out"]) == ["docker"]


def test_a_broken_file_of_the_engine_is_shown_and_stops_nothing(node: Node, tmp_path: Path) -> None:
    (tmp_path / "etc/docker").mkdir(parents=True)
    (tmp_path / "etc/docker/daemon.json").mkdir()
    found, error = show_detect.gather_facts(node, DOCKER)
    assert error is None
    (one,) = found["decided"]
    assert "/etc/docker/daemon.json" in one["trouble"]
    assert one["files"] == []


def test_a_receipt_that_cannot_be_read_is_said_with_the_method(node: Node, tmp_path: Path) -> None:
    receipt = tmp_path / "usr/local/nvidia/.toolkit-installer/receipt.json"
    receipt.parent.mkdir(parents=True, mode=0o700)
    receipt.write_text("no JSON")
    found, error = show_detect.gather_facts(node, DOCKER)
    assert error is None
    assert found["method"]["unread"]
    assert f"  what the node has is not known: {found['method']['unread']}" in show_detect._lines(found)


def test_each_engine_is_told_with_its_files_and_what_is_wrong() -> None:
    files = [{"role": "config", "path": "/a", "exists": True}, {"role": "drop-in", "path": "/b", "exists": False}]
    evidence = [{"kind": "process", "words": "dockerd runs"}]
    error = {"reason": "two engines", "hint": "name one"}
    one = decided(version="28.0", unit="docker.service", files=files, trouble="no answer")
    lines = show_detect._lines(facts(decided=[one], evidence=evidence, error=error))
    assert lines[:2] == ["Seen:", "  process dockerd runs"]
    start = lines.index("Decided: docker 28.0, as docker has it")
    assert lines[start + 1 : start + 8] == [
        "  Why:    it runs",
        "  How:    in place",
        "  Socket: /s",
        "  Unit:   docker.service",
        "  File:   /a (config)",
        "  File:   /b (drop-in, absent)",
        "  But:    no answer",
    ]
    assert lines[-2:] == ["Not decided: two engines", "  Hint: name one"]
    bare = show_detect._lines(facts(decided=[decided()], error={"reason": "two engines", "hint": None}))
    assert not [line for line in bare if line.startswith(("  Unit", "  File", "  But", "  Hint"))]
    assert "Decided: docker, as docker has it" in bare


def test_the_method_is_told_with_those_that_were_passed_over() -> None:
    method = {
        "name": None,
        "why": "cdi was asked for",
        "passed_over": [{"method": "nri", "why": "no namespace"}],
        "installed": "handlers",
        "unread": None,
        "cdi_is_out": {"docker": "is too old", "crio": None},
    }
    assert show_detect._lines(facts(method=method))[1:8] == [
        "",
        "Method: none (cdi was asked for)",
        "  not nri: no namespace",
        "  the node has handlers now",
        "  cdi is out with docker: docker is too old",
        "  cdi can be had from crio",
        "",
    ]


@pytest.mark.parametrize(
    "line, is_painted", [("Decided: x", True), ("Not decided: x", True), ("  But:    x", True), ("  Why:    x", False)]
)
def test_decisions_and_troubles_are_painted(line: str, *, is_painted: bool) -> None:
    painted = show_detect._painted(line)
    assert isinstance(painted, DiffLine) is is_painted
    assert (painted.text if isinstance(painted, DiffLine) else painted) == line
