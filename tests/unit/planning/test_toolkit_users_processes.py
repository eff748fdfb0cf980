from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wiping
from tests.unit.started import Started
from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.engines.common import serving
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError
from toolkit_installer.planning import toolkit_users
from toolkit_installer.settings import EngineName

TOOLKIT = f"/usr/local/nvidia-{uuid.uuid4().hex}/toolkit"
"""No other test's: processes are looked for on the whole machine."""
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
TASKS = "io.containerd.runtime.v2.task"


_NOBODY = 65534


@pytest.fixture(autouse=True)
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the machine show what this test started alone.

    What has wiped its command line may hold any toolkit: that of another worker's test would count here, too.
    """
    me = os.getpid()  # of a fork these are to be seen as well
    started = Path(f"/proc/{me}/task/{me}/children")
    monkeypatch.setattr(processes, "list_pids", lambda: [me, *map(int, started.read_text().split())])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "node" / TOOLKIT[1:]).mkdir(parents=True)
    return Node.open(str(tmp_path / "node"), "/host")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    with contextlib.closing(Started(tmp_path)) as started:
        yield started


def bundle(tasks: Path, name: str, runtime: str = RUNTIME) -> Path:
    """Write what containerd keeps of a container that is not deleted."""
    folder = tasks / "k8s.io" / name
    folder.mkdir(parents=True)
    (folder / "runtime").write_text(runtime)
    return folder


def test_a_container_that_was_started_through_our_handler_holds_the_toolkit(
    node: Node, start: Started, tmp_path: Path
) -> None:
    # the runtime exists neither here nor there, so it cannot be told apart
    pid = start("containerd-shim-runc-v2", folder=bundle(tmp_path, "c0ffee"))
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container c0ffee (PID {pid}) runs with {RUNTIME}"


@pytest.mark.parametrize("call", ["readlink", "stat"])
def test_a_shim_whose_folder_the_kernel_does_not_show_may_hold_the_toolkit(
    node: Node, start: Started, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A security module may forbid it to root, too: what cannot be seen may run with it."""
    pid = start("containerd-shim-runc-v2", folder=bundle(tmp_path, "c0ffee", "/usr/bin/runc"))
    real = getattr(os, call)

    def forbidden(path: object, *arguments: object, **options: object) -> object:
        if str(path).startswith(f"/proc/{pid}/cwd"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, call, forbidden)
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container of PID {pid} (this user may not look, root may) may run with it"


@pytest.mark.parametrize("asked", ["cmdline", "comm", "stat", "cgroup"])
def test_a_monitor_that_may_not_be_asked_may_hold_the_toolkit(
    node: Node, start: Started, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start("conmon", "-c", "c0ffee", "-r", "/usr/bin/runc")
    its, real = os.stat(f"/proc/{pid}"), os.open

    def forbidden(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == asked and dir_fd is not None and os.path.samestat(os.fstat(dir_fd), its):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    assert toolkit_users.list_users(node, TOOLKIT) == []
    monkeypatch.setattr(os, "open", forbidden)
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container of PID {pid} (this user may not look, root may) may run with it"


POD = {"io.kubernetes.cri.sandbox-name": "train-0", "io.kubernetes.cri.sandbox-namespace": "research"}
POD_OF_CRIO = {"io.kubernetes.pod.name": "train-0", "io.kubernetes.pod.namespace": "research"}


def test_who_holds_the_toolkit_is_told_by_pod_and_namespace(node: Node, start: Started, tmp_path: Path) -> None:
    tasks = tmp_path / TASKS
    place = bundle(tasks, "pod")
    for name, folder in (("pod", place), ("worker", bundle(tasks, "worker"))):
        more = {"io.kubernetes.cri.container-name": "cuda"} if name == "worker" else {}
        (folder / "config.json").write_text(json.dumps({"annotations": POD | more}))
    pid = start("containerd-shim-runc-v2", folder=place)
    pod, worker = toolkit_users.list_users(node, TOOLKIT)
    assert pod == f"the container pod of pod research/train-0 (PID {pid}) runs with {RUNTIME}"
    assert "the container worker of pod research/train-0 (cuda) (its bundle is there)" in worker


def test_the_pod_of_a_container_that_crio_watches_is_told(node: Node, start: Started, tmp_path: Path) -> None:
    folder = tmp_path / "userdata"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"annotations": POD_OF_CRIO}))
    pid = start("conmon", "-b", str(folder), "-c", "c0ffee", "-r", RUNTIME)
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container c0ffee of pod research/train-0 (PID {pid}) runs with {RUNTIME}"


def test_the_pod_of_a_container_without_shim_and_engine_is_told(node: Node) -> None:
    folder = bundle(Path(node.root.folder) / "run/containerd" / TASKS, "orphan")
    (folder / "config.json").write_text(json.dumps({"annotations": POD}))
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held.startswith("the container orphan of pod research/train-0 (its bundle ")


@pytest.mark.parametrize(
    "runtime",
    ["runc", "/usr/bin/runc", f"{TOOLKIT}-of-another/nvidia-container-runtime", ""],
    ids=["runc", "path", "neighbour", "none"],
)
def test_an_ordinary_container_holds_nothing(node: Node, start: Started, tmp_path: Path, runtime: str) -> None:
    start("containerd-shim-runc-v2", folder=bundle(tmp_path, "c0ffee", runtime))
    assert toolkit_users.list_users(node, TOOLKIT) == []


def test_a_container_of_another_node_with_the_same_paths_holds_nothing(
    node: Node, start: Started, tmp_path: Path
) -> None:
    start("containerd-shim-runc-v2", folder=bundle(tmp_path / TASKS, "c0ffee", sys.executable))
    assert toolkit_users.list_users(node, str(Path(sys.executable).parent)) == []


def test_each_container_of_a_pod_is_named_though_they_share_a_shim(node: Node, start: Started, tmp_path: Path) -> None:
    tasks = tmp_path / TASKS
    pid = start("containerd-shim-runc-v2", folder=bundle(tasks, "pod"))
    bundle(tasks, "worker")
    bundle(tasks, "ordinary", "/usr/bin/runc")
    pod, worker = toolkit_users.list_users(node, TOOLKIT)
    assert f"the container pod (PID {pid})" in pod
    assert "the container worker (" in worker


def test_a_shim_that_has_not_started_its_container_yet_holds_nothing(
    node: Node, start: Started, tmp_path: Path
) -> None:
    start("containerd-shim-runc-v2", "-namespace", "k8s.io", "start", folder=tmp_path / TASKS / "k8s.io" / "soon")
    assert toolkit_users.list_users(node, TOOLKIT) == []


@pytest.mark.parametrize("state", toolkit_users.STATE_FOLDERS)
def test_a_container_without_shim_and_engine_holds_the_toolkit_that_deletes_it(node: Node, state: str) -> None:
    tasks = Path(node.root.folder) / state[1:] / TASKS
    bundle(tasks, "orphan")
    bundle(tasks, "ordinary", "runc")
    (tasks / "k8s.io" / "begun").mkdir()
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container orphan (its bundle {state}/{TASKS}/k8s.io/orphan is there) runs with {RUNTIME}"


@pytest.fixture
def old_shim(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what is taken for the old shim's name in this test.

    By its real name it would hold every toolkit on the machine, and tests that run beside this one have theirs.
    """
    name = f"shim-{uuid.uuid4().hex[:10]}"
    monkeypatch.setattr(toolkit_users, "SHIM", name)
    return name


OLD_SHIM = ("-namespace", "moby", "-workdir", "/var/lib/containerd/io.containerd.runtime.v1.linux/moby/c0ffee")


@pytest.mark.parametrize("root", [("-runtime-root", "/var/run/docker/runtime-nvidia"), ()])
def test_a_container_of_an_old_shim_that_does_not_tell_its_runtime_holds_the_toolkit(
    node: Node, start: Started, old_shim: str, root: tuple[str, ...]
) -> None:
    pid = start(old_shim, *OLD_SHIM, *root)
    assert toolkit_users.list_users(node, TOOLKIT) == [f"the container c0ffee (PID {pid}) may run with it"]


def test_a_container_of_an_old_shim_that_docker_gave_to_runc_holds_nothing(
    node: Node, start: Started, old_shim: str
) -> None:
    start(old_shim, *OLD_SHIM, "-runtime-root", "/var/run/docker/runtime-runc")
    assert toolkit_users.list_users(node, TOOLKIT) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("-b", "/run/x", "-c", "abc", "-u", "abc", "-r", RUNTIME, "--exit-command-arg", "--runtime"),
        (f"--runtime={RUNTIME}", "--cid=abc", "--persist-dir", "/run/x"),
    ],
)
def test_a_conmon_holds_the_toolkit_for_its_container(node: Node, start: Started, arguments: tuple[str, ...]) -> None:
    pid = start("conmon", *arguments)
    assert toolkit_users.list_users(node, TOOLKIT) == [f"the container abc (PID {pid}) runs with {RUNTIME}"]


@pytest.mark.parametrize("name", ["conmon", "containerd-shim-runc-v2"])
def test_a_container_monitor_with_a_wiped_command_line_may_hold_the_toolkit(
    node: Node, start: Started, name: str
) -> None:
    pid = start(name, "-r", "/usr/bin/runc", "-c", "c0ffee")
    while " S " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.001)  # its interpreter still reads its arguments until it waits
    wiping.wipe(pid, name)
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert held == f"the container of PID {pid} (whose command line is wiped) may run with it"


@dataclasses.dataclass
class Adapter:
    """an engine's adapter in which one socket answers, with a handler that runs a program."""

    answers: str
    runs: str

    def ask(self, _node: Node, socket: str, _seconds: float) -> LiveState:
        if socket != self.answers:
            raise EngineSilentError("no HTTP/2", path=socket)
        return LiveState("2.1", {"gpu": self.runs}, None, processes.inspect_process(os.getpid()))


@pytest.mark.parametrize(
    "sockets,answers,runs,held",
    [
        (["/run/a.ttrpc", "/run/a"], "/run/a", RUNTIME, "containerd still offers the handler gpu: restart it"),
        (["/run/a.ttrpc", "/run/a"], "/run/a", "/usr/bin/runc", None),
        (["/run/a.ttrpc", "/run/a"], "", RUNTIME, "answers on none of its sockets: it may still offer the handlers"),
        ([], "", RUNTIME, None),
    ],
    ids=["offers-it", "offers-something-else", "hangs", "starts"],
)
def test_an_engine_with_a_wiped_command_line_is_queried_on_each_of_its_sockets(  # what it has and says
    node: Node, monkeypatch: pytest.MonkeyPatch, sockets: list[str], answers: str, runs: str, held: str | None
) -> None:
    me = processes.inspect_process(os.getpid())
    monkeypatch.setattr(serving, "find_unnamed_engines", lambda _: iter([(EngineName.CONTAINERD, me, sockets)]))
    monkeypatch.setattr(toolkit_users, "get_adapter", lambda _: Adapter(answers, runs))
    found = toolkit_users._find_hidden_offers(node, TOOLKIT)
    assert len(found) == (held is not None)
    assert all(words.endswith(held or "") for words in found)


@pytest.mark.parametrize("arguments", [("-c", "abc", "-r", "/usr/bin/runc"), ("-c", "abc"), ("--version",)])
def test_a_conmon_that_runs_something_else_holds_nothing(
    node: Node, start: Started, arguments: tuple[str, ...]
) -> None:
    start("conmon", *arguments)
    assert toolkit_users.list_users(node, TOOLKIT) == []


def test_a_cdi_specification_that_names_the_toolkit_holds_it(node: Node) -> None:
    folder = Path(node.root.folder) / "etc/cdi"
    folder.mkdir(parents=True)
    (folder / "nvidia.yaml").write_text(f"hooks: [{{path: {TOOLKIT}/nvidia-cdi-hook}}]")
    (folder / "other.json").write_text('{"path": "/usr/bin/nvidia-cdi-hook"}')
    (folder / "notes.txt").write_text(f"{TOOLKIT}/nvidia-cdi-hook")
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert "/etc/cdi/nvidia.yaml" in held


def test_a_cdi_specification_that_is_too_large_to_read_holds_the_toolkit(node: Node) -> None:
    folder = Path(node.root.folder) / "var/run/cdi"
    folder.mkdir(parents=True)
    with (folder / "large.json").open("wb") as file:
        file.truncate(1 << 30)
    (held,) = toolkit_users.list_users(node, TOOLKIT)
    assert "/var/run/cdi/large.json cannot be read" in held


def test_what_only_the_hosts_root_shows_holds_the_toolkit_too(tmp_path: Path) -> None:
    seen, host = tmp_path / "seen", tmp_path / "host"
    for root in (seen, host):
        (root / "etc/cdi").mkdir(parents=True)
    (host / "etc/cdi/nvidia.yaml").write_text(f"path: {TOOLKIT}/nvidia-cdi-hook")
    bundle(host / "run/containerd" / TASKS, "orphan")
    orphan, specification = toolkit_users.list_users(Node(str(seen), str(host)), TOOLKIT)
    assert "the container orphan" in orphan
    assert "/etc/cdi/nvidia.yaml" in specification
    shutil.rmtree(host)
    assert toolkit_users.list_users(Node(str(seen), str(host)), TOOLKIT) == []


def test_unreadable_bundles_hold_the_toolkit_instead_of_failing_the_cleanup(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_reader: Reader, path: str) -> list[str]:
        if path.startswith("/run/docker/"):
            raise NodeError.of(PermissionError(errno.EACCES, ""), path, "list it")
        return []

    monkeypatch.setattr(Reader, "list", refused)
    assert toolkit_users.list_users(node, TOOLKIT) == [
        "the container below /run/docker/containerd/daemon (this user may not look there, root may) may run with it"
    ]


def test_an_engine_with_an_unreadable_socket_holds_the_toolkit_instead_of_failing(
    node: Node, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    canonical = Reader.canonical

    def refused(reader: Reader, path: str) -> str:
        if path.startswith("/run/containerd/"):
            raise NodeError.of(PermissionError(errno.EACCES, ""), path, "look at it")
        return canonical(reader, path)

    monkeypatch.setattr(Reader, "canonical", refused)
    assert toolkit_users.is_still_needed(node, TOOLKIT, ())
    said = logged.getvalue()
    assert "containerd may listen on /run/containerd/containerd.sock (this user may not look there" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process is needed: run as root")
def test_an_unreadable_shim_holds_the_toolkit_instead_of_failing_the_cleanup(node: Node, start: Started) -> None:
    pid = start("containerd-shim-runc-v2", "-id", "x")
    expected = f"the container of PID {pid} (this user may not look, root may) may run with it"
    assert expected in seen_by_nobody(node)


def seen_by_nobody(node: Node) -> list[str]:
    """Return what a user without rights is told holds the toolkit."""
    for place in (Path(node.root.folder), *Path(node.root.folder).parents):
        if place.is_relative_to(tempfile.gettempdir()) and place != Path(tempfile.gettempdir()):
            place.chmod(0o755)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(_NOBODY)
            os.write(writing, json.dumps(toolkit_users.list_users(node, TOOLKIT)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        said = stream.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(said)
    return found
