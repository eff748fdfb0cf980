"""Handlers and files that another installer left, found in engines' texts and on a made node."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.errors import AlreadyRunningError
from toolkit_installer.node.node import Node
from toolkit_installer.planning import other_installer
from toolkit_installer.receipt.schema import FILE, FOLDER
from toolkit_installer.settings import NRI_PID_FILE

TOOLKIT = "/usr/local/nvidia/toolkit"
DOCKER = b'{"runtimes": {"nvidia": {"path": "%s/nvidia-container-runtime"}, "crun": {"path": "/usr/bin/crun"}}}'
CONTAINERD = b'[plugins.x.containerd.runtimes.old.options]\nBinaryName = "%s/../toolkit/nvidia-container-runtime"\n'


@pytest.mark.parametrize(
    "content, handlers",
    [
        (None, []),
        (b"", []),
        (DOCKER % TOOLKIT.encode(), ["nvidia"]),
        (DOCKER % b"/opt/other/toolkit", []),
        (CONTAINERD % TOOLKIT.encode(), ["old"]),
        (b'{{ template "base" . }}\n' + CONTAINERD % TOOLKIT.encode(), ["old"]),
        (b'{"hooks": {"nvidia": {"path": "%s/nvidia-ctk"}}}' % TOOLKIT.encode(), []),
        (b'{"runtimes": {"nvidia": "%s/x"}' % TOOLKIT.encode(), []),
    ],
    ids=["no-file", "empty", "docker", "another-folder", "containerd", "template", "no-runtime", "broken"],
)
def test_handlers_are_those_whose_program_lies_in_the_toolkit(content: bytes | None, handlers: list[str]) -> None:
    assert other_installer.find_handlers(content, TOOLKIT) == handlers


def test_leftovers_are_described_with_their_file_and_number() -> None:
    files = [("/etc/docker/daemon.json", DOCKER % TOOLKIT.encode()), ("/etc/absent", None)]
    assert other_installer.describe_handlers(files, TOOLKIT) == ("/etc/docker/daemon.json: handler nvidia",)
    assert other_installer.describe_folder(TOOLKIT, ["a"]) == [f"{TOOLKIT}: 1 file"]
    assert other_installer.describe_folder(TOOLKIT, ["a", "b"]) == [f"{TOOLKIT}: 2 files"]
    assert other_installer.describe_folder(TOOLKIT, []) == []


def test_another_installation_counts_while_its_receipt_exists(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    content = b'path = "/opt/nv/toolkit/nvidia-ctk"\nother = /usr/local/nvidia/toolkit/nvidia-ctk'
    assert other_installer.find_named_installations(node, content, TOOLKIT) == []
    receipt = tmp_path / "opt/nv" / FOLDER / FILE
    receipt.parent.mkdir(parents=True)
    receipt.touch()
    assert other_installer.find_named_installations(node, content, TOOLKIT) == ["/opt/nv"]
    assert other_installer.find_named_installations(node, content, "/opt/nv/toolkit") == []


@pytest.mark.parametrize("path, is_plugin", [(NRI_PID_FILE, True), ("/run/nvidia/toolkit.pid", False)])
def test_the_lock_of_the_nri_plugin_is_explained(path: str, *, is_plugin: bool) -> None:
    error = other_installer.explain_lock(AlreadyRunningError("PID 7 holds it", path=path))
    assert ("which serves the NRI plugin" in error.reason) is is_plugin
    assert error.path == path
