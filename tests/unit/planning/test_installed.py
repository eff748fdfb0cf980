"""What is said of a CDI specification, and what becomes of it at cleanup, by what stands there and who wrote it."""

from __future__ import annotations

import pytest

from toolkit_installer.documents import changes
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.planning.installed import Generated, SpecificationFacts, plan_specifications
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, FileRecord, OriginalFile, Receipt, State

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
def test_whatever_stands_there_is_replaced_and_only_what_is_somebody_elses_is_told_of_and_comes_back(
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
