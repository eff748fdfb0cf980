"""Events: no node floods the cluster with them, none is lost that the API server would take, none is told twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.kubernetes import node_state
from toolkit_installer.kubernetes.node_state import MOST_A_MINUTE, EventContent, EventLedger, ReportedEvent

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
