"""Edits that a person should read: tests/data/documents/toml/<case>/{in.toml,changes.json,out.toml}."""

from __future__ import annotations

import difflib
import json
import pathlib

import pytest

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Change, Remove, Set

DATA = pathlib.Path(__file__).parents[2] / "data" / "documents" / "toml"
CASES = sorted(folder.name for folder in DATA.iterdir())
MARKER = "nvidia installer"


def changes_of(case: str) -> list[Change]:
    """Read [["set", path, value], ["remove", path], …]."""
    changes: list[Change] = []
    for what, path, *value in json.loads((DATA / case / "changes.json").read_text()):
        changes.append(Set(tuple(path), *value) if what == "set" else Remove(tuple(path)))
    return changes


@pytest.mark.parametrize("case", CASES)
def test_the_edit_gives_the_text_that_a_person_approved(case: str) -> None:
    edited = toml_document.edit((DATA / case / "in.toml").read_bytes(), changes_of(case), marker=MARKER)
    expected = (DATA / case / "out.toml").read_bytes()
    assert edited == expected, "\n".join(difflib.unified_diff(lines(expected), lines(edited), "approved", "got", n=1))


def lines(content: bytes) -> list[str]:
    """Return lines that show their line ends."""
    return [repr(line)[2:-1] for line in content.splitlines(keepends=True)]


@pytest.mark.parametrize("case", CASES)
def test_an_edit_that_is_made_already_gives_the_same_bytes(case: str) -> None:
    content = (DATA / case / "out.toml").read_bytes()
    assert toml_document.edit(content, changes_of(case), marker=MARKER) == content
