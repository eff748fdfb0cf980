"""The last look before a run falls asleep: what somebody changed until then would else be seen by nobody."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from toolkit_installer import events
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.documents import changes
from toolkit_installer.node import idling
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.schema import FILE, FOLDER, SPECIFICATION_ROLE, FileRecord, Receipt, State
from toolkit_installer.reporting import saved_state
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run.instance import Instance
from toolkit_installer.settings import OnDrift, Settings
from toolkit_installer.waiting import wait
from toolkit_installer.waiting.readiness import Readiness

PATH = "/var/run/cdi/nvidia.yaml"
INSTALL_DIR = "/usr/local/nvidia"
OURS, THEIRS = b"ours\n", b"theirs\n"
RECORD = FileRecord(SPECIFICATION_ROLE, PATH, None, (changes.sha256(OURS),))
INSTALLED = Receipt(State.INSTALLED, "1", "/usr/local/nvidia/toolkit", (), (), "/run/x.pid", (), (), (RECORD,))
_MOST_LOOKS = 50
PENDING = Pending(("docker",), "it is outside of 02:00-04:00", 1.0)


class Asleep(Exception):  # noqa: N818  # it stands for an exec, which is no error
    """The run has become the idle process."""


class Run:
    """An instance that has nothing left to do, on a node whose file somebody may have changed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = folder / PATH.lstrip("/")
        self.place.parent.mkdir(parents=True)
        self.node = Node(str(folder))
        self.pid_file = PidFile.acquire(self.node.files, "/x.pid")
        self.converged = 0
        self.watched: list[tuple[str, str, str]] = []
        self.saved = SavedState()
        self.looks = 0
        monkeypatch.setattr(trust, "load_if_usable", self._look)
        monkeypatch.setattr(Readiness, "mark", lambda *_, **__: None)
        monkeypatch.setattr(Instance, "converge", lambda _: self._converge())
        monkeypatch.setattr(wait, "wait", self._sleep)

    def _look(self, *_: object) -> Receipt:
        self.looks += 1
        assert self.looks < _MOST_LOOKS, "it never falls asleep"
        return INSTALLED

    def _converge(self) -> None:
        self.converged += 1
        self.place.write_bytes(OURS)

    def _sleep(
        self, _file: PidFile, _lock: int | None, watched: Any, _command: Any, state: Any, **_: object
    ) -> NoReturn:
        self.watched, self.saved = list(watched), saved_state.parse(state)
        raise Asleep

    def fall_asleep(self, content: bytes, on_drift: OnDrift, pending: Pending | None = None) -> None:
        self.place.write_bytes(content)
        instance = Instance(Settings(on_drift=on_drift), self.node, self.pid_file)
        with pytest.raises(Asleep):
            instance.resume((), SavedState(pending=pending))

    @property
    def managed(self) -> list[tuple[str, str]]:
        """What it has watched of the managed files."""
        return [(path, identity) for event, path, identity in self.watched if event == idling.DRIFT]

    @property
    def as_it_is(self) -> list[tuple[str, str]]:
        """The same, as it is right now, and the receipt."""
        receipt = self.node.root.outside(f"{INSTALL_DIR}/{FOLDER}/{FILE}")
        return [(path, idling.identity(path)) for path in (str(self.place), receipt)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = Run(tmp_path, monkeypatch)
    yield made
    made.pid_file.release()


@pytest.mark.parametrize("on_drift", [OnDrift.REPORT, OnDrift.REPAIR])
def test_a_run_whose_files_are_as_written_falls_asleep_at_once_and_has_them_watched(
    run: Run, logged: io.StringIO, on_drift: OnDrift
) -> None:
    run.fall_asleep(OURS, on_drift)
    assert run.managed == run.as_it_is
    assert run.converged == 0
    assert "event=drift" not in logged.getvalue()


def test_what_was_changed_just_before_is_repaired_first(run: Run, logged: io.StringIO) -> None:
    run.fall_asleep(THEIRS, OnDrift.REPAIR)
    assert logged.getvalue().count("event=drift-repair") == 1
    assert run.converged == 1
    assert run.managed == run.as_it_is


def test_what_was_changed_just_before_is_told_once_and_stays(run: Run, logged: io.StringIO) -> None:
    run.fall_asleep(THEIRS, OnDrift.REPORT)
    assert logged.getvalue().count("event=drift ") == 1
    assert run.converged == 0
    assert run.place.read_bytes() == THEIRS
    assert run.managed == run.as_it_is


@pytest.mark.parametrize("on_drift, told", [(OnDrift.REPAIR, 0), (OnDrift.REPORT, 1)])
def test_a_repair_waits_for_the_reload_that_is_put_off_and_a_report_does_not(
    run: Run, logged: io.StringIO, on_drift: OnDrift, told: int
) -> None:
    run.fall_asleep(THEIRS, on_drift, PENDING)
    assert run.converged == 0
    assert logged.getvalue().count("event=drift") == told
    assert run.managed == run.as_it_is
    assert run.saved.pending == PENDING


def test_where_nobody_wants_to_know_nothing_is_watched_or_told(run: Run, logged: io.StringIO) -> None:
    run.fall_asleep(THEIRS, OnDrift.IGNORE)
    assert run.managed == []
    assert run.converged == 0
    assert "event=drift" not in logged.getvalue()


@pytest.mark.parametrize(
    "woken_by, known",
    [({idling.LATER}, {"fault"}), ({idling.LATER, idling.DRIFT}, set()), ({"SIGHUP", idling.LATER}, set())],
    ids=["a poll", "a change", "a request"],
)
def test_only_a_poll_makes_no_new_event_of_a_fault_that_it_finds_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, woken_by: set[str], known: set[str]
) -> None:
    monkeypatch.setattr(events._Published, "known_faults", frozenset())
    monkeypatch.setattr(events._Published, "faults", {"new": None})
    instance = Instance(Settings(), run.node, run.pid_file)
    with pytest.raises(Asleep):
        instance.resume(woken_by, SavedState(faults=("fault",)))
    assert events._Published.known_faults == known
    assert "new" in run.saved.faults
