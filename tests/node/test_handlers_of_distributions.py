"""Handlers that a distribution registers by itself, because it finds the toolkit, are told from ours.

Cleanup leaves them to the distribution, and waits for none of them; the toolkit goes all the same, unless the
distribution would not start without it. It is the same whether or not the command line can be seen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.node import faults
from tests.support.distribution_cases import Case
from tests.support.fake_distributions import AGENT, Microk8s, NewerK3s, Rke2
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a process is given the node's / with chroot: run as root")
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
OURS = {"nvidia": RUNTIME, "nvidia-cdi": f"{RUNTIME}.cdi", "nvidia-legacy": f"{RUNTIME}.legacy"}
K3S = "/run/k3s/containerd/containerd.sock"
MICROK8S = "/var/snap/microk8s/common/run/containerd.sock"
MORE = ("--reload-budget", "99/1", "--reload-timeout", "5")
SEEN_OR_NOT = pytest.mark.parametrize("wiped", [False, True], ids=["visible", "wiped"])


def run(node: FakeNode, tmp_path: Path, command: str, *more: str) -> faults.Outcome:
    return faults.run(node, tmp_path, command, *more, engine="containerd")


def install(node: FakeNode, tmp_path: Path, socket: str = K3S) -> faults.Outcome:
    return run(node, tmp_path, "run", "--no-daemon", "--socket", socket, *MORE)


def uninstall(node: FakeNode, tmp_path: Path) -> faults.Outcome:
    return run(node, tmp_path, "uninstall", "--reload-timeout", "5")


def status(node: FakeNode, tmp_path: Path) -> dict[str, Any]:
    shown = run(node, tmp_path, "status", "--json").output
    facts: dict[str, Any] = json.loads(shown[shown.index("{") : shown.rindex("\n}") + 2])
    return facts


@SEEN_OR_NOT
@pytest.mark.parametrize("name", ["drop-in", "template-created"])
def test_rke2_is_installed_and_cleaned_up_with_one_restart_each(
    node: FakeNode, tmp_path: Path, *, name: str, wiped: bool
) -> None:
    Case("rke2", name).put(node)
    made = Rke2(node, wiped=wiped, release="v1.7.20-k3s1" if name == "template-created" else None)
    with made.inside():
        done = install(node, tmp_path)
        assert done.code == 0, done.output
        assert {**made.handlers(), **OURS} == made.handlers()
        assert NOTHING_TO_DO in install(node, tmp_path).output
        undone = uninstall(node, tmp_path)
        assert undone.code == 0, undone.output
        assert made.read()["restarted"] == ["rke2-server.service"] * 2
        assert not node.exists(TOOLKIT)
        made.start()
        assert set(made.handlers()) == {"runc"}


@SEEN_OR_NOT
def test_microk8s_is_installed_and_cleaned_up_with_one_restart_each(
    node: FakeNode, tmp_path: Path, *, wiped: bool
) -> None:
    Case("microk8s", "template").put(node)
    template = f"{Microk8s.folder}/containerd-template.toml"
    before = node.read(template)
    made = Microk8s(node, wiped=wiped)
    with made.inside():
        done = install(node, tmp_path, MICROK8S)
        assert done.code == 0, done.output
        assert {**made.handlers(), **OURS} == made.handlers()
        assert NOTHING_TO_DO in install(node, tmp_path, MICROK8S).output
        undone = uninstall(node, tmp_path)
        assert undone.code == 0, undone.output
        assert made.read()["restarted"] == [made.unit] * 2
        assert node.read(template) == before
        assert set(made.handlers()) == {"runc", "nvidia-container-runtime"}


def test_a_microk8s_that_is_down_keeps_no_toolkit_by_what_it_made_before(node: FakeNode, tmp_path: Path) -> None:
    Case("microk8s", "template").put(node)
    with Microk8s(node).inside():
        assert install(node, tmp_path, MICROK8S).code == 0
    assert RUNTIME.encode() in node.read(f"{Microk8s.folder}/containerd.toml")
    undone = uninstall(node, tmp_path)
    assert undone.code == 0, undone.output
    assert not node.exists(TOOLKIT)


@SEEN_OR_NOT
@pytest.mark.parametrize("name", ["drop-in", "template-created"])
def test_what_k3s_registers_by_itself_is_said_in_status_and_left_to_k3s(
    node: FakeNode, tmp_path: Path, *, name: str, wiped: bool
) -> None:
    Case("k3s", name).put(node)
    made = NewerK3s(node, wiped=wiped)
    with made.inside():
        assert install(node, tmp_path).code == 0
        (engine,) = status(node, tmp_path)["engines"]
        assert engine["live"]["served"], engine
        assert engine["live"]["own"] == ["nvidia", "nvidia-cdi"]
        words = run(node, tmp_path, "status").output
        default = " (default)" if name == "drop-in" else ""
        assert f"Handler: nvidia{default} -> {RUNTIME}, which the distribution registers too\n" in words
        assert f"Handler: nvidia-legacy -> {RUNTIME}.legacy\n" in words
        undone = uninstall(node, tmp_path)
        assert undone.code == 0, undone.output
        assert made.read()["restarted"] == ["k3s.service"] * 2
        assert set(made.handlers()) == {"runc", "nvidia", "nvidia-cdi"}
        assert not node.exists(TOOLKIT)
        assert status(node, tmp_path)["state"] == "absent"
        made.start()
        assert set(made.handlers()) == {"runc"}


@SEEN_OR_NOT
def test_a_handler_that_k3s_finds_in_a_package_is_said_in_the_plan_and_stays(
    node: FakeNode, tmp_path: Path, *, wiped: bool
) -> None:
    Case("k3s", "drop-in").put(node)
    node.write("/usr/bin/nvidia-container-runtime", "#!/bin/sh\n", 0o755)
    made = NewerK3s(node, wiped=wiped)
    with made.inside():
        assert made.handlers()["nvidia"] == "/usr/bin/nvidia-container-runtime"
        plan = run(node, tmp_path, "plan", "--socket", K3S)
        assert "k3s registers nvidia by itself, as long as it finds" in plan.output
        done = install(node, tmp_path)
        assert done.code == 0, done.output
        assert made.handlers()["nvidia"] == RUNTIME
        undone = uninstall(node, tmp_path)
        assert undone.code == 0, undone.output
        made.start()
        assert made.handlers() == {"runc": "", "nvidia": "/usr/bin/nvidia-container-runtime"}


@SEEN_OR_NOT
def test_a_copy_of_our_handler_in_another_drop_in_is_not_the_distributions(
    node: FakeNode, tmp_path: Path, *, wiped: bool
) -> None:
    Case("k3s", "drop-in").put(node)
    node.write("/usr/bin/nvidia-container-runtime", "#!/bin/sh\n", 0o755)
    made = NewerK3s(node, wiped=wiped)
    with made.inside():
        assert install(node, tmp_path).code == 0
        made.runtimes = {}  # what it finds by itself is a package's, and not ours
        copied = node.read(f"{AGENT}/config-v3.toml.d/99-nvidia.toml")
        node.write(f"{AGENT}/config-v3.toml.d/zz-copied.toml", copied)
        undone = uninstall(node, tmp_path)
        assert undone.code == 5, undone.output
        assert "it still lists the handler nvidia" in undone.output
        assert node.exists(RUNTIME)


@SEEN_OR_NOT
def test_the_toolkit_stays_while_it_is_the_default_runtime_that_k3s_was_told(
    node: FakeNode, tmp_path: Path, *, wiped: bool
) -> None:
    Case("k3s", "template-created").put(node)
    made = NewerK3s(node, wiped=wiped)
    with made.inside():
        assert install(node, tmp_path).code == 0
        made.option = "nvidia"
        made.start()
        assert made.default() == "nvidia"
        undone = uninstall(node, tmp_path)
        assert undone.code == 3, undone.output
        assert f"names {RUNTIME} as the default runtime, which k3s was told" in undone.output
        assert "--default-runtime" in undone.output
        assert node.exists(RUNTIME)
        assert made.read()["restarted"] == ["k3s.service"] * 2
        made.start()
        assert not made.read()["down"]
        made.option = ""
        made.start()
        again = uninstall(node, tmp_path)
        assert again.code == 0, again.output
        assert not node.exists(TOOLKIT)
        made.start()
        assert (made.read()["down"], set(made.handlers())) == ("", {"runc"})
