"""Where a container looks for the node that it was not told of: which mounts are a node's `/`, and which are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import UsageError
from toolkit_installer.node import places, processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import Settings

FOLDERS = ("/usr/local/nvidia",)


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what tells why a marked container with these mounts is refused, "" where it is not."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(places, "has_other_root_than_init", lambda: False)
    monkeypatch.setattr(own_container, "_is_on_own_root", lambda *_: True)
    monkeypatch.setattr(processes, "find_by_name", lambda _: [])

    def refusal(*mounts: tuple[str, str], settings: Settings | None = None) -> str:
        lines = "".join(f"22 1 0:5 / {place} rw,relatime shared:1 - {kind} none rw\n" for place, kind in mounts)

        def opened(path: str, **_: Any) -> io.StringIO:
            assert path == "/proc/self/mountinfo"
            return io.StringIO(lines)

        monkeypatch.setattr(places, "open", opened, raising=False)
        try:
            own_container.refuse_own_container(Node("/", "/host", whole=False), settings or Settings(), FOLDERS)
        except UsageError as error:
            return str(error.hint)
        return ""

    return refusal


def system(place: Path, *, release: str = "etc/os-release", without: str = "") -> str:
    """Make what looks like a whole system; return its path as proc_pid_mountinfo(5) has it."""
    for folder in {"proc", "usr/lib", "etc"} - {without}:
        (place / folder).mkdir(parents=True)
    (place / release).parent.mkdir(parents=True, exist_ok=True)
    (place / release).write_text("ID=node\n")
    return str(place).replace("\\", r"\134").replace(" ", r"\040").replace("\t", r"\011")


@pytest.mark.parametrize("name", ["node", "the node", "a\ttab", "back\\slash"], ids=repr)
@pytest.mark.parametrize("release", ["etc/os-release", "usr/lib/os-release"])
def test_a_whole_system_that_is_mounted_is_named_as_it_is_to_be_given(
    container: Callable[..., str], tmp_path: Path, name: str, release: str
) -> None:
    said = container((system(tmp_path / name, release=release), "ext4"))
    assert f"--node-root {tmp_path / name};" in said


@pytest.mark.parametrize("without", ["proc", "usr/lib", "etc"])
def test_what_lacks_a_folder_of_a_systems_is_none(container: Callable[..., str], tmp_path: Path, without: str) -> None:
    release = "usr/lib/os-release" if without == "etc" else "etc/os-release"
    assert container((system(tmp_path / "node", release=release, without=without), "ext4")) == ""


def test_what_names_no_release_is_no_system(container: Callable[..., str], tmp_path: Path) -> None:
    assert container((system(tmp_path / "node", release="etc/passwd"), "ext4")) == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "autofs", "ceph", "9p"])
def test_a_file_system_of_another_machine_is_not_looked_at(
    container: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    place = system(tmp_path / "node")
    assert container((place, kind)) == ""
    assert container((place, "xfs")) != ""


@pytest.mark.parametrize("name", ["merged", "rootfs"])
def test_the_root_of_another_container_is_not_the_nodes(
    container: Callable[..., str], tmp_path: Path, name: str
) -> None:
    assert container((system(tmp_path / name), "overlay")) == ""


def test_of_several_the_one_that_lies_least_deep_is_named(container: Callable[..., str], tmp_path: Path) -> None:
    deep, flat = system(tmp_path / "a/b/c"), system(tmp_path / "z")
    assert f"--node-root {flat};" in container((deep, "ext4"), (flat, "ext4"))


def test_where_host_root_is_that_one_is_named_first(container: Callable[..., str], tmp_path: Path) -> None:
    deep, flat = system(tmp_path / "a/b/c"), system(tmp_path / "z")
    said = container((deep, "ext4"), (flat, "ext4"), settings=Settings(host_root=deep))
    assert f"--node-root {deep};" in said
