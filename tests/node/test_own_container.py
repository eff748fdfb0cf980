"""A container that sees the node somewhere else does not take itself for the node. As root: with mounts of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_node import DAEMON_JSON, FakeNode

CHECKOUT = Path(__file__).parents[2]
USED = 2
DOCKER = b'{\n  "debug": true\n}\n'
INSIDE = """\
set -eu
work=$1
shift
mount -t tmpfs tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
root=$work/root
rm -rf "$root/.dockerenv" "$root/run/.containerenv" "$root/etc/docker" "$root/usr/local/nvidia" "$root/host"
mkdir -p "$root/etc/docker" "$root/run/nvidia"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
{mounts}
{before}
listed() {{ (cd "$work/upper" && find . ! -path './tmp*' ! -path './dev/*' | sort) }}
listed >"$work/before"
code=0
{start} || code=$?
listed | diff "$work/before" - >&2 || printf 'CHANGED\\n'
printf 'EXIT %d\\n' "$code"
"""
"""Makes a container's root, of this machine's files, and runs the program in it."""
NAMESPACES = (
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)
PLAYED = "exec python3 -c \"open('/proc/self/comm', 'w').write('crio'); import time; time.sleep(60)\""
PID_OF_ITS_OWN = 'chroot "$root" unshare --pid --fork --kill-child --mount --mount-proc'
PID_OF_THE_NODE = 'chroot "$root"'


def is_mounted(folder: str) -> bool:
    """Tell whether a folder lies in another file system than /, of which the container's root is made.

    A Python of the distribution's has /usr for its own folder: mounted, it would be the machine's own in the container.
    """
    return os.stat(folder).st_dev != os.stat("/").st_dev


def can_mount() -> bool:
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, capture_output=True)
    return os.geteuid() == 0 and done.returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="only root may make mounts")


class Container:
    """A root of its own, for one run of the program; `said` is all of what that said, with `EXIT` and its code."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.mounts = ""
        self.before = ""
        self.said = ""

    def mount(self, path: str, at: str | None = None) -> None:
        """Mount one of the node's folders."""
        place = shlex.quote(at or path)
        self.mounts += f'mkdir -p "$root"{place}; mount --bind {self.node.place(path)} "$root"{place}\n'

    def mark(self) -> None:
        """Mark it as docker does."""
        self.before += ': >"$root/.dockerenv"\n'

    def run(self, command: str, *arguments: str, start: str = PID_OF_ITS_OWN, environment: str = "") -> int:
        """Run a command of the program; return its exit code."""
        self.folder.mkdir()
        folders = map(str, (CHECKOUT, sys.prefix, sys.base_prefix, self.node.payload))
        for each in filter(is_mounted, folders):
            self.mounts += f'mkdir -p "$root{each}"; mount --bind {each} "$root{each}"\n'
            self.mounts += f'mount -o remount,bind,ro "$root{each}"\n'
        payload = f"--toolkit-source-root={self.node.payload}" if command in ("run", "plan") else ""
        daemon = "--no-daemon" if command == "run" else ""
        program = f"env -i PATH=$PATH PYTHONDONTWRITEBYTECODE=1 {environment} {sys.executable} -m toolkit_installer"
        words = f"{program} {command} --runtime docker {payload} {daemon} {shlex.join(arguments)}"
        script = INSIDE.format(mounts=self.mounts, before=self.before, start=f"{start} {words}")
        done = subprocess.run(
            [*NAMESPACES, "sh", "-c", script, "sh", str(self.folder)],
            capture_output=True,
            text=True,
            check=False,
            cwd=CHECKOUT,
            timeout=60,
        )
        self.said = done.stdout + done.stderr
        assert "EXIT " in done.stdout, self.said
        return int(done.stdout.rsplit("EXIT ", 1)[1])


@pytest.fixture
def seen(node: FakeNode, tmp_path: Path) -> Container:
    """A container that docker marked, with the node's / at /host."""
    for folder in ("proc", "usr"):
        node.place(folder).mkdir(exist_ok=True)
    node.write("/etc/os-release", "ID=node\n")
    node.write("/bin/sh", Path("/bin/sh").read_bytes(), 0o755)
    node.write(DAEMON_JSON, DOCKER)
    container = Container(node, tmp_path / "container")
    container.mark()
    container.mount("/", "/host")
    return container


def single(container: Container) -> None:
    """Mount what callers mount that do not say where the node is."""
    container.node.place("/usr/local/nvidia").mkdir(parents=True)
    for folder in ("/usr/local/nvidia", "/etc/docker"):
        container.mount(folder)


# --- what is refused ---


@pytest.mark.parametrize("command", ["run", "plan", "uninstall"])
def test_what_would_change_the_container_itself_is_refused(seen: Container, command: str) -> None:
    before = seen.node.snapshot()
    assert seen.run(command) == USED, seen.said
    assert "this is a container, and /usr/local/nvidia lies in its own file system" in seen.said
    assert "give --node-root /host" in seen.said
    assert "CHANGED" not in seen.said
    assert seen.node.snapshot() == before


def test_a_container_is_told_by_its_variables_too(seen: Container) -> None:
    seen.before = ""
    assert seen.run("run", environment="KUBERNETES_SERVICE_HOST=10.0.0.1") == USED, seen.said


def test_a_container_is_told_by_the_first_process_of_the_node(node: FakeNode, tmp_path: Path) -> None:
    container = Container(node, tmp_path / "container")
    assert container.run("run", start=PID_OF_THE_NODE) == USED, container.said
    assert "mount the node's / at /host, and give --node-root /host" in container.said
    assert "CHANGED" not in container.said


@pytest.mark.parametrize("more", [(), (f"--config={DAEMON_JSON}",)], ids=["found", "given"])
def test_a_toolkit_on_the_node_with_an_engines_file_that_is_not_is_refused(
    seen: Container, more: tuple[str, ...]
) -> None:
    seen.node.place("/usr/local/nvidia").mkdir(parents=True)
    seen.mount("/usr/local/nvidia")
    assert seen.run("run", *more) == USED, seen.said
    assert "/etc/docker lies in its own file system" in seen.said
    assert "CHANGED" not in seen.said
    assert os.listdir(seen.node.place("/usr/local/nvidia")) == []


@pytest.mark.parametrize("command", ["run", "plan", "uninstall", "status", "detect", "wait-driver"])
def test_a_node_root_that_is_not_there_is_refused(node: FakeNode, command: str) -> None:
    node.root = node.root / "absent"
    done = node.do(command)
    assert done.process.returncode == USED, done.output
    assert f"--node-root {node.root} is no folder here" in done.output
    assert not node.root.exists()


# --- what is not ---


def test_folders_that_are_mounted_one_by_one_are_the_nodes(seen: Container) -> None:
    single(seen)
    assert seen.run("run") == 0, seen.said
    assert b"nvidia" in seen.node.read(DAEMON_JSON)


def test_a_node_that_is_named_is_configured(seen: Container) -> None:
    assert seen.run("run", "--node-root=/host") == 0, seen.said
    assert b"nvidia" in seen.node.read(DAEMON_JSON)


def test_a_container_that_is_named_as_the_node_is_configured(seen: Container) -> None:
    assert seen.run("run", "--node-root=/") == 0, seen.said
    assert "CHANGED" in seen.said
    assert seen.node.read(DAEMON_JSON) == DOCKER


def test_a_container_with_an_engine_of_its_own_is_a_node(seen: Container) -> None:
    seen.before += f'chroot "$root" sh -c {shlex.quote(PLAYED)} & sleep 1\n'
    start = 'chroot "$root"'
    assert seen.run("run", start=start) == 0, seen.said
    assert "CHANGED" in seen.said


def test_a_drivers_root_is_no_node(node: FakeNode, tmp_path: Path) -> None:
    container = Container(node, tmp_path / "container")
    container.mark()
    for folder in ("proc", "usr"):
        node.place(folder).mkdir(exist_ok=True)
    node.write("/etc/os-release", "ID=driver\n")
    container.mount("/", "/run/nvidia/driver")
    assert container.run("run") == 0, container.said


def test_a_machine_with_another_system_mounted_is_no_container(seen: Container) -> None:
    seen.before = ""
    assert seen.run("run") == 0, seen.said
    assert "CHANGED" in seen.said
    assert seen.node.read(DAEMON_JSON) == DOCKER


@pytest.mark.parametrize("command", ["status", "detect"])
def test_what_only_looks_is_not_refused(seen: Container, command: str) -> None:
    assert seen.run(command) == 0, seen.said
