"""The DaemonSet's pod, from the rendered manifest and the built image, on a machine whose containerd it restarts."""

from __future__ import annotations

import contextlib
import shutil
import tomllib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.e2e.hosts import gpu, gpu_host, kubelet_pod
from tests.e2e.hosts.gpu_nodes import NOTHING, THE_GPU
from tests.e2e.hosts.machine import CONFIG, DROP_IN, HANDLERS, INSTALL_DIR, Machine
from tests.e2e.hosts.small_cluster import RUN, WAIT, Site
from tests.e2e.program import WAITING
from tests.e2e.sites import wait_for
from tests.support import api_server, driver_roots, fake_ctk
from tests.support.api_server import Cluster
from tests.support.built import go_tools, installer_image, nvml
from tests.support.built.installer_image import BuiltImage
from tests.support.engines import images
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.built.go_tools import Tool

UNIT = "containerd"
IDLE = "Nothing to do"
ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
BY_NAME = {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"}
CONFIGURATION = """\
# Managed by hand: ask the storage team before you touch this.
version = 2   # of the format

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = 'registry.example/pause:1'   # mirrored
\trestrict_oom_score_adj = true
  disable_apparmor = true
"""
CONFIGURATION_2 = """\
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "registry.example/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
"""


Join: TypeAlias = Callable[[Machine, str], Site]


@pytest.fixture
def cluster(folder: Path, built_image: BuiltImage, go_tool: Callable[[Tool], Path]) -> Iterator[Join]:
    """Yield what makes a machine a node with a live containerd, without a driver, of a cluster with our objects."""
    if missing := [name for name in (*gpu_host.PROGRAMS, "ctr") if shutil.which(name, path=PATH) is None]:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    go_tool(go_tools.KUSTOMIZE)
    with contextlib.ExitStack() as stack:

        def join(machine: Machine, configuration: str) -> Site:
            # as systemd does where it is not in a container itself: mounts reach those who asked for them
            machine.host.run("mount", "--make-rshared", "/")
            machine.serve(UNIT, CONFIG, configuration)
            server = stack.enter_context(api_server.serving(folder, Cluster({})))
            kubelet = stack.enter_context(kubelet_pod.kubelet(machine.host, api_server.NODE))
            kubelet.import_image(images.archive())
            kubelet.import_image(built_image.archive)
            return Site(machine, kubelet, server, CONFIG, machine.handlers)

        yield join


@pytest.fixture
def site(cluster: Join, machine: Machine) -> Site:
    """Return a node with this machine's containerd."""
    return cluster(machine, CONFIGURATION)


@pytest.fixture
def newest_site(cluster: Join, newest_machine: Machine) -> Site:
    """Return a node with the newest containerd that Debian has, and this machine's runc below it.

    That release's own does not start a container in such a machine, whatever the pod.
    """
    newest_machine.host.run("umount", "/usr/sbin/runc")
    return cluster(newest_machine, CONFIGURATION_2)


@pytest.fixture
def driven(site: Site, folder: Path) -> Site:
    """Return it with a driver."""
    gpu_host.install(site.machine.host, folder / "driver")
    return site


def test_a_pod_waits_for_the_driver_and_survives_the_restart_of_its_engine(site: Site, folder: Path) -> None:
    machine, before = site.machine, site.machine.state(CONFIG)
    gpu_host.plug_in(machine.host)
    pod = site.pod()
    pod.start_container(WAIT)
    pod.wait_for(WAIT, "nvidia-smi")
    assert pod.running(WAIT)
    gpu_host.install(machine.host, folder / "driver")
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    assert machine.starts(UNIT) == 1
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)

    pod.start_container(RUN)
    pod.wait_until_probed(RUN, "startupProbe")
    assert machine.handlers() == {"runc"} | HANDLERS, "it says that it is ready, and the engine has no handlers"
    pod.wait_for(RUN, WAITING)
    assert machine.starts(UNIT) == 2
    assert pod.running(RUN)
    assert pod.probe(RUN, "readinessProbe")
    assert site.server.cluster.asked == [site.daemon_set_path, site.namespace_path, api_server.NODE_PATH]
    code, said = pod.execute(RUN, "toolkit-installer", "status")
    assert code == 0
    assert "serves them" in said

    assert site.seen("nvidia-cdi", ALL) == THE_GPU
    assert site.seen("nvidia", BY_NAME) == THE_GPU
    assert site.seen("", BY_NAME) == NOTHING, "whoever asks for nothing keeps the runtime that there was"
    assert site.seen("nvidia", {}) == NOTHING
    assert site.seen("runc", ALL) == NOTHING

    site.delete(pod)
    assert "does not exist" in pod.log(RUN)
    assert machine.starts(UNIT) == 3
    pod.remove()


def test_an_update_reloads_no_engine_and_the_last_pod_reverts_everything(
    driven: Site,
) -> None:
    site, machine = driven, driven.machine
    pod = site.running_pod()
    installed = machine.state(CONFIG)
    for words, sick in (("still wants this node", None), ("does not say whether", (503, "no leader"))):
        site.cluster.sick = sick
        assert pod.stop(RUN) == 0, pod.log(RUN)
        assert words in pod.log(RUN)
        pod.remove()
        assert machine.handlers() == {"runc"} | HANDLERS
        site.cluster.sick = None
        pod = site.running_pod()
        assert IDLE in pod.log(RUN)
    assert machine.state(CONFIG) == installed
    assert machine.starts(UNIT) == 2, "one to install, and none since"

    # a container that ends is started again in its pod, with the ready file of the one before
    ready = pod.place("ready") / "ready"
    stale = ready.stat()
    machine.host.run("sh", "-c", "kill -KILL $(cat /run/nvidia/toolkit.pid)")
    assert pod.wait_until_ended(RUN) != 0
    assert ready.stat().st_mtime_ns == stale.st_mtime_ns
    pod.start_container(RUN)
    pod.wait_for(RUN, WAITING)
    assert IDLE in pod.log(RUN)
    assert ready.stat().st_mtime_ns > stale.st_mtime_ns, "it was said to be ready by the one before"

    site.delete(pod)
    assert machine.starts(UNIT) == 3


def test_a_node_whose_driver_has_gone_since_is_given_back_by_the_next_pod(driven: Site) -> None:
    site, machine = driven, driven.machine
    pod = site.running_pod()
    installed = machine.state(CONFIG)
    assert pod.stop(RUN) == 0, pod.log(RUN)
    pod.remove()
    # as after a reboot with a driver that does not fit the kernel: the module is not loaded, nvidia-smi fails
    machine.host.path(gpu_host.LOADED).write_text(gpu.modules(loaded=False))
    driver_roots.install(machine.host.path("/"), works=False, devices=False)

    pod = site.pod()
    pod.start_container(WAIT)
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    assert "the driver is not waited for" in pod.log(WAIT)
    pod.start_container(RUN)
    pod.wait_until_probed(RUN, "startupProbe")
    pod.wait_for(RUN, WAITING)
    assert "the installed root stays" in pod.log(RUN)
    assert IDLE in pod.log(RUN)
    assert machine.state(CONFIG) == installed
    assert machine.handlers() == {"runc"} | HANDLERS
    assert machine.starts(UNIT) == 2

    site.delete(pod)
    assert machine.starts(UNIT) == 3
    pod.remove()


def test_as_default_it_serves_pods_without_a_class_and_leaves_files_to_uninstall(
    driven: Site,
) -> None:
    site, machine = driven, driven.machine
    before = machine.state(CONFIG)
    pod = site.running_pod("overlays/default-runtime")
    assert site.seen("", BY_NAME) == THE_GPU
    assert site.seen("", {}) == NOTHING
    assert pod.stop(RUN) == 0, pod.log(RUN)
    pod.remove()
    pod = site.running_pod("overlays/default-runtime")
    assert IDLE in pod.log(RUN)

    del site.cluster.objects[site.daemon_set_path]
    assert pod.stop(RUN) == 0, pod.log(RUN)
    assert machine.state(CONFIG) == before
    assert machine.handlers() == {"runc"}
    # this pod was started through the default runtime, ours: it is stopped and deleted through it
    assert pod.containers[RUN] in pod.log(RUN)
    assert "but for the toolkit's files, which stay" in pod.log(RUN)
    assert machine.exists(f"{INSTALL_DIR}/toolkit")
    pod.remove()
    tool = site.debug_pod("uninstall")
    assert tool.wait_until_ended("debugger") == 0, tool.log("debugger")
    site.assert_given_back()


def test_a_driver_container_that_comes_and_goes_after_the_pod_is_seen_by_it(site: Site) -> None:
    machine = site.machine
    gpu_host.plug_in(machine.host)
    pod = site.pod()
    pod.start_container(WAIT)
    pod.wait_for(WAIT, "nvidia-smi")
    # as such a container shows its root to the node, by a mount
    machine.host.run("mkdir", "-p", driver_roots.CONTAINER)
    machine.host.run("mount", "-t", "tmpfs", "tmpfs", driver_roots.CONTAINER)
    driver_roots.install(machine.host.path(driver_roots.CONTAINER))
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    pod.start_container(RUN)
    pod.wait_until_probed(RUN, "startupProbe")
    assert f"root={driver_roots.CONTAINER}" in pod.log(RUN)
    pod.wait_for(RUN, WAITING)
    config = machine.host.path(f"{INSTALL_DIR}/toolkit/.config/nvidia-container-runtime/config.toml")

    def root() -> str:
        return str(tomllib.loads(config.read_text())["nvidia-container-cli"]["root"])

    assert root() == driver_roots.CONTAINER

    # in its place comes the node's own
    machine.host.run("umount", driver_roots.CONTAINER)
    driver_roots.install(machine.host.path("/"), devices=False)
    pod.wait_for(RUN, "its files changed")
    pod.wait_for(RUN, "root=/ ")
    wait_for(lambda: root() == "/")
    wait_for(lambda: WAITING in pod.log(RUN).splitlines()[-1])
    assert machine.starts(UNIT) == 2, "the engine was restarted for it"
    assert pod.stop(RUN) == 0, pod.log(RUN)


def test_a_node_with_a_drop_in_is_configured_from_within_and_given_back(newest_site: Site, folder: Path) -> None:
    site, machine = newest_site, newest_site.machine
    gpu_host.install(machine.host, folder / "driver")
    pod = site.running_pod()
    assert machine.exists(DROP_IN)
    assert machine.handlers() == {"runc"} | HANDLERS
    assert site.seen("nvidia-cdi", ALL) == THE_GPU
    assert site.seen("runc", ALL) == NOTHING
    site.delete(pod)
    assert not machine.exists(DROP_IN)
    assert machine.starts(UNIT) == 3


SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
GENERATING = {
    "handlers": ("base", {"CDI_ENABLED": "true"}),
    "cdi": ("base", {"TOOLKIT_METHOD": "cdi"}),
    "nri": ("overlays/nri", {}),
}
"""The methods that need a specification, and the settings that choose them."""


@pytest.mark.parametrize("newer", [None, go_tools.NEWEST_CTK], ids=["1.19.0", "1.20.2"])
def test_the_pod_of_each_method_generates_its_specification_with_nvidia_ctk(
    newest_site: Site, folder: Path, go_tool: Callable[[Tool], Path], newer: Tool | None
) -> None:
    """The image's payload is NVIDIA's 1.19.0; a newer nvidia-ctk is in a payload on the node."""
    site, host = newest_site, newest_site.machine.host
    gpu_host.install(host, folder / "driver")
    nvml.install(host.path("/"), gpus=1)
    source: dict[str, str] = {}
    if newer is not None:
        shutil.copytree(installer_image.payload(), host.path("/run/payload"), symlinks=True)
        shutil.copy2(go_tool(newer) / "nvidia-ctk", host.path("/run/payload/usr/bin/nvidia-ctk"))
        source = {"TOOLKIT_SOURCE_ROOT": "/host/run/payload"}
    for overlay, settings in GENERATING.values():
        pod = site.running_pod(overlay, settings | source)
        assert f"libcuda.so.{fake_ctk.VERSION}" in host.path(SPECIFICATION).read_text()
        assert pod.probe(RUN, "readinessProbe"), pod.log(RUN)
        assert pod.execute(RUN, "sh", "-c", "ls -A /tmp")[1] == "", "something was left"
        assert pod.stop(RUN) == 0, pod.log(RUN)
        pod.remove()
    pod = site.running_pod("overlays/nri", source)
    site.delete(pod)
    assert not site.machine.exists(SPECIFICATION)


def test_without_a_gpu_the_pod_is_ready_and_changes_nothing_until_one_appears(site: Site, folder: Path) -> None:
    machine, before = site.machine, site.machine.state(CONFIG)
    pod = site.pod()
    pod.start_container(WAIT)
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    assert "no driver is waited for" in pod.log(WAIT)
    pod.start_container(RUN)
    pod.wait_until_probed(RUN, "startupProbe")
    pod.wait_for(RUN, WAITING)
    assert pod.probe(RUN, "readinessProbe")
    assert "This node shows no NVIDIA GPU" in pod.log(RUN)
    assert machine.starts(UNIT) == 1
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)

    gpu_host.plug_in(machine.host)
    pod.wait_for(RUN, "No driver is usable yet")
    pod.wait_until_probed(RUN, "readinessProbe", succeeds=False)
    gpu_host.install(machine.host, folder / "driver")
    pod.wait_until_probed(RUN, "readinessProbe")
    assert machine.handlers() == {"runc"} | HANDLERS
    assert site.seen("nvidia-cdi", ALL) == THE_GPU
    site.delete(pod)
    assert machine.starts(UNIT) == 3


@pytest.mark.parametrize("what", ["permissions", "account", "namespace"])
def test_a_node_is_given_back_whatever_is_deleted_first(driven: Site, what: str) -> None:
    site = driven
    pod = site.running_pod()
    if what == "permissions":  # an API server goes on accepting the token of a deleted account for a while
        site.granted.objects = [each for each in site.objects if "Role" not in each["kind"]]
        site.cluster.after[len(site.cluster.asked) + 2] = lambda cluster: cluster.tokens.clear()
    elif what == "account":
        site.cluster.tokens.clear()
    else:
        site.cluster.delete(site.namespace_path)
    assert pod.stop(RUN) == 0, pod.log(RUN)
    site.assert_given_back()
    assert site.machine.starts(UNIT) == 3


def test_permissions_that_somebody_broke_are_no_sign_that_the_daemonset_is_gone(driven: Site) -> None:
    site = driven
    pod = site.running_pod()
    site.granted.objects = [each for each in site.objects if "Role" not in each["kind"]]
    for again in (False, True):
        assert pod.stop(RUN) == 0, pod.log(RUN)
        assert "does not say whether" in pod.log(RUN)
        assert site.machine.handlers() == {"runc"} | HANDLERS
        pod.remove()
        if not again:
            pod = site.running_pod()
            assert IDLE in pod.log(RUN)
    assert site.machine.starts(UNIT) == 2, "one to install, and none since"


def test_a_pod_without_permission_changes_nothing_until_it_is_granted(driven: Site) -> None:
    site = driven
    site.granted.objects = [each for each in site.objects if "Role" not in each["kind"]]
    pod = site.pod()
    pod.start_container(WAIT)
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    pod.start_container(RUN)
    pod.wait_for(RUN, "Nothing is changed on this node")
    pod.wait_for(RUN, WAITING)
    assert not pod.probe(RUN, "startupProbe")
    assert not pod.probe(RUN, "readinessProbe")
    assert site.machine.state(CONFIG) == site.before
    assert not site.machine.exists(INSTALL_DIR)
    assert site.machine.starts(UNIT) == 1
    site.granted.objects = site.objects
    pod.wait_until_probed(RUN, "startupProbe")
    assert site.machine.handlers() == {"runc"} | HANDLERS
    site.delete(pod)


@pytest.mark.parametrize("what", ["permissions", "account", "DaemonSet"])
def test_a_pod_that_is_deleted_while_it_starts_leaves_the_node_as_it_was(driven: Site, what: str) -> None:
    site = driven
    pod = site.pod()
    pod.start_container(WAIT)
    assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
    if what == "permissions":
        site.granted.objects = [each for each in site.objects if "Role" not in each["kind"]]
    elif what == "account":
        site.cluster.tokens.clear()
    else:
        del site.cluster.objects[site.daemon_set_path]
    pod.start_container(RUN)
    pod.wait_for(RUN, "Nothing is changed on this node")
    assert pod.stop(RUN) == 0, pod.log(RUN)
    site.assert_given_back()
    assert site.machine.starts(UNIT) == 1


def test_install_only_installs_the_toolkit_asks_nobody_and_leaves_the_engine_alone(driven: Site) -> None:
    machine, before = driven.machine, driven.machine.state(CONFIG)
    pod = driven.running_pod("overlays/install-only")
    code, _ = pod.execute(RUN, "test", "-e", kubelet_pod.ACCOUNT_FOLDER)
    assert code == 1
    assert pod.stop(RUN) == 0, pod.log(RUN)
    assert machine.exists("/opt/nvidia/toolkit/nvidia-container-runtime")
    assert not machine.exists(INSTALL_DIR)
    assert driven.cluster.asked == []
    pod.remove()
    pod = driven.running_pod("overlays/install-only")
    assert "the driver is not waited for" in pod.log(WAIT), "it did not look where the toolkit is installed here"
    assert IDLE in pod.log(RUN)
    assert pod.stop(RUN) == 0, pod.log(RUN)
    assert machine.state(CONFIG) == before
    assert machine.starts(UNIT) == 1
