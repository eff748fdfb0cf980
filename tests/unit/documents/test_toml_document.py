"""Edits of TOML: the golden ones are tests/data/documents/toml/<case>/{in.toml,changes.json,out.toml}."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from toolkit_installer.documents import toml_document, toml_edit
from toolkit_installer.documents.changes import Change, DocumentError, EditMismatchError, Path, Remove, Set, is_same

if TYPE_CHECKING:
    pass


def edit(text: str, *changes: Change) -> str:
    return toml_document.edit(text.encode(), changes, marker="ours").decode()


@pytest.mark.parametrize(
    "content,line,reason",
    [
        (b"a = 1\nb = 'caf\xe9'\n", 2, "not valid UTF-8"),
        ("version = 2".encode("utf-16"), 1, "not valid UTF-8"),
        (b"a = 1\n\nb\0 = 2\n", 3, "NUL"),
        (b"a = 1\r\nb = 2\rc = 3\n", 2, "carriage return"),
        (b"a = 1\n[b\n", 2, "Expected ']'"),
        (b"a = 1\nb = \n", 2, "Invalid value"),
        (b'a = 1\nb = """never\nclosed\n', 3, "at the end of the file"),
        (b"a = 1\nb = [1,\n", 2, "at the end of the file"),
        (b"a = 1\na = 2\n", 2, "Cannot overwrite"),
        (b"[a]\n[b]\n[a]\n", 3, "twice"),
        (b"[a]\nb.c = 1\n[a.b]\n", 3, "twice"),
        (b"a = { b = 1 }\n[a.c]\n", 2, "Cannot"),
        (b"version = 2\nday = 2021-02-30\n", 2, "Invalid date"),
        (b"a = 1\nb = " + b"9" * 5000 + b"\n", 2, "too many digits"),
        (b'# {{ not this }}\n{{ template "base" . }}\n[a]\n', 2, "Go template"),
        (b'a = 1\nb = "x"\n{{- if .Nvidia }}\nc = 1\n{{- end }}\n', 3, "Go template"),
        (b'{ "runtimes": {} }', 1, "Invalid"),
        (b"a = 1\nb = " + b"[" * 5000 + b"]" * 5000, 2, "nested too deeply"),
        (b"a = 1\nb = " + b"{a=[" * 2000 + b"]}" * 2000, 2, "nested too deeply"),
        (b"a = 1\nb = " + b"[" * 150 + b"]" * 150, 2, "nested too deeply"),
        (b"[" + b".".join([b"a"] * 5000) + b"]\n", 1, "too many parts"),
    ],
)
def test_bad_input_is_refused_with_its_line(content: bytes, line: int | None, reason: str) -> None:
    for use in (toml_document.parse, lambda bad: toml_document.edit(bad, [Set(("new",), 1)], marker="ours")):
        with pytest.raises(DocumentError, match=reason) as caught:
            use(content)
        assert caught.value.line == line


def test_every_refusal_but_the_unplaceable_says_what_to_do() -> None:
    for content in (b"a", b"\xff", b"a\0", b"\r", b"{{", b"a = " + b"[" * 5000):
        with pytest.raises(DocumentError) as caught:
            toml_document.parse(content)
        assert caught.value.hint


def test_deep_but_sane_nesting_is_read_and_edited() -> None:
    content = "a = " + "[" * 90 + "]" * 90 + "\n[" + ".".join("abcdefghij") + "]\n"
    content = content.replace("a = ", "z = ")
    assert edit(content, Set(tuple("abcdefghijk"), 1)) == content + "  k = 1\n"


def test_a_template_mark_in_a_comment_or_string_is_no_template() -> None:
    assert toml_document.parse(b"# {{ .X }}\na = '{{ .Y }}'\n") == {"a": "{{ .Y }}"}


def test_a_byte_order_mark_is_no_part_of_the_document_and_stays() -> None:
    content = b"\xef\xbb\xbfa = 1\n"
    assert toml_document.parse(content) == {"a": 1}
    assert toml_document.edit(content, [Set(("a",), 2)], marker="ours") == b"\xef\xbb\xbfa = 2\n"


def test_no_change_gives_the_identical_object() -> None:
    content = b"a = 1\r\n\r\n  b = [ ]"
    assert toml_document.edit(content, [Set(("a",), 1), Remove(("c",)), Remove(("a", "b"))], marker="ours") is content


@pytest.mark.parametrize("content", ["a = 1", "a = 1.0", "a = true", 'a = "1"'])
@pytest.mark.parametrize("value", [1, 1.0, True, "1"])
def test_a_value_of_another_type_is_another_value(content: str, value: Any) -> None:
    edited = edit(content, Set(("a",), value))
    assert is_same(toml_document.parse(edited.encode()), {"a": value})


def test_a_text_that_would_mean_something_else_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("a = 1\nb = 3\n", "a = 1\nb = \n", "a = 1\n"):
        monkeypatch.setattr(toml_edit, "edit_text", lambda *_, wrong=wrong: wrong)
        with pytest.raises(EditMismatchError):
            toml_document.edit(b"a = 1\n", [Set(("b",), 2)], marker="ours")


def test_a_marker_of_two_lines_is_caught_by_the_same_net() -> None:
    with pytest.raises(EditMismatchError):
        toml_document.edit(b"", [Set(("a",), {})], marker="ours\nb = 1")


@pytest.mark.parametrize(
    "path,line",
    [
        (("version",), 1),
        (("a",), 4),
        (("a", "b"), 4),
        (("a", "b", "c"), 5),
        (("a", "b", "c", "d"), 5),
        (("a", "b", "e"), 6),
        (("a", "b", "e", "f"), 6),
        (("list",), 7),
        (("list", "x"), None),
        (("nothing",), None),
        (("version", "x"), None),
    ],
)
def test_the_line_of_a_key_is_told(path: Path, line: int | None) -> None:
    content = b"version = 2\n\n# a.b\n[a.b]\nc = { d = 1 }\ne.f = 2\n[[list]]\nx = 1\n"
    assert toml_document.line_of(content, path) == line


MARKED = [
    ("# ours\n", ""),
    ("# ours", ""),
    ("a = 1\n\n# ours\n", "a = 1\n"),
    ("a = 1\r\n\r\n# ours\r\n[t]\r\n", "a = 1\r\n[t]\r\n"),
    ("# theirs\n# ours\n# theirs\n", "# theirs\n# theirs\n"),
    ("a = 1\n\n# ours\n\n# theirs\n[t]\n", "a = 1\n\n# theirs\n[t]\n"),
    ("\ufeff# ours\na = 1\n", "\ufeffa = 1\n"),
    ("a = 1 # ours\n", None),
    ("# ours, they said\n", None),
    ('a = """\n# ours\n"""\n', None),
    ("a = [\n# ours\n1]\n", None),
]


@pytest.mark.parametrize("text, left", MARKED)
def test_the_comments_that_say_whose_a_block_is_are_taken_away_and_nothing_else(text: str, left: str | None) -> None:
    assert toml_document.remove_marker(text.encode(), "ours") == (text if left is None else left).encode()
