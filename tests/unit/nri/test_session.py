"""The plugin's side of a connection, against an engine whose bytes are made by hand."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nri import engine
from toolkit_installer.nri.decision import DOMAIN, DevicesRefused, Granted, Policy, Withheld
from toolkit_installer.nri.session import (
    MAX_FRAME_BYTES,
    Answered,
    Engine,
    Event,
    Malformed,
    PluginConfigured,
    PluginIdentity,
    ProtocolError,
    Rejected,
    Serving,
    Session,
    ShuttingDown,
    Unsupported,
)

POLICY = Policy(frozenset({"gpu-operator"}))
EVERY_GPU = {DOMAIN: "management.nvidia.com/gpu=all"}


def session(policy: Policy = POLICY, *, configured: bool = True) -> Session:
    made = Session(PluginIdentity("toolkit-installer", 7), policy)
    made.begin()
    if configured:
        made.receive(engine.taken() + engine.configure() + engine.synchronize())
    return made


def test_it_registers_by_name_and_place() -> None:
    sent = Session(PluginIdentity("toolkit-installer", 7), POLICY).begin()
    ((call, kind, body),) = engine.messages(sent, engine.RUNTIME)
    assert (call, kind) == (1, engine.REQUEST)
    parts = dict(engine.fields(body))
    assert (parts[1], parts[2]) == (b"nri.pkg.api.v1alpha1.Runtime", b"RegisterPlugin")
    assert dict(engine.fields(parts[3] if isinstance(parts[3], bytes) else b"")) == {1: b"toolkit-installer", 2: b"07"}


def test_it_is_configured_to_be_asked_about_new_containers_and_nothing_else() -> None:
    made = session(configured=False)
    sent, events = made.receive(engine.configure(1) + engine.taken() + engine.synchronize(3))
    assert engine.answers(sent) == {1: (0, "", engine.field(2, 0b1000)), 3: (0, "", b"")}
    assert events == [PluginConfigured(Engine("containerd", "v2.1.4")), Serving()]


def test_an_engine_that_tells_its_containers_in_parts_is_heard_to_the_end() -> None:
    made = session(configured=False)
    made.receive(engine.configure())
    sent, events = made.receive(engine.synchronize(3, more=True) + engine.synchronize(5, more=True))
    assert engine.answers(sent) == {3: (0, "", engine.field(2, 1)), 5: (0, "", engine.field(2, 1))}
    assert events == []
    sent, events = made.receive(engine.synchronize(7))
    assert engine.answers(sent) == {7: (0, "", b"")}
    assert events == [Serving()]


def test_a_container_that_asks_for_nothing_is_left_as_it_is_and_not_told_of() -> None:
    sent, events = session().receive(engine.create(5, "default", {"app": "web"}))
    assert engine.answers(sent) == {5: (0, "", b"")}
    assert events == []


def test_one_that_asks_gets_its_devices() -> None:
    names = [f"nvidia.com/gpu={number}" for number in range(500)]
    sent, events = session().receive(engine.create(5, "default", {f"{DOMAIN}/container.main": ",".join(names)}))
    code, _, payload = engine.answers(sent)[5]
    assert (code, engine.devices(payload)) == (0, names)
    assert events == [Answered("default/train/main", Granted(tuple(names)))]
    assert max(len(content) for _, content in engine.frames(sent)) <= 4096


def test_one_that_may_not_have_them_is_refused_so_that_its_user_sees_why() -> None:
    sent, events = session().receive(engine.create(5, "default", EVERY_GPU))
    code, words, payload = engine.answers(sent)[5]
    assert (code, payload) == (7, b"")
    assert "only pods in these namespaces may have: gpu-operator" in words
    assert events == [Answered("default/train/main", DevicesRefused(words))]


def test_under_the_old_names_it_starts_without() -> None:
    sent, (event,) = session(POLICY._replace(lenient=True)).receive(engine.create(5, "default", EVERY_GPU))
    assert engine.answers(sent) == {5: (0, "", b"")}
    assert isinstance(event, Answered)
    assert isinstance(event.verdict, Withheld)


def test_an_engine_that_would_leave_the_devices_out_is_told_no() -> None:
    made = session(configured=False)
    sent, (event,) = made.receive(engine.configure(version="v2.0.7"))
    code, words, _ = engine.answers(sent)[1]
    assert (code, event) == (9, Unsupported(words))
    assert "containerd v2.0.7" in words
    sent, _ = made.receive(engine.create(3, "gpu-operator", EVERY_GPU))
    assert engine.answers(sent)[3][0] == 9


def test_an_engine_that_does_not_take_the_plugin_is_quoted() -> None:
    assert session(configured=False).receive(engine.refused("no such index")) == (b"", [Rejected("no such index")])


@pytest.mark.parametrize("method", ["StateChange", "StopPodSandbox", "UpdateContainer"])
def test_what_it_did_not_subscribe_to_it_leaves_alone(method: str) -> None:
    sent, events = session().receive(engine.request(5, method, b"\x0a\x00"))
    assert (engine.answers(sent), events) == ({5: (0, "", b"")}, [])


@pytest.mark.parametrize("service", ["nri.pkg.api.v1alpha1.Plugin", "nri.pkg.api.v2.Plugin"])
def test_what_it_does_not_know_it_says_so(service: str) -> None:
    method = "Dance" if service.endswith("v1alpha1.Plugin") else "Configure"
    sent, events = session(configured=False).receive(engine.request(5, method, service=service))
    assert engine.answers(sent)[5][0] == 12
    assert events == []


def test_an_engine_that_ends_says_so() -> None:
    sent, events = session().receive(engine.request(5, "Shutdown"))
    assert (engine.answers(sent), events) == ({5: (0, "", b"")}, [ShuttingDown()])


@pytest.mark.parametrize("method", ["Configure", "Synchronize", "CreateContainer"])
@pytest.mark.parametrize("payload", [b"\xff", engine.field(1, b"\xff\xff") + b"\x0a\x7f", b"\x0b"])
def test_an_unreadable_call_is_an_error_to_the_engine_and_the_next_is_answered(method: str, payload: bytes) -> None:
    made = session()
    sent, events = made.receive(engine.request(5, method, payload) + engine.create(7, "default", {}))
    answers = engine.answers(sent)
    assert answers[5][0] == 3
    assert answers[7] == (0, "", b"")
    assert [type(event) for event in events] == [Malformed]


def test_a_container_with_annotations_that_are_no_text_is_never_created_unjudged() -> None:
    note = engine.field(6, engine.field(1, DOMAIN) + engine.field(2, b"management.nvidia.com/gpu=\xff"))
    sent, _ = session().receive(engine.request(5, "CreateContainer", engine.field(1, note)))
    assert engine.answers(sent)[5][0] == 3


def test_streams_and_kinds_of_messages_that_it_does_not_know_are_left_alone() -> None:
    made = session()
    noise = engine.frame(3, b"\xff" * 50) + engine.frame(0, b"\xff") + engine.frame(1, engine.message(9, 3, b"data"))
    noise += engine.taken() + engine.refused("too late")
    sent, events = made.receive(noise + engine.create(11, "default", {}))
    assert (list(engine.answers(sent)), events) == ([11], [])


def test_what_is_too_long_ends_the_connection() -> None:
    for data in (struct.pack(">II", 1, MAX_FRAME_BYTES + 1), engine.frame(2, struct.pack(">IIBB", 2**31, 1, 1, 0))):
        with pytest.raises(ProtocolError):
            session().receive(data)


def test_an_answer_to_the_registration_that_cannot_be_read_ends_the_connection() -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        session(configured=False).receive(engine.frame(2, engine.message(1, engine.RESPONSE, b"\xff")))


CONVERSATION = (
    engine.taken()
    + engine.configure()
    + engine.synchronize()
    + engine.create(5, "default", {DOMAIN: "nvidia.com/gpu=0"})
    + engine.create(7, "default", EVERY_GPU)
    + engine.request(9, "Shutdown")
)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=40).map(sorted))
def test_it_says_the_same_however_the_bytes_come(places: list[int]) -> None:
    whole = session(configured=False).receive(CONVERSATION)
    made, sent = session(configured=False), b""
    events: list[Event] = []
    for start, end in zip([0, *places], [*places, len(CONVERSATION)], strict=True):
        more, told = made.receive(CONVERSATION[start:end])
        sent, events = sent + more, [*events, *told]
    assert (sent, events) == whole


@given(st.binary(max_size=300), st.integers(0, len(CONVERSATION)))
def test_whatever_comes_it_is_an_answer_or_the_end_of_the_connection(noise: bytes, place: int) -> None:
    with contextlib.suppress(ProtocolError):
        session(configured=False).receive(CONVERSATION[:place] + noise + CONVERSATION[place:])
