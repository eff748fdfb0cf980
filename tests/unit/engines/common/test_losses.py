"""Whether a file has lost what it had when the handlers were added: one cut off, replaced, or whose link is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Change, DocumentError, Set, sha256
from toolkit_installer.engines.api import DesiredFile, EngineFile, RecordedFile
from toolkit_installer.engines.common import losses
from toolkit_installer.engines.ownership import Owned, Ownership
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata

FOLDER = "/usr/local/nvidia/toolkit"
PATH = "/etc/c/config.toml"
BEFORE = b"version = 2\n[debug]\nlevel = 'info'\n[plugins.cri]\nsandbox = 'x'\n[plugins.other]\na = 1\n"
OURS = Ownership((Owned(("plugins", "cri", "nvidia"), {"path": f"{FOLDER}/r"}),))
RECORDED = RecordedFile(BEFORE, frozenset({sha256(b"with us")}), OURS, kept="/store/original", role="config.toml")


def edit(content: bytes, made: Sequence[Change]) -> bytes:
    return toml_document.edit(content, made, marker="ours")


def is_cut_off(content: bytes, recorded: RecordedFile = RECORDED, **more: Any) -> bool:
    return losses.is_cut_off(content, recorded, edit, **more)


# --- cut off ---


@given(length=st.integers(0, len(BEFORE) - 1), with_us=st.booleans())
def test_the_beginning_of_a_file_counts_as_cut_off_unless_all_its_sections_are_there(
    length: int, *, with_us: bool
) -> None:
    whole = edit(BEFORE, [Set(each.path, each.ours) for each in OURS.keys]) if with_us else BEFORE
    begun = whole[:length]
    has_all = begun.endswith(b"\n") and b"[plugins.other]\na = 1\n" in begun
    assert is_cut_off(begun) is not has_all


@pytest.mark.parametrize(
    "content",
    [BEFORE, BEFORE + b"# more\n", b"version = 2\n# edited\n", BEFORE.replace(b"info", b"warn")[:-3]],
    ids=["as before", "longer", "another text", "edited, and cut off by whoever edited it"],
)
def test_what_is_no_beginning_is_somebodys_edit(content: bytes) -> None:
    assert not is_cut_off(content)


def test_without_a_record_of_its_content_no_file_is_cut_off() -> None:
    begun = BEFORE[:10]
    assert is_cut_off(begun)
    for recorded in (
        RecordedFile(None, RECORDED.written, OURS),
        RecordedFile(BEFORE, frozenset({sha256(begun)}), OURS),
        RecordedFile(BEFORE, frozenset({sha256(BEFORE)}), OURS),
        RecordedFile(b"\n", RECORDED.written, OURS),
    ):
        assert not is_cut_off(begun, recorded)


def test_a_file_that_is_no_toml_is_cut_off_in_the_middle_of_a_line_alone() -> None:
    assert losses.is_cut_off(BEFORE[:10], RECORDED, None)
    assert not losses.is_cut_off(b"version = 2\n", RECORDED, None)


def test_the_default_that_an_administrator_chose_belongs_to_the_text_cut_off() -> None:
    chosen = [Set(("plugins", "cri", "default"), "crun")]
    begun = edit(BEFORE, [*(Set(each.path, each.ours) for each in OURS.keys), *chosen])[:-5]
    assert is_cut_off(begun, chosen=chosen)
    assert not is_cut_off(begun)


def test_our_items_are_appended_to_lists_that_were_there_or_not() -> None:
    for there in ([], ["/a"]):
        before = (f"imports = {there}\n".encode() if there else b"") + BEFORE
        ours = Ownership((Owned(("imports",), "/ours", there or ABSENT, item=True),))
        whole = edit(before, [Set(("imports",), [*there, "/ours"])])
        assert is_cut_off(whole[:-3], RecordedFile(before, RECORDED.written, ours))


# --- replaced ---


def refuse(content: bytes | None, base: bytes | None, recorded: RecordedFile = RECORDED) -> None:
    found = None if content is None else Found(PATH, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    wanted = DesiredFile(EngineFile("config.toml", PATH, found), base, base)
    losses.refuse_replaced(wanted, recorded, toml_document.parse, FOLDER)


def test_a_file_without_our_values_that_lost_a_section_is_refused_with_the_backup() -> None:
    left = b"version = 2\n[debug]\nlevel = 'info'\n"
    with pytest.raises(ConfigurationError, match=r"it has no plugins\.cri, plugins\.other any more") as refused:
        refuse(left, left)
    assert refused.value.path == PATH
    assert "/store/original" in (refused.value.hint or "")


@pytest.mark.parametrize(
    "content, base",
    [
        (BEFORE, BEFORE),
        (None, b"version = 2\n"),
        (b"x = 1\n", None),
        (b"version = 3\n" + BEFORE[12:], b"version = 3\n" + BEFORE[12:]),
        (f"x = '{FOLDER}/r'\n".encode(), b"version = 2\n"),
    ],
    ids=["as before", "missing", "to be removed", "a new version of it", "with a value of ours"],
)
def test_a_file_that_lost_nothing_or_is_ours_still_is_not_refused(content: bytes | None, base: bytes | None) -> None:
    refuse(content, base)


def test_a_file_that_still_imports_ours_was_not_replaced() -> None:
    ours = Ownership((Owned(("imports",), "/c/99-nvidia.toml", item=True),))
    recorded = RecordedFile(BEFORE, RECORDED.written, ours)
    refuse(b"imports = ['/c/99-nvidia.toml']\n", b"version = 2\n", recorded)
    with pytest.raises(ConfigurationError):
        refuse(b"imports = ['/c/other.toml']\n", b"version = 2\n", recorded)


# --- a link that is gone, and the backup ---


@pytest.mark.parametrize(
    "content, records, refused",
    [
        (None, {"/srv/real.toml": RECORDED}, "is missing"),
        (b" \n", {"/srv/real.toml": RECORDED}, "is empty"),
        (b"version = 2\n", {"/srv/real.toml": RECORDED}, None),
        (None, {PATH: RECORDED, "/srv/real.toml": RECORDED}, None),
        (None, {"/srv/real.toml": RecordedFile(BEFORE, RECORDED.written, OURS, role="drop-in")}, None),
        (None, {"/srv/real.toml": RecordedFile(None, RECORDED.written, OURS, role="config.toml")}, None),
        (None, {}, None),
    ],
)
def test_a_blank_file_is_refused_where_the_engine_read_another_of_its_role(
    content: bytes | None, records: dict[str, RecordedFile], refused: str | None
) -> None:
    found = None if content is None else Found(PATH, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    file = EngineFile("config.toml", PATH, found)
    if refused is None:
        losses.refuse_lost_link(file, records)
        return
    with pytest.raises(ConfigurationError, match=f"{refused}, and /srv/real.toml was read in its place") as raised:
        losses.refuse_lost_link(file, records)
    assert raised.value.path == PATH


@pytest.mark.parametrize(
    "path, hint, expected",
    [
        (PATH, "fix it", "fix it; what stood there before is kept in /store/original"),
        (PATH, None, "correct the file; what stood there before is kept in /store/original"),
        ("/etc/other", "fix it", "fix it"),
        (None, "fix it", "fix it"),
    ],
)
def test_an_error_about_a_recorded_file_names_its_backup(path: str | None, hint: str | None, expected: str) -> None:
    with pytest.raises(DocumentError) as raised, losses.name_backups_in_errors({PATH: RECORDED}):
        raise DocumentError("it is broken", path=path, hint=hint)
    assert raised.value.hint == expected


# --- sections ---


@pytest.mark.parametrize(
    "before, now, lost",
    [
        ({"debug": {"level": "x"}}, {"debug": {"level": "y"}}, ()),
        ({"debug": {"level": "x"}}, {"debug": {}}, ("debug",)),
        ({"debug": {}}, {}, ()),
        ({"plugins": {"a": {"x": 1}, "b": {"x": 1}}}, {"plugins": {"b": {"x": 1}}}, ("plugins.a",)),
        ({"crio": {"image": {"x": 1}}, "root": "/"}, {"root": "/"}, ("crio.image",)),
        ({"a": 1, "b": 2}, {"c": 3}, ("a", "b")),
        ({"a": 1, "b": 2}, {"b": 3}, ()),
        ({"version": 2, "imports": ["x"]}, {}, ()),
        ({}, {"a": 1}, ()),
    ],
)
def test_a_section_is_lost_with_its_last_value_and_keys_only_all_together(
    before: dict[str, Any], now: dict[str, Any], lost: tuple[str, ...]
) -> None:
    assert losses.lost_sections(before, now) == lost


def test_a_section_under_its_name_in_another_version_is_not_lost() -> None:
    before, now = {"plugins": {"old": {"x": 1}}}, {"plugins": {"new": {"x": 1}}}
    assert losses.lost_sections(before, now) == ("plugins.old",)
    assert losses.lost_sections(before, now, ("new", "old")) == ()


TABLES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from(["plugins", "crio", "a", "b"]), inner), max_leaves=6
).map(lambda value: value if isinstance(value, dict) else {"a": value})


@given(before=TABLES, more=TABLES)
def test_nothing_is_lost_by_what_is_only_added(before: dict[str, Any], more: dict[str, Any]) -> None:
    assert losses.lost_sections(before, before) == ()
    assert losses.lost_sections(before, {**more, **before}) == ()
