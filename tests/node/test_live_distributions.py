"""Distributions that live: the right unit is restarted, or none, and what they do by themselves is no fault of ours."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from tests.node import faults
from tests.node.faults import Plan
from tests.support.distribution_cases import Case
from tests.support.fake_distributions import AGENT, K0s, K3s
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode
from toolkit_installer.node.programs import CompletedProgram

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a process is given the node's / with chroot: run as root")
HANDLERS = {
    "nvidia": f"{TOOLKIT}/nvidia-container-runtime",
    "nvidia-cdi": f"{TOOLKIT}/nvidia-container-runtime.cdi",
    "nvidia-legacy": f"{TOOLKIT}/nvidia-container-runtime.legacy",
}
K3S_SOCKET = ("--socket", "/run/k3s/containerd/containerd.sock", "--reload-budget", "99/1", "--reload-timeout", "5")
K0S_SOCKET = ("--socket", "/run/k0s/containerd.sock", "--reload-budget", "99/1", "--reload-timeout", "20")


def k3s(node: FakeNode, name: str, **more: Any) -> K3s:
    Case("k3s", name).put(node)
    return K3s(node, **more)


def tree(node: FakeNode, *but: str) -> dict[str, Any]:
    return {path: each for path, each in node.snapshot().items() if not path.startswith(("/run", *but))}


@pytest.mark.parametrize("wiped", [False, True], ids=["visible", "wiped"])
@pytest.mark.parametrize(
    "name,default", [("drop-in", "nvidia"), ("template-created", "runc"), ("template-created-of-version-2", "runc")]
)
def test_k3s_is_restarted_once_serves_the_handlers_and_is_given_back(  # the node, the case and what is expected
    node: FakeNode, tmp_path: Path, *, name: str, default: str, wiped: bool
) -> None:
    made = k3s(node, name, release="v1.7.11-k3s2" if "version-2" in name else None, wiped=wiped)
    with made.inside():
        before = tree(node, f"{AGENT}/config.toml")
        done = faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd")
        assert done.code == 0, done.output
        assert made.read()["restarted"] == ["k3s.service"]
        assert {**made.handlers(), **HANDLERS} == made.handlers()
        assert made.default() == default
        again = faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd")
        assert NOTHING_TO_DO in again.output, again.output
        made.start()  # another restart, for whatever reason, changes nothing
        assert (
            NOTHING_TO_DO in faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd").output
        )
        undone = faults.run(node, tmp_path, "uninstall", "--reload-timeout", "5", engine="containerd")
        assert undone.code == 0, undone.output
        assert made.read()["restarted"] == ["k3s.service"] * 2
        assert set(made.handlers()) == {"runc", "nvidia"}  # what k3s found by itself while it was there
        assert made.default() == "runc"
        assert tree(node, f"{AGENT}/config.toml") == before
        made.start()
        assert set(made.handlers()) == {"runc"}
        assert node.read(f"{AGENT}/config.toml").decode().strip() == made.base.strip()


def test_an_agent_whose_process_tells_no_unit_is_restarted_by_the_one_that_is_active(
    node: FakeNode, tmp_path: Path
) -> None:
    made = k3s(node, "drop-in")
    made.unit = None
    with made.inside():
        done = faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd")
        assert done.code == 0, done.output
        assert made.read()["restarted"] == ["k3s-agent.service"]


def test_a_k3s_without_a_place_for_additions_finds_the_toolkit_after_its_restart(
    node: FakeNode, tmp_path: Path
) -> None:
    made = k3s(node, "no-place", release="v1.7.1-k3s1")
    with made.inside():
        before = tree(node, f"{AGENT}/config.toml")
        done = faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd")
        assert done.code == 0, done.output
        assert made.handlers()["nvidia"] == HANDLERS["nvidia"]
        undone = faults.run(node, tmp_path, "uninstall", engine="containerd")
        assert undone.code == 0, undone.output
        assert tree(node, f"{AGENT}/config.toml") == before


def test_an_old_k3s_is_not_given_a_template_that_it_cannot_build(node: FakeNode, tmp_path: Path) -> None:
    made = k3s(node, "template-created-of-version-2", release="v1.7.1-k3s1")
    with made.inside():
        assert faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd").code == 0
        assert not node.exists(f"{AGENT}/config.toml.tmpl")


def test_a_containerd_that_would_lose_what_k3s_made_gets_a_template_and_no_drop_in(
    node: FakeNode, tmp_path: Path
) -> None:
    made = k3s(node, "drop-in", release="v2.0.5-k3s1")
    with made.inside():
        assert faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd").code == 0
        assert node.exists(f"{AGENT}/config-v3.toml.tmpl")
        assert not node.exists(f"{AGENT}/config-v3.toml.d")


class Failing(K3s):
    """A k3s that does not start with anything of ours."""

    def made(self) -> dict[str, Any]:
        if b"toolkit-installer" in self.node.read(f"{AGENT}/config-v3.toml.tmpl"):
            raise ValueError("containerd: failed to unmarshal TOML: toml: table nvidia already exists")
        return super().made()


def test_a_k3s_that_does_not_start_with_the_change_has_its_template_back(node: FakeNode, tmp_path: Path) -> None:
    Case("k3s", "template-extended").put(node)
    made = Failing(node)
    made.base = Case("k3s", "template-created").read(f"{AGENT}/config.toml").decode()
    with made.inside():
        before = tree(node, f"{AGENT}/config.toml")
        done = faults.run(node, tmp_path, "run", "--no-daemon", *K3S_SOCKET, engine="containerd")
        assert done.code == 5, done.output
        assert "table nvidia already exists" in done.output
        assert made.read()["restarted"] == ["k3s.service"] * 2
        assert set(made.handlers()) == {"runc", "kata", "nvidia"}  # it found the toolkit, which was there for a while
        assert tree(node, f"{AGENT}/config.toml") == before


class Telling(K3s):
    """A k3s whose containerd prints what it reads, a drop-in of somebody else's included."""

    def _run(self, command: list[str], **more: object) -> CompletedProgram:
        if command[-2:] == ["config", "dump"] and command[2] == f"{AGENT}/config.toml":
            return CompletedProgram(0, tomlkit.dumps(self.read()["document"]).encode(), "")
        return super()._run(command, **more)


@pytest.mark.parametrize("source, root", [("command", "/theirs"), ("file", None), (None, "/theirs")])
def test_the_dump_of_k3s_containerd_lends_its_settings_as_any_containerds_does(
    node: FakeNode, tmp_path: Path, source: str | None, root: str | None
) -> None:
    Case("k3s", "drop-in").put(node)
    table = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options"
    node.write(f"{AGENT}/config-v3.toml.d/10-theirs.toml", f"version = 3\n[{table}]\nRoot = '/theirs'\n")
    flags = () if source is None else ("--config-source", source)
    with Telling(node).inside():
        for _ in range(2):  # what we wrote ourselves lends nothing
            done = faults.run(node, tmp_path, "run", "--no-daemon", *flags, *K3S_SOCKET, engine="containerd")
            assert done.code == 0, done.output
        document = tomllib.loads(node.read(f"{AGENT}/config-v3.toml.d/99-nvidia.toml").decode())
    runtimes = document["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert runtimes["nvidia"]["options"].get("Root") == root
    assert NOTHING_TO_DO in done.output


def test_a_template_that_was_edited_since_k3s_started_is_spoken_of(node: FakeNode) -> None:
    Case("k3s", "template-extended").put(node)
    later = node.place(f"{AGENT}/config.toml").stat().st_mtime + 60
    os.utime(node.place(f"{AGENT}/config-v3.toml.tmpl"), (later, later))
    plan = node.do("plan", engine="auto")
    assert "was changed after config.toml was made of it" in plan.output


def test_k0s_is_waited_for_and_neither_signalled_nor_restarted(node: FakeNode, tmp_path: Path) -> None:
    Case("k0s", "version-3").put(node)
    made = K0s(node)
    with made.inside():
        before = tree(node)
        done = faults.run(node, tmp_path, "run", "--no-daemon", *K0S_SOCKET, engine="containerd")
        assert done.code == 0, done.output
        assert "k0s does it" in done.output
        assert (made.read()["restarted"], made.read()["starts"]) == ([], 2)
        assert made.handlers() == {"runc": "", **HANDLERS}
        assert made.default() == "nvidia"
        assert (
            NOTHING_TO_DO in faults.run(node, tmp_path, "run", "--no-daemon", *K0S_SOCKET, engine="containerd").output
        )
        undone = faults.run(node, tmp_path, "uninstall", "--reload-timeout", "20", engine="containerd")
        assert undone.code == 0, undone.output
        assert made.handlers() == {"runc": ""}
        assert (made.read()["restarted"], made.read()["starts"]) == ([], 3)
        assert "signal" not in [call.partition(" ")[0] for call in (*done.calls, *undone.calls)]
        assert tree(node) == before


def test_a_run_that_was_killed_after_k0s_saw_its_drop_in_is_finished_by_the_next(
    node: FakeNode, tmp_path: Path
) -> None:
    Case("k0s", "version-3").put(node)
    made = K0s(node)
    with made.inside():
        whole = faults.run(node, tmp_path, "run", "--no-daemon", *K0S_SOCKET, engine="containerd")
        faults.run(node, tmp_path, "uninstall", "--reload-timeout", "20", engine="containerd")
        at = max(number for number, call in enumerate(whole.calls) if "99-nvidia" in call) + 1
        killed = faults.run(node, tmp_path, "run", "--no-daemon", *K0S_SOCKET, engine="containerd", plan=Plan(at))
        assert killed.code == -9, killed.output
        made.start()  # k0s has merged it meanwhile
        again = faults.run(node, tmp_path, "run", "--no-daemon", *K0S_SOCKET, engine="containerd")
        assert again.code == 0, again.output
        assert made.handlers() == {"runc": "", **HANDLERS}
