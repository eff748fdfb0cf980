"""The same DaemonSet's pod on a node with CRI-O, which it finds out by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import crio_unit, gpu_host, kubelet_pod, low_level
from tests.e2e.hosts.crio_unit import CONFIG, DROP_IN, SOCKET, UNIT
from tests.e2e.hosts.gpu_nodes import NOTHING, THE_GPU
from tests.e2e.hosts.machine import HANDLERS
from tests.e2e.hosts.small_cluster import RUN, WAIT, Site
from tests.support import api_server
from tests.support.api_server import Cluster
from tests.support.built import go_tools
from tests.support.built.installer_image import BuiltImage
from tests.support.engines import cri_client, images
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.hosts.machine import Machine
    from tests.support.built.go_tools import Tool

ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
_ARCHIVE = "/run/image.tar"
# Images come from a file, and their layers lie in memory: the kernel makes no overlay on the machine's own.
_PLACES = f"""\
[crio]
root = "/run/crio-storage"
runroot = "/run/crio-storage-run"
[crio.image]
default_transport = "docker-archive:{_ARCHIVE}:"
pause_image = "{images.PAUSE}"
pause_command = ""
[crio.nri]
enable_nri = false
"""


@pytest.fixture
def site(machine: Machine, folder: Path, built_image: BuiltImage, go_tool: Callable[[Tool], Path]) -> Iterator[Site]:
    """Yield a node with a live CRI-O and a driver."""
    wanted = (*gpu_host.PROGRAMS, *CrioEngine.programs)
    if missing := [name for name in wanted if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    go_tool(go_tools.KUSTOMIZE)
    host = machine.host
    crio_unit.bring(host, go_tool(go_tools.CRIO))
    host.run("mount", "--make-rshared", "/")
    host.path("/etc/crio/crio.conf.d/10-places.conf").write_text(_PLACES)
    # as most nodes have it, for names without a registry such as the manifest's
    host.path("/etc/containers/registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
    low_level.make_privileged_containers_possible(host)
    machine.serve(UNIT, CONFIG, crio_unit.CONFIGURATION)
    gpu_host.install(host, folder / "driver")

    def handlers() -> set[str]:
        answer = cri_client.status(host.path(SOCKET), 20)
        return set(answer["handlers"]) - {""}

    with (
        api_server.serving(folder, Cluster({})) as server,
        kubelet_pod.kubelet(host, api_server.NODE, SOCKET) as kubelet,
    ):
        host.path(_ARCHIVE).write_bytes(images.archive())
        kubelet.pull(images.PAUSE)
        kubelet.pull(images.IMAGE)
        shutil.copyfile(built_image.archive, host.path(_ARCHIVE))
        kubelet.pull(built_image.reference)
        yield Site(machine, kubelet, server, CONFIG, handlers)


def test_the_same_pod_configures_crio_outlives_its_restart_and_gives_it_back(site: Site) -> None:
    machine = site.machine
    pod = site.running_pod()
    assert machine.exists(DROP_IN)
    assert site.handlers() == site.own | HANDLERS
    assert machine.starts(UNIT) == 2
    assert pod.running(RUN)
    assert pod.log(WAIT)
    assert site.seen("nvidia-cdi", ALL) == THE_GPU
    assert site.seen("runc", ALL) == NOTHING

    site.delete(pod)
    assert not machine.exists(DROP_IN)
    assert machine.starts(UNIT) == 3


def test_a_pod_that_is_deleted_as_crio_restarts_is_not_waited_for_and_leaves_nothing(site: Site) -> None:
    machine = site.machine
    # so that the call that stops the pod reaches a CRI-O that is to end, and does not do so before it has answered
    folder = machine.host.path(f"/etc/systemd/system/{UNIT}.service.d")
    folder.mkdir(exist_ok=True)
    (folder / "slow.conf").write_text("[Service]\nExecStop=/bin/sleep 3\n")
    machine.host.run("systemctl", "daemon-reload")
    pod = site.pod()
    pod.start_container(WAIT)
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    pod.start_container(RUN)
    pod.wait_for(RUN, "event=reloading")
    site.delete(pod)
    assert "event=engine-ends-after-us" in pod.log(RUN)
    assert machine.starts(UNIT) == 2
