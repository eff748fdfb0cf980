"""What is said of a node, and of many, by two captures: what is known, and of what is not that it is not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from toolkit_installer.fleet import archive, compare
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.compare import (
    CapturedText,
    CompareSummary,
    Comparison,
    EarlierNode,
    Findings,
    LaterNode,
    ManagedState,
    RolloutStatus,
    find_outdated,
)
from toolkit_installer.fleet.forecast import Refusal
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.settings import EngineName

FILE = "/etc/docker/daemon.json"
OTHER = "/etc/docker/other.json"
FINE = RolloutStatus(left_alone=True)
WAS_BEFORE = "a run wrote it so: it was changed before that"
WAS_AFTER = "changed since a run wrote it"
BY_NOBODY = "no receipt names it"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def text(content: str) -> CapturedText:
    """Return a text in which nothing is hidden."""
    return CapturedText(content.encode(), digest(content), whole=True)


def secret(stand_in: str, key: str) -> CapturedText:
    """Return a text with a hidden value, by the name of the key that its stand-in was made with."""
    return CapturedText(f'{{"password": "hidden!{stand_in}"}}\n'.encode(), None, key)


NO_FILE = CapturedText(None)
A, B, C = text("oom_score = 1\n"), text("oom_score = 2\n"), text("oom_score = 3\n")


def written(state: str | None = "as written", *texts: str, path: str = FILE) -> ManagedState:
    return ManagedState(path, state, tuple(map(digest, texts)))


def planned(target: CapturedText, was: CapturedText = A, **more: Any) -> EarlierNode:
    return EarlierNode({FILE: was}, {FILE: target}, **more)


DIFFERENCES: Mapping[str, tuple[EarlierNode, LaterNode, list[tuple[str, str, str]]]] = {
    "as planned": (planned(B), LaterNode({FILE: B}, (written(),)), []),
    "made as planned": (planned(B, NO_FILE), LaterNode({FILE: B}, (written(),)), []),
    "removed as planned": (planned(NO_FILE), LaterNode({FILE: NO_FILE}), []),
    "changed before the run": (planned(B), LaterNode({FILE: C}, (written(),)), [(FILE, "the plan", WAS_BEFORE)]),
    "changed after the run": (
        planned(B),
        LaterNode({FILE: C}, (written("changed by somebody else"),)),
        [(FILE, "the plan", WAS_AFTER)],
    ),
    "gone": (planned(B), LaterNode({FILE: NO_FILE}, (written("missing"),)), [(FILE, "the plan", WAS_AFTER)]),
    "never written, which is what a run would still change": (planned(B), LaterNode({FILE: A}), []),
    "left alone by the plan": (planned(A), LaterNode({FILE: B}), [(FILE, "the capture before", BY_NOBODY)]),
    "nobody planned anything": (
        EarlierNode({OTHER: A}),
        LaterNode({OTHER: B}),
        [(OTHER, "the capture before", BY_NOBODY)],
    ),
    "nobody planned, and nothing changed": (EarlierNode({OTHER: A}), LaterNode({OTHER: A}), []),
    "only in one of the captures": (EarlierNode({OTHER: A}), LaterNode({FILE: B}), []),
    "set aside": (EarlierNode({OTHER: A}), LaterNode({OTHER: B}, ignored=frozenset({OTHER})), []),
    "in a folder that is set aside": (
        EarlierNode({OTHER: A}),
        LaterNode({OTHER: B}, ignored=frozenset({"/etc/docker/"})),
        [],
    ),
    "beside a folder that is set aside": (
        EarlierNode({OTHER: A}),
        LaterNode({OTHER: B}, ignored=frozenset({"/etc/doc"})),
        [(OTHER, "the capture before", BY_NOBODY)],
    ),
    "made anew at each boot": (EarlierNode({"/run/x/y": A}), LaterNode({"/run/x/y": B}), []),
    "given back as it was": (
        EarlierNode({FILE: B}, restored={FILE: A.digest}),
        LaterNode({FILE: A}),
        [],
    ),
    "given back, and there was none": (EarlierNode({FILE: B}, restored={FILE: None}), LaterNode({FILE: NO_FILE}), []),
    "the same hidden value by one key": (planned(secret("1", "k")), LaterNode({FILE: secret("1", "k")}), []),
    "another hidden value by one key": (
        planned(secret("1", "k")),
        LaterNode({FILE: secret("2", "k")}),
        [(FILE, "the plan", BY_NOBODY)],
    ),
    "more than a secret": (
        planned(secret("1", "k"), C),
        LaterNode({FILE: A}),
        [(FILE, "the plan", BY_NOBODY)],
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_nobody_planned_is_told_and_nothing_else(name: str) -> None:
    before, after, wanted = DIFFERENCES[name]
    found = compare.find_changes(before, after, FINE)
    assert [(each.path, each.against, each.since) for each in found.differences] == wanted
    assert found.untold == ()


UNTOLD: Mapping[str, tuple[EarlierNode | None, LaterNode, RolloutStatus, str]] = {
    "a file that was not captured": (planned(B), LaterNode({}), FINE, f"what {FILE} is now"),
    "a hidden value by other keys": (
        planned(secret("1", "k")),
        LaterNode({FILE: secret("1", "l")}, (written(),)),
        FINE,
        "whether a hidden value in",
    ),
    "a hidden value by keys that are not known": (
        planned(secret("1", "")),
        LaterNode({FILE: secret("2", "")}, (written(),)),
        FINE,
        "whether a hidden value in",
    ),
    "given back, and something else": (
        EarlierNode({FILE: B}, restored={FILE: A.digest}),
        LaterNode({FILE: C}),
        FINE,
        "was to be given back",
    ),
    "given back, and not captured": (
        EarlierNode({FILE: B}, restored={FILE: None}),
        LaterNode({}),
        FINE,
        "was to be given back",
    ),
    "nothing was planned": (
        EarlierNode({FILE: A}, unplanned_reason="not captured: x"),
        LaterNode({FILE: B}, own={FILE: B}),
        FINE,
        f"what a run was to make of {FILE}: not captured: x",
    ),
    "other programs": (
        planned(B, programs=frozenset("a")),
        LaterNode({FILE: C}, programs=frozenset("ab")),
        FINE,
        "has other programs",
    ),
    "a managed file that was not captured": (None, LaterNode({}, (written(None),)), FINE, "is as it was written"),
    "what a run would do": (
        None,
        LaterNode({}),
        RolloutStatus(left_alone=True, untold="not captured: x"),
        "not captured: x",
    ),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_what_captures_do_not_tell_is_said_and_no_difference_made_of_it(name: str) -> None:
    before, after, standing, words = UNTOLD[name]
    found = compare.find_changes(before, after, standing)
    assert (found.differences, len(found.untold)) == ((), 1)
    assert words in found.untold[0]


def test_a_file_that_did_not_change_is_told_of_where_nothing_was_planned() -> None:
    before = EarlierNode({FILE: A}, unplanned_reason="not captured: x")
    assert compare.find_changes(before, LaterNode({FILE: A}, own={FILE: A}), FINE) == Findings()


DRIFT: Mapping[str, tuple[EarlierNode | None, LaterNode, str, str]] = {
    "what was written is in the earlier capture": (
        EarlierNode({FILE: A}),
        LaterNode({FILE: B}, (written("x", "oom_score = 1\n"),), {FILE: C}),
        "what was written",
        "-oom_score = 1",
    ),
    "what was written was planned": (
        planned(C),
        LaterNode({FILE: B}, (written("x", "oom_score = 3\n"),), {FILE: A}),
        "what was written",
        "-oom_score = 3",
    ),
    "what was planned": (
        planned(C),
        LaterNode({FILE: B}, (written("x", "?"),)),
        "what was planned to be written",
        "-oom_score = 3",
    ),
    "what a run would write": (
        None,
        LaterNode({FILE: B}, (written("x", "?"),), {FILE: A}),
        "what a run would write now",
        "-oom_score = 1",
    ),
}


@pytest.mark.parametrize("name", DRIFT)
def test_drift_is_shown_from_the_best_that_is_known_of_what_was_written(name: str) -> None:
    before, after, against, line = DRIFT[name]
    (found,) = compare.find_changes(before, after, FINE).drifted
    assert (found.path, found.state, found.against) == (FILE, "x", against)
    assert line in found.diff.split("\n")
    assert "+oom_score = 2" in found.diff.split("\n")


@pytest.mark.parametrize("own", [{}, {FILE: B}], ids=["nothing is planned", "it stays as it is"])
def test_drift_is_told_also_where_nothing_is_known_of_what_was_written(own: Mapping[str, CapturedText]) -> None:
    (found,) = compare.find_changes(None, LaterNode({FILE: B}, (written("x", "?"),), own), FINE).drifted
    assert (found.against, found.diff) == ("", "")


def test_secrets_are_masked_and_what_stands_for_them_is_no_difference() -> None:
    before = CapturedText(b'{"password": "hidden!1", "mtu": 1}\n')
    after = CapturedText(b'{"password": "hidden!2", "mtu": 2}\n')
    shown = compare.format_difference(FILE, before, after)
    assert '"mtu": 2' in shown
    assert "hidden!" not in shown
    assert "(changed)" not in shown


def test_what_is_no_text_is_not_shown() -> None:
    assert compare.format_difference(FILE, CapturedText(b"\0a"), CapturedText(b"\0b")) == ""


def receipt(**changed: Any) -> Receipt:
    known = Receipt(
        state=State.INSTALLED,
        installer="0.1.0",
        toolkit_folder="/usr/local/nvidia/toolkit",
        toolkit_files=("libnvidia-container.so.1.19.0",),
        folders=(),
        pid_file="/run/nvidia/toolkit.pid",
        pid_folders=(),
        engines=(),
    )
    return msgspec.structs.replace(known, **changed)


DUE = EngineRecord(EngineName.DOCKER, "/run/docker.sock", None, (), None, (), reload_due=True)
LAGS: Mapping[str, tuple[RolloutStatus, list[str]]] = {
    "converged": (RolloutStatus(receipt()), []),
    "no receipt": (RolloutStatus(), ["nothing is installed"]),
    "without a GPU": (RolloutStatus(left_alone=True), []),
    "refused": (RolloutStatus(refused="no driver"), ["a run would refuse: no driver"]),
    "amid a change": (
        RolloutStatus(receipt(state=State.APPLYING)),
        ["a run was at work there, or was killed: its receipt says applying"],
    ),
    "a reload is due": (RolloutStatus(receipt(engines=(DUE,))), ["docker has not taken its files over yet"]),
    "not converged": (
        RolloutStatus(receipt(), pending="1 file installed."),
        ["a run would still change it: 1 file installed."],
    ),
}


@pytest.mark.parametrize("name", LAGS)
def test_a_node_that_is_behind_is_told_with_its_reason(name: str) -> None:
    standing, wanted = LAGS[name]
    assert list(compare.find_changes(None, LaterNode({}), standing).lags) == wanted


def test_a_receipt_that_does_not_say_which_toolkit_is_installed_is_said() -> None:
    found = compare.find_changes(None, LaterNode({}), RolloutStatus(receipt(toolkit_files=())))
    assert (found.installer, found.release) == ("0.1.0", None)
    assert "which release" in found.untold[0]


def test_facts_are_compared_where_both_captures_have_them() -> None:
    before = EarlierNode({}, facts={"docker's version": "27.1", "the GPUs": "a", "gone": "1"})
    after = LaterNode({}, facts={"docker's version": "28.0", "the GPUs": "a", "new": "1"})
    (found,) = compare.find_changes(before, after, FINE).facts
    assert (found.what, found.before, found.after) == ("docker's version", "27.1", "28.0")


# --- many nodes ---


@pytest.mark.parametrize(
    "versions, lagging",
    [
        ({}, set()),
        ({"a": "0.1.0", "b": "0.1.0"}, set()),
        ({"a": "0.1.0", "b": "0.2.0", "c": "0.2.0"}, {"a"}),
        ({"a": "0.1.0", "b": "0.1.0", "c": "0.2.0"}, set()),
        ({"a": "0.9.0", "b": "0.10.0"}, {"a"}),
        ({"a": "1.18.0", "b": "1.18.0-rc.1", "c": "1.18.0"}, set()),
        ({"a": "?", "b": "1.0", "c": "1.0"}, {"a"}),
    ],
)
def test_older_is_what_has_smaller_numbers_than_most_and_of_as_many_than_the_newest(
    versions: dict[str, str], lagging: set[str]
) -> None:
    assert set(find_outdated("it", versions)) == lagging


def summary(nodes: Mapping[str, Findings], before: set[str] | None = None) -> CompareSummary:
    comparison = Comparison()
    comparison.name(set(nodes) if before is None else before, nodes)
    for node, found in nodes.items():
        comparison.add(node, found)
    return comparison.summary("0.1.0")


CLEAN = Findings(installer="0.1.0", release="1.19.0")
CHANGED = compare.find_changes(
    planned(B), LaterNode({FILE: C}, (written("x", "oom_score = 2\n"),)), RolloutStatus(receipt())
)
FACT = compare.find_changes(EarlierNode({}, facts={"x": "1"}), LaterNode({}, facts={"x": "2"}), FINE)
BEHIND = compare.find_changes(None, LaterNode({}), RolloutStatus())
SILENT = compare.find_changes(None, LaterNode({}, (written(None),)), FINE)


def test_nodes_of_which_the_same_is_to_be_said_are_told_together_and_counted_once() -> None:
    found = summary({"n1": CHANGED, "n2": CHANGED, "n3": FACT, "n4": BEHIND, "n5": SILENT, "n6": CLEAN})
    assert [each.nodes for each in found.unplanned] == [("n1", "n2")]
    assert [(each.path, each.nodes, [group.nodes for group in each.groups]) for each in found.drift] == [
        (FILE, 2, [("n1", "n2")])
    ]
    totals = found.nodes
    assert (totals.unplanned, totals.drifted, totals.lagging, totals.untold) == (3, 2, 1, 1)


@pytest.mark.parametrize(
    "found, clean", [(CLEAN, True), (CHANGED, False), (FACT, False), (BEHIND, False), (SILENT, False)]
)
def test_it_is_clean_only_where_nothing_was_found_and_all_was_told(*, found: Findings, clean: bool) -> None:
    assert summary({"n1": found}).clean == clean


def test_nodes_of_one_set_alone_do_not_count_and_captures_that_cannot_be_used_do() -> None:
    assert summary({"n1": CLEAN}, before={"n2"}).clean
    comparison = Comparison()
    comparison.refuse("x.capture", Refusal("is damaged", None, 3, "x"))
    assert not comparison.summary("0.1.0").clean


# --- texts of captures ---


HEAD = Archive(
    schema=archive.SCHEMA,
    version="0.1.0",
    node="a",
    given={},
    environment={},
    root="/",
    programs_root="/",
    whole=True,
    digests={digest("hidden"): "true"},
    unread={},
    secrets_kept=False,
    answers={},
    key="k",
)
PLAIN, HIDDEN = "version = 1\n", '{"password": "hidden!1"}'


@pytest.mark.parametrize(
    "content, now, kept, known",
    [
        (PLAIN, None, False, digest(PLAIN)),
        ("hidden", None, False, "true"),
        (HIDDEN, None, False, None),
        (HIDDEN, HIDDEN, False, digest(HIDDEN)),
        (HIDDEN, None, True, digest(HIDDEN)),
    ],
    ids=["nothing is hidden", "as it was captured", "made of what is hidden", "left as it is", "secrets are kept"],
)
def test_the_digest_of_a_planned_text_is_known_unless_a_value_is_hidden_in_it(
    content: str, now: str | None, *, kept: bool, known: str | None
) -> None:
    head = msgspec.structs.replace(HEAD, secrets_kept=kept)
    found = compare.make_planned_text(head, content.encode(), now.encode() if now is not None else None)
    assert found == CapturedText(content.encode(), known, "k", whole=kept or content == PLAIN)
