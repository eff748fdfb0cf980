"""How a node stands, as a condition, labels and a taint say it; and what a run remembers of what it told."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import real
from toolkit_installer import errors
from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes import node_state, verdicts
from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState
from toolkit_installer.settings import Taint

OURS = Taint("nvidia.com/toolkit", "missing", "NoSchedule")
READY, DOWN = NodeState(ConditionReason.SERVING, "docker nvidia"), NodeState(ConditionReason.ENGINE_DOWN, "no answer")
KIND = "nvidia.com/ContainerToolkitReady"

each_taint = st.fixed_dictionaries(
    {"key": st.sampled_from(["a", "nvidia.com/toolkit"]), "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
    optional={"value": st.sampled_from(["x", "missing"]), "timeAdded": st.just("2026-01-01T00:00:00Z")},
)


def node(found: list[dict[str, str]], boot: str | None = None) -> dict[str, Any]:
    annotations = {"other": "stays", **({node_state.READY_IN: boot} if boot else {})}
    return {"metadata": {"resourceVersion": "7", "annotations": annotations}, "spec": {"taints": found}}


@given(
    found=st.lists(each_taint, max_size=4, unique_by=lambda each: (each["key"], each["effect"])),
    boot=st.sampled_from([None, "b1", "b2"]),
    before=st.sampled_from([None, "b1"]),
    there=st.booleans(),
)
def test_a_taint_comes_and_goes_and_every_other_one_stays_as_it_is(
    found: list[dict[str, str]], boot: str | None, before: str | None, *, there: bool
) -> None:
    old = node(copy.deepcopy(found), before)
    patch = node_state.build_taint_patch(old, OURS, there=there, boot=boot)
    others = [each for each in found if (each["key"], each["effect"]) != (OURS.key, OURS.effect)]
    if patch is None:
        assert (node_state.has_taint(old, OURS), node_state.read_ready_boot(old)) == (there, boot)
        return
    assert patch["metadata"]["resourceVersion"] == "7"
    listed = patch.get("spec", {"taints": found})["taints"] or []
    assert [each for each in listed if (each["key"], each["effect"]) != (OURS.key, OURS.effect)] == others
    new = node(listed, patch["metadata"].get("annotations", {node_state.READY_IN: before})[node_state.READY_IN])
    assert (node_state.has_taint(new, OURS), node_state.read_ready_boot(new)) == (there, boot)
    assert node_state.build_taint_patch(new, OURS, there=there, boot=boot) is None


def test_the_last_taint_goes_with_its_list() -> None:
    old = node([{"key": OURS.key, "effect": OURS.effect}])
    patch = node_state.build_taint_patch(old, OURS, there=False, boot=None)
    assert patch is not None
    assert patch["spec"] == {"taints": None}


def test_a_condition_tells_since_when_it_is_so_and_a_status_that_stays_keeps_its_time() -> None:
    first = node_state.build_condition(
        KIND, DOWN, now="T1", since=node_state.find_transition_time(None, DOWN, now="T1")
    )
    worse = NodeState(ConditionReason.DRIFT, "x")
    second = node_state.build_condition(
        KIND, worse, now="T2", since=node_state.find_transition_time(first, worse, now="T2")
    )
    third = node_state.build_condition(
        KIND, READY, now="T3", since=node_state.find_transition_time(second, READY, now="T3")
    )
    assert [each["lastTransitionTime"] for each in (first, second, third)] == ["T1", "T1", "T3"]
    assert [each["status"] for each in (first, second, third)] == ["False", "False", "True"]
    assert node_state.matches_state(second, worse)
    assert not node_state.matches_state(second, DOWN)
    assert not node_state.matches_state(None, DOWN)


def test_nobody_elses_condition_is_taken_for_ours() -> None:
    assert node_state.find_condition(real("node"), KIND) is None
    assert node_state.find_condition({}, KIND) is None


@pytest.mark.parametrize(
    "error, rolled_back, reason",
    [
        (errors.EngineRejectedError("x"), True, ConditionReason.ENGINE_REJECTED),
        (errors.EngineDownError("x"), True, ConditionReason.ENGINE_DOWN),
        (errors.DriverNotReadyError("x"), False, ConditionReason.DRIVER_NOT_READY),
        (errors.ConfigurationError("x"), True, ConditionReason.ROLLED_BACK),
        (errors.ConfigurationError("x"), False, ConditionReason.REFUSED),
        (errors.PayloadError("x"), False, ConditionReason.REFUSED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, InstallerError) else str(value),
)
def test_each_failure_has_a_reason_of_the_list(
    error: InstallerError, reason: ConditionReason, *, rolled_back: bool
) -> None:
    state = node_state.build_error_state(error, rolled_back=rolled_back)
    assert (state.reason, state.ready) == (reason, False)
    assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", state.reason)  # metav1.Condition's own rule


@given(st.text(max_size=100))
def test_whatever_a_release_is_called_it_fits_into_a_label(text: str) -> None:
    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", node_state.build_label_value(text))
    assert len(node_state.build_label_value(text)) <= 63


def test_what_is_not_known_gets_no_label() -> None:
    found = node_state.build_labels(version="0.1.0", engines=("docker", "containerd"), payload=None)
    assert found == {"toolkit-installer/version": "0.1.0", "toolkit-installer/engine": "docker_containerd"}
    assert node_state.build_labels_body("n", {})["metadata"] == {"name": "n"}


@pytest.mark.parametrize(
    "toleration, effect, tolerated",
    [
        ({"operator": "Exists"}, "NoExecute", True),
        ({"operator": "Exists", "effect": "NoSchedule"}, "NoSchedule", True),
        ({"operator": "Exists", "effect": "NoSchedule"}, "NoExecute", False),
        ({"key": "nvidia.com/toolkit", "value": "missing"}, "NoExecute", True),
        ({"key": "nvidia.com/toolkit", "value": "other"}, "NoExecute", False),
        ({"key": "nvidia.com/toolkit", "operator": "Exists", "tolerationSeconds": 60}, "NoExecute", False),
    ],
)
def test_only_a_toleration_that_lasts_lets_our_pods_stay(
    toleration: dict[str, object], effect: str, *, tolerated: bool
) -> None:
    daemon_set = {"spec": {"template": {"spec": {"containers": [{}], "tolerations": [toleration]}}}}
    taint = {"key": OURS.key, "value": OURS.value, "effect": effect}
    assert verdicts.tolerates_taint(daemon_set, taint) is tolerated
