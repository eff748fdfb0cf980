"""The Helm chart makes what kustomize makes, refuses what is wrong, and changes nothing but what a value is about."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import chart, manifests
from tests.support.built import go_tools
from tests.support.chart import CHART, ChartError
from tests.support.manifests import Object, flat
from toolkit_installer import __version__
from toolkit_installer.cli.options import build
from toolkit_installer.settings import Program, Settings

pytestmark = pytest.mark.usefixtures("kustomize")
TEMPLATE = "DaemonSet/toolkit-installer/spec/template/spec"
PLACES = ("containers/toolkit-installer", "initContainers/wait-driver")
ENV = f"{TEMPLATE}/containers/toolkit-installer/env"


@pytest.fixture(scope="module", autouse=True)
def helm() -> None:
    """Skip where Helm is not built: it takes a minute, and `make check` builds it."""
    if not go_tools.folder_of(go_tools.HELM).exists():
        pytest.skip("Helm is not built yet: make check does")


def leaves(*values: str) -> dict[str, Any]:
    """Return each place of what Helm makes with these values, and what stands there."""
    arguments = [word for value in values for word in ("--set-json", value)]
    return {
        f"{each['kind']}/{each['metadata']['name']}{path}": leaf
        for each in chart.installed(*arguments)
        for path, leaf in flat(each).items()
    }


def changes(*values: str) -> dict[str, Any]:
    """Return what these values change, by its place; what is taken away is None."""
    before, after = leaves(), leaves(*values)
    return {path: after.get(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def settings(*values: str) -> Settings:
    """Return what the program makes of the container's environment."""
    arguments = [word for value in values for word in ("--set-json", value)]
    daemon_set = manifests.one(chart.installed(*arguments), "DaemonSet")
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    given = manifests.environment(container) | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    return build.build({}, given, Program(container["command"][0]))


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


# --- values ---


@pytest.mark.parametrize(
    "value, place",
    [
        ("imagee=1", "imagee"),
        ('image={"repositori": "x"}', "repositori"),
        ('setAsDefault="yes"', "setAsDefault"),
        ('runtime="podman"', "runtime"),
        ('cleanup="sometimes"', "cleanup"),
        ("minReadySeconds=-1", "minReadySeconds"),
        ('image={"digest": "sha256:1"}', "digest"),
        ('startupTaint={"taint": "a:Never"}', "taint"),
        ('namespace={"name": "A B"}', "name"),
        ("runtimeClasses=[]", "runtimeClasses"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(value: str, place: str) -> None:
    with pytest.raises(ChartError) as caught:
        chart.installed("--set-json", value)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "value, changed",
    [
        ('onDrift="repair"', {f"{ENV}/ON_DRIFT/name": "ON_DRIFT", f"{ENV}/ON_DRIFT/value": "repair"}),
        ("setAsDefault=true", {f"{ENV}/NVIDIA_RUNTIME_SET_AS_DEFAULT/value": "true"}),
        ('priorityClassName="x"', {f"{TEMPLATE}/priorityClassName": "x"}),
        ('podAnnotations={"a": "b"}', {"DaemonSet/toolkit-installer/spec/template/metadata/annotations/a": "b"}),
        (
            'image={"repository": "r.example/x", "tag": "1"}',
            {f"{TEMPLATE}/{place}/image": "r.example/x:1" for place in PLACES},
        ),
        (
            'image={"repository": "x", "tag": "1", "digest": "sha256:' + "a" * 64 + '"}',
            {f"{TEMPLATE}/{place}/image": "x@sha256:" + "a" * 64 for place in PLACES},
        ),
        ("test={}", {}),
    ],
)
def test_a_value_changes_what_it_is_about_and_nothing_else(value: str, changed: Mapping[str, str]) -> None:
    assert changes(value) == changed


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
    )
    assert found.runtimes == ("containerd",)
    assert found.on_drift == "repair"
    assert found.toolkit.install_dir == "/opt/x"
    assert (found.log_format, found.debug) == ("json", True)
    assert (found.engine.set_as_default, found.engine.runtime_name) == (True, "gpu")
    assert (found.toolkit.cdi.enabled, found.engine.enable_cdi) == (True, True)
    assert found.engine.reload_mode == "signal"
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
        (
            ('nodeStatus={"enabled": true, "condition": "", "labels": false}', 'startupTaint={"enabled": true}'),
            {"nodes"},
        ),
    ],
)
def test_only_what_is_switched_on_is_allowed(values: tuple[str, ...], resources: set[str]) -> None:
    found = chart.installed(*[word for value in values for word in ("--set-json", value)])
    (rule,) = manifests.one(found, "ClusterRole", "toolkit-installer-node-status")["rules"]
    assert set(rule["resources"]) == resources
    events = [each for each in found if each["metadata"]["name"] == "toolkit-installer-events"]
    assert bool(events) is ("events" not in values[0])


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


def every(
    values: Mapping[str, Any], schema: Mapping[str, Any], at: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each value's path with its entry of the schema."""
    for name, value in values.items():
        entry = schema["properties"][name]
        yield f"{at}{name}", entry
        if isinstance(value, dict) and "properties" in entry:
            yield from every(value, entry, f"{at}{name}.")


def test_every_value_is_described_read_and_commented() -> None:
    text = (CHART / "values.yaml").read_text()
    values, schema = yaml.safe_load(text), json.loads((CHART / "values.schema.json").read_text())
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").rglob("*.*")))
    found = dict(every(values, schema))
    for path, entry in found.items():
        assert entry["description"].endswith("."), path
        name = path.rpartition(".")[2]
        assert re.search(rf"\.{name}\b", templates), f"no template reads {path}"
        if entry["type"] != "object" or "properties" not in entry:
            assert re.search(rf"#[^\n]*\n(?: *#[^\n]*\n)* *{name}:", text), f"{path} has no comment"
    for file in (CHART / "values").iterdir():
        assert yaml.safe_load(file.read_text()).keys() <= values.keys(), file.name


def test_the_next_commands_name_the_release_and_the_namespace(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "chart")
    notes_of = tmp_path / "chart/templates/NOTES.txt"
    notes_of.rename(notes_of.with_name("notes.yaml"))  # helm template leaves NOTES.txt out
    text = notes_of.with_name("notes.yaml").read_text()
    notes_of.with_name("notes.yaml").write_text(f"text: |\n{textwrap.indent(text, '  ')}")
    options = ("--namespace", "kube-system", "--set", "namespace.name=gpus", "--show-only", "templates/notes.yaml")
    notes = chart.helm("template", "mine", tmp_path / "chart", *options)
    assert "kubectl -n gpus get pods" in notes
    assert "helm uninstall mine -n kube-system" in notes
    assert "kubectl -n gpus delete daemonset toolkit-installer --cascade=foreground" in notes


def test_what_helm_test_runs_looks_at_the_node_and_changes_nothing() -> None:
    pods: list[Object] = [each for each in chart.rendered() if each["kind"] == "Pod"]
    (pod,) = pods
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["toolkit-installer", "status", "--check"]
    assert all(each["readOnly"] for each in container["volumeMounts"])
    assert container["image"] == f"toolkit-installer:{__version__}"
    with pytest.raises(ChartError, match=r"test.gpuPod.image is needed"):
        chart.rendered("--set", "test.gpuPod.enabled=true")


def test_the_chart_can_be_packaged(tmp_path: Path) -> None:
    assert chart.main("package", str(tmp_path)) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"toolkit-installer-{__version__}.tgz"]
