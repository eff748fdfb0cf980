"""Files that engines come to read in whatever way: what they say of the toolkit is found."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError
from toolkit_installer.planning import files_naming
from toolkit_installer.planning.files_naming import Naming

TOOLKIT = "/usr/local/nvidia/toolkit"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
TABLE = f'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.x.options]\nBinaryName = "{RUNTIME}"\n'
DAEMON = json.dumps({"runtimes": {"x": {"path": RUNTIME}}})
HOOK = json.dumps({"version": "1.0.0", "hook": {"path": RUNTIME}})
CRIO = f'[crio.runtime.runtimes.x]\nruntime_path = "{RUNTIME}"\n'
PODMAN = f'[engine.runtimes]\nnvidia = ["{RUNTIME}"]\n'
ROOT = "/etc/containerd/config.toml"
DOCKER = "/etc/systemd/system/docker.service.d/x.conf"
UNIT_OF_CRIO = "/etc/systemd/system/crio.service.d/x.conf"

ALONE = {
    "/etc/systemd/system.control/docker.service.d/50.conf": f"ExecStart=/usr/bin/dockerd --add-runtime x={RUNTIME}\n",
    "/etc/systemd/system.attached/docker.service": f"ExecStart=/usr/bin/dockerd --add-runtime x={RUNTIME}\n",
    "/run/systemd/transient/docker.service": f"ExecStart=/usr/bin/dockerd --add-runtime x={RUNTIME}\n",
    "/etc/systemd/system/service.d/x.conf": f"Environment=CONTAINER_RUNTIMES=x:{RUNTIME}\n",
    "/etc/conf.d/docker": f'DOCKER_OPTS="--add-runtime=x={RUNTIME}"\n',
    "/etc/sysconfig/docker-runtimes": f'DOCKER_ADD_RUNTIMES="--add-runtime x={RUNTIME}"\n',
    "/etc/sysconfig/containerd": f"OPTIONS={RUNTIME}\n",
    "/etc/containers/containers.conf.modules/gpu.conf": PODMAN,
    "/root/.config/containers/containers.conf": PODMAN,
    "/etc/buildkit/buildkitd.toml": f'[worker.oci]\nbinary = "{RUNTIME}"\n',
    "/etc/nvidia-container-runtime/config.toml": f'[nvidia-ctk]\npath = "{TOOLKIT}/nvidia-ctk"\n',
}
FOLLOWED = {
    "a wildcard of another kind in a folder": (ROOT, 'imports = ["/opt/sit?/*.toml"]', "/opt/site/x.toml", TABLE),
    "a set in a folder": (ROOT, 'imports = ["/opt/[s]ite/*.toml"]', "/opt/site/x.toml", TABLE),
    "a set of what it is not": (ROOT, 'imports = ["/opt/site/[^a]*.toml"]', "/opt/site/x.toml", TABLE),
    "an escape": (ROOT, r"imports = ['/opt/s\ite/*.toml']", "/opt/site/x.toml", TABLE),
    "a runtime's own file": (ROOT, '[x.options]\nConfigPath = "/opt/x.toml"', "/opt/x.toml", f'a = "{RUNTIME}"'),
    "a file of variables": (DOCKER, "EnvironmentFile=-/opt/docker.env\n", "/opt/docker.env", f"A=x={RUNTIME}\n"),
    "a flag in quotes": (
        DOCKER,
        'ExecStart=dockerd "--config-file=/opt/my site/d.json"\n',
        "/opt/my site/d.json",
        DAEMON,
    ),
    "a short flag": (UNIT_OF_CRIO, "ExecStart=/usr/bin/crio -d /opt/crio.d\n", "/opt/crio.d/x.conf", CRIO),
    "a variable": (UNIT_OF_CRIO, "Environment=CONTAINER_CONFIG_DIR=/opt/crio.d\n", "/opt/crio.d/x.conf", CRIO),
    "hooks": (UNIT_OF_CRIO, "Environment=CONTAINER_HOOKS_DIR=/opt/hooks\n", "/opt/hooks/x.json", HOOK),
}


def write(folder: Path, path: str, text: str) -> None:
    place = folder / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    write(tmp_path, RUNTIME, "")
    return Node.open(str(tmp_path), "/host")


def files(node: Node) -> set[str]:
    return {each.file for each in files_naming.find_naming_files(node, TOOLKIT)}


@pytest.mark.parametrize("path", ALONE)
def test_a_file_that_an_engine_reads_by_itself_is_looked_at(path: str, node: Node, tmp_path: Path) -> None:
    assert files(node) == set()
    write(tmp_path, path, ALONE[path])
    assert files(node) == {path}


@pytest.mark.parametrize("way", FOLLOWED)
def test_a_file_that_another_one_leads_to_is_looked_at(way: str, node: Node, tmp_path: Path) -> None:
    path, text, named, content = FOLLOWED[way]
    write(tmp_path, named, content)
    assert files(node) == set()
    write(tmp_path, path, text)
    assert files(node) == {named}


def test_a_folder_of_programs_with_two_names_is_looked_at_once(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/ours").symlink_to(RUNTIME)
    write(tmp_path, ROOT, 'version = 2\n[plugins.x]\na = "ours"\n')
    asked: list[str] = []
    real = Reader.links

    def counted(reader: Reader, path: str) -> Sequence[str]:
        asked.append(path)
        return real(reader, path)

    monkeypatch.setattr(Reader, "links", counted)
    assert files(node) == {ROOT}
    assert asked.count("/usr/bin") == 1
    assert "/bin" not in asked


@pytest.mark.parametrize("number, holds", [(errno.EIO, True), (errno.ESTALE, True), (errno.EACCES, False)])
def test_a_file_that_its_disk_does_not_give_holds_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, holds: bool
) -> None:
    write(tmp_path, ROOT, "version = 2\n")
    found = Reader.read_file

    def refused(reader: Reader, path: str, limit: int | None = None) -> object:
        if path == ROOT:
            raise NodeError.of(OSError(number, ""), path, "read it")
        return found(reader, path) if limit is None else found(reader, path, limit)

    monkeypatch.setattr(Reader, "read_file", refused)
    named = files_naming.find_naming_files(Node.open(str(tmp_path), "/host"), TOOLKIT)
    assert bool(named) is holds


@pytest.mark.parametrize("recorded", [True, False])
def test_what_keeps_the_toolkit_is_named_with_its_file_and_what_to_do(*, recorded: bool) -> None:
    found = [Naming("/etc/docker/daemon.json", 5, f"{TOOLKIT}/a"), Naming("/etc/crio/b.conf", 2, f"{TOOLKIT}/b")]
    error = files_naming.build_refusal(found, recorded=recorded)
    assert (error.path, error.line) == ("/etc/docker/daemon.json", 5)
    assert all(str(each) in error.reason for each in found)
    assert error.hint is not None
    assert error.hint.startswith("take that out and restart the engine, then run `toolkit-installer uninstall` again")
    # only without a receipt can it be unknown whose entries these are
    assert ("--runtime" in error.hint) is not recorded
    assert error.hint.endswith("again" if recorded else "what installers left is taken out of it")
