"""containerd's golden cases. `CASES=write pytest …` writes what is expected anew, to be read before use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.containerd_cases import (
    FIRST_OF_THEIRS,
    FOLDER,
    LAST_OF_THEIRS,
    THEIRS,
    TOOLKIT,
    Case,
    cases,
    given_back,
    make,
    taken_back,
)
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Table, is_same, lookup
from toolkit_installer.errors import ConfigurationError

INSTALLED = [case for case in cases() if not case.refused]
REFUSED = [case for case in cases() if case.refused]


def test_there_are_cases_of_every_version_and_of_none() -> None:
    known = {str(case).partition("-")[0] for case in cases()}
    assert {"v1", "v2", "v3", "v4", "none", "live"} <= known


@pytest.mark.parametrize("case", INSTALLED, ids=str)
def test_the_files_are_what_was_read_and_found_good(case: Case, tmp_path: Path) -> None:
    made = make(case, tmp_path)
    after = made.after(case.before())
    if os.environ.get("CASES") == "write":
        case.write(after)
    assert {name: text.decode() for name, text in after.items()} == {
        name: text.decode() for name, text in case.after().items()
    }
    assert case.about.get("says", "") in " ".join(made.desired.notes)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_is_right_for_no_containerd_is_refused_with_file_line_reason_and_remedy(
    case: Case, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r".") as raised:
        make(case, tmp_path)
    error = raised.value
    assert case.about["says"] in str(error)
    assert str(error.path).startswith(f"{FOLDER}/")
    assert error.line is not None
    assert error.hint
    assert error.exit_code == case.about["exit"]


@pytest.mark.parametrize("case", INSTALLED, ids=str)
def test_cleanup_gives_every_byte_back(case: Case, tmp_path: Path) -> None:
    for before, left in taken_back(make(case, tmp_path), touched=False).values():
        assert left == before


@pytest.mark.parametrize("case", INSTALLED, ids=str)
def test_after_an_operators_edit_nothing_of_ours_is_left_and_nothing_of_theirs_gone(case: Case, tmp_path: Path) -> None:
    edited = taken_back(make(case, tmp_path), touched=True)
    assert edited
    for before, left in edited.values():
        assert left is not None
        assert is_same(meaning(left), {**meaning(before), **THEIRS})
        assert FIRST_OF_THEIRS in left
        assert LAST_OF_THEIRS in left


OLD_DEFAULT = b"[plugins.cri.containerd.default_runtime]\n"
WITH_OLD_DEFAULT = [
    case
    for case in INSTALLED
    if "CONTAINERD_USE_LEGACY_CONFIG" in case.about.get("variables", {}) and OLD_DEFAULT in case.after()["config.toml"]
]


@pytest.mark.parametrize("recorded", [True, False], ids=["receipt", "no-receipt"])
@pytest.mark.parametrize("case", WITH_OLD_DEFAULT, ids=str)
def test_our_default_of_old_containerd_goes_also_where_somebody_added_a_key_to_it(
    case: Case, tmp_path: Path, *, recorded: bool
) -> None:
    """It runs our executable, which goes as well: containerd would start no pod without a class."""
    for edited in (False, True):
        edit = OLD_DEFAULT + (b"  privileged_without_host_devices = true\n" if edited else b"")
        (found,) = given_back(make(case, tmp_path), OLD_DEFAULT, edit, recorded=recorded)
        before, left, said = found
        assert TOOLKIT.encode() not in (left or b"")
        old = lookup(meaning(before), ("plugins", "cri", "containerd", "default_runtime"))
        now = lookup(meaning(left), ("plugins", "cri", "containerd", "default_runtime"))
        if not recorded:
            assert now is ABSENT
            continue
        assert ("table default_runtime" in " ".join(said)) is edited
        if edited and old is not ABSENT:  # theirs before us, and theirs again: with what they added
            assert now == {**old, "privileged_without_host_devices": True}
        else:
            assert is_same(meaning(left), meaning(before))


def meaning(text: bytes | None) -> Table:
    return toml_document.parse(text or b"")
