"""The Helm chart makes what kustomize makes; what it makes beside that fits together, and a cluster would take it."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import chart, manifests
from tests.support.chart import CHART, ChartError, leaves
from tests.support.manifests import Object
from toolkit_installer import __version__
from toolkit_installer.cli.options import build
from toolkit_installer.cli.options.help import COMMANDS
from toolkit_installer.cli.options.resolve import OptionSources
from toolkit_installer.cli.options.table import DELETION_TIMEOUT
from toolkit_installer.settings import Cleanup, DeletionSettings, Program, Settings

pytestmark = pytest.mark.usefixtures("kustomize", "helm")
TEMPLATE = "DaemonSet/toolkit-installer/spec/template/spec"
PLACES = ("containers/toolkit-installer", "initContainers/wait-driver")
TELLING = 'nodeStatus={"enabled": true}'


def installed(*values: str) -> list[Object]:
    """Return the objects that Helm makes with these values, hooks not included."""
    return chart.installed(*(word for value in values for word in ("--set-json", value)))


def settings(*values: str) -> Settings:
    """Return what the program makes of the container's environment."""
    daemon_set = manifests.one(installed(*values), "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    given = manifests.environment(container) | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    return build.build({}, given, Program(container["command"][0]))


# --- the same as kustomize ---


@pytest.mark.parametrize("overlay", [None, *chart.overlays()], ids=str)
def test_it_makes_what_kustomize_makes(overlay: str | None) -> None:
    arguments: tuple[str | Path, ...] = () if overlay is None else ("--values", chart.values_of(overlay))
    kustomized = manifests.rendered("base" if overlay is None else f"overlays/{overlay}")
    assert list(chart.differences(chart.installed(*arguments), kustomized)) == []


def test_a_difference_is_seen() -> None:
    found = chart.installed("--set", "minReadySeconds=11")
    assert list(chart.differences(found, manifests.rendered("base"))) == [
        "DaemonSet toolkit-installer toolkit-installer/spec/minReadySeconds: the chart has 11, kustomize 10"
    ]
    fewer = [each for each in found if each["kind"] != "ClusterRole"]
    assert "ClusterRole  toolkit-installer is of kustomize alone" in chart.differences(
        fewer, manifests.rendered("base")
    )


def test_it_makes_the_same_for_another_release_and_revision() -> None:
    upgraded = chart.helm("template", "other", CHART, "--namespace", "kube-system", "--is-upgrade")
    assert manifests.objects(upgraded) == chart.rendered()


# --- what the values come to together ---


def test_the_program_understands_what_the_values_say() -> None:
    found = settings(
        'runtime="containerd"',
        'onDrift="repair"',
        'restartMode="signal"',
        'reloadWhen="Sat 02:00-04:00, 23:00-01:00"',
        'installDir="/opt/x"',
        'logFormat="json"',
        "debug=true",
        "setAsDefault=true",
        'runtimeName="gpu"',
        "runtimeClasses=[]",
        "cdiEnabled=true",
        "enableCdiInRuntime=true",
        'driverRoot="/run/d"',
        'nodeStatus={"enabled": true, "labels": false}',
        'extraEnv=[{"name": "RELOAD_TIMEOUT", "value": "90"}]',
    )
    assert found.runtimes == ("containerd",)
    assert found.on_drift == "repair"
    assert found.reload_when == "Sat 02:00-04:00, 23:00-01:00"
    assert found.toolkit.install_dir == "/opt/x"
    assert (found.log_format, found.debug) == ("json", True)
    assert (found.engine.set_as_default, found.engine.runtime_name) == (True, "gpu")
    assert (found.toolkit.cdi.enabled, found.engine.enable_cdi) == (True, True)
    assert found.wait_for_driver, "wait-driver lets a node that has the toolkit through"
    assert found.engine.reload_mode == "signal"
    assert found.reload_timeout == 90
    assert found.toolkit.driver_root == "/run/d"
    assert found.reports is not None
    assert (found.reports.labels, found.reports.events) == (False, True)


def test_both_containers_look_for_the_toolkit_and_the_driver_in_the_same_place() -> None:
    found = leaves('installDir="/opt/x"', 'driverRoot="/run/d"')
    for container in PLACES:
        assert found[f"{TEMPLATE}/{container}/env/TOOLKIT_INSTALL_DIR/value"] == "/opt/x"
        assert found[f"{TEMPLATE}/{container}/env/NVIDIA_DRIVER_ROOT/value"] == "/run/d"


@pytest.mark.parametrize(
    "values, resources",
    [
        (('nodeStatus={"enabled": true, "labels": false, "events": false}',), {"nodes/status"}),
        (('nodeStatus={"enabled": true, "condition": "", "events": false}',), {"nodes"}),
        (('nodeStatus={"enabled": true, "condition": "", "labels": false}',), set()),
        (('nodeStatus={"enabled": true, "condition": "", "labels": false, "events": false}',), set()),
        (('startupTaint={"enabled": true}',), {"nodes"}),
        (
            ('nodeStatus={"enabled": true, "condition": "", "labels": false}', 'startupTaint={"enabled": true}'),
            {"nodes"},
        ),
    ],
)
def test_only_what_is_switched_on_is_allowed(values: tuple[str, ...], resources: set[str]) -> None:
    found = installed(*values)
    rules = [
        rule
        for each in found
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "toolkit-installer-node-status")
        for rule in each["rules"]
    ]
    assert {each for rule in rules for each in rule["resources"]} == resources
    policies = {each["metadata"]["name"] for each in found if each["kind"] == "ValidatingAdmissionPolicy"}
    events = [each for each in found if each["metadata"]["name"] == "toolkit-installer-events"]
    assert ("toolkit-installer-own-node" in policies) is bool(resources)
    assert ("toolkit-installer-own-events" in policies) is bool(events)
    reports = settings(*values).reports
    assert bool(events) is (reports is not None and reports.events)
    for each in found:
        assert list(manifests.problems(each, manifests.minors()[-1:])) == []


def test_what_is_installed_alone_can_be_told_all_the_same() -> None:
    found = settings("installOnly=true", TELLING, 'startupTaint={"enabled": true}')
    assert not found.configure_engine
    assert found.cleanup is Cleanup.NEVER
    assert found.reports is not None
    assert found.reports.retaint
    spec = manifests.one(installed("installOnly=true", TELLING), "DaemonSet")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True


def test_another_namespace_is_named_wherever_one_is() -> None:
    arguments = (
        *("--set", "namespace.name=elsewhere", "--values", chart.values_of("startup-taint")),
        *("--set", "openshift.enabled=true"),
    )
    text = yaml.safe_dump_all(chart.rendered(*arguments))
    found = chart.installed(*arguments)
    assert "namespace: toolkit-installer" not in text
    assert "system:serviceaccount:elsewhere:toolkit-installer" in text
    assert manifests.may_get(found, "/api/v1/namespaces/elsewhere")
    assert not manifests.may_get(found, "/api/v1/namespaces/toolkit-installer")


def test_words_that_yaml_takes_for_numbers_stay_words() -> None:
    found = chart.rendered(
        *("--set-json", 'namespace={"name": "123"}', "--set-json", 'priorityClassName="1e3"'),
        *("--set-json", 'runtimeClasses=[{"name": "1", "handler": "0x1"}]', "--set-json", 'runtimeName="off"'),
        *("--set-json", 'test={"node": "7", "gpuPod": {"enabled": true, "image": "8"}}'),
        *("--values", chart.values_of("startup-taint")),
    )
    assert [problem for each in found for problem in manifests.problems(each, manifests.minors()[-1:])] == []


def test_events_of_a_namespace_that_events_are_in_anyway_are_allowed_once() -> None:
    found = installed(TELLING, 'namespace.name="default"')
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))


# --- what a user is told, and what helm test does ---


def notes(folder: Path, *options: str) -> str:
    """Return what Helm says after an installation, which helm template leaves out."""
    shutil.copytree(CHART, folder / "chart")
    text = (folder / "chart/templates/NOTES.txt").read_text()
    (folder / "chart/templates/NOTES.txt").rename(folder / "chart/templates/notes.yaml")
    (folder / "chart/templates/notes.yaml").write_text(f"text: |\n{textwrap.indent(text, '  ')}")
    shown = ("--namespace", "kube-system", *options, "--show-only", "templates/notes.yaml")
    return chart.helm("template", "mine", folder / "chart", *shown)


def test_the_next_commands_name_the_release_and_the_namespace(tmp_path: Path) -> None:
    said = notes(tmp_path, "--set", "namespace.name=gpus")
    assert "kubectl -n gpus get pods" in said
    assert "runtimeClassName: nvidia" in said
    assert "helm uninstall mine -n kube-system --wait --timeout 10m" in said
    assert "delete daemonset" not in said


@pytest.mark.parametrize("value", ["uninstallHook.enabled=false", "installOnly=true"])
def test_who_has_no_hook_is_told_what_to_do_in_its_place(tmp_path: Path, value: str) -> None:
    said = notes(tmp_path, "--set", "namespace.name=gpus", "--set", value)
    deleting = "kubectl -n gpus delete daemonset toolkit-installer --cascade=foreground"
    assert (deleting in said) is (value == "uninstallHook.enabled=false")
    assert said.rindex("helm uninstall mine -n kube-system") > said.find(deleting)


def test_a_release_without_runtime_classes_names_none(tmp_path: Path) -> None:
    assert "runtimeClassName" not in notes(tmp_path, "--set-json", "runtimeClasses=[]")
    assert not any(each["kind"] == "RuntimeClass" for each in installed("runtimeClasses=[]"))


def test_a_release_that_serves_the_plugin_has_no_runtime_class_and_says_how_pods_ask(tmp_path: Path) -> None:
    said = notes(tmp_path, "--set", "nri.enabled=true")
    assert "runtimeClassName" not in said
    assert "docs/nri.md" in said
    assert not any(each["kind"] == "RuntimeClass" for each in installed("nri.enabled=true"))


def hooks(*values: str) -> dict[str, Any]:
    """Return the pods of helm test by their names."""
    found = chart.rendered(*(word for value in values for word in ("--set-json", value)))
    pods = [each for each in found if each["kind"] == "Pod"]
    assert all(each["metadata"]["annotations"]["helm.sh/hook"] == "test" for each in pods)
    return {each["metadata"]["name"]: each for each in pods}


def test_what_helm_test_runs_looks_at_the_node_and_changes_nothing() -> None:
    (pod,) = hooks().values()
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["toolkit-installer", "status", "--check"]
    assert all(each["readOnly"] for each in container["volumeMounts"] if each["name"] != "tmp")
    assert manifests.read_only_without_tmp(spec) == []
    assert container["image"] == f"toolkit-installer:{__version__}"
    assert spec["hostPID"] is True
    assert spec["automountServiceAccountToken"] is False
    selector = manifests.one(chart.installed(), "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pod["metadata"].get("labels", {}).items(), "the DaemonSet would take it for its own"


def test_helm_test_may_run_wherever_the_pods_may() -> None:
    values = (
        'openshift={"enabled": true}',
        'gpuLabels={"enabled": true}',
        'image={"pullPolicy": "Never"}',
        'imagePullSecrets=[{"name": "x"}]',
    )
    spec = manifests.one(installed(*values), "DaemonSet")["spec"]["template"]["spec"]
    test = hooks(*values)["toolkit-installer-status"]["spec"]
    same = ("serviceAccountName", "securityContext", "nodeSelector", "affinity", "tolerations", "imagePullSecrets")
    assert {key: test[key] for key in same} == {key: spec[key] for key in same}
    assert test["containers"][0]["imagePullPolicy"] == spec["containers"][0]["imagePullPolicy"] == "Never"


def test_the_pod_that_needs_a_gpu_asks_for_what_nvidia_smi_needs() -> None:
    gpu = hooks('test={"gpuPod": {"enabled": true, "image": "x:1"}}')["toolkit-installer-gpu"]["spec"]
    assert gpu["runtimeClassName"] == "nvidia"
    wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert manifests.environment(gpu["containers"][0]) == wanted
    with pytest.raises(ChartError, match=r"test\.gpuPod\.image is needed"):
        chart.rendered("--set", "test.gpuPod.enabled=true")


# --- what helm uninstall begins with ---


def uninstalling(*values: str) -> dict[str, Object]:
    """Return what Helm makes before it uninstalls, by its kind."""
    found = chart.rendered(*(word for value in values for word in ("--set-json", value)))
    hooked = [each for each in found if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"]
    return {each["kind"]: each for each in hooked}


def test_the_daemon_set_is_deleted_and_waited_for_before_what_its_pods_need_is() -> None:
    found = uninstalling()
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    program, command, name = container["command"]
    assert command in COMMANDS
    daemon_set = manifests.one(installed(), "DaemonSet")["metadata"]
    assert name == daemon_set["name"]
    given = manifests.environment(container) | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert build.build_deletion(name, {}, given, Program(program)) == DeletionSettings(name, "10.0.0.1")
    assert build.build({}, given, Program(program), installing=False)
    seconds = OptionSources({}, given, Program(program)).resolve(DELETION_TIMEOUT).value
    assert isinstance(seconds, float)
    job = found["Job"]["spec"]
    assert seconds < job["activeDeadlineSeconds"] < 600, "the program, Kubernetes and Helm give up in this order"
    assert seconds > manifests.pod()["terminationGracePeriodSeconds"], "a pod may take so long"


def test_its_permissions_are_there_first_and_are_no_more_than_it_needs() -> None:
    found = uninstalling()
    weights = {kind: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for kind, each in found.items()}
    assert sorted(weights, key=lambda kind: weights[kind]) == ["ServiceAccount", "Role", "RoleBinding", "Job"]
    assert found["Role"]["rules"] == [
        {
            "apiGroups": ["apps"],
            "resources": ["daemonsets"],
            "resourceNames": ["toolkit-installer"],
            "verbs": ["get", "delete"],
        }
    ]
    account = found["ServiceAccount"]["metadata"]["name"]
    namespace = manifests.one(installed(), "DaemonSet")["metadata"]["namespace"]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    assert found["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    assert {each["metadata"]["namespace"] for each in found.values()} == {namespace}


def test_what_it_leaves_where_it_fails_is_the_job_whose_log_says_why() -> None:
    for kind, each in uninstalling().items():
        policies = each["metadata"]["annotations"]["helm.sh/hook-delete-policy"].split(",")
        assert policies == ["before-hook-creation", "hook-succeeded"], kind
    job = uninstalling()["Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["ttlSecondsAfterFinished"] >= 3600


@pytest.mark.parametrize("openshift", [False, True])
def test_its_pod_is_let_in_where_pods_have_no_privileges_at_all(*, openshift: bool) -> None:
    """Pod Security Standards, "Restricted"; on OpenShift restricted-v2, which refuses users of the pod's own choice."""
    spec = uninstalling(f"openshift.enabled={str(openshift).lower()}")["Job"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert ("runAsUser" in spec["securityContext"]) is not openshift
    assert "seLinuxOptions" not in spec["securityContext"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostPID", "hostNetwork", "hostIPC", "priorityClassName"} & spec.keys()
    assert [volume.keys() for volume in spec["volumes"]] == [{"name", "emptyDir"}]
    assert manifests.read_only_without_tmp(spec) == []


def test_its_pod_is_none_of_the_daemon_sets_and_finds_a_node_wherever_those_do() -> None:
    values = (
        'image={"pullPolicy": "Never"}',
        'imagePullSecrets=[{"name": "x"}]',
        'tolerations=[{"key": "a", "operator": "Exists"}]',
        'nodeSelector={"gpus": "many"}',
        'gpuLabels={"enabled": true}',
    )
    daemon_set = manifests.one(installed(*values), "DaemonSet")["spec"]
    template = uninstalling(*values)["Job"]["spec"]["template"]
    assert not daemon_set["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    theirs, ours = daemon_set["template"]["spec"], template["spec"]
    assert ours["imagePullSecrets"] == theirs["imagePullSecrets"]
    image = ("image", "imagePullPolicy")
    assert [ours["containers"][0][key] for key in image] == [theirs["containers"][0][key] for key in image]
    away, unreachable, *others = ours["tolerations"]
    assert others == theirs["tolerations"]
    assert away["tolerationSeconds"] == unreachable["tolerationSeconds"] < 60, "a node that is away keeps it for long"
    assert ours["nodeSelector"] == {"kubernetes.io/os": "linux"}, "nodes with a GPU may be gone already"
    assert "affinity" not in ours


@pytest.mark.parametrize("value", ["uninstallHook.enabled=false", "installOnly=true"])
def test_there_is_none_where_it_is_not_wanted_or_the_pods_ask_nobody(value: str) -> None:
    assert uninstalling(value) == {}
    assert uninstalling("installOnly=true", TELLING)


def test_the_chart_is_packaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chart.main("package", str(tmp_path)) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"toolkit-installer-{__version__}.tgz"]
    assert re.search(rf"toolkit-installer-{re.escape(__version__)}\.tgz", capsys.readouterr().out)


def test_a_chart_that_is_wrong_is_not_packaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CHART, tmp_path / "chart")
    (tmp_path / "chart/templates/wrong.yaml").write_text("a: {{ .Values.imagee.tag }}\n")
    monkeypatch.setattr(chart, "CHART", tmp_path / "chart")
    assert chart.main("package", str(tmp_path)) == 1
    assert "wrong.yaml" in capsys.readouterr().err
    assert list(tmp_path.glob("*.tgz")) == []
