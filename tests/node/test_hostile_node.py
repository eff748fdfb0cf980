"""A node that somebody else prepared: what they put in our way is refused by name or harmless, and leads nowhere."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.canary import Canary
from tests.node.faults import Outcome, run
from tests.node.instants import Deed
from tests.support import payloads
from tests.support.fake_node import DAEMON_JSON, DOCKER, PID_FILE, STORE, TOOLKIT, FakeNode
from tests.support.quick import Few

SOMEBODY = 4321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can prepare another user's files")


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary.build(tmp_path / "canary")


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)


def do(node: FakeNode, folder: Path, command: str = "run", *more: str) -> Outcome:
    done = run(node, folder, command, *(("--no-daemon",) if command == "run" else ()), *more)
    assert "Traceback" not in done.output, done.output
    assert done.code in (0, 3, 4), done.output
    return done


def lasting(node: FakeNode) -> dict[str, object]:
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")}


# --- what lies where we want to write ---


def is_anothers(place: Path, _canary: Canary) -> None:
    place.write_text("1\n")
    os.chown(place, SOMEBODY, SOMEBODY)


def is_a_symlink(place: Path, canary: Canary) -> None:
    place.symlink_to(canary.shadow)


def is_a_relative_symlink(place: Path, canary: Canary) -> None:
    place.symlink_to(os.path.relpath(canary.shadow, place.parent))


def dangles(place: Path, canary: Canary) -> None:
    place.symlink_to(canary.folder / "new")


def is_a_hard_link(place: Path, canary: Canary) -> None:
    place.hardlink_to(canary.shadow)


def is_a_folder(place: Path, _canary: Canary) -> None:
    place.mkdir()


def is_a_fifo(place: Path, _canary: Canary) -> None:
    os.mkfifo(place)


def is_a_device(place: Path, _canary: Canary) -> None:
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")


def is_for_everybody(place: Path, _canary: Canary) -> None:
    place.write_text("1\n")
    place.chmod(0o666)


TRAPS = (
    is_anothers,
    is_a_symlink,
    is_a_relative_symlink,
    dangles,
    is_a_hard_link,
    is_a_folder,
    is_a_fifo,
    is_a_device,
    is_for_everybody,
)
Trap = Callable[[Path, Canary], None]


@pytest.mark.parametrize("trap", TRAPS)
def test_a_pid_file_that_somebody_else_prepared_is_refused_by_name(
    node: FakeNode, tmp_path: Path, canary: Canary, trap: Trap
) -> None:
    node.place("/run/nvidia").mkdir()
    trap(node.place(PID_FILE), canary)
    before, outside = node.snapshot(), canary.stamps()
    for command in ("run", "uninstall"):
        done = do(node, tmp_path, command)
        if trap is is_for_everybody:  # ours, of an older installer: it is closed to others, and taken over
            assert done.code == 0, done.output
            continue
        assert done.code == 3, done.output
        assert f"file={PID_FILE}" in done.output
        assert node.snapshot() == before
    assert do(node, tmp_path, "status").code == 0
    assert canary.stamps() == outside


PREPARED = [
    "/etc/docker/.daemon.json.toolkit-installer.tmp",
    "/etc/docker/.daemon.json.toolkit-installer.swap",
    "/usr/local/.nvidia.toolkit-installer.tmp",
    "/usr/local/nvidia/.toolkit.toolkit-installer.tmp",
    "/usr/local/nvidia/toolkit/.nvidia-ctk.toolkit-installer.tmp",
    "/run/.nvidia.toolkit-installer.tmp",
]


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("path", PREPARED)
def test_a_prepared_temporary_name_is_cleared_or_refused_and_leads_nowhere(
    node: FakeNode, tmp_path: Path, canary: Canary, path: str, trap: Trap
) -> None:
    before = lasting(node)
    node.place(path).parent.mkdir(parents=True, exist_ok=True)
    trap(node.place(path), canary)
    outside = canary.stamps()
    done = do(node, tmp_path)
    if done.code == 0:
        assert node.broken_runtimes() == []
        assert not node.exists(path)
    else:
        assert os.path.basename(path).removeprefix(".").partition(".toolkit-installer")[0] in done.output
        assert node.read(DAEMON_JSON) == DOCKER
        assert node.exists(path)
        place = node.place(path)
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
        assert do(node, tmp_path).code == 0
    after = canary.stamps()
    assert {name: stamp[:-1] for name, stamp in after.items()} == {name: stamp[:-1] for name, stamp in outside.items()}
    assert do(node, tmp_path, "uninstall").code == 0
    made = {"/usr/local/nvidia", "/usr/local/nvidia/toolkit"}  # by the test: they are not ours to remove
    assert {name: entry for name, entry in lasting(node).items() if name not in made} == before


@pytest.mark.parametrize("path", PREPARED[:2])
def test_a_full_folder_at_a_temporary_name_is_refused_by_name_and_stays(
    node: FakeNode, tmp_path: Path, path: str
) -> None:
    node.write(f"{path}/precious", "mine")
    before = lasting(node)
    done = do(node, tmp_path)
    assert done.code == 3
    assert f"file={path}" in done.output
    assert lasting(node) == before


@pytest.mark.parametrize("trap", [is_anothers, is_a_symlink, is_a_folder, is_a_fifo, is_for_everybody])
def test_a_file_that_is_put_next_to_an_installed_one_is_never_taken_for_its_version(
    node: FakeNode, tmp_path: Path, canary: Canary, trap: Trap
) -> None:
    before = lasting(node)
    assert do(node, tmp_path).code == 0
    trap(node.place(PREPARED[1]), canary)
    installed, outside = node.snapshot(), canary.stamps()
    for command in ("run", "uninstall"):
        done = do(node, tmp_path, command)
        assert done.code == 3
        assert f"file={PREPARED[1]}" in done.output
        assert node.snapshot() == installed
    place = node.place(PREPARED[1])
    place.rmdir() if trap is is_a_folder else place.unlink()
    assert do(node, tmp_path, "uninstall").code == 0
    assert lasting(node) == before
    assert canary.stamps() == outside


def test_a_receipts_folder_that_another_user_locked_is_left_and_the_holder_named(
    node: FakeNode, tmp_path: Path
) -> None:
    assert do(node, tmp_path).code == 0
    before = node.snapshot()
    fd = os.open(node.place(STORE), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    for command in ("run", "uninstall"):
        done = do(node, tmp_path, command)
        assert done.code == 4
        assert f"PID {os.getpid()}" in done.output
        assert node.snapshot() == before
    os.close(fd)
    assert do(node, tmp_path, "uninstall").code == 0


# --- folders that others can write to ---

ABOVE = ("/etc", "/etc/docker", "/usr", "/usr/local", "/run")


def open_to_all(place: Path) -> None:
    place.chmod(0o777)


def given_away(place: Path) -> None:
    os.chown(place, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("how", [open_to_all, given_away])
@pytest.mark.parametrize("path", ABOVE)
def test_a_parent_folder_that_others_can_write_to_is_refused_and_nothing_stays(
    node: FakeNode, tmp_path: Path, path: str, how: Callable[[Path], None]
) -> None:
    how(node.place(path))
    before = node.snapshot()
    done = do(node, tmp_path)
    assert done.code == 3
    assert f' {path}"' in done.output.partition("hint=")[2]
    assert node.snapshot() == before


@pytest.mark.parametrize("path", ABOVE)
def test_a_sticky_folder_for_everybody_is_used_as_nobody_can_swap_our_files_there(
    node: FakeNode, tmp_path: Path, path: str
) -> None:
    node.place(path).chmod(0o1777)
    before = node.snapshot()
    assert do(node, tmp_path).code == 0
    assert node.broken_runtimes() == []
    assert do(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before


@pytest.mark.parametrize("path", ["/etc/docker", "/usr/local/nvidia", "/run/nvidia"])
def test_a_symlink_that_somebody_planted_in_a_folder_for_everybody_is_not_followed(
    node: FakeNode, tmp_path: Path, path: str
) -> None:
    place = node.place(path)
    if place.exists():
        place.rename(node.place("/srv"))
    else:
        node.place("/srv").mkdir()
    place.symlink_to("/srv")
    os.lchown(place, SOMEBODY, SOMEBODY)
    place.parent.chmod(0o1777)
    before = node.snapshot()
    done = do(node, tmp_path)
    assert done.code == 3
    assert f"file={path}" in done.output
    assert "not followed" in done.output
    assert node.snapshot() == before


# --- symlinks in every component ---

COMPONENTS = (
    "/etc",
    "/etc/docker",
    DAEMON_JSON,
    "/usr",
    "/usr/local",
    "/usr/local/nvidia",
    TOOLKIT,
    "/run",
    "/run/nvidia",
)


def absolute(path: str, moved: str) -> str:  # noqa: ARG001  # as its siblings
    return moved


def relative(path: str, moved: str) -> str:
    return os.path.relpath(moved, os.path.dirname(path))


def with_dots(path: str, moved: str) -> str:
    return f"../{path.count('/') * '../'}../../../..{moved[:1]}.{moved}"


@pytest.mark.parametrize("target", [absolute, relative, with_dots])
@pytest.mark.parametrize("path", COMPONENTS)
def test_a_symlink_in_any_component_is_resolved_beneath_the_root(
    node: FakeNode, tmp_path: Path, canary: Canary, path: str, target: Callable[[str, str], str]
) -> None:
    moved = "/moved/to/here"
    node.place(moved).parent.mkdir(parents=True)
    place = node.place(path)
    if place.exists():
        place.rename(node.place(moved))
    else:
        node.place(moved).mkdir()
        place.parent.mkdir(exist_ok=True, parents=True)
    place.symlink_to(target(path, moved))
    before, outside = node.snapshot(), canary.stamps()
    done = do(node, tmp_path)
    assert done.code == 0, done.output
    assert node.snapshot() != before
    assert do(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before
    assert canary.stamps() == outside


@pytest.mark.parametrize("path", COMPONENTS)
def test_a_symlink_to_a_folder_outside_leads_to_one_beneath_the_root(
    node: FakeNode, tmp_path: Path, canary: Canary, path: str
) -> None:
    place = node.place(path)
    place.parent.mkdir(exist_ok=True, parents=True)
    if place.exists():
        place.rename(node.place("/moved"))
    place.symlink_to(canary.folder / place.name)
    before, outside = node.snapshot(), canary.stamps()
    done = do(node, tmp_path)
    assert done.code == 0, done.output
    assert do(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before
    assert canary.stamps() == outside


@pytest.mark.parametrize("path", COMPONENTS)
@pytest.mark.parametrize("target", ["self", "pair"])
def test_a_loop_of_symlinks_in_any_component_is_refused_by_name(
    node: FakeNode, tmp_path: Path, path: str, target: str
) -> None:
    place = node.place(path)
    place.parent.mkdir(exist_ok=True, parents=True)
    if place.exists():
        place.rename(node.place("/moved"))
    other = place.with_name("other") if target == "pair" else place
    place.symlink_to(other.name)
    if other is not place:
        other.symlink_to(place.name)
    before = node.snapshot()
    for command in ("run", "uninstall"):
        done = do(node, tmp_path, command)
        # nothing is installed: an engine's file that nobody can read is then no reason to refuse, and still said
        assert done.code == (0 if command == "uninstall" and path.startswith("/etc") else 3), done.output
        assert f"file={path}" in done.output, done.output
        assert node.snapshot() == before


# --- folders that are swapped while we work ---


def swap(place: Path, canary: Path) -> None:
    """Put a symlink to somewhere outside in a folder's place."""
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name(f"{place.name}.away"))
        place.symlink_to(canary)


@pytest.mark.parametrize("command", ["run", "uninstall"])
@pytest.mark.parametrize(
    "path, like",
    [
        ("/etc/docker", "docker"),
        ("/usr/local/nvidia", "nvidia"),
        (TOOLKIT, "nvidia/toolkit"),
        (STORE, "nvidia/.toolkit-installer"),
        ("/run/nvidia", "."),
    ],
)
def test_a_folder_swapped_for_a_symlink_at_any_instant_leads_to_nothing_outside(
    node: FakeNode, tmp_path: Path, canary: Canary, few: Few, command: str, path: str, like: str
) -> None:
    outside = canary.stamps()
    whole = do(node, tmp_path)
    if command == "uninstall":
        whole = do(node, tmp_path, "uninstall")
    for at in few(range(0, len(whole.calls), 2 if command == "uninstall" else 5), 12):
        other = another(node, tmp_path / f"node-{at}")
        if command == "uninstall":
            do(other, tmp_path)
        plan = Deed(at, deed=functools.partial(swap, other.place(path), canary.folder / like))
        done = run(other, tmp_path, command, *(("--no-daemon",) if command == "run" else ()), plan=plan)
        assert "Traceback" not in done.output, (at, done.output)
        assert done.code in (0, 3), (at, done.output)
        assert canary.stamps() == outside, (at, done.output)
        shutil.rmtree(other.root)


def another(node: FakeNode, root: Path) -> FakeNode:
    """Make a node like the fixture's."""
    for path in ("etc/docker", "run", "usr/local"):
        (root / path).mkdir(parents=True)
    made = FakeNode(root, node.payload)
    made.write(DAEMON_JSON, DOCKER, 0o600)
    return made


# --- without a node root: paths are those of the installer's own mount namespace ---


class Plain(FakeNode):
    """The same node, whose paths are given one by one."""

    def arguments(self, command: str, *more: str, engine: str = "docker", log_format: str = "logfmt") -> list[str]:
        given = {
            "--runtime": engine,
            "--log-format": log_format,
            "--config": self.place(DAEMON_JSON),
            "--socket": self.place("/run/docker.sock"),
            "--toolkit-install-dir": self.place(os.path.dirname(TOOLKIT)),
            "--pid-file": self.place(PID_FILE),
            "--restart-mode": "none",  # the machine's own dockerd is not this node's
        }
        source = ["--toolkit-source-root", str(self.payload)] if command in ("run", "plan") else []
        return [command, *(str(word) for pair in given.items() for word in pair), *source, *more]


@pytest.fixture
def plain(node: FakeNode) -> Plain:
    return Plain(node.root, node.payload)


@pytest.mark.parametrize("path", COMPONENTS)
def test_without_a_node_root_a_symlink_in_any_component_is_followed_and_stays(
    plain: Plain, tmp_path: Path, path: str
) -> None:
    moved = plain.place("/moved/to/here")
    moved.parent.mkdir(parents=True)
    place = plain.place(path)
    if place.exists():
        place.rename(moved)
    else:
        moved.mkdir()
        place.parent.mkdir(exist_ok=True, parents=True)
    place.symlink_to(moved)
    before = plain.snapshot()
    done = do(plain, tmp_path)
    assert done.code == 0, done.output
    assert do(plain, tmp_path, "uninstall").code == 0
    assert plain.snapshot() == before


@pytest.mark.parametrize("path", COMPONENTS)
def test_without_a_node_root_a_loop_of_symlinks_is_refused_by_name(plain: Plain, tmp_path: Path, path: str) -> None:
    place = plain.place(path)
    place.parent.mkdir(exist_ok=True, parents=True)
    if place.exists():
        place.rename(plain.place("/moved"))
    place.symlink_to(place.name)
    before = plain.snapshot()
    done = do(plain, tmp_path)
    assert done.code == 3, done.output
    assert f"file={place}" in done.output
    assert plain.snapshot() == before


@pytest.mark.parametrize("how", [open_to_all, given_away])
@pytest.mark.parametrize("path", ABOVE)
def test_without_a_node_root_a_parent_folder_that_others_can_write_to_is_refused(
    plain: Plain, tmp_path: Path, path: str, how: Callable[[Path], None]
) -> None:
    how(plain.place(path))
    before = plain.snapshot()
    done = do(plain, tmp_path)
    assert done.code == 3
    assert f' {plain.place(path)}"' in done.output
    assert plain.snapshot() == before


# --- as somebody who is not root ---


@contextlib.contextmanager
def made_for_somebody(*own: str) -> Iterator[tuple[FakeNode, Path]]:
    """Yield a node of root's, in which these paths are another user's, and that user's scratch folder."""
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        payloads.build(folder / "payload")
        (folder / "scratch").mkdir()
        made = another(FakeNode(folder, folder / "payload"), folder / "node")
        for place in (folder / "scratch", *(made.root / path for path in own)):
            os.chown(place, SOMEBODY, SOMEBODY)
        yield made, folder / "scratch"


def test_what_root_made_is_no_trap_for_another_user_and_what_others_made_is() -> None:
    with made_for_somebody("etc/docker", "etc/docker/daemon.json", "run", "usr/local") as (made, scratch):
        before = made.snapshot()
        assert run(made, scratch, "run", "--no-daemon", user=SOMEBODY).code == 0
        assert run(made, scratch, "uninstall", user=SOMEBODY).code == 0
        assert made.snapshot() == before
        os.chown(made.place("/etc"), SOMEBODY + 1, SOMEBODY + 1)
        refused = run(made, scratch, "run", "--no-daemon", user=SOMEBODY)
        assert refused.code == 3
        assert f"user {SOMEBODY + 1}" in refused.output


def test_plan_names_a_folder_of_another_user_and_exits_as_run_would() -> None:
    with made_for_somebody("run") as (made, scratch):
        made.place(DAEMON_JSON).chmod(0o644)
        before = made.snapshot()
        said = [run(made, scratch, *command, user=SOMEBODY) for command in (("plan",), ("run", "--no-daemon"))]
        assert [each.code for each in said] == [3, 3]
        assert all("this user may not write there" in each.output for each in said), [each.output for each in said]
        assert all("run it as root" in each.output for each in said)
        assert "`run` would stop before it does any of this: this user may not write there" in said[0].output
        assert "19 files installed" in said[0].output
        assert made.snapshot() == before
