"""What a run saves before it waits is what it restores, and a state that is not understood is never half used."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.errors import ExitCode
from toolkit_installer.kubernetes.node_state import (
    ConditionReason,
    EventContent,
    EventLedger,
    NodeState,
    ReportedEvent,
    SavedReports,
)
from toolkit_installer.kubernetes.verdicts import CleanupState
from toolkit_installer.reporting import saved_state
from toolkit_installer.reporting.metrics_text import Counts
from toolkit_installer.reporting.outcome import InspectionOutcome
from toolkit_installer.reporting.saved_state import FORM, SavedState
from toolkit_installer.waiting import wait
from toolkit_installer.waiting.node_watch import DriverHistory
from toolkit_installer.waiting.plugin_protocol import PluginState, PluginStatus

_DRIFT = EventContent("Node", "Drift", "é", warning=True)
WHOLE = SavedState(
    driver=(("/dev/nvidiactl", "absent 2"), ("/a\nb", "1 2 3")),
    driver_missing=True,
    driver_history=DriverHistory.THERE,
    tries=2,
    without_gpu=True,
    command=("/usr/bin/python3", "-m", "toolkit_installer", "an odd name: \udcff"),
    cleanup_state=CleanupState(bare=True, wanted=True, accepted=("system:serviceaccount:a:b 1 2",)),
    engine_stopped=True,
    converged_at=1_800_000_000.5,
    failure="dockerd does not answer",
    line_digests=("a line",),
    fault_digests=("a fault",),
    differences=(("/etc/docker/daemon.json", "--- a\n+++ b\n"),),
    report=SavedReports(
        NodeState(ConditionReason.SERVING),
        5.0,
        ready=False,
        begun=True,
        failed=NodeState(ConditionReason.ENGINE_DOWN, "down"),
        labels=(("a", "b"),),
        ledger=EventLedger((ReportedEvent(_DRIFT, "n.1", 2, 1.0, 2.0),), (_DRIFT,), (2.0,)),
        failure="why",
    ),
    counts=Counts((("docker", "install", 1),), (("docker", 2.5),), 1, "done", 1_800_000_000.0),
    metrics_process=(7, 8),
    plugin=PluginState((9, 10), 3.0, PluginStatus(connected=True, engine="containerd v2.1.4", reason="")),
    pending=Pending(("docker",), "it is outside of 02:00-04:00", 1.0, 2.0, served=True),
    inspection=InspectionOutcome(5.0, ExitCode.ENGINE_DOWN, "down", "/run/docker.sock", None, "start it", ("a line",)),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_a_state_is_the_same_after_the_wait() -> None:
    assert saved_state.parse(json.loads(json.dumps(saved_state.plain(WHOLE)))) == WHOLE
    assert all(getattr(WHOLE, name) != getattr(SavedState(), name) for name in SavedState.__struct_fields__[:-1])


def test_fields_of_another_release_are_ignored_and_missing_ones_have_defaults() -> None:
    assert saved_state.parse({"form": FORM, "of a newer release": [1], "tries": 3}) == SavedState(tries=3)
    assert saved_state.parse({"form": FORM}) == SavedState()


@pytest.mark.parametrize(
    "saved",
    [
        *(None, [], "?", 7, {}),
        {"tries": "x"},
        {"cleanup_state": {"held": "no"}},
        {"driver": [["/a"]]},
        {"driver_history": "else"},
        {"pending": msgspec.to_builtins(WHOLE.pending) | {"since": "then"}},
        {"report": {"ledger": {"told": [{}]}}},
        {"plugin": [None, 0.0, 7]},
        {"inspection": {"began": 1.0, "exit_code": 999}},
        {"\ud800": 1},
        {"converged_at": 10**400},
        {"command": ["a\0b"]},
    ],
    ids=str,
)
def test_a_state_that_is_not_understood_is_unknown_as_a_whole(saved: object) -> None:
    if isinstance(saved, dict) and saved:
        saved = {"form": FORM, **saved}
    assert saved_state.parse(saved) == SavedState(parsed=False)


@pytest.mark.parametrize("form", [0, 2, None, "1"])
def test_a_state_of_another_form_is_unknown(form: object) -> None:
    assert saved_state.parse(saved_state.plain(WHOLE) | {"form": form}) == SavedState(parsed=False)


def test_of_a_state_that_is_not_understood_the_command_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for command, known in ((["a", "b"], ("a", "b")), (["a", 1], ()), (["\0"], ()), (None, ())):
        monkeypatch.setattr(wait, "read_saved", lambda _, words=command: {"command": words, "state": {"of": "another"}})
        assert saved_state.of_run(7) == SavedState(command=known, parsed=False)


@given(st.dictionaries(st.sampled_from(SavedState.__struct_fields__), VALUES))
def test_whatever_a_state_says_it_is_one_or_unknown(saved: dict[str, Any]) -> None:
    state = saved_state.parse({"form": FORM, **saved})
    assert state == SavedState(parsed=False) or state == saved_state.parse(saved_state.plain(state))
