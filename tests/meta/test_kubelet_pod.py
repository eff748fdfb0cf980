"""The kubelet in the small: were it to overlook a part of a template, what is tested with it would prove too much."""

from __future__ import annotations

import copy

import pytest

from tests.e2e.hosts import kubelet_pod
from tests.e2e.hosts.kubelet_pod import Object, PodError

POD: Object = {
    "hostPID": True,
    "containers": [
        {
            "name": "main",
            "image": "registry.example/main:1",
            "command": ["main"],
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}],
        }
    ],
}


def test_a_template_that_it_can_run_is_not_refused() -> None:
    kubelet_pod.refuse_unknown(POD)


@pytest.mark.parametrize(
    "where, field",
    [
        pytest.param(lambda pod: pod, "hostIPC", id="pod"),
        pytest.param(lambda pod: pod["containers"][0], "livenessProbe", id="container"),
        pytest.param(lambda pod: pod["containers"][0]["securityContext"], "runAsUser", id="security"),
        pytest.param(lambda pod: pod["containers"][0]["volumeMounts"][0], "subPath", id="mount"),
    ],
)
def test_a_field_that_it_would_overlook_is_refused_by_name(where: object, field: str) -> None:
    pod = copy.deepcopy(dict(POD))
    where(pod)[field] = "something"  # type: ignore[operator]
    with pytest.raises(PodError, match=field):
        kubelet_pod.refuse_unknown(pod)
