"""A DaemonSet of 2021 with our image in it: one argument, no command, five folders of the node, docker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import carriers, gpu_host
from tests.e2e.hosts.carriers import Description, Docker, Mount
from tests.e2e.hosts.gpu_nodes import LOOK, NOTHING, THE_GPU
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR, Machine
from tests.e2e.program import WAITING
from tests.support.built.installer_image import BuiltImage
from tests.support.engines import images

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = "docker"
CONFIG = "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
TOOLKIT = f"{INSTALL_DIR}/toolkit"
BY_NAME = {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"}
MOUNTS = (
    Mount("/etc/docker", "/etc/docker"),
    Mount("/var/run", "/var/run"),
    Mount("/run/nvidia", "/run/nvidia", propagation="rshared"),
    Mount(INSTALL_DIR, INSTALL_DIR),
    Mount("/usr/share/containers/oci/hooks.d", "/usr/share/containers/oci/hooks.d"),
)


@pytest.fixture
def docker_of_the_machine(machine: Machine, folder: Path, built_image: BuiltImage) -> Iterator[Docker]:
    """Yield a machine's docker with the image, and a GPU."""
    host = machine.host
    host.run("mount", "--make-rshared", "/")
    options = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
    host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{options}"\n')
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    for mount in MOUNTS:
        host.run("mkdir", "-p", mount.source)
    with carriers.Docker(host) as docker:
        docker.load(images.archive(), images.IMAGE)
        docker.load(built_image.archive, built_image.reference)
        gpu_host.install(host, folder / "driver")
        yield docker


def test_its_container_configures_docker_serves_the_gpu_and_gives_docker_back(
    machine: Machine, docker_of_the_machine: Docker, built_image: BuiltImage
) -> None:
    docker, before = docker_of_the_machine, machine.state(CONFIG)
    wanted = Description(built_image.reference, {"RUNTIME_ARGS": ""}, MOUNTS, arguments=(INSTALL_DIR,))
    container = docker.start(wanted)
    docker.wait_for(container, WAITING)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert machine.exists("/run/nvidia/toolkit.pid")
    assert machine.starts(UNIT) == 1, "docker was restarted, and its containers with it"
    assert set(docker.look("nvidia", BY_NAME, LOOK).split()) == THE_GPU
    assert set(docker.look("", BY_NAME, LOOK).split()) == THE_GPU, "it is not the default"
    assert set(docker.look("runc", BY_NAME, LOOK).split()) == NOTHING

    assert docker.stop(container) == 0, docker.log(container)
    assert machine.docker_handlers() == {"runc"}
    assert machine.state(CONFIG) == before
    assert machine.exists(f"{TOOLKIT}/nvidia-container-runtime"), "its callers expect that it stays"
    assert not machine.exists("/run/nvidia/toolkit.pid")

    # the next pod of an update finds the toolkit there
    second = docker.start(wanted)
    docker.wait_for(second, WAITING)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert docker.stop(second) == 0, docker.log(second)
    assert machine.state(CONFIG) == before
    assert machine.starts(UNIT) == 1
