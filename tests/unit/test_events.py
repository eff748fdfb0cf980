"""Events reach their subscribers whatever the log writes; a fault that a poll finds again is no new event."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from toolkit_installer import events, log
from toolkit_installer.events import Event, EventKind, get_fault_digests, ignore_known_faults, publish, subscribe


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    monkeypatch.setattr(events._Published, "subscribers", [])
    monkeypatch.setattr(events._Published, "faults", {})
    monkeypatch.setattr(log._LoggedLines, "written_digests", {})
    found: list[Event] = []
    subscribe(found.append)
    yield found
    ignore_known_faults(())
    log.suppress_known_lines(())


def test_an_event_whose_line_is_suppressed_as_repeated_is_received(received: list[Event], logged: io.StringIO) -> None:
    for _ in range(2):
        publish(EventKind.ROLLBACK, "The change failed and is taken back", level="error", reason="the disk is full")
        log.suppress_known_lines(log.get_line_digests())
    assert logged.getvalue().count("event=rollback") == 1
    assert [each.kind for each in received] == [EventKind.ROLLBACK] * 2


def test_an_event_is_received_while_all_lines_are_suppressed(received: list[Event], logged: io.StringIO) -> None:
    with log.suppress_lines():
        publish(EventKind.RELOADING, "Reloading the engine", engine="docker")
    assert logged.getvalue() == ""
    assert received == [Event(EventKind.RELOADING, "Reloading the engine", "docker")]


def test_the_line_of_an_event_has_its_level_its_name_and_the_fields_that_are_given(
    received: list[Event], logged: io.StringIO
) -> None:
    publish(EventKind.DRIFT, "It was changed", level="warning", file="/f", line=None)
    assert logged.getvalue().endswith(' level=warning msg="It was changed" event=drift file=/f\n')
    assert received == [Event(EventKind.DRIFT, "It was changed", fields={"file": "/f"})]


def test_a_fault_that_a_poll_finds_again_is_no_new_event_and_another_one_is(
    received: list[Event], logged: io.StringIO
) -> None:
    publish(EventKind.DRIFT, "It was changed", file="/f")
    ignore_known_faults(get_fault_digests())
    publish(EventKind.DRIFT, "It was changed", file="/f")
    publish(EventKind.DRIFT, "It was changed", file="/g")
    publish(EventKind.DRIFT, "It was changed", file="/f")
    assert [each.fields["file"] for each in received] == ["/f", "/g"]
    assert logged.getvalue().count("file=/f") == 3


@pytest.mark.usefixtures("logged")
def test_a_fault_that_was_gone_meanwhile_is_a_new_event(received: list[Event]) -> None:
    publish(EventKind.DRIVER_GONE, "No driver is usable")
    events._Published.faults.clear()  # the next process, which finds no fault
    ignore_known_faults(get_fault_digests())
    publish(EventKind.DRIVER_GONE, "No driver is usable")
    assert len(received) == 2


@pytest.mark.usefixtures("logged")
def test_a_fault_that_only_repeats_stays_known_for_the_next_poll(received: list[Event]) -> None:
    publish(EventKind.DRIVER_GONE, "No driver is usable")
    ignore_known_faults(get_fault_digests())
    events._Published.faults.clear()  # the next process
    publish(EventKind.DRIVER_GONE, "No driver is usable")
    ignore_known_faults(get_fault_digests())
    publish(EventKind.DRIVER_GONE, "No driver is usable")
    assert len(received) == 1
