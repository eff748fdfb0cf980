"""CRI-O under systemd in a whole machine: its programs, its unit, and a crio.conf where it looks for one.

Debian 12 has no package of it, so there is no distribution's unit to take; this one says what CRI-O's own says of its
type and its reload, and `KillMode=process`, without which containers would die with it here (control groups are CRI-O's
own to make). Images are not brought: what pods need is not here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.e2e.hosts.host import Host

UNIT = "crio"
SOCKET = "/run/crio/crio.sock"
CONFIG = "/etc/crio/crio.conf"
DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
CONFIGURATION = """\
# Managed by hand: ask the storage team before you touch this.
[crio.runtime]
default_runtime = "runc"   # crun once the fleet is ready
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
hooks_dir = [
\t"/etc/crio/hooks.d",   # the storage team's
]

    [crio.runtime.runtimes.runc]   # the only one so far
    runtime_path = "/usr/sbin/runc"
    runtime_type = "oci"
    runtime_root = "/run/runc"
\tmonitor_path = "/usr/bin/conmon"
    monitor_env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TEAM=storage"]
"""
_FOLDER = "/usr/local/bin"
_POLICY = "/etc/containers/policy.json"
_SERVICE = f"""\
[Unit]
Description=CRI-O
DefaultDependencies=no
[Service]
Type=notify
ExecStart={_FOLDER}/crio --storage-driver=@STORAGE@ --pinns-path={_FOLDER}/pinns --apparmor-profile=unconfined
ExecReload=/bin/kill -s HUP $MAINPID
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
"""


def bring(host: Host, programs: Path, storage: str = "vfs") -> None:
    """Bring CRI-O into a machine; `programs` is the folder with crio and pinns. Its unit is not started.

    `storage` is how it keeps layers: `vfs` copies them for each container, and works everywhere.
    """
    for name in ("crio", "pinns"):
        shutil.copy2(programs / name, host.path(f"{_FOLDER}/{name}"))
    for folder in ("/etc/crio/crio.conf.d", "/etc/crio/hooks.d", str(Path(_POLICY).parent)):
        host.path(folder).mkdir(parents=True, exist_ok=True)
    host.path(_POLICY).write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    host.path(f"/etc/systemd/system/{UNIT}.service").write_text(_SERVICE.replace("@STORAGE@", storage))
    host.run("systemctl", "daemon-reload")
