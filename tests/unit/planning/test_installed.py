"""What becomes of a CDI specification at cleanup, and when a file is known to be a copy of the payload's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from toolkit_installer.documents import changes
from toolkit_installer.node import reading
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata, Tree
from toolkit_installer.planning.installed import Copies, Generated, SpecificationFacts, plan_specifications
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, Copy, FileRecord, OriginalFile, Receipt, State

PATH = "/var/run/cdi/nvidia.yaml"
FOLDER = "/usr/local/nvidia/toolkit"
OURS = f"path: {FOLDER}/nvidia-cdi-hook\n".encode()
EDITED = OURS + b"# tuned\n"
NEWER = OURS + b"# of another driver\n"
THEIRS, OTHERS = b"cdiVersion: 0.5.0\n", b"cdiVersion: 0.6.0\n"
KEPT = {changes.sha256(content): content for content in (OURS, THEIRS)}


def receipt(before: bytes | None) -> Receipt:
    """Return one of a run that wrote OURS; `before`: what stood there then."""
    known = OriginalFile(changes.sha256(before), 0o644, 0, 0) if before is not None else None
    record = FileRecord(SPECIFICATION_ROLE, PATH, known, (changes.sha256(OURS),))
    return Receipt(State.INSTALLED, "1", FOLDER, (), (), "/run/toolkit.pid", (), (), (record,))


def facts(content: bytes | None) -> SpecificationFacts:
    found = Found(PATH, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5)) if content is not None else None
    return SpecificationFacts({PATH: (PATH, found)}, lambda before: KEPT[before.sha256])


STANDING = [
    pytest.param(None, None, None, "", id="nothing stood there"),
    pytest.param(None, receipt(None), None, "", id="somebody removed ours"),
    pytest.param(None, receipt(THEIRS), None, "", id="somebody removed ours, which replaced theirs"),
    pytest.param(OURS, receipt(None), None, "", id="ours, where nothing stood"),
    pytest.param(OURS, receipt(THEIRS), THEIRS, "", id="ours, where theirs stood"),
    pytest.param(EDITED, receipt(THEIRS), THEIRS, "somebody edited ours", id="ours with an edit, where theirs stood"),
    pytest.param(EDITED, receipt(None), None, "it names the toolkit's folder", id="ours with an edit"),
    pytest.param(OURS, None, None, "it names the toolkit's folder", id="an older installer's"),
    pytest.param(OTHERS, None, OTHERS, "somebody else's version is replaced", id="theirs"),
    pytest.param(OTHERS, receipt(THEIRS), OTHERS, "somebody else's version is replaced", id="another of theirs"),
]


@pytest.mark.parametrize("content, known, base, note", STANDING)
def test_any_specification_is_replaced_and_only_a_foreign_one_noted_and_kept(
    content: bytes | None, known: Receipt | None, base: bytes | None, note: str
) -> None:
    (work,) = plan_specifications(facts(content), known, FOLDER, Generated(PATH, NEWER))
    assert (work.base, work.target) == (base, NEWER)
    assert note in work.note
    assert bool(work.note) == bool(note)
    (remarked,) = plan_specifications(facts(content), known, FOLDER, Generated(PATH, NEWER), "it is kept")
    assert remarked.note == (work.note or "it is kept")


@pytest.mark.parametrize(
    "content, before, left, note",
    [
        pytest.param(None, None, None, "", id="somebody removed it"),
        pytest.param(OURS, None, None, "", id="ours, where nothing stood"),
        pytest.param(OURS, THEIRS, THEIRS, "", id="ours, where theirs stood"),
        pytest.param(THEIRS, THEIRS, THEIRS, "", id="theirs is back already"),
        pytest.param(OTHERS, THEIRS, OTHERS, "it is theirs now, and stays", id="another of theirs"),
        pytest.param(EDITED, None, EDITED, "it is theirs now, and stays", id="ours with an edit"),
    ],
)
def test_one_that_is_wanted_no_longer_goes_unless_somebody_changed_it(
    content: bytes | None, before: bytes | None, left: bytes | None, note: str
) -> None:
    (work,) = plan_specifications(facts(content), receipt(before), FOLDER, None)
    assert (work.base, work.target, work.note) == (left, left, note)


def test_one_whose_content_is_not_known_yet_is_left_alone() -> None:
    assert plan_specifications(facts(OURS), receipt(None), FOLDER, Generated(PATH)) == ()


class Clock:
    """The clock that files are stamped by: it stands still for as long as nobody waits."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += int(seconds * 1e9)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    for folder in ("node/toolkit", "payload"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("first", "last"):
            (tmp_path / folder / name).write_text(name)
    return Copies(Node.open(str(tmp_path / "node"), "/host"), "/toolkit", Tree(str(tmp_path / "payload")))


def taken(copies: Copies, *names: str) -> list[Copy]:
    return [copy for name in names if (copy := copies.taken(name, name)) is not None]


def standing_at(monkeypatch: pytest.MonkeyPatch, now: int) -> Clock:
    clock = Clock(now)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_what_was_copied_just_now_is_known_once_the_clock_has_moved_on(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = standing_at(monkeypatch, (tmp_path / "node/toolkit/last").stat().st_ctime_ns)
    made = taken(copies, "first", "last")
    assert len(made) == 2
    assert copies.settled(made) == tuple(made)
    (wait,) = clock.waits
    assert time.clock_getres(reading._FILES_CLOCK) < wait < 0.05


def test_nobody_waits_for_what_was_copied_before(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = standing_at(monkeypatch, time.time_ns() + 10**9)
    made = taken(copies, "first", "last")
    assert copies.settled(made) == tuple(made)
    assert copies.settled([]) == ()
    assert clock.waits == []


def test_what_somebody_changed_since_is_neither_known_nor_waited_for(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = taken(copies, "first", "last")
    for changed in ("node/toolkit/last", "payload/first"):
        (tmp_path / changed).write_text("somebody's")
    clock = standing_at(monkeypatch, 0)
    assert copies.settled(made) == ()
    assert clock.waits == []
