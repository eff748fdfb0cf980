"""NVIDIA's device plugin on a real cluster after daemonset/base, by the steps of docs/after-install.md.

With each method of ours and each device-list strategy of the plugin, pods get what the page's table says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.cluster import device_plugin
from tests.e2e.cluster.device_plugin import BY_CDI, BY_HANDLER, NOTHING, Asking
from tests.e2e.cluster.objects import all_at_once
from tests.e2e.cluster.rollout import RealCluster, wait_until
from tests.support import manifests
from tests.support.built import go_tools, nvml
from tests.support.built.go_tools import Tool
from tests.support.manifests import FOLDER, PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster
SHARED = 4
"""How often the example offers each GPU."""
METHODS = {"handlers": "base", "cdi": "base", "nri": "overlays/nri"}
"""The kustomization of each."""
HEADING = "\n## Which device-list strategy works\n"
GPU, NONE, REFUSED = "GPU", "nothing", "refused"
"""The words of the page's table."""


def expected() -> dict[str, dict[str, list[str]]]:
    """Return the page's table: for each method and each strategy what a pod gets on each node."""
    found: dict[str, dict[str, list[str]]] = {}
    section = (PROJECT / "docs/after-install.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    for method, strategies, *cells in [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]:
        for strategy in strategies.replace("`", "").split(", "):
            found.setdefault(method, {})[strategy] = cells
    return found


@pytest.fixture
def gpus(cluster: RealCluster, go_tool: Callable[[Tool], Path]) -> Iterator[RealCluster]:
    """Yield the cluster with two GPUs on each node, and the images of the examples."""
    device_plugin.bring_images(cluster, go_tool(go_tools.DEVICE_PLUGIN) / "nvidia-device-plugin")
    for node in cluster.nodes.values():
        device_plugin.install_driver(node)
    cluster.note()
    yield cluster
    device_plugin.delete(cluster)
    for node in cluster.nodes.values():
        device_plugin.remove_driver(node)


def test_nvidias_device_plugin_offers_gpus_and_a_pod_gets_the_one_it_asks_for(gpus: RealCluster, folder: Path) -> None:
    cluster = gpus
    cluster.apply()
    cluster.wait_until_ready()
    for node in cluster.nodes.values():
        node.settle()
    device_plugin.apply(cluster, FOLDER / BY_HANDLER)
    device_plugin.wait_until_offered(cluster, SHARED * nvml.GPUS)
    assert len(device_plugin.listed(cluster).splitlines()) == 1
    seen = device_plugin.seen(cluster, *Asking)
    for name, each in seen[Asking.BY_RESOURCE].items():
        assert each.one_gpu, f"{name}: {each}"
    for how in (Asking.NOT, Asking.WITHOUT_CLASS):
        assert set(seen[how].values()) == {NOTHING}, how
    # nothing keeps it from that: the page says so
    assert {len(each.devices) for each in seen[Asking.BY_VARIABLE].values()} == {nvml.GPUS}

    device_plugin.apply(cluster, device_plugin.with_replicas(folder, 20))
    device_plugin.wait_until_offered(cluster, 20 * nvml.GPUS)

    device_plugin.delete(cluster)
    cluster.remove_installation()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


@pytest.mark.rare
@pytest.mark.parametrize("method", METHODS)
def test_each_method_and_strategy_gives_pods_what_the_page_says(method: str, gpus: RealCluster, tmp_path: Path) -> None:
    cluster, strategies = gpus, expected()[method]
    refused = [name for name, cell in zip(cluster.nodes, strategies["envvar"], strict=True) if cell == REFUSED]
    usable = [name for name in cluster.nodes if name not in refused]
    install(cluster, method)
    cluster.wait_until_ready(usable)
    wait_until(lambda: all(" code=3 " in cluster.said(name) for name in refused), f"{', '.join(refused)} are refused")
    for name in usable:
        cluster.nodes[name].settle()
    found = {}
    for strategy in strategies:
        by_handler = (method, strategy) == ("handlers", "envvar")
        example = BY_HANDLER if method == "handlers" else BY_CDI
        (folder := tmp_path / strategy).mkdir()
        given = FOLDER / BY_HANDLER if by_handler else device_plugin.with_strategy(folder, strategy)
        device_plugin.apply(cluster, given)
        device_plugin.wait_until_offered(cluster, nvml.GPUS * (SHARED if by_handler else 1), usable)
        seen = device_plugin.seen(cluster, Asking.BY_RESOURCE, example=example, nodes=usable)[Asking.BY_RESOURCE]
        found[strategy] = [word(seen[name]) if name in seen else REFUSED for name in cluster.nodes]
        device_plugin.delete(cluster)
    assert found == strategies
    cluster.remove_installation()
    cluster.assert_as_before()


def install(cluster: RealCluster, method: str) -> None:
    """Apply the installation with one of our methods."""
    objects = all_at_once(METHODS[method])
    container = manifests.one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "TOOLKIT_METHOD", "value": method})
    cluster.give(*objects)


def word(seen: device_plugin.Seen) -> str:
    """Return the table's word for what a pod sees."""
    if seen == NOTHING:
        return NONE
    return GPU if seen.one_gpu else str(seen)
