"""The condition, labels and taint of a node, its events, and what a run remembers of those it has sent."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import real
from toolkit_installer import errors
from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes import node_state, verdicts
from toolkit_installer.kubernetes.node_state import (
    MOST_A_MINUTE,
    ConditionReason,
    EventContent,
    EventLedger,
    NodeState,
    ReportedEvent,
)
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


def test_a_condition_says_since_when_it_holds_and_an_unchanged_status_keeps_its_time() -> None:
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


DRIFT = EventContent("Node", "Drift", "somebody changed the file", warning=True)
T0 = 1_800_000_000.0


def written(ledger: EventLedger, now: float) -> tuple[EventLedger, list[ReportedEvent]]:
    """Write all that is due, as an API server that takes everything."""
    found = []
    while (event := node_state.next_event(ledger, now)) is not None:
        event = msgspec.structs.replace(event, name=event.name or f"n{len(ledger.told)}-{now}")
        found.append(event)
        ledger = node_state.record_written(ledger, event, now)
    return ledger, found


def test_the_same_within_ten_minutes_is_counted_and_afterwards_told_anew() -> None:
    ledger, (first,) = written(node_state.add_pending(EventLedger(), DRIFT), T0)
    ledger, (second,) = written(node_state.add_pending(ledger, DRIFT), T0 + 599)
    assert (first.name, first.count) == (second.name, second.count - 1)
    ledger, (third,) = written(node_state.add_pending(ledger, DRIFT), T0 + 599 + 601)
    assert (third.name != first.name, third.count) == (True, 1)


def test_what_waits_already_does_not_wait_twice() -> None:
    assert len(node_state.add_pending(node_state.add_pending(EventLedger(), DRIFT), DRIFT).waiting) == 1


def test_the_eleventh_that_differs_in_its_message_alone_stands_for_all_that_follow() -> None:
    ledger, found = EventLedger(), []
    for number in range(14):
        other = msgspec.structs.replace(DRIFT, message=f"file {number}")
        ledger, told = written(node_state.add_pending(ledger, other), T0 + 20 * number)
        found += told
    names = [each.name for each in found]
    assert len(set(names)) == 11
    assert names[10:] == [names[10]] * 4
    assert [each.count for each in found[10:]] == [1, 2, 3, 4]
    assert found[-1].happening.message == "(combined from similar events): file 13"


def test_the_combined_event_goes_on_counting_when_its_message_is_the_same() -> None:
    ledger = EventLedger()
    for number in range(11):
        ledger, _ = written(
            node_state.add_pending(ledger, msgspec.structs.replace(DRIFT, message=f"{number}")), T0 + 20 * number
        )
    for again in range(2):
        ledger, (told,) = written(
            node_state.add_pending(ledger, msgspec.structs.replace(DRIFT, message="10b")), T0 + 230 + again
        )
        assert told.count == 2 + again


@given(st.lists(st.tuples(st.floats(0, 300), st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_no_minute_has_more_than_a_few_and_nothing_that_waits_is_lost(heard: list[tuple[float, str, bool]]) -> None:
    ledger, times, told = EventLedger(), [], []
    for after, word, warning in sorted(heard):
        happening = EventContent("Node", "Drift", word, warning=warning)
        ledger = node_state.add_pending(ledger, happening)
        ledger, found = written(ledger, T0 + after)
        times += [T0 + after] * len(found)
        told += [each.happening for each in found]
    assert all(sum(start <= each < start + 60 for each in times) <= MOST_A_MINUTE for start in times)
    assert {EventContent("Node", "Drift", word, warning=warning) for _, word, warning in heard} == {
        *told,
        *ledger.waiting,
    }


def test_of_too_much_that_waits_the_oldest_is_left_out() -> None:
    ledger = EventLedger()
    for number in range(30):
        ledger = node_state.add_pending(ledger, msgspec.structs.replace(DRIFT, message=str(number)))
    assert [each.message for each in ledger.waiting] == [str(number) for number in range(10, 30)]


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "\udcff" * 5000], ids=["ascii", "two bytes", "no UTF-8"])
def test_a_message_fits_into_an_event(text: str) -> None:
    (found,) = node_state.add_pending(EventLedger(), msgspec.structs.replace(DRIFT, message=text)).waiting
    assert 900 < len(found.message.encode()) <= 1024
    assert found.message.endswith("...")


def test_what_is_no_utf_8_can_be_sent_all_the_same() -> None:
    (found,) = node_state.add_pending(EventLedger(), msgspec.structs.replace(DRIFT, message="a\udcffb")).waiting
    assert found.message == "a?b"


def test_an_event_of_the_node_is_in_the_namespace_that_kubernetes_asks_for() -> None:
    told = ReportedEvent(DRIFT, "n.1", 1, T0, T0)
    body = node_state.build_event_body(
        told, {"kind": "Node", "name": "n", "uid": "n"}, node="n", now="2026-01-01T00:00:00Z"
    )
    assert body["metadata"] == {"name": "n.1", "namespace": "default"}
    assert (body["type"], body["count"], body["source"]["host"]) == ("Warning", 1, "n")
