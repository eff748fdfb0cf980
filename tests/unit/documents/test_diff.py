"""Diffs for people: right, without secrets, and safe for a terminal."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents.diff import format_diff

DATA = pathlib.Path(__file__).parents[2] / "data/documents/diff"


@pytest.mark.parametrize("case", sorted(DATA.iterdir()), ids=lambda case: case.name)
def test_a_diff_is_what_a_person_has_looked_at(case: pathlib.Path) -> None:
    assert format_diff("/etc/x", (case / "before").read_bytes(), (case / "after").read_bytes()) == (
        case / "out.diff"
    ).read_text(encoding="utf-8")


def plain(path: str, before: bytes | None, after: bytes | None, *, color: bool = False) -> str:
    """Return a diff in which nothing is hidden."""
    return format_diff(path, before, after, color=color, shown=str)


@pytest.mark.parametrize("content", [None, b"", b"a\n"])
def test_what_is_the_same_has_no_diff(content: bytes | None) -> None:
    assert plain("/x", content, content) == ""


def test_an_absent_file_is_dev_null() -> None:
    assert plain("/x", None, b"a\nb\n") == "--- /dev/null\n+++ /x\n@@ -0,0 +1,2 @@\n+a\n+b\n"
    assert plain("/x", b"a\n", None) == "--- /x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"


def test_an_empty_file_that_appears_is_told() -> None:
    assert plain("/x", None, b"") == "--- /dev/null\n+++ /x\n"


def test_a_missing_final_newline_is_told() -> None:
    assert plain("/x", b"a", b"a\n") == "--- /x\n+++ /x\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a  (changed)\n"


def test_a_changed_secret_shows_as_a_changed_line() -> None:
    shown = format_diff("/x", b'password = "one"\n', b'password = "two"\n')
    assert shown.splitlines()[3:] == ['-password = "****"', '+password = "****"  (changed)']


def test_a_secret_in_a_context_line_is_masked_by_what_stands_far_above() -> None:
    far = b"[x.auth]\n" + b"\n" * 20 + b'who = "hunter2"\nx = 1\n'
    shown = format_diff("/x", far, far.replace(b"\nx =", b"\ny ="))
    assert ' who = "****"' in shown
    assert "hunter2" not in shown


def test_a_terminal_is_not_given_orders() -> None:
    shown = plain("/x\x1b[2J", None, "a\r\n\x1b[31m\x07\x7f\x9b\u202eb\té\xa0\n".encode() + b"\xff\0\n")
    assert shown.splitlines()[1:] == [
        "+++ /x^[[2J",
        "@@ -0,0 +1,3 @@",
        "+a^M",
        "+^[[31m^G^?\\x9b\\u202eb\té\\xa0",
        "+\\xff^@",
    ]


def test_colour_is_only_added_around_lines() -> None:
    before, after = b"a\nb\nc\n", b"a\nB\nc\n"
    colored = plain("/x", before, after, color=True)
    assert "\x1b[31m-b\x1b[0m\n\x1b[32m+B\x1b[0m\n" in colored
    assert re.sub(r"\x1b\[\d*m", "", colored) == plain("/x", before, after)


def test_a_change_in_a_large_file_is_shown_quickly() -> None:
    before = b"".join(b'"key-%d": "value",\n' % (n % 5000) for n in range(20_000))
    start = time.process_time()
    shown = plain("/x", before, before.replace(b'"key-7"', b'"key-x"', 1) + b"new\n")
    assert time.process_time() - start < 5
    assert "+new" in shown


LINES = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=30).map(
    lambda lines: "".join(f"{x}\n" for x in lines)
)


@settings(deadline=None)
@given(before=LINES, after=LINES)
def test_a_patch_of_the_old_file_by_the_diff_is_the_new_file(before: str, after: str) -> None:
    old, new = before.splitlines(), []
    position = 0
    for line in plain("/x", before.encode(), after.encode()).splitlines()[2:]:
        if match := re.match(r"@@ -(\d+)(,0)?", line):
            start = int(match[1]) - (not match[2])
            new += old[position:start]
            position = start
        elif line[0] == "+":
            new.append(line[1:])
        else:
            assert old[position] == line[1:]
            new += [] if line[0] == "-" else [line[1:]]
            position += 1
    assert new + old[position:] == after.splitlines()


def test_the_patch_program_understands_the_diff(tmp_path: pathlib.Path) -> None:
    """Numbers of lines in the hunks are what `patch` checks; git's reader stands in for it, as it is always here."""
    git = shutil.which("git")
    assert git is not None
    before = "".join(f"line {n}\n" for n in range(50))
    after = before.replace("line 5\n", "line 5\nnew\n").replace("line 20\n", "").replace("line 49\n", "end")
    (tmp_path / "x").write_text(before)
    patch = plain("x", before.encode(), after.encode())
    subprocess.run([git, "apply", "-p0", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    assert (tmp_path / "x").read_text() == after
