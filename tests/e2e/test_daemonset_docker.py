"""The same DaemonSet's pod on a node with docker, below cri-dockerd: docker is reloaded, and nothing is restarted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import carriers, cri_dockerd_unit, gpu_host, kubelet_pod
from tests.e2e.hosts.gpu_nodes import NOTHING, THE_GPU
from tests.e2e.hosts.machine import HANDLERS
from tests.e2e.hosts.small_cluster import RUN, WAIT, Site
from tests.support import api_server
from tests.support.api_server import Cluster
from tests.support.built import go_tools
from tests.support.built.installer_image import BuiltImage
from tests.support.engines import images
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.hosts.machine import Machine
    from tests.support.built.go_tools import Tool

UNIT = "docker"
CONFIG = "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
BY_NAME = {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"}


@pytest.fixture
def site(
    newest_machine: Machine, folder: Path, built_image: BuiltImage, go_tool: Callable[[Tool], Path]
) -> Iterator[Site]:
    """Yield a node with a live docker, which for this cri-dockerd is to be newer than this machine's, and a driver.

    The runc below is this machine's: that release's own does not start a container in such a machine.
    """
    machine = newest_machine
    if missing := [name for name in (*gpu_host.PROGRAMS, "dockerd") if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    go_tool(go_tools.KUSTOMIZE)
    host = machine.host
    cri_dockerd_unit.bring(host, go_tool(go_tools.CRI_DOCKERD))
    host.run("umount", "/usr/sbin/runc")
    host.run("mount", "--make-rshared", "/")
    options = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
    host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{options}"\n')
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    with carriers.Docker(host) as docker:
        docker.load(images.archive(), images.IMAGE)
        docker.load(built_image.archive, built_image.reference)
        gpu_host.install(host, folder / "driver")
        host.run("systemctl", "start", cri_dockerd_unit.UNIT)
        with (
            api_server.serving(folder, Cluster({})) as server,
            kubelet_pod.kubelet(host, api_server.NODE, cri_dockerd_unit.SOCKET) as kubelet,
        ):
            yield Site(machine, kubelet, server, CONFIG, machine.docker_handlers)


def test_the_same_pod_configures_docker_without_a_restart_and_gives_it_back(site: Site) -> None:
    machine = site.machine
    pod = site.running_pod()
    assert site.handlers() == site.own | HANDLERS
    assert machine.starts(UNIT) == 1
    assert pod.running(RUN)
    assert pod.log(WAIT)
    # it looks at docker's runtimes once a minute, and a kubelet tries again until then
    machine.host.run("systemctl", "restart", cri_dockerd_unit.UNIT)
    assert site.seen("nvidia", BY_NAME) == THE_GPU
    assert site.seen("", BY_NAME) == NOTHING

    site.delete(pod)
    assert machine.starts(UNIT) == 1
