"""The command that reaches a run, in the form for where it runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping

import pytest

from toolkit_installer.node import places
from toolkit_installer.waiting import refresh_command

ID = "0123456789abcdef" * 4
MOUNT = "731 712 8:1 {} {} rw,relatime - ext4 /dev/sda1 rw\n"
DOCKER = MOUNT.format(f"/var/lib/docker/containers/{ID}/hostname", "/etc/hostname")
OWN_DISK = MOUNT.format(f"/docker/containers/{ID}/hostname", "/etc/hostname")
OTHERS = MOUNT.format(f"/var/lib/docker/containers/{ID}/hostname", "/host/etc/hostname")
PODMAN = MOUNT.format(f"/containers/storage/overlay-containers/{ID}/userdata/hostname", "/etc/hostname")
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "toolkit-installer-x7x2p", "NODE_ROOT": "/host"}


@pytest.mark.parametrize(
    "environment, namespace, table, options, words",
    [
        (POD, "gpu", "", "", "kubectl -n gpu exec toolkit-installer-x7x2p -- toolkit-installer refresh"),
        (POD, "gpu", DOCKER, "", "kubectl -n gpu exec toolkit-installer-x7x2p -- toolkit-installer refresh"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
            None,
            "",
            "--node-root /host",
            "kubectl -n NAMESPACE exec POD -- toolkit-installer refresh --node-root /host",
        ),
        ({"NODE_ROOT": "/host"}, None, DOCKER, "", "docker exec 0123456789ab toolkit-installer refresh"),
        ({}, None, OWN_DISK, "--node-root=/n", "docker exec 0123456789ab toolkit-installer refresh --node-root /n"),
        ({}, None, PODMAN, "", "podman exec 0123456789ab toolkit-installer refresh"),
        ({}, None, OTHERS, "", "toolkit-installer refresh"),
        ({}, None, "", "--pid-file /run/nvidia/toolkit.pid", "toolkit-installer refresh"),
        ({"NODE_ROOT": "/srv/node"}, None, "", "", "toolkit-installer refresh --node-root /srv/node"),
        (
            {"PID_FILE": "/run/a/toolkit.pid", "HOSTNAME": "$(reboot)"},
            None,
            "",
            "--toolkit-install-dir '/a b'",
            "toolkit-installer refresh --toolkit-install-dir '/a b' --pid-file /run/a/toolkit.pid",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "$(reboot)"},
            "gpu",
            "",
            "",
            "kubectl -n gpu exec POD -- toolkit-installer refresh",
        ),
    ],
)
def test_the_command_fits_where_the_run_is(
    environment: Mapping[str, str], namespace: str | None, table: str, options: str, words: str
) -> None:
    started = ["toolkit-installer", "run", *shlex.split(options)]
    assert refresh_command.format_command(started, environment, namespace, places.parse(table)) == words


@pytest.mark.parametrize(
    "among_the_nodes, marked, node_root, words",
    [
        (True, True, "/host", "nsenter -t OWN -m -p toolkit-installer status --node-root /host"),
        (True, False, None, "nsenter -t OWN -m -p toolkit-installer status"),
        (False, True, "/host", "nsenter -t PID -m -p toolkit-installer status --node-root /host"),
        (False, False, "/host", None),
    ],
)
def test_a_container_is_entered_from_the_node_where_the_engine_is_down(
    monkeypatch: pytest.MonkeyPatch, node_root: str | None, words: str | None, *, among_the_nodes: bool, marked: bool
) -> None:
    monkeypatch.setattr(places, "has_other_root_than_init", lambda: among_the_nodes)
    monkeypatch.setattr(places, "is_marked_as_container", lambda: marked)
    monkeypatch.setattr(sys, "argv", ["toolkit-installer", "run"])
    monkeypatch.delenv("NODE_ROOT", raising=False)
    if node_root is not None:
        monkeypatch.setenv("NODE_ROOT", node_root)
    expected = words.replace("OWN", str(os.getpid())) if words is not None else None
    assert refresh_command.status_without_engine() == expected
