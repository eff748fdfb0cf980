"""Nodes on which something cannot be written, or nothing run: found before anything is changed, and named."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import tracing
from tests.node.faults import NO_CHANGE_OF_THE_DISK, run
from tests.support import payloads
from tests.support.engines.daemons import PATH
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, NOTHING_TO_DO, PID_FILE, SCRIPTS, FakeNode
from toolkit_installer.errors import ExitCode

V2 = b"version = 2\n"
PID_FOLDER = "/run/nvidia"


@pytest.fixture
def node(folder: Path, payload: Path) -> Iterator[FakeNode]:
    root = folder / "node"
    for place in ("etc/docker", "etc/containerd", "run", "usr/local/nvidia"):
        (root / place).mkdir(parents=True)
    node = FakeNode(root, payload)
    node.write(DAEMON_JSON, b"{}\n")
    node.write(CONFIG_TOML, V2)
    yield node
    node.close()


@dataclasses.dataclass
class Locks:
    """What makes parts of a node unchangeable, and ends it."""

    undo: list[list[str]] = dataclasses.field(default_factory=list)

    def mount(self, place: Path, *options: str) -> None:
        """Mount something there."""
        subprocess.run(["mount", *options, str(place)], check=True)
        self.undo.append(["umount", str(place)])

    def bind(self, place: Path, option: str = "") -> None:
        """Make a mount of its own of a file or folder."""
        self.mount(place, "--bind", str(place))
        if option:
            subprocess.run(["mount", "-o", f"remount,bind,{option}", str(place)], check=True)

    def immutable(self, place: Path) -> None:
        """Set the attribute."""
        if subprocess.run(["chattr", "+i", str(place)], check=False, capture_output=True).returncode:
            pytest.skip("this file system knows no attributes")
        self.undo.append(["chattr", "-i", str(place)])


@pytest.fixture
def locks() -> Iterator[Locks]:
    made = Locks()
    yield made
    for command in reversed(made.undo):
        subprocess.run(command, check=True)


def refused(node: FakeNode, folder: Path, *words: str, engine: str = "docker", more: tuple[str, ...] = ()) -> None:
    """Run: it exits 3, says the words, and makes no call that changes anything but for its PID file."""
    before = node.snapshot()
    done = run(node, folder, "run", "--no-daemon", *more, engine=engine)
    assert done.code == ExitCode.BAD_CONFIGURATION, done.output
    for word in words:
        assert word in done.output, done.output
    changed = [call for call in done.calls if call.split()[0] not in NO_CHANGE_OF_THE_DISK]
    assert not [call for call in changed if "daemon.json" in call or "toml" in call or "nvidia-c" in call], changed
    assert node.snapshot() == before


@pytest.mark.parametrize("option, words", [("noexec", "mounted noexec"), ("ro", "mounted read-only")])
@pytest.mark.parametrize("place", ["/usr/local/nvidia", "/usr/local/nvidia/toolkit"])
def test_a_toolkit_folder_in_which_nothing_can_be_written_or_executed_is_refused(
    node: FakeNode, folder: Path, locks: Locks, option: str, words: str, place: str
) -> None:
    node.place(place).mkdir(exist_ok=True)
    locks.mount(node.place(place), "-t", "tmpfs", "-o", option, "tmpfs")
    refused(node, folder, words, "/usr/local/nvidia/toolkit", "--toolkit-install-dir")


def test_an_install_folder_that_can_hold_no_receipt_is_refused(node: FakeNode, folder: Path, locks: Locks) -> None:
    node.place("/usr/local/nvidia/toolkit").mkdir()
    locks.bind(node.place("/usr/local/nvidia"), "ro")
    locks.mount(node.place("/usr/local/nvidia/toolkit"), "-t", "tmpfs", "tmpfs")
    refused(node, folder, "Read-only file system", "/usr/local/nvidia", "--toolkit-install-dir")


def read_only(locks: Locks, path: Path) -> None:
    locks.bind(path.parent, "ro")


def mounted_alone(locks: Locks, path: Path) -> None:
    locks.bind(path)


def immutable(locks: Locks, path: Path) -> None:
    locks.immutable(path)


def in_an_immutable_folder(locks: Locks, path: Path) -> None:
    locks.immutable(path.parent)


@pytest.mark.parametrize("engine, path", [("docker", DAEMON_JSON), ("containerd", CONFIG_TOML)])
@pytest.mark.parametrize(
    "lock, words",
    [
        (read_only, "Read-only file system"),
        (mounted_alone, "Device or resource busy"),
        (immutable, "Operation not permitted"),
        (in_an_immutable_folder, "Operation not permitted"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_irreplaceable_engine_file_is_named_before_the_toolkit_is_written(  # one node, one lock
    node: FakeNode,
    folder: Path,
    locks: Locks,
    engine: str,
    path: str,
    lock: Callable[[Locks, Path], None],
    words: str,
) -> None:
    lock(locks, node.place(path))
    refused(node, folder, words, f"file={path}", "--no-runtime-config", engine=engine)
    done = run(node, folder, "run", "--no-daemon", "--no-runtime-config")
    assert done.code == 0, done.output


def test_a_missing_file_in_a_read_only_folder_is_named(node: FakeNode, folder: Path, locks: Locks) -> None:
    node.place(DAEMON_JSON).unlink()
    locks.bind(node.place("/etc"), "ro")
    refused(node, folder, "Read-only file system", f"file={DAEMON_JSON}")


def test_a_file_that_needs_no_change_may_be_read_only(node: FakeNode, folder: Path, locks: Locks) -> None:
    assert run(node, folder, "run", "--no-daemon").code == 0
    locks.bind(node.place("/etc/docker"), "ro")
    done = run(node, folder, "run", "--no-daemon")
    assert done.code == 0, done.output
    assert NOTHING_TO_DO in done.output


def test_a_pid_files_folder_that_is_read_only_is_named(node: FakeNode, folder: Path, locks: Locks) -> None:
    node.place(PID_FOLDER).mkdir()
    locks.mount(node.place(PID_FOLDER), "-t", "tmpfs", "-o", "ro", "tmpfs")
    refused(node, folder, "Read-only file system", PID_FILE)


# --- a node without a shell ---


@pytest.mark.parametrize("sign", ["/etc/os-release", "/usr/lib/os-release", "/bin/mount"])
def test_a_node_without_a_shell_is_refused(node: FakeNode, folder: Path, sign: str) -> None:
    node.write(sign, "ID=talos\n", 0o755)
    refused(node, folder, "/bin/sh", "the node has no shell")
    refused(node, folder, "/bin/sh", more=("--no-runtime-config",))


def test_a_shell_is_found_where_a_system_has_it(node: FakeNode, folder: Path) -> None:
    node.write("/etc/os-release", "ID=debian\n")
    node.write("/usr/bin/busybox", "", 0o755)
    node.place("/bin").symlink_to("usr/bin")
    node.place("/usr/bin/sh").symlink_to("/bin/busybox")
    done = run(node, folder, "run", "--no-daemon")
    assert done.code == 0, done.output


# --- the toolkit alone ---


def test_without_runtime_config_no_path_of_an_engine_is_looked_at(node: FakeNode, folder: Path) -> None:
    traces = folder / "traces"
    arguments = node.arguments("run", "--no-daemon", "--no-runtime-config")
    calls = "trace=%file,%network"
    traces.mkdir()
    strace = [tracing.STRACE, "-ff", "-qq", "-s", "4096", "-o", str(traces / "trace"), "-e", calls]
    if not os.path.exists(tracing.STRACE):
        pytest.skip("not installed: strace")
    done = subprocess.run(
        [*strace, str(SCRIPTS / "toolkit-installer"), *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seen = [line for trace in traces.iterdir() for line in trace.read_text().splitlines()]
    assert any(f"{node.root}/usr/local/nvidia" in line for line in seen), "the tracer saw nothing"
    engines = ("/etc/docker", "/etc/containerd", "/etc/crio", "docker.sock", "containerd.sock", "crio.sock", "connect(")
    assert [line for line in seen if any(word in line for word in engines)] == []


def test_without_runtime_config_a_node_without_an_engine_gets_the_toolkit(folder: Path, payload: Path) -> None:
    root = folder / "bare"
    (root / "usr/local").mkdir(parents=True)
    (root / "run").mkdir()
    node = FakeNode(root, payload)
    before = node.snapshot()
    run_of = node.waiting("--no-runtime-config")
    assert node.exists("/usr/local/nvidia/toolkit/nvidia-container-runtime")
    assert not node.exists("/etc")
    assert run_of.stop() == 0, run_of.output
    assert node.snapshot() == before
    node.close()


# --- a file system whose files can share their blocks ---

XFS_BYTES = 400_000_000
BLOCKS = os.urandom(3_000_000)


@pytest.fixture
def sharing(folder: Path, locks: Locks) -> Path:
    """Return the folder of an xfs, which shares blocks unless it is told otherwise."""
    if missing := [name for name in ("mkfs.xfs", "filefrag") if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages xfsprogs, e2fsprogs)")
    disk, place = folder / "disk", folder / "xfs"
    with disk.open("wb") as file:
        file.truncate(XFS_BYTES)
    subprocess.run(["mkfs.xfs", "-q", disk], check=True, env={"PATH": PATH})
    place.mkdir()
    locks.mount(place, "-o", "loop", str(disk))
    return place


def shared(path: Path) -> bool:
    """Tell whether a file has blocks that are another's as well (FIEMAP_EXTENT_SHARED)."""
    done = subprocess.run(["filefrag", "-v", path], check=True, capture_output=True, text=True, env={"PATH": PATH})
    return "shared" in done.stdout


def test_where_files_can_share_blocks_the_toolkit_takes_no_room_and_is_its_own_copy(sharing: Path) -> None:
    source = payloads.build(sharing / "payload")
    large = source / "usr/bin/nvidia-container-runtime"
    large.write_bytes(large.read_bytes() + BLOCKS)
    content = large.read_bytes()
    for place in ("etc/docker", "run", "usr/local"):
        (sharing / "node" / place).mkdir(parents=True)
    node = FakeNode(sharing / "node", source)
    node.write(DAEMON_JSON, b"{}\n")
    before = node.snapshot()
    assert run(node, sharing, "run", "--no-daemon").code == 0
    os.sync()  # a block has its place once it is written
    copy = node.place("/usr/local/nvidia/toolkit/nvidia-container-runtime.real")
    assert copy.read_bytes() == content
    assert shared(copy)
    assert copy.stat().st_ino != large.stat().st_ino
    with large.open("r+b") as file:  # by whoever takes the payload's file for its own
        file.write(b"another")
    assert copy.read_bytes() == content
    assert run(node, sharing, "uninstall").code == 0
    assert node.snapshot() == before
    node.close()
