"""Values that are set in a TOML text: new keys stand where a person would write them, and all else stays."""

from __future__ import annotations

import tomllib

import pytest

from toolkit_installer.documents.changes import Path, Set, apply_changes
from toolkit_installer.toolkit.toml_put import set_values


@pytest.mark.parametrize(
    "source, path, made",
    [
        ("a = 1\n", ("a",), "a = 7\n"),
        ("a = 1 # why\n", ("a",), "a = 7 # why\n"),
        ("a = 1\n\n# of the table\n[t]\nb = 2\n", ("c",), "a = 1\nc = 7\n\n# of the table\n[t]\nb = 2\n"),
        ("[t]\nb = 2\n\n# of the next\n[u]\nd = 3\n", ("t", "c"), "[t]\nb = 2\nc = 7\n\n# of the next\n[u]\nd = 3\n"),
        ("[t]\n  b = 2\n", ("t", "c"), "[t]\n  b = 2\n  c = 7\n"),
        ("[t]\nb = 2\n", ("a",), "a = 7\n\n[t]\nb = 2\n"),
    ],
    ids=["replaced", "with-its-comment", "before-a-comment", "in-a-table", "indented", "above-the-first-table"],
)
def test_a_value_stands_where_a_person_would_write_it(source: str, path: Path, made: str) -> None:
    assert set_values(source, [Set(path, 7)]) == made


@pytest.mark.parametrize("source", ["\n", "a = 1\n", "[t]\nb = 2\n", "[t.u]\nb = 2\n\n# the end\n"])
def test_missing_parent_tables_are_created_and_comments_stay(source: str) -> None:
    changes = (Set(("t", "u", "c"), "x"), Set(("t", "v", "d"), [1]))
    made = set_values(source, changes)
    assert tomllib.loads(made) == apply_changes(tomllib.loads(source), changes)
    assert ("# the end" in made) is ("# the end" in source)
