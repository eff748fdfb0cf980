"""NVIDIA's device plugin on a real cluster: its image, a driver that it counts two GPUs by, and pods that ask for one.

The plugin is NVIDIA's own program in an image made here, under the name that daemonset/examples has for it. The driver
is the one of gpu_host.py, with an NVML of our own (tests/support/built/nvml.py), and an nvidia-smi that lists device
nodes.
"""

from __future__ import annotations

import dataclasses
import enum
import platform
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from tests.e2e.cluster.nodes import Node
from tests.e2e.cluster.rollout import RealCluster, wait_until
from tests.support import fake_ctk, manifests
from tests.support.built import nvml
from tests.support.engines import images
from tests.support.manifests import FOLDER, Object

RESOURCE = "nvidia.com/gpu"
APP = NAMESPACE = "nvidia-device-plugin"
BY_HANDLER, BY_CDI = "examples/device-plugin", "examples/device-plugin-cdi"
"""Folders of daemonset/."""
_SMI = """\
#!/bin/busybox sh
if [ "$1" = -L ]; then
    for gpu in /dev/nvidia[0-9]; do [ ! -c "$gpu" ] || echo "GPU ${gpu#/dev/nvidia}: NVIDIA L4"; done
else
    echo @VERSION@
fi
"""
_LOOK = f"""\
for gpu in /dev/nvidia[0-9]; do
    [ ! -c "$gpu" ] || cat "$gpu" 2>&1 | grep -q 'not permitted' || echo "$gpu"
done
for name in {" ".join(nvml.LIBRARIES)}; do
    [ ! -e "/{fake_ctk.LIBRARIES}/$name.{fake_ctk.VERSION}" ] || echo "$name"
done
"""
_SETTINGS = {  # as its Dockerfile has them
    "Cmd": [],
    "Entrypoint": ["nvidia-device-plugin"],
    "Env": [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        *("NVIDIA_DISABLE_REQUIRE=true", "NVIDIA_VISIBLE_DEVICES=all"),
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ],
}
_SPECIFICATION = "/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
"""What the plugin writes with a strategy of CDI, and leaves. It names the toolkit's hook, which keeps the toolkit."""
_LOADER = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}[platform.machine()]
_LIBC = f"lib/{platform.machine()}-linux-gnu/libc.so.6"


class Asking(enum.StrEnum):
    """How a pod asks for a GPU: by the plugin's resource, as the example does, or without it."""

    BY_RESOURCE = "asks"
    WITHOUT_CLASS = "asks-without-class"
    """By the resource, with no RuntimeClass."""
    NOT = "asks-not"
    BY_VARIABLE = "asks-by-variable"
    """For all GPUs, by NVIDIA_VISIBLE_DEVICES: as images that are made for GPUs do."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a container has of the GPUs."""

    devices: frozenset[str]
    libraries: frozenset[str]

    @property
    def one_gpu(self) -> bool:
        """Whether that is one GPU, and all of the driver."""
        return len(self.devices) == 1 and self.libraries == set(nvml.LIBRARIES)


NOTHING = Seen(frozenset(), frozenset())


# --- what the nodes have before ---


def bring_images(cluster: RealCluster, program: Path) -> None:
    """Bring the images of the examples to all nodes, once: the plugin's, and the one of the pods that ask."""
    plugin, pods = cluster.plane.images / "plugin.tar", cluster.plane.images / "pods.tar"
    if pods.exists():
        return
    pods_image = _pod(BY_HANDLER)["spec"]["containers"][0]["image"]
    plugin_image = manifests.containers(BY_HANDLER)[APP]["image"]
    files = {"usr/bin/nvidia-device-plugin": program, _LOADER: Path("/", _LOADER), _LIBC: Path("/", _LIBC)}
    plugin.write_bytes(images.archive(files, names=[plugin_image], settings=_SETTINGS))
    pods.write_bytes(images.archive(names=[pods_image]))

    def bring(node: Node) -> None:
        node.load(plugin, plugin_image)
        node.load(pods, pods_image)

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        list(pool.map(bring, cluster.nodes.values()))


def install_driver(node: Node) -> None:
    """Add to a node's driver what NVIDIA's own programs look for: NVML, and two GPUs."""
    nvml.install(node.host.path("/"))
    smi = node.host.path("/usr/bin/nvidia-smi")
    smi.write_text(_SMI.replace("@VERSION@", fake_ctk.VERSION))


def remove_driver(node: Node) -> None:
    """Have the node's driver be as it was before `install_driver`."""
    nvml.remove(node.host.path("/"))
    node.install_driver()


# --- the plugin ---


def apply(cluster: RealCluster, folder: Path) -> None:
    """Apply a kustomization of the plugin's, as a user does."""
    cluster.wait_until_no_namespace(NAMESPACE)
    cluster.plane.kubectl("apply", f"--kustomize={folder}")


def delete(cluster: RealCluster) -> None:
    """Delete the plugin and what it leaves on the nodes, and wait until no node offers a GPU."""
    cluster.plane.kubectl("delete", f"namespace/{NAMESPACE}", "--ignore-not-found", "--wait=false")
    wait_until(lambda: not cluster.pods(APP), f"no pods of {APP} are left")
    cluster.hurry_namespace(NAMESPACE)
    wait_until(lambda: set(offered(cluster).values()) <= {"", "0"}, "no node offers a GPU")
    for node in cluster.nodes.values():
        node.host.path(_SPECIFICATION).unlink(missing_ok=True)


def copy_of(example: str, folder: Path) -> Path:
    """Return a copy of an example in a folder, to be edited."""
    made = folder / example.rpartition("/")[2]
    made.mkdir()
    for file in (FOLDER / example).iterdir():
        (made / file.name).write_text(file.read_text())
    return made


def with_replicas(folder: Path, replicas: int) -> Path:
    """Return a copy of the example, in a folder, that offers each GPU so many times."""
    made = copy_of(BY_HANDLER, folder)
    config = yaml.safe_load((made / "config.yaml").read_text())
    config["sharing"]["timeSlicing"]["resources"][0]["replicas"] = replicas
    (made / "config.yaml").write_text(yaml.safe_dump(config))
    return made


def with_strategy(folder: Path, strategy: str) -> Path:
    """Return a copy of the example for CDI, in a folder, with another device-list strategy and the node's own driver.

    The folder of specifications is made where there is none, as on a node with handlers.
    """
    made = copy_of(BY_CDI, folder)
    daemon_set = yaml.safe_load((made / "daemonset.yaml").read_text())
    pod = daemon_set["spec"]["template"]["spec"]
    values = {"DEVICE_LIST_STRATEGY": strategy, "NVIDIA_DRIVER_ROOT": "/"}
    for variable in pod["containers"][0]["env"]:
        variable["value"] = values.get(variable["name"], variable["value"])
    places = {"driver-root": {"path": "/"}, "cdi": {"type": "DirectoryOrCreate"}}
    for volume in pod["volumes"]:
        volume["hostPath"].update(places.get(volume["name"], {}))
    (made / "daemonset.yaml").write_text(yaml.safe_dump(daemon_set))
    return made


def wait_until_offered(cluster: RealCluster, number: int, nodes: Iterable[str] | None = None) -> None:
    """Wait until each of these nodes, or each at all, offers so many GPUs."""
    wanted = list(cluster.nodes if nodes is None else nodes)
    wait_until(
        lambda: {offered(cluster)[name] for name in wanted} == {str(number)},
        f"each of {', '.join(wanted)} offers {number}",
    )


def offered(cluster: RealCluster) -> dict[str, str]:
    """Return how many GPUs each node offers to pods."""
    nodes = cluster.plane.get("/api/v1/nodes")
    return {node["metadata"]["name"]: node["status"]["allocatable"].get(RESOURCE, "") for node in nodes}


# --- pods ---


def listed(cluster: RealCluster, example: str = BY_HANDLER) -> str:
    """Apply the example's pod as it is, and return its log once it has ended."""
    name = _pod(example)["metadata"]["name"]
    file = FOLDER / example / "pod.yaml"
    cluster.plane.kubectl("apply", f"--filename={file}")

    def ended() -> bool:
        (pod,) = cluster.plane.get(f"/api/v1/namespaces/default/pods/{name}")
        return pod["status"].get("phase") in ("Succeeded", "Failed")

    wait_until(ended, f"the pod {name} has ended")
    log = cluster.plane.kubectl("logs", name).stdout
    cluster.plane.kubectl("delete", f"--filename={file}", "--wait=false")
    return log


def seen(
    cluster: RealCluster, *asking: Asking, example: str = BY_HANDLER, nodes: Iterable[str] | None = None
) -> dict[Asking, dict[str, Seen]]:
    """Return what the example's pod sees on each of these nodes, or each at all, with each way of asking."""
    wanted = list(cluster.nodes if nodes is None else nodes)
    cluster.give(*(_looking(example, how, node) for how in asking for node in wanted))
    for how in asking:
        cluster.wait_until_running(how, wanted)
    found = {how: {node: _look(cluster, pod) for node, (pod,) in cluster.pods(how).items()} for how in asking}
    selector = f"--selector=app.kubernetes.io/name in ({','.join(asking)})"
    cluster.plane.kubectl("delete", "pods", selector, "--grace-period=1", "--wait=false")
    wait_until(lambda: not any(map(cluster.pods, asking)), f"no pods of {', '.join(asking)} are left")
    return found


def _look(cluster: RealCluster, pod: Object) -> Seen:
    look = ["exec", pod["metadata"]["name"], "--", "/bin/busybox", "sh", "-c", _LOOK]
    words = set(cluster.plane.kubectl(*look).stdout.split())
    devices = frozenset(word for word in words if word.startswith("/dev/"))
    return Seen(devices, frozenset(words - devices))


def _looking(example: str, asking: Asking, node: str) -> Object:
    """Return the example's pod, which stays until it is deleted, on one node."""
    pod = _pod(example)
    pod["metadata"] = {
        "name": f"{asking}-{node}",
        "namespace": "default",
        "labels": {"app.kubernetes.io/name": str(asking)},
    }
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    container = pod["spec"]["containers"][0]
    container["command"] = images.COMMAND
    if asking in (Asking.NOT, Asking.BY_VARIABLE):
        del container["resources"]
    if asking is Asking.WITHOUT_CLASS:
        pod["spec"].pop("runtimeClassName", None)
    if asking is Asking.BY_VARIABLE:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return pod


def _pod(example: str) -> Object:
    (pod,) = manifests.objects((FOLDER / example / "pod.yaml").read_text())
    return pod
