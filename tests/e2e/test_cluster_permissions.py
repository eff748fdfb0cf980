"""A stolen token of one node's pod on a real API server: what daemonset/overlays/startup-taint lets it do.

The nodes and the pods are objects alone: nothing runs on them, and no controller changes them meanwhile.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.cluster.control_plane import ADDRESS, ControlPlane
from tests.e2e.cluster.rollout import wait_until
from tests.e2e.cluster.stolen_token import (
    ACCOUNT,
    NAMESPACE,
    OTHER,
    OWN,
    PROBES,
    TABLE,
    WITH_MORE_RIGHTS,
    Answer,
    Request,
    Row,
    Token,
    node,
    prepared,
)
from tests.support import manifests
from tests.support.manifests import Object

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("permissions")]
_OVERLAY = "overlays/startup-taint"
_CONTROLLERS = ("controller-manager", "scheduler")
_ADMISSION = "ValidatingAdmissionPolicy 'toolkit-installer-own-"
_SECONDS = 30.0
_SEND = """
import json, ssl, sys, urllib.error, urllib.request
asked = json.load(sys.stdin)
body = None if asked["body"] is None else json.dumps(asked["body"]).encode()
request = urllib.request.Request(asked["url"], body, asked["headers"], method=asked["method"])
try:
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=asked["authority"])) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
"""What kubectl does not do: it gets an object before it changes it, which the token may not always."""


class Thief:
    """Sends requests with the tokens."""

    def __init__(self, plane: ControlPlane, tokens: Mapping[Token, str]) -> None:
        self._plane = plane
        self._tokens = tokens

    def send(self, request: Request, query: str = "") -> tuple[int, str]:
        """Return the HTTP status, and the message or the object."""
        asked = {
            "url": f"https://{ADDRESS}:443{request.path}{query}",
            "method": request.method,
            "body": request.body,
            "headers": {
                "Authorization": f"Bearer {self._tokens[request.token]}",
                "Content-Type": request.kind,
                **request.headers,
            },
            "authority": str(self._plane.authority),
        }
        command = [*self._plane.hardware.enter, sys.executable, "-c", _SEND]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
        status, _, words = done.stdout.partition(" ")
        return int(status), str(json.loads(words).get("message") or words.strip())

    def wrong(self, requests: Iterable[Request], expected: Answer) -> list[str]:
        """Return the requests that get another answer than the expected one, with its status and its words."""
        answers = [(each, *self.send(each)) for each in requests]
        return [
            f"{each}: HTTP {status}: {words}" for each, status, words in answers if _answer(status, words) != expected
        ]


def _answer(status: int, words: str) -> Answer | None:
    """Return the answer as the table has it, None where it has no such answer."""
    if status in (200, 201):
        return Answer.ALLOWED
    if status == 403 and _ADMISSION in words:
        return Answer.BY_POLICY
    if status == 403 and " cannot " in words and "ValidatingAdmissionPolicy" not in words:
        return Answer.BY_RBAC
    return None


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory, kubernetes: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("k") / "control", kubernetes) as started:
        yield started


@pytest.fixture(scope="module")
def thief(plane: ControlPlane) -> Thief:
    """Return who has a token of the pod on node-a, and two that are bound to no pod."""
    objects = manifests.rendered(_OVERLAY)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": "token",
            "namespace": NAMESPACE,
            "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
        },
    }
    first = [each for each in objects if each["kind"] in ("Namespace", "ServiceAccount")]
    _give(plane, *first, secret)
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/token"
    wait_until(lambda: "token" in plane.get(path)[0].get("data", {}), "the Secret has a token", _SECONDS)
    for name in _CONTROLLERS:  # they would find that nothing runs on the nodes
        plane.stop(name)
    _give(plane, *objects, *map(node, (OWN, OTHER)), *map(_pod, (OWN, OTHER)), *prepared())
    (found,) = plane.get(path)
    tokens = {
        Token.OF_POD: _token(plane, "--bound-object-kind=Pod", f"--bound-object-name={OWN}"),
        Token.OF_ACCOUNT: _token(plane),
        Token.OF_SECRET: base64.b64decode(found["data"]["token"]).decode(),
    }
    made = Thief(plane, tokens)
    for policy in (each["metadata"]["name"] for each in objects if each["kind"] == "ValidatingAdmissionPolicy"):
        wait_until(lambda name=policy: made.send(PROBES[name], "?dryRun=All")[0] == 403, f"{policy} holds", _SECONDS)  # type: ignore[misc]
    return made


def _give(plane: ControlPlane, *objects: Object) -> None:
    # a status that comes with a new Node has no field manager, and the kubelet's has one
    new = [{key: part for key, part in each.items() if key != "status"} for each in objects]
    plane.kubectl("apply", "--validate=false", "--filename=-", given=yaml.safe_dump_all(new))
    for each in (one for one in objects if one["kind"] == "Node"):
        path = f"/api/v1/nodes/{each['metadata']['name']}"
        plane.patch(path, {"spec": {"taints": each["spec"]["taints"]}})  # a new one is said not to be ready
        plane.patch(f"{path}/status", {"status": each["status"]})


def _token(plane: ControlPlane, *bound: str) -> str:
    return plane.kubectl(f"--namespace={NAMESPACE}", "create", "token", ACCOUNT, *bound).stdout.strip()


def _pod(node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": node, "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": ACCOUNT,
            "containers": [{"name": "x", "image": "example.com/x:1"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.request}-{row.answer}")
def test_a_request_with_a_stolen_token_is_allowed_or_refused(thief: Thief, row: Row) -> None:
    assert thief.wrong(row.tried, row.answer) == []


def test_the_policies_hold_an_account_that_has_all_rights_on_nodes_and_events(
    thief: Thief, plane: ControlPlane
) -> None:
    with _all_rights(plane):
        wait_until(lambda: thief.send(Request("GET", "/api/v1/events"))[0] == 200, "it has them", _SECONDS)
        assert thief.wrong(WITH_MORE_RIGHTS, Answer.BY_POLICY) == []


@contextlib.contextmanager
def _all_rights(plane: ControlPlane) -> Iterator[None]:
    """Have the account all rights on Nodes and events until the block ends."""
    name = "all-rights"
    rules = [{"apiGroups": ["", "events.k8s.io"], "resources": ["nodes", "nodes/status", "events"], "verbs": ["*"]}]
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    kind: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    _give(
        plane,
        kind | {"kind": "ClusterRole", "rules": rules},
        kind | {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    )
    yield
    plane.kubectl("delete", "clusterrolebinding", name)
