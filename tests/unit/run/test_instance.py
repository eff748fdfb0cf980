"""The last look before a run falls asleep: what somebody changed until then would else be seen by nobody."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest

from toolkit_installer import events
from toolkit_installer.applying.reload_gate import ReloadGate
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.documents import changes
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState, SavedReports
from toolkit_installer.kubernetes.verdicts import CleanupState
from toolkit_installer.kubernetes.wanted import DaemonSetQuery
from toolkit_installer.node import idling
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.receipt.schema import FILE, FOLDER, SPECIFICATION_ROLE, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import saved_state
from toolkit_installer.reporting.cluster import NodeReport
from toolkit_installer.reporting.metrics import MetricsReport
from toolkit_installer.reporting.metrics_text import Counts
from toolkit_installer.reporting.outcome import InspectionOutcome, InspectionRecorder
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run.converge import Converger, MissingDriver, RunContext
from toolkit_installer.run.instance import Instance, RunCleanup
from toolkit_installer.run.node_status import NodeStatusReporter, RunReports
from toolkit_installer.settings import ClusterSettings, OnDrift, ReportSettings, ToolkitSettings
from toolkit_installer.waiting import wait
from toolkit_installer.waiting.node_watch import DriftWatch, DriverHistory, DriverWatch, GpuWatch
from toolkit_installer.waiting.readiness import ReadinessWatch

PATH = "/var/run/cdi/nvidia.com-gpu.yaml"
INSTALL_DIR = "/usr/local/nvidia"
OURS, THEIRS = b"/usr/local/nvidia/toolkit/nvidia-cdi-hook\n", b"theirs\n"
RECORD = FileRecord(SPECIFICATION_ROLE, PATH, None, written=(changes.sha256(OURS),))
INSTALLED = Receipt(State.INSTALLED, "1", f"{INSTALL_DIR}/toolkit", (), (), "/run/toolkit.pid", (), (), (RECORD,))
_MOST_ATTEMPTS = 50
PENDING = Pending(("docker",), "it is outside of 02:00-04:00", 1.0)


NOTHING_SAVED = SavedState()
CLUSTER = ClusterSettings("toolkit-installer", "gpu-node-1", "::1")
REPORTS = ReportSettings("gpu-node-1", "::1")


class Asleep(Exception):  # noqa: N818  # it stands for an exec, which is no error
    """The run has become the idle process."""


def no_plan(_receipt: Receipt | None) -> NoReturn:
    raise ConfigurationError("nothing is planned here")


class Repairer(Converger):
    """A converger that puts one file back."""

    place: Path
    converged = 0

    def converge(self, _begin: Callable[[Receipt | None], None]) -> InstallerError | None:
        self.converged += 1
        assert self.converged < _MOST_ATTEMPTS, "it never falls asleep"
        self.place.write_bytes(OURS)
        return None


class Run:
    """An instance that has nothing left to do, on a node whose file somebody may have changed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = folder / PATH.lstrip("/")
        self.place.parent.mkdir(parents=True)
        self.node = Node(str(folder))
        self.pid_file = PidFile.acquire(self.node.files, "/x.pid")
        self.watched: list[tuple[str, str, str]] = []
        self.saved = SavedState()
        self.store = ReceiptStore(self.node, INSTALL_DIR)
        self.store.prepare()
        self.store.save(INSTALLED, {})
        monkeypatch.setattr(wait, "wait", self._sleep)

    def _sleep(
        self, _file: PidFile, _lock: int | None, watched: Any, _command: Any, state: Any, **_: object
    ) -> NoReturn:
        self.watched, self.saved = list(watched), saved_state.parse(state)
        raise Asleep

    def fall_asleep(
        self, content: bytes, on_drift: OnDrift, state: SavedState = NOTHING_SAVED, woken_by: Collection[str] = ()
    ) -> int:
        """Fall asleep again after a sleep that had this state; return how often the run has converged meanwhile."""
        self.place.write_bytes(content)
        node, toolkit = self.node, ToolkitSettings()
        context = RunContext(node, self.store, self.pid_file, SignalCollector(), INSTALL_DIR)
        gpus = GpuWatch(node, toolkit, may_idle=False)
        converger = Repairer(
            context, no_plan, ReloadGate("now", node), DriverWatch(node, toolkit), gpus, MissingDriver.END, no_driver
        )
        converger.place = self.place
        drift = DriftWatch(node, f"{self.store.folder}/{FILE}", on_drift, toolkit, no_plan)
        readiness = ReadinessWatch(node, toolkit, None, 1.0, checks_toolkit=True, reports=False)
        reports = RunReports(NodeReport(REPORTS, node), MetricsReport(node, None, None, checks_drift=False))
        status = NodeStatusReporter(readiness, reports, InspectionRecorder(), None)
        query = DaemonSetQuery(CLUSTER)
        cleanup = RunCleanup(context, status, query, never_reverted, never=False, daemon=True)
        instance = Instance(context, converger, drift, status, query, cleanup, daemon=True)
        with pytest.raises(Asleep):
            instance.resume(woken_by, state)
        return converger.converged

    @property
    def managed(self) -> list[tuple[str, str]]:
        """What it has watched of the managed files."""
        return [(path, identity) for event, path, identity in self.watched if event == idling.DRIFT]

    @property
    def as_it_is(self) -> list[tuple[str, str]]:
        """The same, as it is right now, and the receipt."""
        receipt = self.node.root.outside(f"{INSTALL_DIR}/{FOLDER}/{FILE}")
        return [(path, idling.identity(path)) for path in (str(self.place), receipt)]


def no_driver() -> NoReturn:
    pytest.fail("it waits for a driver")


def never_reverted(_receipt: Receipt, _request: bytes | None) -> NoReturn:
    pytest.fail("it reverts")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = Run(tmp_path, monkeypatch)
    yield made
    made.pid_file.release()


@pytest.mark.parametrize("on_drift", [OnDrift.REPORT, OnDrift.REPAIR])
def test_a_run_whose_files_are_as_written_falls_asleep_at_once_and_has_them_watched(
    run: Run, logged: io.StringIO, on_drift: OnDrift
) -> None:
    assert run.fall_asleep(OURS, on_drift) == 0
    assert run.managed == run.as_it_is
    assert "event=drift" not in logged.getvalue()


def test_what_was_changed_just_before_is_repaired_first(run: Run, logged: io.StringIO) -> None:
    assert run.fall_asleep(THEIRS, OnDrift.REPAIR) == 1
    assert logged.getvalue().count("event=drift-repair") == 1
    assert run.managed == run.as_it_is


def test_what_was_changed_just_before_is_told_once_and_stays(run: Run, logged: io.StringIO) -> None:
    assert run.fall_asleep(THEIRS, OnDrift.REPORT) == 0
    assert logged.getvalue().count("event=drift ") == 1
    assert run.place.read_bytes() == THEIRS
    assert run.managed == run.as_it_is


@pytest.mark.parametrize("on_drift, told", [(OnDrift.REPAIR, 0), (OnDrift.REPORT, 1)])
def test_a_repair_waits_for_the_reload_that_is_put_off_and_a_report_does_not(
    run: Run, logged: io.StringIO, on_drift: OnDrift, told: int
) -> None:
    assert run.fall_asleep(THEIRS, on_drift, SavedState(pending=PENDING)) == 0
    assert logged.getvalue().count("event=drift") == told
    assert run.managed == run.as_it_is
    assert run.saved.pending == PENDING


def test_where_nobody_wants_to_know_nothing_is_watched_or_told(run: Run, logged: io.StringIO) -> None:
    assert run.fall_asleep(THEIRS, OnDrift.IGNORE) == 0
    assert run.managed == []
    assert "event=drift" not in logged.getvalue()


def test_a_run_that_finds_nothing_changed_saves_what_it_has_restored(run: Run) -> None:
    before = SavedState(
        driver=(("/run/nvidia/driver", "absent 2"),),
        driver_missing=True,
        driver_history=DriverHistory.WORKING,
        tries=0,
        command=("python", "-m", "toolkit_installer"),
        cleanup_state=CleanupState(bare=True, wanted=True, accepted=("system:serviceaccount:a:b 1 2",)),
        converged_at=1_800_000_000.5,
        failure="dockerd does not answer",
        report=SavedReports(NodeState(ConditionReason.SERVING), 5.0, ready=False, begun=True),
        counts=Counts((("docker", "install", 1),), (("docker", 2.5),), 1, "done", 1_800_000_000.0),
        pending=PENDING,
        inspection=InspectionOutcome(5.0, ExitCode.ENGINE_DOWN, "down", lines=("a line",)),
    )
    assert run.fall_asleep(OURS, OnDrift.REPORT, before) == 0
    assert msgspec.structs.replace(run.saved, line_digests=(), fault_digests=()) == before


class Reports:
    """The reports and the ready file of a run that ends: each notes its calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.reports, self.readiness, self.ready_file = self, self, self

    def prepare_shutdown(self) -> None:
        self.done.append("last report")

    def remove_reports(self) -> None:
        self.done.append("no reports")

    def clear_before_cleanup(self) -> None:
        self.done.append("not ready")


@pytest.mark.parametrize(
    "never, daemon, wanted, request_of, reverted",
    [
        (False, True, None, None, True),
        (True, True, None, None, False),
        (False, False, None, None, False),
        (False, True, True, None, False),
        (False, True, False, None, True),
        (True, False, True, b"remove\n", True),
    ],
    ids=["by default", "never", "no daemon", "wanted", "unwanted", "uninstall"],
)
def test_a_run_cleans_up_at_its_end_unless_the_node_is_to_stay(
    run: Run, *, never: bool, daemon: bool, wanted: bool | None, request_of: bytes | None, reverted: bool
) -> None:
    if request_of is not None:
        run.store.leave_request(request_of)
    context = RunContext(run.node, run.store, run.pid_file, SignalCollector(), INSTALL_DIR)
    reports: Any = Reports()
    query: Any = SimpleNamespace(is_cleanup_due=lambda: not wanted) if wanted is not None else None
    done: list[bytes | None] = []
    cleanup = RunCleanup(context, reports, query, lambda _, request: done.append(request), never=never, daemon=daemon)
    cleanup.clean_up_or_leave()
    assert done == ([request_of] if reverted else [])
    assert reports.done == ["last report", "not ready", *(["no reports"] if reverted else [])]


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
    run.fall_asleep(OURS, OnDrift.REPORT, SavedState(fault_digests=("fault",)), woken_by)
    assert events._Published.known_faults == known
    assert "new" in run.saved.fault_digests
