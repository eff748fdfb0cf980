"""The Helm chart on a real cluster: installed, tested, upgraded, rolled back and uninstalled as docs/helm.md says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster import node_states
from tests.e2e.cluster.node_states import SERVING, watching
from tests.e2e.cluster.rollout import NAME, NAMESPACE, RealCluster, wait_until
from tests.support import chart
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.chart import CHART
from tests.support.engines.daemons import PATH

pytestmark = pytest.mark.cluster
AT_ONCE = ("--set", "updateStrategy.rollingUpdate.maxUnavailable=100%", "--set", "minReadySeconds=0")
_SECONDS = 360
"""More than the five minutes that Helm itself waits."""


@pytest.fixture
def helm(cluster: RealCluster, go_tool: Callable[[Tool], Path]) -> Callable[..., str]:
    """Return what runs Helm as the cluster's admin, and returns what it printed."""
    program = go_tool(go_tools.HELM) / "helm"
    folder = cluster.plane.folder

    def run(command: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [*cluster.plane.hardware.enter, program, command, *arguments, "--namespace", "kube-system"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={"PATH": PATH, "HOME": str(folder), "KUBECONFIG": f"{folder}/admin.kubeconfig"},
        )
        assert done.returncode == 0, f"helm {command}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


def answered(cluster: RealCluster, node: str, path: str) -> str:
    """Return what a node's pod says over HTTP, as the API server gets it."""
    (pod,) = cluster.pods()[node]
    place = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:9479/proxy/{path}"
    return cluster.plane.kubectl("get", "--raw", place).stdout


def test_a_release_is_installed_upgraded_and_removed_without_needless_reloads(
    cluster: RealCluster, helm: Callable[..., str]
) -> None:
    cluster.wait_until_no_namespace()
    node = next(iter(cluster.nodes))
    before = {name: node_states.of(cluster.plane, name) for name in cluster.nodes}
    with watching(cluster.plane) as watch:
        told = ("--values", chart.values_of("startup-taint"))
        notes = helm("install", NAME, CHART, *AT_ONCE, *told, "--set", f"test.node={node}")
        assert f"helm uninstall {NAME} -n kube-system" in notes
        cluster.wait_until_ready()
        wait_until(lambda: all(watch.of(name)[-1] == SERVING for name in cluster.nodes), "no node is tainted any more")
        for name in cluster.nodes:
            watch.assert_tainted_until_ready(name)
    cluster.assert_configured(reloads=1)
    assert "Phase:          Succeeded" in helm("test", NAME)

    helm("upgrade", NAME, CHART, "--reuse-values", "--set", "debug=true", "--set", "metrics.enabled=true")
    cluster.wait_until_ready()
    for name in cluster.nodes:
        assert answered(cluster, name, "readyz").startswith("Serving: ")
        assert "\ntoolkit_installer_ready 1\n" in answered(cluster, name, "metrics")
    assert all("level=debug" in cluster.said(name) for name in cluster.nodes), "the new pods log each step"
    cluster.assert_configured(reloads=1)
    helm("rollback", NAME)
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)

    helm("uninstall", NAME)
    assert cluster.pods() == {}, "Helm went on before the pods had given their nodes back"
    assert {name: node_states.of(cluster.plane, name) for name in cluster.nodes} == before
    cluster.wait_until_no_namespace()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()
