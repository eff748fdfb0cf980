"""Where the end of a failed run is recorded, which records are believed, and what an inspection's outcome has."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, EngineDownError, ExitCode
from toolkit_installer.node import machine
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.reporting import outcome
from toolkit_installer.reporting.outcome import FILE, InspectionOutcome, InspectionRecorder, LastRun

PID_PATH = "/run/nvidia/toolkit.pid"
ENDED = LastRun(
    "run", "0.1.0", 3, "bad-configuration", "2026-11-23T06:12:09Z", "not valid TOML", "/etc/a", 7, "mend it"
)


class RecordFolders:
    """A node with the folder of its PID file, and the folder of the ready file, which is the installer's own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "node"
        self.run = self.root / "run/nvidia"
        self.run.mkdir(parents=True)
        self.own = folder / "pod"
        self.own.mkdir()
        self.node = Node(str(self.root))
        self.ready = str(self.own / "ready")

    def save(self, ended: LastRun = ENDED, *, reloaded: bool) -> None:
        outcome.save_record(self.node, PID_PATH, self.ready, ended, reloaded=reloaded)

    def load(self) -> LastRun | None:
        return outcome.load_record(self.node, [PID_PATH], self.ready)

    @property
    def found(self) -> list[str]:
        """The records, by the folder that each is in."""
        return [name for name in ("run", "own") if (getattr(self, name) / FILE).exists()]


@pytest.fixture
def folders(tmp_path: Path) -> RecordFolders:
    return RecordFolders(tmp_path)


@pytest.mark.parametrize("reloaded, place", [(True, "run"), (False, "own")])
def test_only_a_run_that_reloaded_an_engine_leaves_its_record_on_the_node(
    folders: RecordFolders, place: str, *, reloaded: bool
) -> None:
    folders.save(reloaded=reloaded)
    assert folders.found == [place]
    assert (getattr(folders, place) / FILE).stat().st_mode & 0o777 == 0o600
    assert folders.load() == ENDED


def test_no_folder_is_made_for_a_record(folders: RecordFolders) -> None:
    folders.own.rmdir()
    folders.save(reloaded=False)
    assert not folders.own.exists()
    assert folders.load() is None


def test_a_run_beside_another_one_leaves_no_record(folders: RecordFolders) -> None:
    held = PidFile.acquire(folders.node.files, PID_PATH)
    folders.save(reloaded=True)
    assert folders.found == []
    held.release()
    folders.save(reloaded=True)
    assert folders.found == ["run"]


def test_the_newest_of_two_records_counts(folders: RecordFolders) -> None:
    newer = msgspec.structs.replace(ENDED, ended="2026-11-23T06:12:10Z", command="uninstall")
    folders.save(reloaded=True)
    folders.save(newer, reloaded=False)
    assert folders.load() == newer


def test_a_success_removes_all_records_and_what_a_killed_run_left_of_one(folders: RecordFolders) -> None:
    for reloaded in (True, False):
        folders.save(reloaded=reloaded)
    (folders.run / f".{FILE}.toolkit-installer.tmp").write_text("half")
    (folders.run / "other").touch()
    outcome.remove_record(folders.node, PID_PATH, folders.ready)
    assert [each.name for each in folders.run.iterdir()] == ["other"]
    assert folders.found == []


@pytest.mark.parametrize("place", ["the file", "its folder"])
def test_a_record_that_others_can_write_is_not_believed(
    folders: RecordFolders, logged: io.StringIO, place: str
) -> None:
    folders.save(reloaded=True)
    (folders.run / FILE if place == "the file" else folders.run).chmod(0o777)
    assert folders.load() is None
    assert "event=last-run-unread" in logged.getvalue()


def record(**changed: Any) -> bytes:
    return json.dumps({"form": 1, "boot": "b", **msgspec.structs.asdict(ENDED), **changed}).encode()


def test_a_record_is_of_one_boot_and_one_form() -> None:
    assert outcome._parse_record(record(more=1), "/r", "b") == ENDED
    assert outcome._parse_record(record(), "/r", "another") is None
    assert outcome._parse_record(record(form=2), "/r", "another") is None
    with pytest.raises(ConfigurationError, match="of the form 2, which this version does not know"):
        outcome._parse_record(record(form=2), "/r", "b")


@given(
    st.binary(max_size=20)
    | st.dictionaries(
        st.sampled_from([*LastRun.__struct_fields__, "form", "boot"]),
        st.none() | st.integers(0, 2) | st.just("b") | st.lists(st.none(), max_size=1),
    ).map(lambda body: json.dumps({"form": 1, "boot": "b", **body}).encode())
)
def test_whatever_a_record_holds_it_is_one_or_refused(content: bytes) -> None:
    try:
        found = outcome._parse_record(content, "/r", "b")
    except ConfigurationError as error:
        assert error.path == "/r"  # noqa: PT017  # either outcome is right
    else:
        assert found is None or msgspec.convert(msgspec.to_builtins(found), LastRun) == found


def test_a_failure_is_recorded_with_its_code_and_place_and_without_secrets(folders: RecordFolders) -> None:
    error = EngineDownError(
        "the API server says: token=hunter22 " + "x" * 5000, path="/etc/a", line=3, hint="see password=hunter22"
    )
    error.reloaded = True
    outcome.save_failure(error, "uninstall", (str(folders.root), "/host"), PID_PATH, None)
    found = folders.load()
    assert found is not None
    assert (found.command, found.exit_code, found.event) == ("uninstall", 6, ExitCode.ENGINE_DOWN.event)
    assert (found.file, found.line) == ("/etc/a", 3)
    assert found.remedy is not None
    assert "hunter22" not in found.reason + found.remedy
    assert len(found.reason) == 4001


def test_a_failure_that_cannot_be_recorded_is_logged_and_raises_nothing(
    folders: RecordFolders, logged: io.StringIO
) -> None:
    folders.run.rmdir()
    folders.run.symlink_to("nvidia")
    error = EngineDownError("down")
    error.reloaded = True
    outcome.save_failure(error, "run", (str(folders.root), "/host"), PID_PATH, None)
    assert "event=result-not-kept" in logged.getvalue()


# --- inspections ---


def recorded(recorder: InspectionRecorder) -> InspectionOutcome:
    assert recorder.recorded is not None
    return recorder.recorded


@pytest.fixture
def recorder(logged: io.StringIO) -> InspectionRecorder:  # noqa: ARG001  # its lines are those that are logged
    return InspectionRecorder()


def test_an_outcome_has_the_lines_since_its_inspection_began(recorder: InspectionRecorder) -> None:
    log.get().info("Too early", key="early")
    recorder.begin()
    for key in ("waiting", "looking-again", "failed-to-converge"):
        log.get().info("No work", key=key)
    log.get().warning("Changed", key="drift", engine="docker", file="/etc/a", reason="by somebody")
    log.get().info("Reload", key="reload", why="the file changed")
    assert recorded(recorder).lines == ("Changed (docker, /etc/a): by somebody", "Reload: the file changed")
    assert recorded(recorder).error is None
    recorder.begin()
    assert recorded(recorder).lines == ()


def test_an_outcome_that_says_much_is_cut(recorder: InspectionRecorder) -> None:
    recorder.begin()
    for number in range(50):
        log.get().info(f"{number} {'x' * 2000}", key="line")
    assert len(recorded(recorder).lines) == 40
    assert {len(line) for line in recorded(recorder).lines} == {1000}


def test_a_failure_keeps_its_exit_code_and_place(recorder: InspectionRecorder) -> None:
    before = machine.boot_seconds()
    recorder.begin()
    recorder.fail(EngineDownError("down: password=hunter22", path="/run/docker.sock", line=2, hint="start it"))
    found = recorded(recorder)
    assert found.began >= before
    assert found.error is not None
    assert found.error.exit_code is ExitCode.ENGINE_DOWN
    assert (found.error.path, found.error.line, found.error.hint) == ("/run/docker.sock", 2, "start it")
    assert "hunter22" not in found.error.reason


def test_a_restored_outcome_goes_on_where_it_was(recorder: InspectionRecorder) -> None:
    recorder.restore(InspectionOutcome(5.0, lines=("before the sleep",)))
    log.get().info("After it", key="line")
    assert recorder.recorded == InspectionOutcome(5.0, lines=("before the sleep", "After it"))


def test_before_the_first_inspection_there_is_no_outcome(recorder: InspectionRecorder) -> None:
    recorder.restore(None)
    recorder.fail(EngineDownError("before any inspection"))
    assert recorder.recorded is None
