"""Whether an engine has read its files since they were changed, told by when it was started."""

from __future__ import annotations

import time

import msgspec
import pytest

from toolkit_installer.engines.api import EngineFile, Inspection, LiveState
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.planning.observe import has_read_files
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import EngineName

NOW = time.time()
HOUR = 3600.0


def inspection(started: float | None, *changed: float | None) -> Inspection:
    files = []
    for number, when in enumerate(changed):
        path = f"/etc/{number}"
        identity = FileIdentity(1, 2, 3, 4, round((when or 0.0) * 1e9))
        found = None if when is None else Found(path, b"", Metadata(0o644, 0, 0), identity)
        files.append(EngineFile(str(number), path, found))
    process = None if started is None else Process(4711, "dockerd", "/usr/bin/dockerd", (), started, None)
    return Inspection("/run/x.sock", tuple(files), LiveState("28.0", {}, None, process))


@pytest.mark.parametrize(
    "started, changed, read",
    [
        (NOW - HOUR, (NOW - 2 * HOUR,), True),
        (NOW - HOUR, (NOW - 2 * HOUR, NOW - 3 * HOUR), True),
        (NOW - 2 * HOUR, (NOW - HOUR,), False),
        (NOW - HOUR, (NOW - 2 * HOUR, NOW), False),  # the latest change counts
        (NOW - HOUR, (NOW - HOUR - 0.5,), False),  # too close to tell
        (NOW - HOUR, (NOW - 2 * HOUR, None), False),  # when a file went, nobody knows
        (None, (NOW - HOUR,), False),
        (NOW + HOUR, (NOW - HOUR,), False),  # a clock that is wrong
    ],
    ids=["since", "since-both", "before", "latest-counts", "too-close", "removed", "start-unknown", "wrong-clock"],
)
def test_an_engine_has_read_a_file_only_if_it_was_started_well_after_its_last_change(
    started: float | None, changed: tuple[float | None, ...], read: object
) -> None:
    assert has_read_files(inspection(started, *changed), None) is read


def test_the_process_of_the_time_of_the_change_has_not_read_it_whatever_the_clock() -> None:
    seen = inspection(NOW - HOUR, NOW - 2 * HOUR)
    assert seen.process is not None
    unread = EngineRecord(EngineName.DOCKER, "/run/x.sock", None, (), None, (), unread_by=seen.process.identity)
    assert not has_read_files(seen, unread)
    assert has_read_files(seen, msgspec.structs.replace(unread, unread_by=(seen.process.pid, seen.process.ticks + 1)))


def test_an_engine_that_does_not_answer_has_read_nothing() -> None:
    assert not has_read_files(Inspection("/run/x.sock", (), None), None)
