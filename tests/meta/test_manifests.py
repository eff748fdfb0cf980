"""What the manifests say that no schema can hold them to: rights, mounts, times, where the pods run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import manifests
from tests.support.manifests import (
    containers,
    daemon_set,
    environment,
    flat,
    kustomizations,
    may_get,
    node,
    one,
    pod,
    settings,
)
from toolkit_installer import __version__
from toolkit_installer.cli.options.help import COMMANDS
from toolkit_installer.cli.options.table import OPTIONS, UNLESS_INSTALLED
from toolkit_installer.engines.target import select_handlers
from toolkit_installer.kubernetes import wanted
from toolkit_installer.kubernetes.verdicts import find_scheduling_obstacle
from toolkit_installer.reporting import cluster
from toolkit_installer.settings import AUTO, Cleanup, WithoutGpu
from toolkit_installer.toolkit.payload import RUNTIMES
from toolkit_installer.waiting.readiness import STARTED

OURS = ["base", *(name for name in kustomizations() if name.startswith("overlays/"))]
DOCUMENTS = [manifests.PROJECT / "README.md", *(manifests.PROJECT / "docs").glob("*.md")]
pytestmark = pytest.mark.usefixtures("kustomize")


# --- the check itself ---


def test_a_misspelt_field_a_wrong_type_and_an_unknown_kind_are_found_in_every_minor() -> None:
    minors = manifests.minors()
    assert len(minors) == 5
    good = daemon_set()
    assert list(manifests.problems(good, minors)) == []
    misspelt = daemon_set()
    misspelt["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    wrong = daemon_set()
    wrong["spec"]["template"]["spec"]["hostPID"] = "yes"
    for bad, word in (
        (misspelt, "terminationGracePeriod"),
        (wrong, "hostPID"),
        (good | {"kind": "DeamonSet"}, "Deamon"),
    ):
        found = list(manifests.problems(bad, minors))
        assert len(found) == 5
        assert all(word in problem for problem in found)


def test_every_folder_of_manifests_is_rendered() -> None:
    assert set(OURS) == {
        "base",
        *(
            f"overlays/{name}"
            for name in (
                "canary",
                "default-runtime",
                "gpu-labels",
                "install-only",
                "nri",
                "metrics",
                "node-status",
                "openshift",
                "prometheus-operator",
                "startup-taint",
            )
        ),
    }
    assert set(kustomizations()) - set(OURS) == {
        f"examples/{name}" for name in ("capture", "device-plugin", "device-plugin-cdi", "gpu-pod", "gpushare")
    }


# --- what the pod is ---


@pytest.mark.parametrize("name", OURS)
def test_the_image_is_the_one_of_this_version(name: str) -> None:
    assert {each["image"] for each in containers(name).values()} == {f"toolkit-installer:{__version__}"}


@pytest.mark.parametrize("name", OURS)
def test_the_pod_sees_the_whole_node_and_creates_no_folder_on_it(name: str) -> None:
    spec = pod(name)
    assert spec["hostPID"] is True
    host, ready, temporary = spec["volumes"]
    assert host == {"name": "host", "hostPath": {"path": "/", "type": "Directory"}}
    assert ready["emptyDir"]["medium"] == temporary["emptyDir"]["medium"] == "Memory"
    for container in containers(name).values():
        assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "host")
        assert mount["mountPath"] == environment(container)["NODE_ROOT"] == "/host"
        assert mount["mountPropagation"] == "HostToContainer"
    assert "readOnly" not in containers(name)["toolkit-installer"]["volumeMounts"][0]


@pytest.mark.parametrize("name", kustomizations())
def test_a_read_only_root_comes_with_a_writable_tmp(name: str) -> None:
    """NVIDIA's nvidia-ctk writes each specification to a temporary file first."""
    specs = [each["spec"]["template"]["spec"] for each in manifests.rendered(name) if each["kind"] == "DaemonSet"]
    specs += [each["spec"] for each in manifests.rendered(name) if each["kind"] == "Pod"]
    assert [manifests.read_only_without_tmp(spec) for spec in specs] == [[]] * len(specs)


def test_a_read_only_root_without_tmp_is_found() -> None:
    spec = pod("base")
    spec["containers"][0]["volumeMounts"].pop()
    assert manifests.read_only_without_tmp(spec) == ["toolkit-installer"]


@pytest.mark.parametrize("name", kustomizations())
def test_no_manifest_makes_the_kubelet_create_anything_on_a_node(name: str) -> None:
    paths = {
        path: leaf for each in manifests.rendered(name) for path, leaf in flat(each).items() if "/hostPath/" in path
    }
    kinds = [leaf for path, leaf in paths.items() if path.endswith("/type")]
    assert len(kinds) == sum(path.endswith("/path") for path in paths)
    assert set(kinds) <= {"Directory"}


@pytest.mark.parametrize("name", OURS)
def test_a_last_query_and_a_reload_with_rollback_fit_into_the_grace_period(name: str) -> None:
    reload_timeout = settings(name).reload_timeout
    attempt = 2 * reload_timeout  # systemctl's restart, then the wait for the engine to serve
    slow_to_answer = reload_timeout
    cleanup = slow_to_answer + 2 * attempt  # of a last resort
    told = cluster._WITHDRAW_SECONDS + cluster._ROUND_SECONDS
    assert pod(name)["terminationGracePeriodSeconds"] >= wanted._LEAVE_SECONDS + told + cleanup


@pytest.mark.parametrize("name", OURS)
def test_the_environment_has_variables_of_the_program_alone_and_each_once(name: str) -> None:
    for container in containers(name).values():
        _, command = container["command"]
        known = {variable for option in (*OPTIONS, *COMMANDS[command].options) for variable in option.variables}
        names = [each["name"] for each in container["env"]]
        assert len(names) == len(set(names))
        assert set(names) <= known


def test_the_program_takes_its_environment_as_it_is_meant() -> None:
    run = settings()
    assert run.node_root == "/host"
    assert run.cleanup is Cleanup.AUTO
    assert run.toolkit.driver_root == AUTO
    assert run.toolkit.install_dir == "/usr/local/nvidia"
    assert run.configure_engine
    assert settings(container="wait-driver").toolkit.driver_root == AUTO
    assert settings(container="wait-driver").node_root == "/host"


@pytest.mark.parametrize("name", OURS)
def test_a_node_that_has_the_toolkit_where_this_run_installs_it_is_not_waited_for(name: str) -> None:
    found = environment(containers(name)["wait-driver"])
    assert [found[variable] for variable in UNLESS_INSTALLED.variables] == ["true"]
    waiting, running = settings(name, "wait-driver"), settings(name)
    assert waiting.toolkit.install_dir == running.toolkit.install_dir
    assert waiting.node_root == running.node_root
    assert running.toolkit.driver_root == AUTO, "a run that is told the root has nothing to keep"
    assert running.wait_for_driver or not running.toolkit.cdi.enabled, "a specification is not made without a driver"


@pytest.mark.parametrize("name", OURS)
def test_the_probes_look_for_the_ready_file_in_memory_and_start_no_interpreter(name: str) -> None:
    container = containers(name)["toolkit-installer"]
    ready = settings(name).ready_file
    assert ready is not None
    assert Path(ready).parent == Path(container["volumeMounts"][1]["mountPath"])
    assert container["volumeMounts"][1]["name"] == "ready"
    for probe, file in (("startupProbe", f"{ready}{STARTED}"), ("readinessProbe", ready)):
        assert container[probe]["exec"]["command"] == ["/bin/sh", "-c", f"test -e {file}"]
    assert "livenessProbe" not in container
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] <= 10, "damage is to be seen within seconds"
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 2 * settings(name).reload_timeout + 60


# --- where it runs, and what it may do ---


def test_the_pod_asks_for_what_it_may_see_and_may_see_nothing_else() -> None:
    objects = manifests.rendered("base")
    assert environment(containers()["toolkit-installer"])["DAEMONSET_NAME"] == daemon_set()["metadata"]["name"]
    sources = {each["name"]: each.get("valueFrom") for each in containers()["toolkit-installer"]["env"]}
    assert sources["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    namespace = one(objects, "Namespace")["metadata"]["name"]
    name = daemon_set()["metadata"]["name"]
    assert may_get(objects, f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    assert may_get(objects, f"/api/v1/namespaces/{namespace}")
    assert may_get(objects, "/api/v1/nodes/any")
    for path in (
        f"/apis/apps/v1/namespaces/{namespace}/daemonsets/another",
        f"/apis/apps/v1/namespaces/kube-system/daemonsets/{name}",
        f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}",
        "/api/v1/namespaces/kube-system",
        f"/api/v1/namespaces/{namespace}/secrets/{name}",
        f"/api/v1/namespaces/{namespace}/pods/{name}",
    ):
        assert not may_get(objects, path), path
    rules = [rule for each in objects if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get"}
    assert "*" not in {word for rule in rules for words in rule.values() for word in words}
    assert pod()["serviceAccountName"] == one(objects, "ServiceAccount")["metadata"]["name"]
    assert pod()["automountServiceAccountToken"] is True


def test_the_namespace_lets_privileged_pods_in() -> None:
    labels = one(manifests.rendered("base"), "Namespace")["metadata"]["labels"]
    assert {labels[f"pod-security.kubernetes.io/{mode}"] for mode in ("enforce", "audit", "warn")} == {"privileged"}


def test_a_node_that_nobody_labelled_is_wanted_and_one_that_is_to_be_empty_is_not() -> None:
    assert find_scheduling_obstacle(daemon_set(), node()) is None
    assert find_scheduling_obstacle(daemon_set(), node(("nvidia.com/gpu", "NoExecute"))) is None
    assert find_scheduling_obstacle(daemon_set(), node(("dedicated", "NoExecute")))
    windows = node()
    windows["metadata"]["labels"]["kubernetes.io/os"] = "windows"
    assert find_scheduling_obstacle(daemon_set(), windows)


def test_a_taint_that_keeps_workloads_away_does_not_keep_the_pod_away() -> None:
    assert {"operator": "Exists", "effect": "NoSchedule"} in pod()["tolerations"]


def test_the_runtime_classes_are_those_of_the_handlers_and_need_no_node_label() -> None:
    classes = [each for each in manifests.rendered("base") if each["kind"] == "RuntimeClass"]
    assert {each["metadata"]["name"]: each["handler"] for each in classes} == {
        name: name for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
    }
    registered = select_handlers(settings().engine.runtime_name, RUNTIMES, "/toolkit")
    assert {each["handler"] for each in classes} == {each.name for each in registered}
    for each in classes:
        assert each["scheduling"]["nodeSelector"].items() <= node()["metadata"]["labels"].items()


def test_an_update_that_goes_wrong_stops_after_a_tenth_of_the_nodes() -> None:
    spec = daemon_set()["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    assert spec["minReadySeconds"] == 10


@pytest.mark.parametrize("name", OURS)
def test_nodes_without_a_gpu_hold_no_update_up(name: str) -> None:
    """They are neither waited for nor installed on; a pod that waits for a driver would never be available there."""
    for container in ("wait-driver", "toolkit-installer"):
        assert settings(name, container).without_gpu is WithoutGpu.IDLE


# --- what is said of them ---


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_folder_of_manifests_that_is_named_is_there(document: Path) -> None:
    named = set(re.findall(r"\bdaemonset/[\w./-]*\w", document.read_text()))
    assert [name for name in named if not (manifests.PROJECT / name).exists()] == []
    applied = set(re.findall(r"kubectl (?:apply|delete) -k daemonset/([\w./-]*\w)", document.read_text()))
    assert applied <= set(kustomizations())
