"""The files that a containerd reads: its imports as Go finds them, in its order, and the file that it started with."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents.changes import DocumentError
from toolkit_installer.engines.common.command_line import HiddenError
from toolkit_installer.engines.containerd import config_files
from toolkit_installer.engines.containerd.config_files import ImportedFile, MissingImport
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import Root

ROOT = "/etc/c/config.toml"


@pytest.fixture
def files(tmp_path: Path) -> Reader:
    return Reader(Root(str(tmp_path)))


def put(files: Reader, path: str, *imports: str) -> bytes:
    """Write a file that imports these patterns; return its content."""
    place = Path(files.root.outside(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    content = f"imports = {list(imports)}\n".encode()
    place.write_bytes(content)
    return content


def read(files: Reader, *imports: str, drop_in: str = "") -> tuple[list[str], list[tuple[str, str]]]:
    """Return the paths of the files that a root with these imports makes containerd read, and the missing ones."""
    found, missing = config_files.read_imports(files, ROOT, put(files, ROOT, *imports), frozenset({drop_in}))
    return [each.path for each in found], [(each.importer, each.path) for each in missing]


# --- imports ---


def test_files_are_read_level_by_level_and_each_once(files: Reader) -> None:
    put(files, "/etc/c/a.toml", "/etc/c/deep.toml", ROOT)
    put(files, "/etc/c/b.toml", "/etc/c/a.toml")
    put(files, "/etc/c/deep.toml", "/etc/c/b.toml")
    order = ["/etc/c/b.toml", "/etc/c/a.toml", "/etc/c/deep.toml"]
    assert read(files, "/etc/c/b.toml", "/etc/c/a.toml", "/etc/c/b.toml") == (order, [])


def test_what_earlier_files_import_comes_before_what_later_ones_do(files: Reader) -> None:
    for name, imported in (("a", "z"), ("b", "y")):
        put(files, f"/etc/c/{name}.toml", f"/etc/c/{imported}.toml")
        put(files, f"/etc/c/{imported}.toml")
    order = [f"/etc/c/{name}.toml" for name in "abzy"]
    assert read(files, "/etc/c/a.toml", "/etc/c/b.toml") == (order, [])


def test_a_pattern_is_read_in_the_order_of_names_and_relative_to_its_own_file(files: Reader) -> None:
    put(files, "/etc/c/conf.d/20.toml", "../other/*.toml")
    put(files, "/etc/c/conf.d/10.toml")
    put(files, "/etc/c/other/x.toml")
    put(files, "/etc/c/conf.d/30.conf")
    found, _ = config_files.read_imports(files, ROOT, b'imports = ["conf.d/*.toml"]', frozenset())
    assert [(each.path, each.by_relative_pattern) for each in found] == [
        ("/etc/c/conf.d/10.toml", True),
        ("/etc/c/conf.d/20.toml", True),
        ("/etc/c/other/x.toml", True),
    ]


def test_a_relative_path_without_a_wildcard_is_found_by_every_release(files: Reader) -> None:
    put(files, "/etc/c/a.toml")
    found, _ = config_files.read_imports(files, ROOT, b'imports = ["a.toml"]', frozenset())
    assert [(each.path, each.by_relative_pattern) for each in found] == [("/etc/c/a.toml", False)]


def test_a_missing_file_is_told_unless_a_pattern_or_our_drop_in_names_it(files: Reader) -> None:
    put(files, "/etc/c/a.toml", "/gone.toml")
    assert read(files, "/etc/c/a.toml", "/none/*.toml") == (["/etc/c/a.toml"], [("/etc/c/a.toml", "/gone.toml")])
    assert read(files, "/ours.toml", drop_in="/ours.toml") == ([], [])
    place = Path(files.root.outside("/etc/c/conf.d/dangling.toml"))
    place.parent.mkdir()
    place.symlink_to("/nowhere")
    assert read(files, "/etc/c/conf.d/*.toml") == ([], [(ROOT, "/etc/c/conf.d/dangling.toml")])


def test_our_drop_in_is_known_by_any_of_its_names(files: Reader) -> None:
    content = put(files, "/etc/c/real.toml")
    Path(files.root.outside("/etc/c/link.toml")).symlink_to("real.toml")
    for name in ("/etc/c/link.toml", "/etc/c/real.toml"):
        (each,), _ = config_files.read_imports(files, ROOT, b'imports = ["link.toml"]', frozenset({name}))
        assert each == ImportedFile("/etc/c/link.toml", "/etc/c/link.toml", content, False, True, "/etc/c/real.toml")  # noqa: FBT003  # in its order


def test_a_folder_of_containerds_is_read_where_it_is_mounted(files: Reader) -> None:
    content = put(files, "/mounted/a.toml", "b.toml")
    root = b'imports = ["/conf.d/*.toml", "/conf.d/gone.toml"]'
    found, missing = config_files.read_imports(files, ROOT, root, frozenset(), {"/conf.d": "/mounted"})
    assert [(each.path, each.place, each.content) for each in found] == [("/conf.d/a.toml", "/mounted/a.toml", content)]
    assert missing == (MissingImport(ROOT, "/conf.d/gone.toml"), MissingImport("/conf.d/a.toml", "/conf.d/b.toml"))


def test_an_imported_file_that_is_no_toml_is_named(files: Reader) -> None:
    put(files, "/etc/c/a.toml")
    Path(files.root.outside("/etc/c/a.toml")).write_text("version = = 1\n")
    with pytest.raises(DocumentError) as refused:
        read(files, "/etc/c/a.toml")
    assert refused.value.path == "/etc/c/a.toml"


@pytest.mark.parametrize("content", [b"", b"imports = 5", b"imports = [5]", b"version = 3"])
def test_what_is_no_list_of_patterns_imports_nothing(content: bytes) -> None:
    assert config_files.list_imports(content, ROOT) == []


# --- patterns ---


@pytest.mark.parametrize(
    "part, name, fits",
    [
        ("*.toml", "a.toml", True),
        ("*.toml", ".toml", True),
        ("*.toml", "a.toml.bak", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*a", "aba", True),
        ("a*a", "a", False),
        ("?.toml", "ab.toml", False),
        ("[a-c].toml", "b.toml", True),
        ("[^a-c].toml", "b.toml", False),
        ("[^a-c].toml", "d.toml", True),
        ("[!a].toml", "!.toml", True),
        (r"[\]].toml", "].toml", True),
        (r"\*.toml", "*.toml", True),
        (r"\*.toml", "a.toml", False),
        ("a.toml", "abtoml", False),
        ("[", "[", False),
        ("[]", "]", False),
        ("a\\", "a\\", False),
        ("[z-a]", "b", False),
        ("x" * 300, "x" * 300, False),
    ],
)
def test_a_part_matches_as_in_go(part: str, name: str, *, fits: bool) -> None:
    assert config_files.matches(part, name) is fits


LETTERS = st.text("ab.", max_size=6)


@given(part=st.text("ab.*?", max_size=8), name=LETTERS)
def test_wildcards_match_as_everywhere(part: str, name: str) -> None:
    assert config_files.matches(part, name) == fnmatch.fnmatchcase(name, part)


@given(name=LETTERS, cuts=st.sets(st.integers(0, 6)))
def test_a_name_matches_itself_with_stars_wherever_they_stand(name: str, cuts: set[int]) -> None:
    part = "".join(("*" if at in cuts else "") + letter for at, letter in enumerate(name))
    assert config_files.matches(part, name)


@pytest.mark.parametrize(
    "pattern, path, covered",
    [
        ("/c/*.toml", "/c/a.toml", True),
        ("/c/*.toml", "/c/d/a.toml", False),
        ("/c/*", "/c/d/a.toml", False),
        ("/*/a.toml", "/c/a.toml", True),
        ("/c/[a].toml", "/c/[a].toml", True),
        ("/c/[a].toml", "/c/a.toml", False),  # without a star it is no pattern
        ("/c/[a]*.toml", "/c/a.toml", True),
    ],
)
def test_a_pattern_covers_paths_of_its_own_depth_alone(pattern: str, path: str, *, covered: bool) -> None:
    assert config_files.covers([pattern], path) is covered
    assert not config_files.covers([], path)


def test_a_pattern_is_expanded_in_every_part_and_a_literal_path_in_none(files: Reader) -> None:
    for path in ("/c/b/1.toml", "/c/a/2.toml", "/c/a/1.toml", "/d/a/1.toml"):
        put(files, path)
    assert config_files.expand_pattern(files, "/c/*/*.toml") == ["/c/a/1.toml", "/c/a/2.toml", "/c/b/1.toml"]
    assert config_files.expand_pattern(files, "/[cd]/a/1*") == ["/c/a/1.toml", "/d/a/1.toml"]
    assert config_files.expand_pattern(files, "/c/*/3.toml") == []
    assert config_files.expand_pattern(files, "/c/absent.toml") == ["/c/absent.toml"]
    assert config_files.expand_pattern(files, "/c/a/[12].toml") == ["/c/a/[12].toml"]


# --- the file of a running containerd ---


def process(*arguments: str, hidden: bool = False) -> Process:
    """Return a containerd, which is this process, with that command line."""
    command = ("/usr/bin/containerd", *arguments)
    return Process(os.getpid(), "containerd", command[0], command, 0.0, None, hidden=hidden)


@pytest.mark.parametrize("flags", [("--config", ROOT), ("-c", ROOT), ("-config=/x", f"--config={ROOT}")])
def test_the_last_flag_tells_the_file(flags: tuple[str, ...]) -> None:
    assert config_files.find_config(process(*flags)) == ROOT
    assert config_files.find_config_or(process(*flags), "/usual") == ROOT


def test_without_a_flag_it_is_the_usual_file_unless_the_command_line_is_wiped() -> None:
    assert config_files.find_config(process()) is None
    assert config_files.find_config_or(process(), "/usual") == "/usual"
    with pytest.raises(HiddenError, match="which configuration it reads"):
        config_files.find_config(process(hidden=True))
    assert config_files.find_config_or(process(hidden=True), "/usual") is None
    assert config_files.find_layout(process(hidden=True)) is None


def test_the_layout_of_a_running_distribution_is_that_of_the_file_that_it_sees(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("# File generated by rke2\nversion = 3\n")
    layout = config_files.find_layout(process("--config", str(config)))
    assert layout is not None
    assert (layout.name, layout.generated) == ("rke2", str(config))
    config.write_text("version = 3\n")
    assert config_files.find_layout(process("--config", str(config))) is None
    assert config_files.find_layout(process()) is None
