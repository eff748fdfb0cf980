"""Engines' files that are each in order, and with which the engine does not start: plan, run and status say it."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_node import CONFIG_TOML, CRIO_SITE, DAEMON_JSON, FakeNode

CRI = "plugins.'io.containerd.grpc.v1.cri'.containerd"
SPIN = "/etc/containerd/conf.d/spin.toml"
WITHOUT_DEFAULT = ("--set-as-default=false", "--restart-mode", "none")


def replaced_map(node: FakeNode) -> None:
    """Have an import take the default runtime away, as containerd 1.x reads it."""
    node.write(CONFIG_TOML, f"version = 2\nimports = ['conf.d/spin.toml']\n[{CRI}.runtimes.runc]\nruntime_type = ''\n")
    node.write(SPIN, f"version = 2\n[{CRI}.runtimes.spin]\nruntime_type = 'io.containerd.spin.v2'\n")


def faults(node: FakeNode, engine: str) -> list[str]:
    told = json.loads(node.do("status", "--json", engine=engine).output)
    return [fault["what"] for each in told["engines"] for fault in each["faults"]]


def test_of_a_stopped_containerd_the_missing_default_is_a_warning(node: FakeNode) -> None:
    replaced_map(node)
    words = f"{SPIN}:2: takes the default runtime 'runc' away, which {CONFIG_TOML}:3 has"
    assert words in node.do("plan", *WITHOUT_DEFAULT, engine="containerd").output
    run = node.do("run", "--no-daemon", *WITHOUT_DEFAULT, engine="containerd")
    assert run.process.returncode == 0, run.output
    assert "event=engine-fault" in run.output
    assert words in run.output
    assert [words in fault for fault in faults(node, "containerd")] == [True]


@pytest.mark.parametrize("command", [("plan",), ("run", "--no-daemon")])
def test_a_default_runtime_that_no_file_has_is_refused(node: FakeNode, command: tuple[str, ...]) -> None:
    node.write(CONFIG_TOML, f"version = 2\n[{CRI}]\ndefault_runtime_name = 'gone'\n[{CRI}.runtimes.runc]\n")
    before = node.snapshot()
    refused = node.do(*command, *WITHOUT_DEFAULT, engine="containerd")
    assert refused.process.returncode == 3, refused.output
    assert f"file={CONFIG_TOML}" in refused.output
    assert "line=3" in refused.output
    assert node.snapshot().items() >= before.items()


def test_a_handler_that_becomes_the_default_mends_it_and_that_is_said(node: FakeNode) -> None:
    node.write(CONFIG_TOML, f"version = 2\n[{CRI}]\ndefault_runtime_name = 'gone'\n[{CRI}.runtimes.runc]\n")
    run = node.do("run", "--no-daemon", "--restart-mode", "none", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert f"{CONFIG_TOML}:3: the default runtime is 'gone', and no file" in run.output
    assert faults(node, "containerd") == []


def test_a_default_runtime_of_crio_without_a_table_is_refused(node: FakeNode) -> None:
    node.write(CRIO_SITE, "[crio.runtime]\ndefault_runtime = 'gone'\n")
    refused = node.do("run", "--no-daemon", "--set-as-default=false", engine="crio")
    assert refused.process.returncode == 3, refused.output
    assert f"file={CRIO_SITE}" in refused.output
    assert "line=2" in refused.output


def test_status_names_a_key_that_came_twice_into_daemon_json(node: FakeNode) -> None:
    node.write(DAEMON_JSON, "{}\n")
    assert node.do("run", "--no-daemon", engine="docker").process.returncode == 0
    assert faults(node, "docker") == []
    node.write(DAEMON_JSON, '{\n"runtimes": {"nvidia": {"path": "/a"}},\n"runtimes": {"b": {"path": "/b"}}\n}\n')
    (fault,) = faults(node, "docker")
    assert "stands twice in one object, on lines 2 and 3" in fault
