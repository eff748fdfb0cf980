"""What each overlay changes, and that the examples fit together."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.e2e.cluster import stolen_token
from tests.support import manifests
from tests.support.manifests import daemon_set, environment, flat, node, one, pod, settings
from toolkit_installer import __version__
from toolkit_installer.kubernetes.node_state import LABELS, READY_IN
from toolkit_installer.kubernetes.verdicts import find_scheduling_obstacle, tolerates_taint
from toolkit_installer.settings import CONDITION, Cleanup, NriSettings

PRESENT = "nvidia.com/gpu.present"
pytestmark = pytest.mark.usefixtures("kustomize")


def changes(overlay: str, base: str = "base") -> dict[str, tuple[Any, Any]]:
    """Return what an overlay changes: for each place what the base has there, and what it has; None is nothing."""

    def leaves(name: str) -> dict[str, Any]:
        return {
            f"{each['kind']}/{each['metadata']['name']}{path}": leaf
            for each in manifests.rendered(name)
            for path, leaf in flat(each).items()
        }

    before, after = leaves(base), leaves(overlay)
    return {
        path: (before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }


# --- what each overlay changes ---

TEMPLATE = "DaemonSet/toolkit-installer/spec/template/spec"


def test_gpu_labels_requires_the_label_of_pods_and_runtime_classes_and_no_more() -> None:
    places = {
        f"{TEMPLATE}/nodeSelector/{PRESENT}",
        *(
            f"RuntimeClass/{name}/scheduling/nodeSelector/{PRESENT}"
            for name in ("nvidia", "nvidia-cdi", "nvidia-legacy")
        ),
    }
    assert changes("overlays/gpu-labels") == dict.fromkeys(places, (None, "true"))
    assert find_scheduling_obstacle(daemon_set("overlays/gpu-labels"), node()) is not None
    assert find_scheduling_obstacle(daemon_set("overlays/gpu-labels"), node(**{PRESENT: "true"})) is None


def test_default_runtime_makes_nvidia_the_default_and_changes_nothing_else() -> None:
    (change,) = changes("overlays/default-runtime").values()
    assert change == ("false", "true")
    assert not settings("base").engine.set_as_default
    assert settings("overlays/default-runtime").engine.set_as_default


def test_canary_is_gpu_labels_one_node_after_the_other() -> None:
    spec = "DaemonSet/toolkit-installer/spec"
    assert changes("overlays/canary", "overlays/gpu-labels") == {
        f"{spec}/updateStrategy/rollingUpdate/maxUnavailable": ("10%", 1),
        f"{spec}/minReadySeconds": (10, 30),
    }


def test_node_status_tells_the_cluster_and_may_do_no_more_than_that() -> None:
    found = changes("overlays/node-status")
    env = f"{TEMPLATE}/containers/toolkit-installer/env"
    told = {path: after for path, (_, after) in found.items() if path.startswith(env) and path.endswith("/value")}
    names = ("NODE_CONDITION", "NODE_LABELS", "NODE_EVENTS")
    assert {path.split("/")[-2] for path in told} == set(names)
    reports = settings("overlays/node-status").reports
    assert reports is not None
    assert (reports.condition, reports.labels, reports.events) == (CONDITION, True, True)
    assert (reports.taint, reports.retaint) == (None, False)
    verbs = {
        (tuple(rule["resources"]), verb, each["metadata"].get("namespace"))
        for each in manifests.rendered("overlays/node-status")
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        for verb in rule["verbs"]
        if verb != "get"
    }
    assert verbs == {
        (("nodes", "nodes/status"), "patch", None),
        *((("events",), verb, place) for verb in ("create", "patch") for place in ("default", "toolkit-installer")),
    }


def test_startup_taint_is_node_status_with_a_taint_that_the_pods_tolerate() -> None:
    found = changes("overlays/startup-taint", "overlays/node-status")
    assert {path.split("/")[-2] for path in found} == {"STARTUP_TAINT", "RETAINT", "taints"}
    reports = settings("overlays/startup-taint").reports
    assert reports is not None
    assert reports.taint is not None
    assert reports.retaint
    assert tolerates_taint(daemon_set("overlays/startup-taint"), msgspec.structs.asdict(reports.taint))


@pytest.mark.parametrize("name", ["overlays/node-status", "overlays/startup-taint"])
def test_the_policy_lets_a_pod_change_the_condition_and_taint_that_it_manages(name: str) -> None:
    policy = one(manifests.rendered(name), "ValidatingAdmissionPolicy", "toolkit-installer-own-node")
    own = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    reports = settings(name).reports
    assert reports is not None
    assert json.loads(own["conditions"]) == [reports.condition]
    taint = reports.taint
    assert json.loads(own["taints"]) == ([f"{taint.key}:{taint.effect}"] if taint is not None else [])
    assert any(READY_IN in each["expression"] for each in policy["spec"]["validations"])
    assert any(f'"{LABELS}"' in each["expression"] for each in policy["spec"]["validations"])


def test_one_policy_holds_the_events_of_both_apis_to_the_account_that_may_write_them() -> None:
    objects = manifests.rendered("overlays/node-status")
    nodes, events = (
        one(objects, "ValidatingAdmissionPolicy", f"toolkit-installer-{name}")["spec"]
        for name in ("own-node", "own-events")
    )
    (rule,) = events["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["", "events.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["events"],
    }
    assert events["matchConditions"] == nodes["matchConditions"]
    assert (events["failurePolicy"], nodes["failurePolicy"]) == ("Fail", "Fail")
    for name in ("own-node", "own-events"):
        binding = one(objects, "ValidatingAdmissionPolicyBinding", f"toolkit-installer-{name}")["spec"]
        assert binding == {"policyName": f"toolkit-installer-{name}", "validationActions": ["Deny"]}


def test_the_page_says_of_each_request_with_a_stolen_token_whether_it_is_refused() -> None:
    page = (manifests.PROJECT / "docs" / "security.md").read_text()
    _, _, part = page.partition("### What a stolen token can do")
    shown = re.findall(r"^\| (.+) \| (allowed|refused .+) \|$", part.partition("\n## ")[0], re.MULTILINE)
    assert shown == [(row.request, str(row.answer)) for row in stolen_token.TABLE]
    assert f"{sum(len(row.tried) for row in stolen_token.TABLE)} in all" in part


def test_openshift_grants_the_privileged_scc_and_labels_files_without_categories() -> None:
    found = changes("overlays/openshift")
    binding = {path: after for path, (_, after) in found.items() if path.startswith("RoleBinding/")}
    assert {path: change for path, change in found.items() if path not in binding} == {
        "Namespace/toolkit-installer/metadata/labels/security.openshift.io/scc.podSecurityLabelSync": (None, "false"),
        "Namespace/toolkit-installer/metadata/annotations/openshift.io/node-selector": (None, ""),
        f"{TEMPLATE}/securityContext/seLinuxOptions/type": (None, "spc_t"),
        f"{TEMPLATE}/securityContext/seLinuxOptions/level": (None, "s0"),
    }
    scc = one(manifests.rendered("overlays/openshift"), "RoleBinding", "toolkit-installer-privileged")
    assert scc["roleRef"]["name"] == "system:openshift:scc:privileged"
    account = one(manifests.rendered("base"), "ServiceAccount")["metadata"]
    assert scc["metadata"]["namespace"] == account["namespace"]
    assert scc["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]


def test_install_only_touches_no_engine_takes_nothing_back_and_may_ask_for_nothing() -> None:
    run = settings("overlays/install-only")
    assert not run.configure_engine
    assert run.cleanup is Cleanup.NEVER
    assert run.toolkit.install_dir == "/opt/nvidia"
    assert pod("overlays/install-only")["automountServiceAccountToken"] is False
    kinds = {each["kind"] for each in manifests.rendered("overlays/install-only")}
    assert kinds == {"Namespace", "ServiceAccount", "DaemonSet", "RuntimeClass"}
    rights = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    found = {path for path in changes("overlays/install-only") if not path.startswith(rights)}
    variables = {path.split("/env/")[1].split("/")[0] for path in found if "/env/" in path}
    assert variables == {"NO_RUNTIME_CONFIG", "TOOLKIT_INSTALL_DIR", "CLEANUP", "DAEMONSET_NAME", "NODE_NAME"}
    assert {path for path in found if "/env/" not in path} == {f"{TEMPLATE}/automountServiceAccountToken"}


def test_nri_serves_the_plugin_in_place_of_handlers_and_changes_nothing_else() -> None:
    run = settings("overlays/nri")
    assert not run.configure_engine
    assert run.nri == NriSettings(("from-the-downward-api",))
    assert run.toolkit.cdi.enabled
    assert run.wait_for_driver
    found = {path for path in changes("overlays/nri") if not path.startswith("RuntimeClass/")}
    variables = {path.split("/env/")[1].split("/")[0] for path in found}
    assert variables == {"ENABLE_NRI_PLUGIN", "NRI_NAMESPACE", "CDI_ENABLED", "WAIT_FOR_DRIVER"}
    assert "RuntimeClass" not in {each["kind"] for each in manifests.rendered("overlays/nri")}


def test_the_kustomization_on_the_page_sets_another_image_and_a_variable(tmp_path: Path) -> None:
    page = (manifests.PROJECT / "docs" / "kubernetes.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    base = os.path.relpath(manifests.FOLDER / "base", tmp_path)
    assert "toolkit-installer/daemonset/base" in shown
    (tmp_path / "kustomization.yaml").write_text(shown.replace("toolkit-installer/daemonset/base", base))
    objects = manifests.objects(manifests.built(tmp_path))
    assert [problem for each in objects for problem in manifests.problems(each, manifests.minors())] == []
    spec = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    image = f"registry.example/team/toolkit-installer:{__version__}"
    assert {each["image"] for each in (container, *spec["initContainers"])} == {image}
    added = environment(container).items() - environment(pod()["containers"][0]).items()
    assert dict(added) == {"ON_DRIFT": "repair"}


# --- the examples ---

EXAMPLES = manifests.FOLDER / "examples"
PODS = sorted(path for path in EXAMPLES.rglob("*.yaml") if re.search("^kind: Pod$", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", PODS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_pod_is_valid_and_names_a_runtime_class_that_is_there(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    assert list(manifests.problems(found, manifests.minors())) == []
    named = found["spec"].get("runtimeClassName")
    assert named in {None, "nvidia"}
    assert one(manifests.rendered("base"), "RuntimeClass", named or "nvidia")


def test_the_device_plugin_reads_the_file_that_shares_the_resource_its_pod_asks_for() -> None:
    objects = manifests.rendered("examples/device-plugin")
    config = one(objects, "ConfigMap")
    spec = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert config["metadata"]["name"] != "nvidia-device-plugin", "without a hash its pods outlive a change"
    (container,) = spec["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
    file = environment(container)["CONFIG_FILE"].removeprefix(f"{mount['mountPath']}/")
    (shared,) = yaml.safe_load(config["data"][file])["sharing"]["timeSlicing"]["resources"]
    asking = yaml.safe_load((EXAMPLES / "device-plugin" / "pod.yaml").read_text())
    assert asking["spec"]["containers"][0]["resources"]["limits"] == {shared["name"]: 1}
    assert spec["runtimeClassName"] == "nvidia"


def test_the_gpushare_extender_may_watch_what_it_waits_for_at_its_start() -> None:
    rules = manifests.one(manifests.rendered("examples/gpushare"), "ClusterRole", "gpushare-scheduler-extender")[
        "rules"
    ]
    for resource in ("nodes", "pods", "configmaps"):
        (verbs,) = (set(rule["verbs"]) for rule in rules if resource in rule["resources"])
        assert verbs >= {"get", "list", "watch"}, resource


def test_the_scheduler_calls_the_gpushare_extender_for_its_pods_resource() -> None:
    objects = manifests.rendered("examples/gpushare")
    (extender,) = yaml.safe_load((EXAMPLES / "gpushare" / "scheduler-config.yaml").read_text())["extenders"]
    service, deployment = one(objects, "Service"), one(objects, "Deployment")
    (port,) = service["spec"]["ports"]
    assert re.search(r":(\d+)/", extender["urlPrefix"])[1] == str(port["nodePort"])  # type: ignore[index]
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {port["targetPort"]: port["port"]}
    assert environment(container)["PORT"] == str(port["port"])
    asking = yaml.safe_load((EXAMPLES / "gpushare" / "pod.yaml").read_text())
    assert [each["name"] for each in extender["managedResources"]] == list(
        asking["spec"]["containers"][0]["resources"]["limits"]
    )
    assert "runtimeClassName" not in asking["spec"]
