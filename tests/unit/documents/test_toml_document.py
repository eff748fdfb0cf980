"""Edits of TOML: the golden ones are tests/data/documents/toml/<case>/{in.toml,changes.json,out.toml}."""

from __future__ import annotations

import difflib
import json
import pathlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from toolkit_installer.documents import toml_document, toml_edit
from toolkit_installer.documents.changes import Change, DocumentError, EditMismatchError, Path, Remove, Set, is_same

if TYPE_CHECKING:
    from collections.abc import Sequence


CRI = 'plugins."io.containerd.grpc.v1.cri"'
CONTAINERD = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
HANDLERS = ("nvidia", "nvidia-cdi", "nvidia-legacy")
OPTIONS = {"BinaryName": "/usr/local/nvidia/toolkit/nvidia-container-runtime", "SystemdCgroup": True}
RUNTIME = {"runtime_type": "io.containerd.runc.v2", "options": OPTIONS}


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


@pytest.mark.parametrize(
    "text,changes,expected",
    [
        ("a = 3 # three\n", [Set(("a", "b"), 1)], "a = { b = 1 } # three\n"),
        ("[a]\n[a.b]\nc = 1\n", [Set(("a",), 1)], "a = 1\n"),
        ("[a.b]\nc = 1\n", [Remove(("a", "b"))], "\n# ours\n[a]\n"),
        ("[x]\na.b.c = 1\n", [Remove(("x", "a", "b"))], "[x]\n\n# ours\n[x.a]\n"),
        ("x.a.b.c = 1\n", [Remove(("x", "a", "b", "c"))], "x.a.b = {}\n"),
        ("[a]\nb = 1\n", [Set(("a",), {})], "[a]\n"),
        ("", [Set(("a",), {})], "# ours\n[a]\n"),
        ("", [Set(("a b", "c.d"), {"e": {"f": {}}})], '# ours\n["a b"."c.d".e.f]\n'),
        ("[[a]]\nb = 1\n[a.c]\n[[a]]\n", [Set(("a",), {"b": 1})], "\n# ours\n[a]\n  b = 1\n"),
        ("[[a]]\nb = 1\n", [Set(("a",), [1])], "a = [1]\n"),
        ("a = { }\n", [Set(("a", "b"), 1)], "a = { b = 1 }\n"),
        ("a = {b=1}\n", [Remove(("a", "b"))], "a = {}\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "b", "f"), 4)], "a = { b.c = 1, d = 2, b.e = 3, b.f = 4 }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Remove(("a", "b"))], "a = { d = 2 }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "b"), {})], "a = { d = 2, b = {} }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "d"), 5)], "a = { b.c = 1, d = 5, b.e = 3 }\n"),
        ("a = { b = 1, c = 2, d = 3 }\n", [Remove(("a", "d")), Remove(("a", "c"))], "a = { b = 1 }\n"),
        ("a = { b = [1] }\n", [Set(("a", "b"), [1, {"c": 2}])], "a = { b = [1, { c = 2 }] }\n"),
    ],
)
def test_unusual_forms_are_edited_where_they_stand(text: str, changes: Sequence[Change], expected: str) -> None:
    assert edit(text, *changes) == expected


@pytest.mark.parametrize(
    "text,new,expected",
    [
        ("[]", ["a"], '["a"]'),
        ("[ ]", ["a"], '["a" ]'),
        ("[\n]", ["a"], '[\n  "a",\n]'),
        ("[\n  # none\n]", ["a"], '[\n  # none\n  "a",\n]'),
        ('["a", ]', ["a", "b"], '["a", "b", ]'),
        ('["a",\n "b"]', ["a", "b", "c"], '["a",\n "b",\n "c"]'),
        ('[\n  "a", # c\n]', ["a", "b", "c"], '[\n  "a", # c\n  "b",\n  "c",\n]'),
        ('["a", "b", "c"]', ["b", "d"], '["b", "d"]'),
        ('["a", "b", "c"]', ["a"], '["a"]'),
        ('["a", "b", "c", "d"]', ["a", "d"], '["a", "d"]'),
        ('["a", "b", ]', ["a"], '["a", ]'),
        ('["a", "b"]', [], "[]"),
        ('[\n  "a",\n  "b"\n]', ["a"], '[\n  "a"\n]'),
        ('[\n  "a", # a\n  "b", # b\n]', ["b"], '[\n  # a\n  "b", # b\n]'),
        ('[\n  "a" # a\n  , "b"\n]', ["b"], '[\n   # a\n   "b"\n]'),
        ('["a", # a\n "b"]', ["a"], '["a" # a\n ]'),
        ('[["a"], ["b"]]', [["b"]], '[["b"]]'),
    ],
)
def test_array_elements_come_and_go_in_the_layout_that_is_there(text: str, new: list[Any], expected: str) -> None:
    assert edit(f"a = {text}\n", Set(("a",), new)) == f"a = {expected}\n"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "# only a comment",
        "version = 2",
        "version = 2\r\n\r\n",
        f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'runc'  # why\n",
        f"[{CRI}.containerd.runtimes.runc]\n  runtime_type = 'x'\n  ",
        f"[{CRI}]\ncontainerd.runtimes.runc.runtime_type = 'x'\n# end\n",
        f"plugins = {{ {CRI.partition('.')[2]} = {{ containerd = {{}} }} }}\n",
        "# ours\n",
        "text = '''\n# ours\n'''",
    ],
)
def test_what_an_edit_added_the_next_takes_away_byte_for_byte(content: str) -> None:
    before = toml_document.parse(content.encode())
    added = edit(
        content, *(Set((*CONTAINERD, "runtimes", name), RUNTIME) for name in HANDLERS), Set(("imports",), ["/a.toml"])
    )
    assert added != content
    changes = [Set((key,), value) for key, value in before.items()]
    gone = [Remove((key,)) for key in ("plugins", "imports") if key not in before]
    assert edit(added, *changes, *gone) == content


def test_text_that_somebody_appended_to_the_block_outlives_it() -> None:
    content = "version = 2\n"
    added = edit(content, Set(("a",), {"b": 1})) + "[foo]\n# ours\n\n# ours\n"
    assert edit(added, Remove(("a",))) == content + "[foo]\n# ours\n\n# ours\n"


def test_a_block_keeps_its_comment_while_its_first_table_stands() -> None:
    content = edit("", Set(("a",), {"x": 1}), Set(("b",), {"x": 1}))
    assert edit(content, Remove(("b",))) == "# ours\n[a]\n  x = 1\n"


def test_a_comment_that_somebody_wrote_into_the_block_survives() -> None:
    content = "# ours\n[a]\n  # why\n  b = 1 # because\n"
    assert edit(content, Remove(("a",))) == "  # why\n  # because\n"


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


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_file_of_3000_tables_is_edited_in_a_moment(*, interleaved: bool) -> None:
    mirrors = [
        f'\n[{CRI}.registry.mirrors."r{n}.example"]\n  endpoint = ["https://m{n}.example"]\n' for n in range(1500)
    ]
    secrets = [f'\n[{CRI}.registry.configs."r{n}.example".tls]\n  ca_file = "/{"x" * 80}/{n}"\n' for n in range(1500)]
    tables = (
        [each for pair in zip(mirrors, secrets, strict=True) for each in pair] if interleaved else mirrors + secrets
    )
    content = f'version = 2\n{"".join(tables)}\n[{CRI}.containerd]\n  default_runtime_name = "runc"\n'
    started = time.process_time()
    edited = edit(
        content,
        *(Set((*CONTAINERD, "runtimes", name), RUNTIME) for name in HANDLERS),
        Set((*CONTAINERD, "default_runtime_name"), "nvidia"),
    )
    # of the processor, whatever else the machine does: 0.4 s on one core of 2020; a quadratic search takes minutes
    assert time.process_time() - started < 5
    assert len(content) > 400_000
    assert edited.startswith(content.removesuffix('"runc"\n'))


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
