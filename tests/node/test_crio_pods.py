"""CRI-O forgets no handler that pods need to be stopped and deleted: not on cleanup, not by a run that drops one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.engines.crio_machine import Machine, beside_crio, etc
from tests.support import fake_crio
from tests.support.fake_node import NOTHING_TO_DO, FakeNode

CUDA = {"namespace": "research", "name": "cuda-1", "handler": "nvidia"}
OTHERS = [
    {"namespace": "kube-system", "name": "dns", "handler": ""},
    {"namespace": "default", "name": "box", "handler": "crun"},
]
REFUSAL = "crio could neither stop nor delete pods that were started through a handler that is to go: research/cuda-1"


@pytest.fixture
def crio(node: FakeNode, tmp_path: Path) -> Iterator[Machine]:
    """A CRI-O that is configured, and has pods of other handlers."""
    with beside_crio(node, tmp_path) as machine:
        machine.start()
        machine.good("run")
        has(machine, *OTHERS)
        yield machine


def has(machine: Machine, *pods: dict[str, str]) -> None:
    """Have CRI-O tell of these pods."""
    machine.node.write(fake_crio.PODS, json.dumps(pods))


def test_cleanup_leaves_handlers_to_the_pods_that_need_them_and_finishes_after_them(crio: Machine) -> None:
    has(crio, *OTHERS, CUDA)
    before = crio.node.stamps()
    refused = crio.do("uninstall")
    assert refused.code == 3, refused.output
    assert REFUSAL in refused.output
    assert "delete these pods, the completed ones too, then run `toolkit-installer uninstall`" in refused.output
    assert crio.node.stamps() == before
    assert crio.starts == 2
    assert NOTHING_TO_DO in crio.good("run")

    has(crio, *OTHERS)
    crio.good("uninstall")
    assert crio.starts == 3
    assert crio.handlers() == {"crun": "/usr/bin/crun"}
    assert not crio.node.exists("/usr/local/nvidia")


@pytest.mark.parametrize("state, needed", [("completed", True), ("stopped", False)])
def test_a_pod_that_has_ended_needs_its_handler_as_long_as_it_has_a_container(
    crio: Machine, state: str, *, needed: bool
) -> None:
    has(crio, *OTHERS, {**CUDA, "state": state})
    outcome = crio.do("uninstall")
    assert outcome.code == (3 if needed else 0), outcome.output
    assert (REFUSAL in outcome.output) == needed


def test_an_engine_that_somebody_else_restarts_is_asked_for_its_pods_too(node: FakeNode, tmp_path: Path) -> None:
    with beside_crio(node, tmp_path) as machine:
        machine.start()
        machine.good("run", "--restart-mode", "none")
        machine.restart("crio.service")
        has(machine, CUDA)
        refused = machine.do("uninstall")
        assert refused.code == 3, refused.output
        assert REFUSAL in refused.output


def test_a_crio_that_is_down_cannot_be_asked_and_gets_its_files_back(crio: Machine) -> None:
    has(crio, CUDA)
    crio.end()
    assert "its files are given back, and it reads them when it starts" in crio.good("uninstall")


@pytest.mark.parametrize(
    "flags", [("--runtime-name", "gpu"), ("--config-mode", "hook")], ids=["another name", "a hook in their place"]
)
def test_a_run_that_drops_a_handler_is_refused_while_a_pod_needs_it(crio: Machine, flags: tuple[str, ...]) -> None:
    has(crio, CUDA)
    before = crio.node.stamps()
    for command in ("plan", "run"):
        refused = crio.do(command, *flags)
        assert refused.code == 3, refused.output
        assert REFUSAL in refused.output
        assert "delete these pods, the completed ones too, or keep the handler's name" in refused.output
    assert crio.node.stamps() == before
    assert crio.starts == 2

    has(crio, *OTHERS)
    crio.good("run", *flags)
    assert "nvidia" not in crio.handlers()


def test_a_run_that_keeps_the_names_is_not_refused(crio: Machine) -> None:
    has(crio, CUDA)
    crio.good("run", "--set-as-default=false")
    assert "nvidia" in crio.handlers()
    # from one file to another: the handlers are gone for a moment only
    crio.good("run", "--set-as-default=false", "--drop-in-config", "/etc/crio/crio.conf.d/98-gpu.conf")
    assert "nvidia" in crio.handlers()


def test_a_handler_that_the_operator_has_as_well_comes_back_and_strands_nobody(node: FakeNode, tmp_path: Path) -> None:
    with beside_crio(node, tmp_path) as machine:
        node.write("/usr/bin/their-runtime", "", 0o755)
        node.write(
            "/etc/crio/crio.conf.d/20-nvidia.conf",
            '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/their-runtime"\n',
        )
        machine.start()
        before = etc(node)
        machine.good("run")
        has(machine, CUDA)
        machine.good("uninstall")
        assert machine.handlers()["nvidia"] == "/usr/bin/their-runtime"
        assert etc(node) == before


@pytest.mark.parametrize("path", ["/etc/crio/crio.conf", "/etc/crio/crio.conf.d/50-theirs.conf"])
def test_somebodys_broken_file_refuses_no_cleanup_and_lets_no_pod_lose_its_handler(crio: Machine, path: str) -> None:
    crio.node.write(path, "[crio")
    has(crio, CUDA)
    refused = crio.do("uninstall", "--restart-mode", "none")
    assert refused.code == 3, refused.output
    assert REFUSAL in refused.output

    has(crio, *OTHERS)
    outcome = crio.do("uninstall", "--reload-timeout", "1")
    assert not crio.node.exists("/etc/crio/crio.conf.d/99-nvidia.toml"), outcome.output
    assert crio.node.read(path) == b"[crio"


def test_pods_whose_handler_cannot_be_told_are_named_and_keep_nobody(crio: Machine) -> None:
    has(crio, {"namespace": "default", "name": "old\x1b[31m"})
    said = crio.good("uninstall")
    assert "CRI-O does not say through which handlers these pods were started" in said
    assert r'pods="default/old\\x1b[31m"' in said


def test_a_crio_that_does_not_tell_its_pods_is_not_reconfigured(crio: Machine) -> None:
    crio.node.write(fake_crio.PODS, "no JSON")  # each call of it fails
    before = crio.node.stamps()
    refused = crio.do("uninstall")
    assert refused.code == 6, refused.output
    assert "CRI-O does not say which pods it has" in refused.output
    assert crio.node.stamps() == before


def test_of_many_pods_the_first_are_named_and_the_others_counted(crio: Machine) -> None:
    has(crio, *({"namespace": "default", "name": f"cuda-{number:02}", "handler": "nvidia-cdi"} for number in range(12)))
    refused = crio.do("uninstall")
    assert "default/cuda-08, default/cuda-09 and 2 more" in refused.output, refused.output
    assert "cuda-10" not in refused.output


def test_another_engine_is_not_configured_while_pods_need_the_handlers_of_this_one(crio: Machine) -> None:
    has(crio, CUDA)
    before = crio.node.stamps()
    refused = crio.do("run", "--restart-mode", "none", "--socket", "/run/other.sock", engine="docker")
    assert refused.code == 3, refused.output
    assert REFUSAL in refused.output
    assert "the completed ones too, then start this run again" in refused.output
    assert crio.node.stamps() == before
