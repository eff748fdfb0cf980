"""Of answers that have much more, a capture keeps all that the program reads: a replay finds what the node found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines.docker import client
from toolkit_installer.engines.docker.engine import Docker
from toolkit_installer.fleet import capture
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node

INFO: dict[str, Any] = {
    "CDISpecDirs": ["/etc/cdi"],
    "ContainersRunning": 3,
    "DefaultRuntime": "nvidia",
    "LiveRestoreEnabled": True,
    "OperatingSystem": "Docker Desktop",
    "Runtimes": {"nvidia": {"path": "/n"}, "runc": {"path": "runc"}},
    "SecurityOptions": ["name=rootless"],
    "ServerVersion": "28.5.2",
    "Name": "gpu-node-1",
    "HttpProxy": "http://someone:hunter22@proxy.example:3128",
}


def test_of_dockers_answer_all_that_is_read_is_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sockets, "find_responding_process", lambda *_: None)

    def found(info: dict[str, Any]) -> Any:
        monkeypatch.setattr(client, "query_info", lambda *_: info)
        return Docker().ask(Node(str(tmp_path)), "/run/docker.sock", 1)

    kept = client.select_used_fields(INFO)
    assert found(kept) == found(INFO)
    for key in kept:
        assert found({name: value for name, value in kept.items() if name != key}) != found(INFO), key


def test_of_an_environment_all_that_crio_and_rootless_engines_are_found_by_is_kept() -> None:
    read = {"HOME": "/root", "PATH": "/bin", "XDG_CONFIG_HOME": "/c", "CONTAINER_CONFIG": "/etc/crio/crio.conf"}
    assert capture.select_variables({**read, "AWS_SECRET_ACCESS_KEY": "x", "LANG": "C"}) == read


def test_of_the_processes_all_are_kept_that_anything_is_looked_for_of() -> None:
    read = ["containerd-shim-runc-v2", "conmon", "conmonrs", "kubelet", "dockerd", "containerd", "crio"]
    read += ["k3s", "k3s-server", "k3s-agent", "kubelite"]
    others = [(100 + number, name) for number, name in enumerate(["bash", "sshd", "python3", "a-containerd"])]
    named = list(enumerate(read))
    assert capture.select_processes([*named, *others]) == named
