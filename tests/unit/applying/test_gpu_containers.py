"""What counts as a GPU container, by played shims and monitors, specifications, and devices that are open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.started import Started
from toolkit_installer.applying import gpu_containers
from toolkit_installer.node import idling, processes, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import Root
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.planning import toolkit_users

TASKS = "io.containerd.runtime.v2.task"
DEVICE = {"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}}
POD = {"io.kubernetes.cri.sandbox-name": "train-0", "io.kubernetes.cri.sandbox-namespace": "ml"}
SANDBOX = {**POD, "io.kubernetes.cri.container-type": "sandbox"}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """No other processes are seen than those that it starts."""
    matching = processes.find_matching
    with contextlib.closing(Started(tmp_path)) as started:
        own = lambda wanted: (each for each in matching(wanted) if each[0] in started.pids)  # noqa: E731
        monkeypatch.setattr(processes, "find_matching", own)
        yield started


class Played:
    """A containerd's bundles and shims, and a toolkit."""

    def __init__(self, start: Started, folder: Path) -> None:
        self.start = start
        self.folder = folder
        self.toolkit = folder / "toolkit"
        self.runtime = self.toolkit / "nvidia-container-runtime"
        self.toolkit.mkdir()
        self.runtime.write_text("")

    def bundle(self, name: str, runtime: object, said: Mapping[str, Any] | None = None) -> Path:
        place = self.folder / TASKS / "k8s.io" / name
        place.mkdir(parents=True)
        if said is not None:
            (place / "config.json").write_text(json.dumps({"annotations": POD, **said}))
        if runtime is not None:
            (place / "runtime").write_text(str(runtime))
        return place

    def shim(self, place: Path) -> int:
        return self.start("containerd-shim-runc-v2", "-id", place.name, folder=place)

    def look(self, *, by_default: bool = False) -> tuple[str, ...]:
        return gpu_containers.find_busy_reasons(Node("/"), str(self.toolkit), by_default=by_default).why


@pytest.fixture
def played(start: Started, tmp_path: Path) -> Played:
    return Played(start, tmp_path)


def test_a_node_without_containers_is_idle(played: Played) -> None:
    assert played.look() == ()


def test_a_handlers_container_keeps_the_node_busy_and_sandboxes_or_others_do_not(
    played: Played,
) -> None:
    played.shim(played.bundle("pause", played.runtime, {"annotations": SANDBOX}))
    played.bundle("web", "/usr/bin/runc", {})
    assert played.look() == ()
    played.bundle("train", played.runtime, {})
    assert played.look() == ("ml/train-0 runs through a handler of this program",)


def test_where_the_handler_is_the_default_those_count_that_ask_for_a_gpu(played: Played) -> None:
    played.shim(played.bundle("web", played.runtime, {"process": {"env": ["PATH=/bin"]}}))
    assert played.look(by_default=True) == ()
    assert len(played.look()) == 1
    played.bundle("train", played.runtime, {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}})
    assert played.look(by_default=True) == ("ml/train-0 runs through a handler of this program",)


def test_a_device_from_a_cdi_specification_counts_whatever_the_runtime_is(played: Played) -> None:
    played.shim(played.bundle("web", "/usr/bin/runc", {}))
    played.bundle("train", None, DEVICE)  # of a shim that names no executable, such as Kata's
    assert played.look() == ("ml/train-0 runs with a device of NVIDIA's",)


def test_what_cannot_be_read_counts(played: Played) -> None:
    played.shim(played.bundle("secret", "/usr/bin/runc", None))
    assert played.look() == ("secret runs with a specification that cannot be read",)


def test_an_old_shim_does_not_tell_its_runtime_and_counts(played: Played) -> None:
    played.start("containerd-shim", "-workdir", "/run/containerd/io.containerd.runtime.v1.linux/moby/0123456789abcdef")
    assert played.look() == ("0123456789ab runs through a runtime that nobody tells",)


def test_a_monitor_tells_its_container_and_one_for_many_does_not(played: Played) -> None:
    bundle = played.bundle("train", None, {})
    flags = ("-c", "train", "-b", str(bundle), "-r")
    played.start("conmon", *flags, "/usr/bin/runc")
    assert played.look() == ()
    played.start("conmon", *flags, str(played.runtime))
    assert played.look() == ("ml/train-0 runs through a handler of this program",)
    many = played.start("conmonrs")
    assert any(f"the monitor {many} (conmonrs) does not tell its containers" in why for why in played.look())


@pytest.mark.parametrize(
    "cid, bundle, runtime",
    [("-c", "-b", "-r"), ("--cid", "--bundle", "--runtime"), ("--cid=", "--bundle=", "--runtime=")],
)
def test_a_monitored_container_that_is_in_no_pod_is_called_by_its_id(
    played: Played, cid: str, bundle: str, runtime: str
) -> None:
    place = played.bundle("0123456789abcdef", None, {"annotations": {}})
    flags = ((cid, "0123456789abcdef"), (bundle, str(place)), (runtime, str(played.runtime)))
    played.start(
        "conmon", *(word for flag, value in flags for word in ([flag + value] if "=" in flag else [flag, value]))
    )
    assert played.look() == ("0123456789ab runs through a handler of this program",)


def test_a_shim_that_this_user_may_not_look_at_counts(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_matching", lambda _: iter([(7, "containerd-shim", TrustLevel.UNSEEN)]))
    (why,) = played.look()
    assert why.startswith("the process 7 may not be looked at")


def test_what_is_called_a_shim_and_runs_in_a_pod_does_not_count(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = played.shim(played.bundle("inside", played.runtime, {}))
    monkeypatch.setattr(
        toolkit_users, "has_other_root", lambda _node, pid, path: (pid, path) == (inside, str(played.toolkit))
    )
    assert played.look() == ()
    monkeypatch.setattr(toolkit_users, "has_other_root", lambda *_: False)
    assert played.look() == ("ml/train-0 runs through a handler of this program",)


def test_a_process_table_that_cannot_be_read_counts(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> Iterator[tuple[int, str, TrustLevel]]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(processes, "find_matching", refuse)
    (why,) = played.look()
    assert why.startswith("the node's containers cannot be looked at: ")


def test_the_container_that_this_program_runs_in_does_not_count(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = played.bundle("own", played.runtime, {}), played.bundle("other", played.runtime, {})
    (own / "init.pid").write_text(str(os.getpid()))
    shim = played.shim(own)
    (other / "init.pid").write_text(str(shim))
    assert played.look() == ("ml/train-0 runs through a handler of this program",)
    (other / "init.pid").write_text(str(os.getppid()))
    assert played.look() == ()
    (other / "init.pid").unlink()  # the shim has others beside its own
    monkeypatch.setattr(processes, "own_ancestors", lambda: frozenset({os.getpid(), shim}))
    assert played.look() == ("ml/train-0 runs through a handler of this program",)


def test_what_is_to_be_watched_changes_when_the_container_ends(played: Played) -> None:
    bundle = played.bundle("train", played.runtime, {})
    shim = played.shim(played.bundle("pause", "/usr/bin/runc", {"annotations": SANDBOX}))
    watched = gpu_containers.find_busy_reasons(Node("/"), str(played.toolkit), by_default=False).watched
    assert {path for path, _ in watched} == {f"/proc/{shim}", f"/proc/{shim}/cwd/../train/config.json"}
    assert all(idling.identity(path) == known for path, known in watched)
    (bundle / "config.json").unlink()
    assert [path for path, known in watched if idling.identity(path) != known] == [
        f"/proc/{shim}/cwd/../train/config.json"
    ]


@pytest.mark.parametrize(
    "said, has, asks",
    [
        ({}, False, False),
        (DEVICE, True, True),
        ({"linux": {"devices": [{"path": "/dev/gpu", "type": "c", "major": 195}]}}, True, True),
        ({"linux": {"devices": [{"path": "/dev/null", "type": "c", "major": 1}, "?"]}}, False, False),
        ({"mounts": [{"source": "/dev/nvidiactl", "destination": "/dev/nvidiactl"}]}, True, True),
        ({"mounts": [{"source": "/dev/nvidia0", "destination": "/dev/gpu"}]}, True, True),
        ({"mounts": [{"source": "/opt/devices/0", "destination": "/dev/nvidia0"}]}, True, True),
        ({"mounts": [{"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/all"}]}, False, True),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}}, False, True),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VERSION=12"]}}, False, False),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES="]}}, False, False),
        ({"process": {"env": ["CUDA_VERSION=12"]}}, False, True),
        ({"annotations": {"cdi.k8s.io/gpu": "nvidia.com/gpu=0"}}, False, True),
        ({"annotations": {"nvidia.cdi.k8s.io/container.a": "nvidia.com/gpu=0"}}, False, True),
        ({"linux": 7, "mounts": {}, "process": [], "annotations": None}, False, False),
        ({"process": {"env": "NVIDIA_VISIBLE_DEVICES=all"}}, False, False),
    ],
)
def test_what_a_specification_says_of_gpus(said: dict[str, Any], has: bool, asks: bool) -> None:  # noqa: FBT001
    assert (gpu_containers.has_device(said), gpu_containers.requests_gpu(said)) == (has, asks)


def test_the_numbers_of_a_drivers_devices_are_those_of_its_name() -> None:
    listed = "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n507 nvidia-uvm\n\nBlock devices:\n  8 nvidia\n"
    assert processes.find_major_numbers("nvidia", listed) == {195, 234, 507}
    assert processes.find_major_numbers("nvidia", "Character devices:\n  1 mem\n") == frozenset()
    assert processes.find_major_numbers("mem") == {1}


def test_a_process_with_such_a_device_counts_unless_it_is_the_nodes_own() -> None:
    held = "import sys\nheld = open('/dev/null')\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        null = os.major(os.stat("/dev/null").st_rdev)
        assert child.pid in processes.find_users_in_containers({null}, [Root("/proc")]).pids
        assert child.pid not in processes.find_users_in_containers({null}, [Root("/")]).pids
        assert child.pid not in processes.find_users_in_containers({null + 190}, [Root("/proc")]).pids
        assert processes.find_users_in_containers((), [Root("/no-such-folder")]) == processes.DeviceUsers()
        child.communicate(b"")


@pytest.fixture
def hoarder() -> Iterator[int]:
    """A process that has 40,000 descriptors open, as any user may in a container of their own."""
    held = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, [min(50_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])] * 2)\n"
        "fd = os.open('/proc/self/comm', os.O_RDONLY)\n"
        "[os.dup(fd) for _ in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 10_000)]\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.communicate(b"")


def test_more_open_files_than_are_looked_at_keep_the_node_busy(hoarder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "list_pids", lambda: [hoarder])
    assert processes.find_users_in_containers({1 << 20}, [Root("/proc")]) == processes.DeviceUsers()
    monkeypatch.setattr(processes, "_MAX_DESCRIPTORS", 1000)
    assert processes.find_users_in_containers({1 << 20}, [Root("/proc")]) == processes.DeviceUsers(unseen=1)
    assert processes.find_users_in_containers({1 << 20}, [Root("/")]) == processes.DeviceUsers(), (
        "the node's own is not looked at"
    )


def test_a_signal_ends_the_look_at_a_process_with_many_open_files(
    hoarder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "list_pids", lambda: [hoarder])
    looks = iter(range(1 << 20))
    number = 1  # 0 is before the process, 1 is among its descriptors

    def heed() -> None:
        if next(looks) == number:
            raise signals.Stopped(signal.SIGTERM)

    monkeypatch.setattr(signals, "raise_if_pending", heed)
    with pytest.raises(signals.Stopped):
        processes.find_users_in_containers({1 << 20}, [Root("/proc")])
