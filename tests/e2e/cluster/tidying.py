"""Takes everything of a test away from a real cluster, whatever state it left: the next one begins as this one did."""

from __future__ import annotations

from tests.e2e.cluster.rollout import GPU, LABEL, NAME, NAMESPACE, TAINT, RealCluster, wait_until
from tests.e2e.cluster.snapshot import RELOADS, changes
from tests.e2e.program import SCRIPTS
from tests.support.manifests import FOLDER


def tidy(cluster: RealCluster) -> None:
    """Take it away. It costs next to nothing where a test has left nothing."""
    if cluster.pods(GPU):
        cluster.plane.kubectl("delete", f"daemonset/{GPU}", "--ignore-not-found", "--wait=false")
        _delete_by_force(cluster, GPU)
    _nodes(cluster)
    _objects(cluster)
    for name, node in cluster.nodes.items():
        node.host.path(f"/{RELOADS}").unlink(missing_ok=True)
        node.logs.forget()
        if changes(cluster.untouched[name], node.differences()):
            node.host.run(SCRIPTS / "toolkit-installer", "uninstall", check=False, within=120)


def _nodes(cluster: RealCluster) -> None:
    """Take away what keeps pods from nodes, or sends them there."""
    kubectl = cluster.plane.kubectl
    for node in cluster.plane.get("/api/v1/nodes"):
        name, spec = node["metadata"]["name"], node["spec"]
        if any(each["key"] == TAINT for each in spec.get("taints", [])):
            kubectl("taint", "node", name, f"{TAINT}-")
        if LABEL in node["metadata"]["labels"]:
            kubectl("label", "node", name, f"{LABEL}-")
        if spec.get("unschedulable"):
            kubectl("uncordon", name)


def _objects(cluster: RealCluster) -> None:
    """Delete what is left of the installer, its pods by force."""
    namespace = cluster.plane.find(f"/api/v1/namespaces/{NAMESPACE}")
    if cluster.pods() or (namespace is not None and "deletionTimestamp" not in namespace["metadata"]):
        base = f"--kustomize={FOLDER / 'base'}"
        cluster.plane.kubectl("delete", base, "--ignore-not-found", "--wait=false", check=False)
        _delete_by_force(cluster, NAME)


def _delete_by_force(cluster: RealCluster, app: str) -> None:
    pods = [f"--selector=app.kubernetes.io/name={app}", "--all-namespaces"]
    cluster.plane.kubectl("delete", "pods", *pods, "--force", "--grace-period=0", check=False)
    wait_until(lambda: not cluster.pods(app), f"no pods of {app} are left")
