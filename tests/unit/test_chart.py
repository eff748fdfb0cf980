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
from toolkit_installer.settings import Cleanup, Program, Settings

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
    assert [each for each in yaml.safe_load_all(upgraded) if each is not None] == chart.rendered()


# --- what the values come to together ---


def test_the_program_understands_what_the_values_say() -> None:
    found = settings(
        'runtime="containerd"',
        'onDrift="repair"',
        'restartMode="signal"',
        'installDir="/opt/x"',
        'logFormat="json"',
        "debug=true",
        "setAsDefault=true",
        'runtimeName="gpu"',
        "cdiEnabled=true",
        "enableCdiInRuntime=true",
        'driverRoot="/run/d"',
        'nodeStatus={"enabled": true, "labels": false}',
        'extraEnv=[{"name": "RELOAD_TIMEOUT", "value": "90"}]',
    )
    assert found.runtimes == ("containerd",)
    assert found.on_drift == "repair"
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
    assert any(each["kind"] == "ValidatingAdmissionPolicy" for each in found) is bool(resources)
    events = [each for each in found if each["metadata"]["name"] == "toolkit-installer-events"]
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
    found = chart.rendered(
        *("--set", "namespace.name=elsewhere", "--values", chart.values_of("startup-taint")),
        *("--set", "openshift.enabled=true"),
    )
    text = yaml.safe_dump_all(found)
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
    orders = [
        said.index("kubectl -n gpus delete daemonset toolkit-installer --cascade=foreground"),
        said.index("helm uninstall mine -n kube-system"),
    ]
    assert orders == sorted(orders)


def test_a_release_without_runtime_classes_names_none(tmp_path: Path) -> None:
    assert "runtimeClassName" not in notes(tmp_path, "--set-json", "runtimeClasses=[]")
    assert not any(each["kind"] == "RuntimeClass" for each in installed("runtimeClasses=[]"))


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
    assert all(each["readOnly"] for each in container["volumeMounts"])
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
