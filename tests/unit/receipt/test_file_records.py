"""The receipt's records of files: what is kept of one, and how one stands on the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents.changes import ABSENT, is_same
from toolkit_installer.engines.api import DesiredFile, EngineFile, RecordedFile, get_adapter
from toolkit_installer.engines.ownership import Owned, Ownership
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import (
    AS_BEFORE,
    AS_WRITTEN,
    EngineRecord,
    FileRecord,
    OriginalFile,
    Receipt,
    State,
)
from toolkit_installer.settings import EngineName

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


TOML_VALUES = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | TEXTS.filter(lambda text: "\r" not in text),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(str.isalnum), inner, max_size=3),
    max_leaves=6,
)


FOUND = Found("/etc/x", b"text", Metadata(0o640, 7, 8, (("user.a", b"1"),)), FileIdentity(1, 2, 3, 4, 5))


@settings(max_examples=60)
@pytest.mark.parametrize("name, values", [(EngineName.DOCKER, JSON_VALUES), (EngineName.CONTAINERD, TOML_VALUES)])
@given(data=st.data())
def test_what_is_remembered_is_what_was_recorded(
    name: EngineName, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    engine = get_adapter(name)
    owned = st.builds(Owned, path=tuples(TEXTS), ours=values, prior=st.just(ABSENT) | values, item=st.booleans())
    ownership = Ownership(tuple(data.draw(st.lists(owned, max_size=3))), tuple(data.draw(st.lists(owned, max_size=2))))
    goal = DesiredFile(EngineFile("role", "/etc/x", None), b"base", b"target", ownership)
    record = file_records.build_record(engine, goal, FOUND, None, [b"target", b"transitional", None])
    remembered = file_records.to_recorded_file(engine, record, b"base")
    assert remembered.before == b"base"
    assert remembered.written == {file_records.digest_of(b"target"), file_records.digest_of(b"transitional")}
    for ours, theirs in (
        (ownership.keys, remembered.ownership.keys),
        (ownership.created, remembered.ownership.created),
    ):
        assert [(key.path, key.item) for key in ours] == [(key.path, key.item) for key in theirs]
        assert all(is_same(left.ours, right.ours) for left, right in zip(ours, theirs, strict=True))
        for left, right in zip(ours, theirs, strict=True):
            assert (left.prior is ABSENT) == (right.prior is ABSENT)
            assert left.prior is ABSENT or is_same(left.prior, right.prior)


def test_the_record_keeps_the_metadata_of_what_stood_there() -> None:
    record = file_records.build_record(
        get_adapter(EngineName.DOCKER), DesiredFile(EngineFile("r", "/etc/x", None), b"base", b"t"), FOUND, None, [b"t"]
    )
    assert record.before == OriginalFile(file_records.digest_of(b"base"), 0o640, 7, 8, (("user.a", b"1"),))


def test_a_file_that_was_not_there_has_no_before() -> None:
    record = file_records.build_record(
        get_adapter(EngineName.DOCKER), DesiredFile(EngineFile("r", "/etc/x", None), None, b"t"), None, None, [b"t"]
    )
    assert record.before is None


def test_our_last_version_stays_known_until_it_is_replaced() -> None:
    docker = get_adapter(EngineName.DOCKER)
    first = file_records.build_record(
        docker, DesiredFile(EngineFile("r", "/etc/x", None), b"base", b"text"), FOUND, None, [b"text"]
    )
    second = file_records.build_record(
        docker, DesiredFile(EngineFile("r", "/etc/x", None), b"base", b"new"), FOUND, first, [b"new"]
    )
    assert set(second.written) == {file_records.digest_of(b"text"), file_records.digest_of(b"new")}


# --- later runs ---

ENGINE = get_adapter(EngineName.DOCKER)


def found(content: bytes, mode: int = 0o644) -> Found:
    return Found("/etc/x", content, Metadata(mode, 0, 0), FileIdentity(1, 2, 3, 4, 5))


def record(base: bytes | None, there: Found | None, previous: FileRecord | None, *contents: bytes) -> FileRecord:
    goal = DesiredFile(EngineFile("r", "/etc/x", there), base, b"target")
    return file_records.build_record(ENGINE, goal, there, previous, contents)


def test_a_version_of_ours_that_stands_there_no_longer_is_forgotten() -> None:
    previous = record(b"base", found(b"base"), None, b"ours")
    assert record(b"base", found(b"theirs"), previous, b"new").written == (file_records.digest_of(b"new"),)


def test_a_file_that_is_missing_keeps_the_metadata_that_it_had() -> None:
    previous = record(b"base", found(b"base", 0o600), None, b"ours")
    assert record(b"base", None, previous, b"new").before == previous.before
    assert record(b"base", None, None, b"new").before is None


def test_a_revert_records_the_new_original_and_all_contents_that_may_stand_there() -> None:
    file = record(b"base", found(b"base"), None, b"ours")
    wanted = DesiredFile(EngineFile("r", "/etc/x", found(b"edited", 0o600)), b'{"edited": 1}', None)
    plain, signalled = (file_records.build_revert_record(ENGINE, file, wanted, signalled=how) for how in (False, True))
    assert plain.before == OriginalFile(file_records.digest_of(b'{"edited": 1}'), 0o600, 0, 0)
    assert (plain.first, plain.written) == (file.before, file.written)
    transitional = ENGINE.build_transitional_content(b'{"edited": 1}')
    assert transitional is not None
    assert set(signalled.written) == {*file.written, file_records.digest_of(transitional)}


def test_a_file_without_a_record_is_adopted_with_our_values_and_no_original() -> None:
    ownership = Ownership((Owned(("runtimes", "nvidia"), {"path": "/t"}),), (Owned(("runtimes",), {}),))
    adopted = file_records.build_adopted_record(ENGINE, EngineFile("r", "/etc/x", FOUND), ownership)
    assert (adopted.role, adopted.path, adopted.before, adopted.written) == ("r", "/etc/x", None, ())
    remembered = file_records.to_recorded_file(ENGINE, adopted, None)
    assert remembered.ownership == ownership
    assert remembered.metadata is None


def test_a_recorded_file_is_planned_with_what_its_engine_and_backup_are() -> None:
    was = OriginalFile(file_records.digest_of(b"base"), 0o640, 7, 8, (("user.a", b"1"),))
    file = FileRecord("r", "/etc/x", was, (), ())
    engine = EngineRecord(EngineName.DOCKER, "/s", None, (("nvidia", "/t"),), None, (file,), defaults=(("r", "crun"),))
    planned = file_records.to_recorded_file(ENGINE, file, b"base", engine, "/store/x")
    assert planned == RecordedFile(
        b"base",
        handlers=frozenset({"nvidia"}),
        defaults=(("r", "crun"),),
        metadata=FOUND.metadata,
        kept="/store/x",
        role="r",
    )


# --- on the node ---

WRITTEN, BEFORE = (file_records.digest_of(content) for content in (b"ours", b"before"))
MANAGED = FileRecord("r", "/etc/x", OriginalFile(BEFORE, 0o644, 0, 0), (WRITTEN,), ())


@pytest.mark.parametrize(
    "content, state",
    [
        (b"ours", AS_WRITTEN),
        (b"before", AS_BEFORE),
        (b"theirs", "changed by somebody else"),
        (None, "missing"),
    ],
)
def test_a_managed_file_stands_as_written_as_before_missing_or_changed(
    tmp_path: Path, content: bytes | None, state: str
) -> None:
    (tmp_path / "etc").mkdir()
    if content is not None:
        (tmp_path / "etc/x").write_bytes(content)
    node = Node(str(tmp_path))
    assert file_records.describe_state(node, MANAGED) == state
    receipt = Receipt(State.INSTALLED, "1", "/t", (), (), "/p", (), (), specifications=(MANAGED,))
    assert file_records.list_drifted(node, receipt) == ([] if state == AS_WRITTEN else ["/etc/x"])
    assert file_records.list_drifted(node, None) == []


def test_a_file_that_we_removed_is_as_written_where_it_is_missing(tmp_path: Path) -> None:
    removed = msgspec.structs.replace(MANAGED, written=())
    assert file_records.describe_state(Node(str(tmp_path)), removed) == AS_WRITTEN


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "etc/x").mkdir(parents=True)
    assert file_records.describe_state(Node(str(tmp_path)), MANAGED).startswith("unreadable: is a folder")
