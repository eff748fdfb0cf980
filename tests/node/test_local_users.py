"""Local users who pretend: what their processes say decides nothing, forbids nothing, and keeps nobody waiting."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.node.engines import cri_socket
from tests.support import fake_processes
from tests.support.fake_node import DAEMON_JSON, SCRIPTS, TOOLKIT, FakeNode

STRANGER = 65534
SOCKET = "/run/containerd/containerd.sock"
OWN_SOCKET = "/tmp/own/containerd.sock"  # noqa: S108  # where a local user may listen

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="processes of another user are played: run as root")


@pytest.fixture
def bare(node: FakeNode) -> FakeNode:
    """A node that others can look into, as every real one."""
    for folder in (node.root, *node.root.parents):
        if os.stat(folder).st_uid == 0 and folder.is_relative_to("/tmp"):  # noqa: S108  # pytest's own
            folder.chmod(folder.stat().st_mode | 0o055)
    (node.root / "tmp/own").mkdir(parents=True)
    (node.root / "tmp").chmod(0o1777)
    return node


def done(node: FakeNode, command: str, *more: str) -> tuple[int, str]:
    run = node._started(
        [str(SCRIPTS / "toolkit-installer"), command, "--node-root", str(node.root), "--reload-timeout", "8", *more]
    )
    return run.finish(), run.output


def detected(node: FakeNode, *more: str) -> str:
    return done(node, "detect", "--debug", *more)[1]


@pytest.mark.parametrize("name", ["kubelet", "k3s", "kubelite"])
def test_a_users_kubelet_decides_nothing_and_is_named_with_its_user(bare: FakeNode, name: str) -> None:
    bare.write(DAEMON_JSON, "{}\n")
    asked = f"--container-runtime-endpoint=unix://{OWN_SOCKET}"
    with fake_processes.process(bare.root, name, asked, user=STRANGER) as pid:
        said = detected(bare)
    assert OWN_SOCKET not in said
    assert "the kubelet" not in said
    assert re.search(rf"PID {pid}\b.*user {STRANGER}\b", said)


def test_a_users_kubelet_on_an_unknown_endpoint_forbids_nothing(bare: FakeNode) -> None:
    bare.write(DAEMON_JSON, "{}\n")
    with fake_processes.process(bare.root, "kubelet", "--container-runtime-endpoint=unix:///tmp/x.sock", user=STRANGER):
        assert bare.do("run", "--no-daemon").finish() == 0
    assert "nvidia" in bare.docker()["runtimes"]


def test_a_users_kubelet_does_not_outweigh_roots_with_a_lower_pid(bare: FakeNode) -> None:
    bare.write(DAEMON_JSON, "{}\n")
    with (
        fake_processes.process(bare.root, "kubelet", f"--container-runtime-endpoint=unix://{SOCKET}"),
        fake_processes.process(
            bare.root, "kubelet", "--container-runtime-endpoint=unix:///var/run/crio/crio.sock", user=1234
        ),
    ):
        said = detected(bare)
    assert SOCKET in said
    assert "crio.sock: --container" not in said


def test_what_a_user_answers_on_a_socket_is_not_heard_even_where_root_names_it(bare: FakeNode) -> None:
    bare.write("/etc/containerd/config.toml", "version = 2\n")
    with cri_socket.answering_as_user(bare.place(OWN_SOCKET), "1.7.24", STRANGER):
        said = detected(bare, "--runtime", "containerd", "--socket", OWN_SOCKET)
        assert "1.7.24" not in said
        code, said = done(
            bare, "plan", "--runtime", "containerd", "--socket", OWN_SOCKET, "--toolkit-source-root", str(bare.payload)
        )
    assert "1.7.24" not in said
    assert code == 0
    assert "user 65534" in said


@pytest.mark.parametrize("name, address", [("dockerd", "-Hunix:///var/run/docker.sock"), ("dockerd", "--host=fd://")])
def test_a_users_dockerd_keeps_no_uninstall_waiting_while_docker_is_down(
    bare: FakeNode, name: str, address: str
) -> None:
    before = bare.snapshot()
    assert bare.do("run", "--no-daemon").finish() == 0
    with fake_processes.process(bare.root, name, address, user=STRANGER):
        began = time.monotonic()
        assert bare.do("uninstall").finish() == 0
        assert time.monotonic() - began < 20  # it would wait for 60
    assert bare.snapshot() == before


@pytest.mark.parametrize("kind", ["pipe", "zeros", "large", "folder"])
def test_a_kubelets_file_that_is_no_file_hangs_nobody_and_says_nothing(bare: FakeNode, kind: str) -> None:
    bare.write(DAEMON_JSON, "{}\n")
    place = bare.place("/var/lib/kubelet/config.yaml")
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "zeros":
        os.mknod(place, 0o644 | 0o020000, os.makedev(1, 5))
    elif kind == "folder":
        place.mkdir()
    else:
        with place.open("wb") as stream:
            stream.truncate(1 << 32)
    with fake_processes.process(bare.root, "kubelet", "--config=/var/lib/kubelet/config.yaml"):
        assert bare.do("run", "--no-daemon").finish() == 0


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_a_shims_runtime_that_is_no_file_hangs_no_uninstall(bare: FakeNode, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / "runtime")
    else:
        os.mknod(folder / "runtime", 0o644 | 0o020000, os.makedev(1, 5))
    assert bare.do("run", "--no-daemon").finish() == 0
    with fake_processes.process(folder, "containerd-shim"):
        assert bare.do("uninstall").finish() == 0
    assert not bare.exists(TOOLKIT)


def test_a_users_shim_or_monitor_keeps_no_toolkit(bare: FakeNode) -> None:
    assert bare.do("run", "--no-daemon").finish() == 0
    with (
        fake_processes.process(bare.root, "containerd-shim", "-workdir", "/x/c0ffee", user=STRANGER),
        fake_processes.process(
            bare.root, "conmon", "-r", f"{TOOLKIT}/nvidia-container-runtime", "-c", "x", user=STRANGER
        ),
    ):
        assert bare.do("uninstall").finish() == 0
    assert not bare.exists(TOOLKIT)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("conmon", ["-r", f"{TOOLKIT}/nvidia-container-runtime", "-c", "x"]),
        ("containerd-shim", ["-workdir", "/x/c0ffee"]),
        ("containerd-shim", []),
    ],
    ids=["monitor", "old shim", "bundle"],
)
def test_root_of_an_ordinary_pod_who_is_called_a_shim_or_monitor_keeps_no_toolkit(
    bare: FakeNode, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    pod = tmp_path / "pod"
    pod.mkdir()
    (pod / "runtime").write_text(f"{TOOLKIT}/nvidia-container-runtime")
    assert bare.do("run", "--no-daemon").finish() == 0
    with fake_processes.process(pod, name, *arguments):
        assert bare.do("uninstall").finish() == 0
    assert not bare.exists(TOOLKIT)


def test_a_shim_in_a_container_that_was_given_the_toolkit_keeps_it(bare: FakeNode, tmp_path: Path) -> None:
    assert bare.do("run", "--no-daemon").finish() == 0
    pod = tmp_path / "pod"
    place = pod / TOOLKIT[1:] / "nvidia-container-runtime"
    place.parent.mkdir(parents=True)
    place.hardlink_to(bare.place(f"{TOOLKIT}/nvidia-container-runtime"))  # a mount, as stat(2) shows it
    (pod / "runtime").write_text(f"{TOOLKIT}/nvidia-container-runtime")
    with fake_processes.process(pod, "containerd-shim"):
        assert bare.do("uninstall").finish() == 0
    assert bare.exists(TOOLKIT)
