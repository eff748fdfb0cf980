"""cri-dockerd under systemd in a whole machine: what a kubelet of today needs to use docker."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.hosts.host import Host
from tests.support.engines import images

UNIT = "cri-docker"
SOCKET = "/run/cri-dockerd.sock"
_PROGRAM = "/usr/local/bin/cri-dockerd"
_SERVICE = f"""\
[Unit]
Description=CRI for docker
DefaultDependencies=no
After=docker.service
[Service]
Type=notify
ExecStart={_PROGRAM} --container-runtime-endpoint=unix://{SOCKET} @NETWORK@ \\
    --pod-infra-container-image={images.PAUSE} --streaming-bind-addr=127.0.0.1:0
Restart=always
RestartSec=1
"""


def bring(host: Host, programs: Path, cni: Path | None = None) -> None:
    """Bring it into a machine; `programs` is the folder that has it. Its unit is not started.

    `cni` is the folder of the plugins that give pods their networks; without it they have the node's.
    """
    network = "--network-plugin="
    if cni is not None:
        network = f"--network-plugin=cni --cni-bin-dir={cni} --cni-conf-dir=/etc/cni/net.d"
    shutil.copy2(programs / "cri-dockerd", host.path(_PROGRAM))
    host.path(f"/etc/systemd/system/{UNIT}.service").write_text(_SERVICE.replace("@NETWORK@", network))
    host.run("systemctl", "daemon-reload")
