"""Each value of the Helm chart is described, changes what it is about and no more, and is refused where it is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.support import chart, manifests
from tests.support.chart import CHART, ChartError, changes
from toolkit_installer.cli.options.model import find_engine
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.kubernetes import verdicts

pytestmark = pytest.mark.usefixtures("kustomize", "helm")
TEXT = (CHART / "values.yaml").read_text()
VALUES: dict[str, Any] = yaml.safe_load(TEXT)
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
WHOLE = ("affinity", "resources")
"""Values that have parts, and that a template hands on as they are."""


def every(values: Mapping[str, Any], schema: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value's path with its entry of the schema, without those whose parts have entries of their own."""
    for name, value in values.items():
        entry, path = schema["properties"][name], f"{at}{name}"
        if isinstance(value, dict) and "properties" in entry and path not in WHOLE:
            yield from every(value, entry, f"{path}.")
        else:
            yield path, entry


def schemas(entry: Mapping[str, Any], at: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield an entry of the schema and all below it."""
    yield at, entry
    for name, each in entry.get("properties", {}).items():
        yield from schemas(each, f"{at}.{name}")
    if "items" in entry:
        yield from schemas(entry["items"], f"{at}[]")


SPEC = "DaemonSet/toolkit-installer/spec"
POD = f"{SPEC}/template/spec"
MAIN, WAIT = f"{POD}/containers/toolkit-installer", f"{POD}/initContainers/wait-driver"
HOOK = "Pod/toolkit-installer-status/spec"
STATUS = f"{HOOK}/containers/status"
GPU = "Pod/toolkit-installer-gpu"
UNINSTALL = "(ServiceAccount|Role|RoleBinding|Job)/toolkit-installer-uninstall"
JOB = "Job/toolkit-installer-uninstall/spec"
JOB_POD = f"{JOB}/template/spec"
DELETER = f"{JOB_POD}/containers/delete-daemonset"
TOLD = 'nodeStatus={"enabled": true}'
TAINTED = 'startupTaint={"enabled": true}'
SERVED = 'metrics={"enabled": true}'
RENAMED = 'runtimeClasses=[{"name": "nvidia", "handler": "x"}]'
PLUGGED = 'nri={"enabled": true}'
LABELLED = 'gpuLabels={"enabled": true}'
OWN = "spec/variables/{}/expression"
RIGHTS = "(ClusterRole|ClusterRoleBinding)/toolkit-installer-node-status"
READING = "(Cluster)?Role(Binding)?/toolkit-installer"
EVENTS = "(Role|RoleBinding)/toolkit-installer-events"
PRIVILEGED = "RoleBinding/toolkit-installer-privileged"
POLICY = "ValidatingAdmissionPolicy(Binding)?/toolkit-installer-own-node"
EVENT_POLICY = "ValidatingAdmissionPolicy(Binding)?/toolkit-installer-own-events"
SELECTED = f"({POD}|{HOOK}|RuntimeClass/[a-z-]+/scheduling)/nodeSelector"


def variable(name: str, *containers: str) -> str:
    """Return where a variable stands."""
    return f"({'|'.join(containers or (MAIN,))})/env/{name}/(name|value)"


ABOUT: dict[str, tuple[str, str, *tuple[str, ...]]] = {
    # each value: what to give, as JSON; where that may change something; other values that it needs for that
    "image.repository": ('"r.example/x"', f"({MAIN}|{WAIT}|{STATUS}|{DELETER})/image"),
    "image.tag": ('"1"', f"({MAIN}|{WAIT}|{STATUS}|{DELETER})/image"),
    "image.digest": (f'"sha256:{"a" * 64}"', f"({MAIN}|{WAIT}|{STATUS}|{DELETER})/image"),
    "image.pullPolicy": ('"Always"', f"({MAIN}|{WAIT}|{STATUS}|{DELETER})/imagePullPolicy"),
    "imagePullSecrets": ('[{"name": "x"}]', f"({POD}|{HOOK}|{JOB_POD})/imagePullSecrets/x/name"),
    "namespace.name": ('"x"', "Namespace/.*|.*/namespace|Role/toolkit-installer/rules/1/resourceNames/0"),
    "namespace.create": ("false", "Namespace/toolkit-installer/.*"),
    "runtime": ('"docker,crio"', variable("RUNTIME")),
    "driverRoot": ('"/x"', variable("NVIDIA_DRIVER_ROOT", MAIN, WAIT)),
    "withoutGpu": ('"install"', variable("WITHOUT_GPU", MAIN, WAIT)),
    "method": ('"cdi"', variable("(TOOLKIT_METHOD|WAIT_FOR_DRIVER)")),
    "setAsDefault": ("true", variable("NVIDIA_RUNTIME_SET_AS_DEFAULT")),
    "runtimeName": ('"x"', variable("NVIDIA_RUNTIME_NAME"), RENAMED),
    "cleanup": ('"never"', variable("CLEANUP")),
    "onDrift": ('"repair"', variable("ON_DRIFT")),
    "restartMode": ('"none"', variable("RUNTIME_RESTART_MODE")),
    "reloadWhen": ('"Sat 02:00-04:00"', variable("RELOAD_WHEN")),
    "installDir": ('"/x"', variable("TOOLKIT_INSTALL_DIR", MAIN, WAIT, STATUS)),
    "installOnly": (
        "true",
        f"{MAIN}/env/(CLEANUP|NO_RUNTIME_CONFIG|DAEMONSET_NAME|NODE_NAME)/.*|{POD}/automount.*|({READING}|{UNINSTALL})/.*",
    ),
    "cdiEnabled": ("true", variable("(CDI_ENABLED|WAIT_FOR_DRIVER)")),
    "enableCdiInRuntime": ("true", variable("RUNTIME_ENABLE_CDI")),
    "logFormat": ('"json"', variable("LOG_FORMAT", MAIN, DELETER)),
    "debug": ("true", variable("TOOLKIT_DEBUG", MAIN, DELETER)),
    "extraEnv": ('[{"name": "RELOAD_TIMEOUT", "value": "9"}]', variable("RELOAD_TIMEOUT")),
    "nri.enabled": ("true", rf"{variable('ENABLE_NRI_PLUGIN')}|{MAIN}/env/NRI_NAMESPACE/.*|RuntimeClass/.*"),
    "nri.namespaces": ('["x", "y"]', variable("NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES"), PLUGGED),
    "nri.strict": ("false", variable("NRI_STRICT"), PLUGGED),
    "nri.socket": ('"/x"', variable("NRI_SOCKET"), PLUGGED),
    "nodeStatus.enabled": (
        "true",
        f"{MAIN}/env/NODE_(CONDITION|LABELS|EVENTS)/.*|({RIGHTS}|{EVENTS}|{POLICY}|{EVENT_POLICY})/.*",
    ),
    "nodeStatus.condition": (
        '"a.b/ContainerToolkitReady"',
        f"{variable('NODE_CONDITION')}|{POLICY}/{OWN.format('conditions')}",
        TOLD,
    ),
    "nodeStatus.labels": ("false", f"{variable('NODE_LABELS')}|{RIGHTS}/rules/0/resources/.*", TOLD),
    "nodeStatus.events": ("false", f"{variable('NODE_EVENTS')}|({EVENTS}|{EVENT_POLICY})/.*", TOLD),
    "nodeStatus.policy": ("false", f"({POLICY}|{EVENT_POLICY})/.*", TOLD),
    "startupTaint.enabled": ("true", f"{variable('(STARTUP_TAINT|RETAINT)')}|({RIGHTS}|{POLICY})/.*"),
    "startupTaint.taint": (
        '"a/b=c:NoSchedule"',
        f"{variable('STARTUP_TAINT')}|{POLICY}/{OWN.format('taints')}",
        TAINTED,
    ),
    "startupTaint.retaint": ("false", variable("RETAINT"), TAINTED),
    "metrics.enabled": ("true", f"{variable('METRICS_ADDRESS')}|{MAIN}/ports/.*"),
    "metrics.port": ("9000", f"{variable('METRICS_ADDRESS')}|{MAIN}/ports/.*", SERVED),
    "metrics.podMonitor": ("true", "PodMonitor/toolkit-installer/.*", SERVED),
    "metrics.rules": ("true", "PrometheusRule/toolkit-installer/.*", SERVED),
    "metrics.dashboard": ("true", "ConfigMap/toolkit-installer-dashboard/.*", SERVED),
    "metrics.labels": (
        '{"release": "monitoring"}',
        "(PodMonitor|PrometheusRule)/toolkit-installer/metadata/labels/release",
        'metrics={"enabled": true, "podMonitor": true, "rules": true}',
    ),
    "runtimeClasses": ('[{"name": "x", "handler": "y"}]', "RuntimeClass/.*"),
    "gpuLabels.enabled": ("true", rf"{SELECTED}/nvidia\.com/gpu\.present"),
    "gpuLabels.key": ('"x"', rf"{SELECTED}/(x|nvidia\.com/gpu\.present)", LABELLED),
    "gpuLabels.value": ('"x"', rf"{SELECTED}/nvidia\.com/gpu\.present", LABELLED),
    "nodeSelector": ('{"x": "y"}', f"({POD}|{HOOK})/nodeSelector/x"),
    "affinity": ("null", f"({POD}|{HOOK})/affinity/.*"),
    "tolerations": ("[]", f"({POD}|{HOOK}|{JOB_POD})/tolerations/.*"),
    "priorityClassName": ('"x"', f"{POD}/priorityClassName"),
    "updateStrategy.type": ('"OnDelete"', f"{SPEC}/updateStrategy/(type|rollingUpdate/maxUnavailable)"),
    "updateStrategy.rollingUpdate.maxUnavailable": ("3", f"{SPEC}/updateStrategy/rollingUpdate/maxUnavailable"),
    "minReadySeconds": ("0", f"{SPEC}/minReadySeconds"),
    "terminationGracePeriodSeconds": ("9", f"{POD}/terminationGracePeriodSeconds"),
    "startupProbe.failureThreshold": ("9", f"{MAIN}/startupProbe/failureThreshold"),
    "resources": ('{"limits": {"cpu": 1}}', f"({MAIN}|{WAIT}|{STATUS}|{DELETER})/resources/limits/cpu"),
    "podAnnotations": (
        '{"a": "b", "kubectl.kubernetes.io/default-container": "c"}',
        f"({SPEC}|{JOB})/template/metadata/annotations/.*",
    ),
    "openshift.enabled": (
        "true",
        rf"({POD}|{HOOK}|{JOB_POD})/securityContext/.*|{PRIVILEGED}/.*|Namespace/.*/(security\.)?openshift\.io/.*",
    ),
    "uninstallHook.enabled": ("false", f"{UNINSTALL}/.*"),
    "uninstallHook.timeoutSeconds": ("9", f"{JOB}/activeDeadlineSeconds|{variable('DELETION_TIMEOUT', DELETER)}"),
    "uninstallHook.nodeSelector": ('{"x": "y"}', f"{JOB_POD}/nodeSelector/x"),
    "test.node": ('"x"', f"{HOOK}/nodeName"),
    "test.gpuPod.enabled": ("true", f"{GPU}/.*", 'test={"gpuPod": {"image": "x"}}'),
    "test.gpuPod.image": (
        '"y"',
        f"{GPU}/spec/containers/gpu/image",
        'test={"gpuPod": {"enabled": true, "image": "x"}}',
    ),
}


def test_no_value_is_left_out_below() -> None:
    assert ABOUT.keys() == dict(every(VALUES, SCHEMA)).keys()


@pytest.mark.parametrize("path", ABOUT)
def test_a_value_changes_what_it_is_about_and_nothing_else(path: str) -> None:
    value, places, *others = ABOUT[path]
    found = changes(f"{path}={value}", *others)
    assert found, "no template reads it"
    assert [place for place in found if not re.fullmatch(places, place)] == []


def test_labels_for_a_prometheus_take_the_place_of_none_of_ours() -> None:
    given = '{"enabled": true, "podMonitor": true, "labels": {"app.kubernetes.io/name": "x", "release": "monitoring"}}'
    found = chart.leaves(f"metrics={given}")
    labels = "PodMonitor/toolkit-installer/metadata/labels"
    assert found[f"{labels}/release"] == "monitoring"
    assert "toolkit-installer" in {leaf for path, leaf in found.items() if path.startswith(f"{labels}/app")}


def test_the_digest_goes_before_the_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    found = changes(f'image={{"repository": "r.example/x", "tag": "1", "digest": "{digest}"}}')
    assert set(found.values()) == {f"r.example/x@{digest}"}
    assert {place.rpartition("/")[0] for place in found} == {MAIN, WAIT, STATUS, DELETER}


def test_every_value_is_described_and_commented_in_whole_sentences() -> None:
    for path, entry in schemas(SCHEMA, "values"):
        if path != "values" and not path.endswith("[]"):
            assert entry["description"].endswith("."), path
        if entry.get("type") == "object" and "properties" in entry:
            assert entry["additionalProperties"] is False, path
    lines = TEXT.splitlines()
    for path, _ in every(VALUES, SCHEMA):
        indent, name = "  " * path.count("."), path.rpartition(".")[2]
        places = [number for number, line in enumerate(lines) if line.startswith(f"{indent}{name}:")]
        above = [lines[number - 1] for number in places]
        assert any(re.fullmatch(rf"{indent}# .*[.!:\]]", line) for line in above), f"{path} has no comment: {above}"


def test_what_a_file_of_values_sets_is_a_value() -> None:
    for file in (CHART / "values").iterdir():
        given = yaml.safe_load(file.read_text())
        assert {path for path, _ in every(given, SCHEMA)} <= dict(every(VALUES, SCHEMA)).keys(), file.name


def test_what_may_be_chosen_is_what_the_program_knows() -> None:
    """And nothing that an option of the program is for can be said in two ways at once."""
    text = (CHART / "templates/_helpers.tpl").read_text()
    of = dict(re.findall(r"^([A-Z_]+): ([A-Za-z.]+)$", text, re.MULTILINE))
    entries = dict(every(VALUES, SCHEMA))
    chosen = set()
    for option in OPTIONS:
        ours = {of[each] for each in option.variables if each in of}
        if not ours:
            continue
        (value,) = ours
        chosen.add(value)
        assert {each for each in option.variables if find_engine(each) is None} <= of.keys(), value
        if "enum" in entries[value]:
            assert set(entries[value]["enum"]) - {""} == {str(each) for each in option.choices}, value
        for each in option.choices:
            assert re.fullmatch(entries[value].get("pattern", ".*"), str(each)), value
    assert chosen == set(of.values())


@pytest.mark.parametrize(
    "value, words",
    [
        ("imagee=1", "additional properties 'imagee' not allowed"),
        ('image={"repositori": "x"}', "additional properties 'repositori' not allowed"),
        ('updateStrategy={"rolling": 1}', "additional properties 'rolling' not allowed"),
        ('tolerations=[{"kee": "x"}]', "additional properties 'kee' not allowed"),
        ('resources={"limit": {}}', "additional properties 'limit' not allowed"),
        ('affinity={"node": {}}', "additional properties 'node' not allowed"),
        ('extraEnv=[{"name": "A", "valu": "x"}]', "additional properties 'valu' not allowed"),
        ('setAsDefault="yes"', "at '/setAsDefault': got string, want boolean"),
        ('extraEnv=[{"name": "A", "value": 9}]', "at '/extraEnv/0/value': got number, want string"),
        ("minReadySeconds=-1", "at '/minReadySeconds': minimum: got -1, want 0"),
        ('cleanup="sometimes"', "at '/cleanup': value must be one of 'auto', 'always', 'never'"),
        (
            'updateStrategy={"type": "Now"}',
            "at '/updateStrategy/type': value must be one of 'RollingUpdate', 'OnDelete'",
        ),
        ('runtime="podman"', "at '/runtime': 'podman' does not match"),
        ('image={"digest": "sha256:1"}', "at '/image/digest': 'sha256:1' does not match"),
        ('image={"repository": "x@sha256:1"}', "at '/image/repository': 'x@sha256:1' does not match"),
        ('image={"repository": "r//x"}', "at '/image/repository': 'r//x' does not match"),
        ('image={"repository": "r/x:1.0"}', 'image.repository: r/x:1.0 has a tag: give r/x, and "1.0" as image.tag'),
        ('imagePullSecrets=[{"name": ""}]', "at '/imagePullSecrets/0/name': minLength: got 0, want 1"),
        ('imagePullSecrets=[{"name": "A"}]', "at '/imagePullSecrets/0/name': 'A' does not match"),
        ("resources.limits.cpu=-1", "at '/resources/limits/cpu': minimum: got -1, want 0"),
        ("resources.requests.memory=-0.5", "at '/resources/requests/memory': minimum: got -0.5, want 0"),
        ('resources.limits.memory="-1Gi"', "at '/resources/limits/memory': '-1Gi' does not match"),
        ("metrics=null", "at '': missing property 'metrics'"),
        ("startupProbe=null", "at '': missing property 'startupProbe'"),
        ("cleanup=null", "at '': missing property 'cleanup'"),
        ("test.gpuPod=null", "at '/test': missing property 'gpuPod'"),
        ('test={"node": "GPU 1"}', 'test.node: "GPU 1" is no name of a node: kubectl get nodes lists them'),
        (
            'tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]',
            "tolerations: the operator Exists compares nothing: leave the value b out, or give the operator Equal",
        ),
        (
            'extraEnv=[{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]',
            "extraEnv: A has both value and valueFrom: leave one of them out",
        ),
        (
            'runtimeClasses=[{"name": "a", "handler": "nvidia"}, {"name": "a", "handler": "nvidia-cdi"}]',
            "runtimeClasses: a is there twice",
        ),
        (
            'runtimeName="gpu"',
            "runtimeClasses: nvidia has the handler nvidia, which no engine gets: runtimeName says gpu, so say that",
        ),
        ('startupTaint={"taint": "a:Never"}', "at '/startupTaint/taint': 'a:Never' does not match"),
        ('startupTaint={"taint": "a/b/c:NoSchedule"}', "at '/startupTaint/taint': 'a/b/c:NoSchedule' does not match"),
        ('nodeStatus={"condition": "a.b/Ready"}', "at '/nodeStatus/condition': 'a.b/Ready' does not match"),
        ('namespace={"name": "A B"}', "at '/namespace/name': 'A B' does not match"),
        ('installDir="/"', "at '/installDir': '/' does not match"),
        ('extraEnv=[{"name": "ROOT", "value": "/"}]', "extraEnv: ROOT has a value of its own: set installDir"),
        (
            'extraEnv=[{"name": "NODE_NAME", "value": "x"}]',
            "extraEnv: NODE_NAME is what the rest of the chart relies on",
        ),
        ('extraEnv=[{"name": "A"}, {"name": "A"}]', "extraEnv: A is there twice"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(value: str, words: str) -> None:
    with pytest.raises(ChartError) as caught:
        chart.rendered("--set-json", value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "values, words",
    [
        (
            ("cdiEnabled=true", 'extraEnv=[{"name": "WAIT_FOR_DRIVER", "value": "false"}]'),
            "extraEnv: WAIT_FOR_DRIVER is set already, because of cdiEnabled",
        ),
        (
            ("nri.enabled=true", 'runtime="docker"'),
            "nri.enabled, method: docker asks no NRI plugin about its containers",
        ),
        (("nri.enabled=true", 'method="cdi"'), "nri.enabled: the plugin is a method of its own, and method says cdi"),
        (
            ("nri.enabled=true", 'test={"gpuPod": {"enabled": true, "image": "x"}}'),
            "test.gpuPod.enabled: its pod names a RuntimeClass, and with the NRI plugin there is none",
        ),
        (("metrics.rules=true",), "metrics.rules: the pods serve no metrics: set metrics.enabled, too"),
        (
            ("runtimeClasses=[]", 'test={"gpuPod": {"enabled": true, "image": "x"}}'),
            "test.gpuPod.enabled: its pod names the first of runtimeClasses, and there is none",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: tuple[str, ...], words: str) -> None:
    with pytest.raises(ChartError) as caught:
        chart.rendered(*(word for value in values for word in ("--set-json", value)))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "taint, tolerations, tolerated",
    [
        ("a/b=c:NoSchedule", '[{"operator": "Exists"}]', True),
        ("a/b=c:NoExecute", '[{"operator": "Exists", "effect": "NoSchedule"}]', False),
        ("a/b=c:NoSchedule", '[{"operator": "Exists", "effect": "NoSchedule"}]', True),
        ("a/b=c:NoExecute", '[{"key": "a/b", "operator": "Exists", "effect": "NoExecute"}]', True),
        ("a/b=c:NoExecute", '[{"key": "a/b", "operator": "Exists", "tolerationSeconds": 9}]', False),
        ("a/b=c:NoSchedule", '[{"key": "a/b", "value": "c"}]', True),
        ("a/b=c:NoSchedule", '[{"key": "a/b", "operator": "Equal", "value": "d"}]', False),
        ("a/b:NoSchedule", '[{"key": "a/b"}, {"key": "c", "operator": "Exists"}]', True),
        ("a/b=:NoSchedule", '[{"key": "a/b"}]', True),
        ("a/b=c:NoSchedule", '[{"key": "b", "operator": "Exists"}]', False),
        ("a/b=c:NoSchedule", "[]", False),
    ],
)
def test_a_startup_taint_that_keeps_the_pods_away_is_refused(taint: str, tolerations: str, *, tolerated: bool) -> None:
    """As the program itself sees it, which puts no such taint on a node."""
    given = ("--set-json", f'startupTaint={{"enabled": true, "taint": "{taint}"}}')
    if tolerated:
        found = manifests.one(chart.rendered(*given, "--set-json", f"tolerations={tolerations}"), "DaemonSet")
    else:
        words = (
            r"startupTaint\.taint: a/b\S* would keep the pods away themselves: add \{key: a/b, operator: Exists\} to"
        )
        with pytest.raises(ChartError, match=words):
            chart.rendered(*given, "--set-json", f"tolerations={tolerations}")
        found = {"spec": {"template": {"spec": {"containers": [{}], "tolerations": json.loads(tolerations)}}}}
    key, value, effect = re.fullmatch("([^=:]+)=?([^:]*):(.+)", taint).groups()  # type: ignore[union-attr]  # it does
    assert verdicts.tolerates_taint(found, {"key": key, "value": value, "effect": effect}) is tolerated


@pytest.mark.parametrize(
    "values",
    [
        ('image={"repository": "localhost:5000/team/x"}',),
        ('runtimeName="gpu"', 'runtimeClasses=[{"name": "nvidia", "handler": "gpu"}]'),
        ('runtimeName="gpu"', "installOnly=true"),  # the nodes' image says which handlers there are
        ('test={"node": "ip-10-0-0-1.eu.compute.internal"}',),
        ("resources.limits=null",),
        ("tolerations=null", "runtimeClasses=null", "extraEnv=null", "imagePullSecrets=null", "priorityClassName=null"),
    ],
    ids=str,
)
def test_what_looks_odd_and_makes_sense_is_taken(values: tuple[str, ...]) -> None:
    for each in chart.rendered(*(word for value in values for word in ("--set-json", value))):
        assert list(manifests.problems(each, manifests.minors()[-1:])) == []


def test_only_values_that_may_be_left_out_may_be_null() -> None:
    """Helm takes a value away whose new one is null: most templates would make something else of that."""
    may = {"affinity", "priorityClassName", "resources", "tolerations"}
    may |= {"extraEnv", "global", "imagePullSecrets", "runtimeClasses"}
    for path, entry in schemas(SCHEMA, "values"):
        whole = set(WHOLE) & set(path.split("."))
        if "properties" in entry and not whole and "[]" not in path:
            assert set(entry["properties"]) - set(entry["required"]) == (may if path == "values" else set()), path


def test_an_older_cluster_is_told_of_the_policy_only_where_there_would_be_one() -> None:
    old = ("--kube-version", "1.29.0")
    told = ("--set", "nodeStatus.enabled=true")
    events_alone = (*told, "--set", "nodeStatus.labels=false", "--set", "nodeStatus.condition=")
    for given in (told, events_alone):
        with pytest.raises(ChartError, match=r"nodeStatus\.policy: Kubernetes has such policies since 1\.30"):
            chart.rendered(*old, *given)
    found = chart.rendered(*old, *told, "--set", "nodeStatus.policy=false")
    assert not any(each["kind"].startswith("ValidatingAdmissionPolicy") for each in found)
    assert chart.rendered(*old)
    assert chart.rendered("--kube-version", "1.30.0-gke.1", *told)


@pytest.mark.parametrize(
    "values, policies",
    [
        ((), ("own-events", "own-node")),
        (("nodeStatus.labels=false", 'nodeStatus.condition=""'), ("own-events",)),
        (("nodeStatus.events=false",), ("own-node",)),
        (("nodeStatus.policy=false",), ()),
    ],
    ids=str,
)
def test_whatever_the_pods_may_write_a_policy_holds_to_their_node(
    values: tuple[str, ...], policies: tuple[str, ...]
) -> None:
    given = (word for value in ("nodeStatus.enabled=true", *values) for word in ("--set-json", value))
    objects = chart.rendered(*given)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        found = {each["metadata"]["name"] for each in objects if each["kind"] == kind}
        assert found == {f"toolkit-installer-{name}" for name in policies}


def test_the_policies_hold_the_account_of_the_namespace_that_is_given() -> None:
    objects = chart.rendered("--set", "nodeStatus.enabled=true", "--set", "namespace.name=other")
    for each in (one for one in objects if one["kind"] == "ValidatingAdmissionPolicy"):
        (condition,) = each["spec"]["matchConditions"]
        assert '"system:serviceaccount:other:toolkit-installer"' in condition["expression"]
        assert "serviceaccount:toolkit-installer" not in json.dumps(each)


@pytest.mark.parametrize("taint", ["a/b=c:NoExecute", "a/b:NoExecute", "a/b=:NoExecute"])
def test_the_policy_names_the_startup_taint_without_its_value(taint: str) -> None:
    tolerations = '[{"operator": "Exists"}]'
    given = (
        "--set-json",
        f'startupTaint={{"enabled": true, "taint": "{taint}"}}',
        "--set-json",
        f"tolerations={tolerations}",
    )
    policy = manifests.one(chart.rendered(*given), "ValidatingAdmissionPolicy")
    own = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert json.loads(own["taints"]) == ["a/b:NoExecute"]
