"""What one container records, another one finds: the receipt has the node's paths. As root: with mounts of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.node.test_own_container import CHECKOUT, DOCKER, NAMESPACES, Container, can_mount
from tests.support.fake_node import DAEMON_JSON, STORE, FakeNode

pytestmark = pytest.mark.skipif(not can_mount(), reason="only root may make mounts")

INSTALL_DIR = "/usr/local/nvidia"
RECEIPT = f"{STORE}/receipt.json"
CONFIG_DIR = "/runtime/config-dir"
OPERATORS = (
    *("--config", f"{CONFIG_DIR}/daemon.json", "--socket", "/runtime/sock-dir/docker.sock", "--restart-mode", "none"),
    *("--host-root", "/host"),
)


def container(node: FakeNode, folder: Path, *, host: bool = True, config_dir: str = CONFIG_DIR) -> Container:
    """Return a marked container with the Operator's mounts, the node's / among them if `host` says so."""
    for name in ("proc", "usr", "run", INSTALL_DIR):
        node.place(name).mkdir(exist_ok=True, parents=True)
    node.write("/etc/os-release", "ID=node\n")
    node.write("/bin/sh", Path("/bin/sh").read_bytes(), 0o755)
    made = Container(node, folder)
    made.mark()
    for path, place in (("/etc/docker", config_dir), ("/run", "/runtime/sock-dir"), (INSTALL_DIR, INSTALL_DIR)):
        made.mount(path, place)
    if host:
        made.mount("/", "/host")
    return made


@pytest.fixture
def installed(node: FakeNode, tmp_path: Path) -> FakeNode:
    """Return a node that the Operator's container has configured."""
    node.write(DAEMON_JSON, DOCKER)
    made = container(node, tmp_path / "first")
    assert made.run("run", *OPERATORS) == 0, made.said
    assert node.read(DAEMON_JSON) != DOCKER
    return node


def recorded(node: FakeNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(node.read(RECEIPT))
    return found


def uninstalled(node: FakeNode) -> subprocess.CompletedProcess[str]:
    """Uninstall where the whole node is seen."""
    command = (sys.executable, "-m", "toolkit_installer", "uninstall", "--node-root", str(node.place("/")))
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)


def kept(node: FakeNode) -> dict[str, bytes]:
    """Return the receipt, the kept originals, and docker's file."""
    return {path: content for path, content in _contents(node) if path.startswith(STORE) or path == DAEMON_JSON}


def _contents(node: FakeNode) -> list[tuple[str, bytes]]:
    places = [place for place in node.place("/").rglob("*") if place.is_file() and not place.is_symlink()]
    return [("/" + str(place.relative_to(node.place("/"))), place.read_bytes()) for place in places]


def test_the_receipt_has_the_nodes_own_paths(installed: FakeNode) -> None:
    engine = recorded(installed)["engines"][0]
    assert engine["files"][0]["path"] == DAEMON_JSON
    assert engine["socket"] == "/run/docker.sock"
    assert "/runtime/" not in json.dumps(recorded(installed))


def test_whoever_sees_the_whole_node_takes_back_what_a_container_did(installed: FakeNode) -> None:
    assert uninstalled(installed).returncode == 0
    assert installed.read(DAEMON_JSON) == DOCKER
    assert not installed.exists(RECEIPT)


@pytest.mark.parametrize("config_dir", [CONFIG_DIR, "/elsewhere"])
def test_a_container_with_mounts_of_its_own_takes_it_back(installed: FakeNode, tmp_path: Path, config_dir: str) -> None:
    other = container(installed, tmp_path / "second", config_dir=config_dir)
    assert other.run("uninstall", "--host-root", "/host") == 0, other.said
    assert installed.read(DAEMON_JSON) == DOCKER
    assert not installed.exists(RECEIPT)


def test_the_next_run_of_the_same_container_has_nothing_to_do(installed: FakeNode, tmp_path: Path) -> None:
    before = kept(installed)
    again = container(installed, tmp_path / "second")
    assert again.run("run", *OPERATORS) == 0, again.said
    assert "Nothing to do" in again.said
    assert kept(installed) == before


def test_a_container_that_does_not_see_the_file_leaves_the_record_whole(installed: FakeNode, tmp_path: Path) -> None:
    before = kept(installed)
    other = container(installed, tmp_path / "second", host=False)
    assert other.run("uninstall") == 3, other.said
    assert f"names {DAEMON_JSON} of the node, which is not seen in this container" in other.said
    assert "Took the handlers back" not in other.said
    assert kept(installed) == before


def test_crio_is_told_the_nodes_folder_of_hooks(node: FakeNode, tmp_path: Path) -> None:
    node.write("/etc/crio/crio.conf", "[crio]\n")
    node.place("/opt/hooks").mkdir(parents=True)
    made = container(node, tmp_path / "first")
    for path, place in (("/etc/crio", "/runtime/crio"), ("/opt/hooks", "/runtime/hooks")):
        made.mount(path, place)
    hook = ("--runtime", "crio", "--config-mode", "hook", "--hooks-dir", "/runtime/hooks", "--host-root", "/host")
    assert made.run("run", *hook, "--config", "/runtime/crio/crio.conf") == 0, made.said
    drop_in = tomllib.loads(node.read("/etc/crio/crio.conf.d/99-nvidia.toml").decode())
    assert drop_in["crio"]["runtime"]["hooks_dir"] == ["/usr/share/containers/oci/hooks.d", "/opt/hooks"]
    assert node.exists("/opt/hooks/oci-nvidia-hook.json")


def test_a_path_that_the_node_has_no_name_for_is_refused_first(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, DOCKER)
    made = container(node, tmp_path / "first", host=False)
    assert made.run("run", *OPERATORS) == 3, made.said
    assert "what the node calls it is not known" in made.said
    assert f"file={CONFIG_DIR}/daemon.json" in made.said
    assert node.read(DAEMON_JSON) == DOCKER
    assert list(node.place(INSTALL_DIR).iterdir()) == []


def test_a_toolkit_that_is_elsewhere_on_the_node_is_refused(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, DOCKER)
    node.place("/opt").mkdir()
    made = container(node, tmp_path / "first")
    made.mount("/opt", "/tools")
    assert made.run("run", *OPERATORS, "--toolkit-install-dir", "/tools") == 3, made.said
    assert "is the node's /opt/toolkit" in made.said
    assert node.read(DAEMON_JSON) == DOCKER


CONNECTS = """\
import socket, sys
from toolkit_installer.engines.common.serving import resolve_socket
from toolkit_installer.node.root import Root
from toolkit_installer.node.sockets import shorten_socket_path

path = "/proc/1/root" + sys.argv[1]
resolve_socket(Root("/"), path)
with shorten_socket_path(Root("/"), path) as name, socket.socket(socket.AF_UNIX) as connection:
    connection.connect(name)
"""


def test_a_socket_that_is_not_mounted_is_reached_by_the_root_of_the_nodes_init(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    inside = 'mount -t tmpfs tmpfs "$1" && exec "$2" -c "$3" "$1/engine.sock"'
    init = 'unshare --mount sh -c "$0" sh "$@"; exit $?'
    command = [*NAMESPACES, "sh", "-c", init, inside, str(folder), sys.executable, CONNECTS]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "engine.sock"))
        listening.listen()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=30)
        assert done.returncode == 0, done.stderr
