"""Paths beneath a node root: resolved as a chroot would, with no way out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.root import NodeError, Root, is_mounted, refuse_if_others_write

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    folder = tmp_path / "node"
    (folder / "etc/docker").mkdir(parents=True)
    (folder / "opt").mkdir()
    return Root(str(folder))


def link(root: Root, path: str, target: str) -> None:
    os.symlink(target, root.outside(path))


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/opt/x", "/opt/x"),
        ("../../opt/x", "/opt/x"),
        ("x", "/etc/docker/x"),
        ("./x/../y//z/.", "/etc/docker/y/z"),
        ("../../../../../opt/x", "/opt/x"),
        ("/../../etc/shadow", "/etc/shadow"),
    ],
)
def test_a_symlink_leads_where_it_would_lead_on_the_node(root: Root, target: str, expected: str) -> None:
    link(root, "/etc/docker/daemon.json", target)
    assert root.canonical("/etc/docker/daemon.json") == expected


def test_an_absolute_symlink_of_a_folder_does_not_lead_to_the_installers_own(root: Root, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    link(root, "/etc/evil", str(tmp_path / "outside"))
    assert root.canonical("/etc/evil/x") == f"{tmp_path}/outside/x"
    assert not os.path.exists(root.outside(root.canonical("/etc/evil/x")))


def test_symlinks_that_lead_to_symlinks_are_followed_to_their_end(root: Root) -> None:
    link(root, "/etc/a", "b")
    link(root, "/etc/b", "/etc/c")
    link(root, "/etc/c", "../opt")
    assert root.canonical("/etc/a/../etc/a/file") == "/etc/a/file".replace("/etc/a", "/opt")


@pytest.mark.parametrize("target", ["loop", "/etc/loop", "../etc/loop/x"])
def test_a_loop_of_symlinks_is_refused_and_named(root: Root, target: str) -> None:
    link(root, "/etc/loop", target)
    with pytest.raises(NodeError, match="symbolic links") as raised:
        root.canonical("/etc/loop/x")
    assert raised.value.path == "/etc/loop/x"


def test_a_file_where_a_folder_is_needed_is_refused(root: Root) -> None:
    Path(root.outside("/etc/docker/daemon.json")).write_text("{}")
    with pytest.raises(NodeError, match="Not a directory"):
        root.canonical("/etc/docker/daemon.json/x")


def test_what_is_not_there_stays_as_it_is_named(root: Root) -> None:
    assert root.canonical("//no/./such/../thing/") == "/no/thing"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=st.lists(st.sampled_from(["..", ".", "", "etc", "docker", "up", "far", "out", "name"]), max_size=12))
def test_no_path_at_all_leaves_the_root(root: Root, parts: list[str]) -> None:
    for path, target in {"/up": "../..", "/etc/far": "/../../../..", "/out": "/proc/self/cwd/.."}.items():
        if not os.path.lexists(root.outside(path)):
            link(root, path, target)
    outside = root.outside(root.canonical("/" + "/".join(parts)))
    assert os.path.realpath(outside) == outside.rstrip("/")
    assert (outside + "/").startswith(root.folder + "/")


class ByComponents(Root):
    """A root that takes no short cut."""

    def _leads_straight(self, path: str) -> bool:  # noqa: ARG002  # whatever it is
        return False


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    parts=st.lists(st.sampled_from(["..", ".", "", "etc", "docker", "to-etc", "to-file", "file", "name"]), max_size=6),
    end=st.sampled_from(["", "/"]),
)
def test_a_path_leads_where_its_components_lead_one_by_one(root: Root, parts: list[str], end: str) -> None:
    for path, target in {"/to-etc": "etc", "/etc/to-file": "/etc/docker/file", "/etc/docker/to-etc": "/etc"}.items():
        if not os.path.lexists(root.outside(path)):
            link(root, path, target)
    Path(root.outside("/etc/docker/file")).touch()
    path = "/" + "/".join(parts) + end

    def led(by: Root) -> str:
        try:
            return by.canonical(path)
        except NodeError as error:
            return f"{error.path}: {error.reason}"

    assert led(root) == led(ByComponents(root.folder))


def test_a_path_without_symlinks_is_known_as_such_at_one_look(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_link", lambda path: pytest.fail(f"{path} was looked at by itself"))
    assert root.canonical("/etc/docker") == "/etc/docker"
    monkeypatch.undo()
    link(root, "/etc/docker/daemon.json", "/opt")
    assert root.canonical("/etc/docker/daemon.json") == "/opt"
    link(root, "/etc/dangling", "/opt/absent")
    assert root.canonical("/etc/dangling") == "/opt/absent"


def test_beneath_what_is_not_there_nothing_is_looked_at(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, real = list[str](), root._link

    def link_at(path: str) -> str | None:
        looked_at.append(path)
        return real(path)

    monkeypatch.setattr(root, "_link", link_at)
    assert root.canonical("/etc/absent/some/where") == "/etc/absent/some/where"
    assert looked_at == ["/etc", "/etc/absent"]
    looked_at.clear()
    assert root.canonical("/etc/absent/../docker/x/../../y") == "/etc/y"
    assert looked_at == ["/etc", "/etc/absent", "/etc/docker", "/etc/docker/x", "/etc/y"]


@pytest.mark.parametrize("path", ["/etc/docker/", "/etc/docker/.", "/etc/docker/absent/..", "/etc/docker/sub/../."])
def test_a_path_that_ends_without_a_name_is_not_taken_for_an_absent_one(root: Root, path: str) -> None:
    assert root.canonical(path) == "/etc/docker"


def test_a_folder_is_opened_at_once_and_one_by_one_where_its_name_says_nothing(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = list[str](), os.open

    def counted(path: str, flags: int, **more: int) -> int:
        opened.append(path)
        return real(path, flags, **more)

    monkeypatch.setattr(os, "open", counted)
    before = os.listdir("/proc/self/fd")
    with root.parent("/etc/docker/daemon.json") as (folder, name):
        assert (os.readlink(f"/proc/self/fd/{folder}"), name) == (root.outside("/etc/docker"), "daemon.json")
    assert opened == [root.outside("/etc/docker")]
    opened.clear()
    monkeypatch.setattr(os, "readlink", lambda _: "/somewhere (deleted)")
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        assert os.path.samestat(os.fstat(folder), os.stat(root.outside("/etc/docker")))
    assert opened[1:] == [root.folder, "etc", "docker"]
    assert os.listdir("/proc/self/fd") == before


def test_without_the_kernels_names_each_component_is_looked_at(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.readlink

    def readlink(path: str) -> str:
        if path.startswith("/proc/self/fd/"):
            raise FileNotFoundError(errno.ENOENT, "no /proc is mounted", path)
        return real(path)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "readlink", readlink)
    assert root.canonical("/etc/docker") == "/etc/docker"
    assert os.listdir("/proc/self/fd") == before


def test_a_folder_swapped_for_a_symlink_after_it_was_resolved_is_not_followed(root: Root, tmp_path: Path) -> None:
    os.rmdir(root.outside("/etc/docker"))
    link(root, "/etc/docker", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"), root.parent("/etc/docker/daemon.json"):
        pass
    with pytest.raises(OSError, match=r"Not a directory|symbolic"), root.parent("/etc/docker/sub/daemon.json"):
        pass
    assert os.listdir("/proc/self/fd") == before


def test_a_root_that_is_the_machines_own_changes_no_path() -> None:
    assert Root("/").outside("/etc/x") == "/etc/x"


@pytest.mark.parametrize("mode, refused", [(0o755, False), (0o757, True), (0o1777, False), (0o777, True)])
def test_a_folder_in_which_anybody_can_swap_files_is_refused(root: Root, mode: int, *, refused: bool) -> None:
    os.chmod(root.outside("/etc/docker"), mode)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        if refused:
            with pytest.raises(ConfigurationError, match="writable by everybody") as raised:
                refuse_if_others_write(folder, "/etc/docker/daemon.json")
            assert raised.value.hint == "chmod o-w /etc/docker"
        else:
            refuse_if_others_write(folder, "/etc/docker/daemon.json")


@pytest.mark.parametrize("above", ["/", "/etc"])
def test_a_folder_above_that_anybody_could_rename_is_refused_and_named(root: Root, above: str) -> None:
    Path(root.outside(above)).chmod(0o777)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        with pytest.raises(ConfigurationError, match="writable by everybody") as raised:
            refuse_if_others_write(folder, "/etc/docker/daemon.json")
        assert raised.value.hint == f"chmod o-w {above}"
        assert raised.value.path == "/etc/docker/daemon.json"
        Path(root.outside(above)).chmod(0o1777)
        refuse_if_others_write(folder, "/etc/docker/daemon.json")


def test_what_lies_above_the_root_is_the_installers_own_and_decides_nothing(root: Root, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        refuse_if_others_write(folder, "/etc/docker/daemon.json")


@AS_ROOT
def test_whose_node_it_is_may_own_its_folders(root: Root) -> None:
    for place in ("/", "/etc"):
        os.chown(root.outside(place), 4321, 0)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        refuse_if_others_write(folder, "/etc/docker/daemon.json")


@AS_ROOT
@pytest.mark.parametrize("place", ["/etc", "/etc/docker"])
def test_a_folder_that_belongs_to_somebody_else_is_refused_and_named(root: Root, place: str) -> None:
    os.chown(root.outside(place), 4321, 0)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        with pytest.raises(ConfigurationError, match="belongs to user 4321") as raised:
            refuse_if_others_write(folder, "/etc/docker/daemon.json")
        assert raised.value.hint == f"chown root {place}"


def test_looking_at_the_folders_leaves_no_descriptor_open(root: Root) -> None:
    Path(root.outside("/etc")).chmod(0o777)
    with root.parent("/etc/docker/daemon.json") as (folder, _):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ConfigurationError):
            refuse_if_others_write(folder, "/etc/docker/daemon.json")
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("mode, refused", [(0o755, False), (0o777, True), (0o1777, False)])
def test_a_symlink_where_anybody_could_have_put_it_is_not_followed(root: Root, mode: int, *, refused: bool) -> None:
    link(root, "/etc/docker/daemon.json", "/opt/x")
    os.chmod(root.outside("/etc/docker"), mode)
    if refused:
        with pytest.raises(NodeError, match="not followed") as raised:
            root.canonical("/etc/docker/daemon.json")
        assert raised.value.path == "/etc/docker/daemon.json"
    else:
        assert root.canonical("/etc/docker/daemon.json") == "/opt/x"


@AS_ROOT
def test_a_symlink_of_somebody_else_in_a_folder_for_all_is_not_followed(root: Root) -> None:
    link(root, "/etc/docker/daemon.json", "/opt/x")
    Path(root.outside("/etc/docker")).chmod(0o1777)
    os.lchown(root.outside("/etc/docker/daemon.json"), 4321, 0)
    with pytest.raises(NodeError, match="not followed"):
        root.canonical("/etc/docker/daemon.json")


def test_the_mount_of_a_folder_is_told_from_another(root: Root) -> None:
    assert Root("/").mount_of("/proc/self") != Root("/").mount_of("/etc")
    assert root.mount_of("/etc/docker/x") == root.mount_of("/opt/x")


def test_an_error_of_the_kernel_says_what_to_do() -> None:
    error = NodeError.of(OSError(30, "x"), "/etc/x", "write it")
    assert str(error).startswith("/etc/x: cannot write it: Read-only file system (")
    assert error.number == 30


# --- what is mounted ---


def test_a_folder_of_the_same_disk_that_is_mounted_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    for name in ("disk", "host"):
        (tmp_path / name).mkdir()
    asked = f"from toolkit_installer.node.root import is_mounted; print(is_mounted({str(tmp_path / 'host')!r}))"
    script = f'"$0" -c "$1"; mount --bind {tmp_path}/disk {tmp_path}/host && "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, asked]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here: not root, or in a container")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


def test_what_is_no_folder_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not is_mounted(str(tmp_path / "file"))
    assert not is_mounted(str(tmp_path / "absent"))
