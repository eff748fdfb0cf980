"""config.toml with us and without us, versions 2 and 3: the runtimes that were there stay, and so does every line."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Path, Remove, Set, is_same, lookup
from toolkit_installer.engines.api import DesiredState, EngineFile, LiveState, RecordedFile
from toolkit_installer.engines.containerd import config as containerd_config
from toolkit_installer.engines.containerd import config as containerd_sources
from toolkit_installer.engines.containerd import tables as containerd_tables
from toolkit_installer.engines.containerd.config import TableAdditions
from toolkit_installer.engines.containerd.config_files import ImportedFile
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE
from toolkit_installer.engines.containerd.inspection import ContainerdInspection as Inspection
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName, EngineSettings

FOLDER = "/usr/local/nvidia/toolkit"
HANDLERS = tuple(
    Handler(name, f"{FOLDER}/nvidia-container-runtime{end}")
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)
TABLE = {version: containerd_tables.table_of(containerd_tables.FILE_VERSIONS[version].plugin) for version in (2, 3)}

HEADS = st.sampled_from(["", "# a comment\n", "root = '/var/lib/x' # mine\n", "imports = ['/etc/c/*.toml']\n"])
TAILS = st.sampled_from(["", "[debug]\n  level = 'info'", "\n[plugins.'io.containerd.x']\n\ta = [1,\n 2]\n", "# end\n"])
RUNTIME_BLOCKS = {
    "runc": "[{p}.containerd.runtimes.runc]\n runtime_type = 'io.containerd.runc.v2'\n"
    " [{p}.containerd.runtimes.runc.options]\n  SystemdCgroup = true # keep\n",
    "kata": "[{p}.containerd.runtimes.kata]\nruntime_type = 'io.containerd.kata.v2'\n",
    "inline": "[{p}.containerd.runtimes]\ncrun = {{ runtime_type = 'io.containerd.runc.v2', options = {{ X = 1 }} }}\n",
    "nvidia": "[{p}.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
    "options.BinaryName = '/opt/nv'\n",
}
BUILT_IN = {
    2: {"runtime_type": "io.containerd.runc.v2", "sandbox_mode": "podsandbox"},
    3: {"runtime_type": "io.containerd.runc.v2"},
}
"""containerd's own runc, as files of a version say what a daemon without any has."""


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return a config.toml that every containerd takes, and its version."""
    version = draw(st.sampled_from([2, 3]))
    plugin = f'plugins."{containerd_tables.FILE_VERSIONS[version].plugin}"'
    parts = [f"version = {version}\n", draw(HEADS)]
    if draw(st.booleans()):
        parts.append(f"[{plugin}]\n  sandbox_image = 'x'\n")
    if draw(st.booleans()):
        parts.append(f"[{plugin}.containerd]\nsnapshotter = 'overlayfs'\n")
    names = draw(st.lists(st.sampled_from(sorted(RUNTIME_BLOCKS)), unique=True, max_size=3))
    parts += [RUNTIME_BLOCKS[name].format(p=plugin) for name in sorted(names)]
    text = "".join([*parts, draw(TAILS)])
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode(), version


def with_us(base: bytes, version: int, default: str | None = "nvidia") -> tuple[bytes, Ownership]:
    document, _ = containerd_tables.parse_checked(base)
    plugin = containerd_tables.FILE_VERSIONS[version].plugin
    made = containerd_config.build_entries(containerd_sources.get_base_runtime(document, plugin), plugin, HANDLERS)
    built_in = lookup(document, (*TABLE[version], "runtimes")) is ABSENT
    part = TableAdditions(plugin, made, default, built_in=built_in)
    return containerd_config.add_parts(base, [part], None if document else version)


def meaning(text: bytes) -> dict[str, Any]:
    return tomllib.loads(text.decode())


@settings(max_examples=60, deadline=None)
@given(documents())
def test_installed_every_runtime_that_was_effective_still_is(made: tuple[bytes, int]) -> None:
    base, version = made
    text, _ = with_us(base, version)
    table = TABLE[version]
    before = lookup(meaning(base), (*table, "runtimes"))
    after = lookup(meaning(text), (*table, "runtimes"))
    effective = {"runc": BUILT_IN[version]} if before is ABSENT else before
    for name, entry in effective.items():
        assert name == "nvidia" or is_same(after[name], entry)
    for handler in HANDLERS:
        assert after[handler.name]["options"]["BinaryName"] == handler.executable
        assert after[handler.name]["runtime_type"] == "io.containerd.runc.v2"
    assert lookup(meaning(text), (*table, "default_runtime_name")) == "nvidia"


@settings(max_examples=60, deadline=None)
@given(documents(), st.sampled_from(["nvidia", None]))
def test_taken_out_again_the_file_means_what_it_meant_and_has_its_comments(
    made: tuple[bytes, int], default: str | None
) -> None:
    base, version = made
    text, ownership = with_us(base, version, default)
    without, left = containerd_config.remove_ours_from_text(text, ownership, FOLDER)
    assert is_same(meaning(without), meaning(base))
    assert without.count(b"#") == base.count(b"#")
    assert left == ()


EDITED: list[tuple[str, Path, Any]] = [
    ("a key beside ours", ("plugins", "{p}", "sandbox_image"), "other"),
    ("another plugin", ("plugins", "io.containerd.other", "x"), 5),
    ("a key of the root", ("oom_score",), -999),
    ("a runtime of theirs", ("plugins", "{p}", "containerd", "runtimes", "mine"), {"runtime_type": "x.v1"}),
]


@settings(max_examples=60, deadline=None)
@given(documents(), st.sampled_from(EDITED))
def test_an_operators_edit_meanwhile_is_all_that_is_left_of_the_difference(
    made: tuple[bytes, int], edit: tuple[str, Path, Any]
) -> None:
    base, version = made
    path = tuple(part.replace("{p}", containerd_tables.FILE_VERSIONS[version].plugin) for part in edit[1])
    text, ownership = with_us(base, version)
    edited = toml_document.edit(text, [Set(path, edit[2])], marker="theirs")
    without, left = containerd_config.remove_ours_from_text(edited, ownership, FOLDER)
    expected = toml_document.parse(toml_document.edit(base, [Set(path, edit[2])], marker="theirs"))
    got = toml_document.parse(without)
    if left:  # the built-in runc stays with the operator's first runtime: containerd 1.x would lose it
        runtimes = (*TABLE[version], "runtimes")
        assert lookup(meaning(base), runtimes) is ABSENT
        assert edit[0] == "a runtime of theirs"
        got = toml_document.parse(toml_document.edit(without, [Remove((*runtimes, "runc"))], marker=""))
    assert is_same(got, expected)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("base", [b"", b"\n", b"# only a comment\n"])
def test_an_empty_file_gets_version_and_runc_and_loses_them_again(version: int, base: bytes) -> None:
    text, ownership = with_us(base, version)
    document = meaning(text)
    assert document["version"] == version
    assert lookup(document, (*TABLE[version], "runtimes"))["runc"] == BUILT_IN[version]
    without, _ = containerd_config.remove_ours_from_text(text, ownership, FOLDER)
    assert meaning(without) == {}


def test_a_comment_in_a_file_that_says_nothing_else_survives() -> None:
    text, ownership = with_us(b"# ours since 2019, ask Jo\n", 2)
    edited = text + b"# and this\n"
    without, _ = containerd_config.remove_ours_from_text(edited, ownership, FOLDER)
    assert b"ask Jo" in without
    assert b"and this" in without


@pytest.mark.parametrize("version", [2, 3])
def test_a_default_that_is_no_runc_lends_its_options_to_nobody(version: int) -> None:
    runtimes = {
        "kata": {"runtime_type": "io.containerd.kata.v2", "options": {"ConfigPath": "/k"}},
        "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}},
    }
    effective: dict[str, Any] = {"default_runtime_name": "kata", "runtimes": runtimes}
    for part in reversed(TABLE[version]):
        effective = {part: effective}
    plugin = containerd_tables.FILE_VERSIONS[version].plugin
    ((_, entry), *_) = containerd_config.build_entries(
        containerd_sources.get_base_runtime(effective, plugin), plugin, HANDLERS
    )
    assert entry == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"SystemdCgroup": True, "BinaryName": HANDLERS[0].executable},
    }
    assert runtimes["runc"]["options"] == {"SystemdCgroup": True}


@pytest.mark.parametrize(
    "content, line, word",
    [
        (b"version = 2\nplugins = 5\n", 2, "plugins must be a table"),
        (b"version = 3\n[plugins]\n'io.containerd.cri.v1.runtime' = []\n", 3, "must be a table"),
        (b"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nruntimes = 'x'\n", 3, "must be a table"),
        (b"version = 2\nimports = 'x'\n", 2, "imports must be a list of paths"),
        (b"imports = [1]\nversion = 2\n", 1, "imports must be a list of paths"),
        (b"\nversion = 5\n", 2, "is of version 5"),
        (b"\nversion = '2'\n", 2, "version must be a number"),
    ],
)
def test_what_we_cannot_work_with_is_named_with_its_line(content: bytes, line: int, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as raised:
        containerd_tables.parse_checked(content)
    assert raised.value.line == line


def test_an_older_installers_entries_are_ours_without_any_receipt() -> None:
    base = b"version = 2\n[debug]\nlevel = 'x' # mine\n"
    text, _ = with_us(base, 2)
    without, _ = containerd_config.remove_ours_from_text(text, Ownership(), FOLDER)
    runtimes = lookup(meaning(without), (*TABLE[2], "runtimes"))
    assert runtimes == {"runc": BUILT_IN[2]}
    assert lookup(meaning(without), (*TABLE[2], "default_runtime_name")) is ABSENT
    assert b"# mine" in without


@pytest.mark.parametrize("version", [2, 3])
def test_runc_as_default_is_the_operators_choice_also_where_only_we_named_runc(version: int) -> None:
    text, ownership = with_us(f"version = {version}\n".encode(), version)
    default = (*TABLE[version], "default_runtime_name")
    edited = toml_document.edit(text, [Set(default, "runc")], marker="")
    without, left = containerd_config.remove_ours_from_text(edited, ownership, FOLDER)
    assert lookup(meaning(without), default) == "runc"
    assert any("default runtime 'runc'" in note for note in left)


def test_an_import_is_added_once_and_taken_out_alone() -> None:
    base = b"version = 3\nimports = ['/etc/a.toml'] # theirs\n"
    text, ownership = containerd_config.add_import(base, "/etc/b.toml")
    assert meaning(text)["imports"] == ["/etc/a.toml", "/etc/b.toml"]
    assert containerd_config.add_import(text, "/etc/b.toml") == (text, Ownership())
    edited = toml_document.edit(text, [Set(("imports",), ["/etc/b.toml", "/etc/c.toml"])], marker="")
    without, _ = containerd_config.remove_ours_from_text(edited, ownership, FOLDER)
    assert meaning(without)["imports"] == ["/etc/c.toml"]


# --- the adapter's choice between root and drop-in ---


def file(role: str, path: str, content: bytes | None) -> EngineFile:
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile(role, path, found)


def goals(root: bytes | None, release: str | None, drop_in: bytes | None = None) -> DesiredState:
    live = None if release is None else LiveState(release, {"runc": None}, "runc")
    files = (
        file(ROOT_ROLE, "/etc/containerd/config.toml", root),
        file(DROP_IN_ROLE, "/etc/containerd/conf.d/99-nvidia.toml", drop_in),
    )
    return Containerd().build_desired_state(
        Inspection("/s", files, live), Request(EngineTarget(EngineName.CONTAINERD), HANDLERS, "nvidia", FOLDER), {}
    )


ROOT_3 = b"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nSystemdCgroup=true\n"
ROOT_2 = ROOT_3.replace(b"version = 3", b"version = 2").replace(b"cri.v1.runtime", b"grpc.v1.cri")


@pytest.mark.parametrize(
    "release, by_drop_in",
    [
        ("v2.1.4", True),
        ("2.3.0-rc.1", True),
        ("v2.0.5", False),
        ("1.7.24", False),
        ("1.6.20~ds1", False),
        (None, False),
    ],
)
def test_a_drop_in_is_made_only_where_it_is_known_to_be_merged_deeply(release: str | None, *, by_drop_in: bool) -> None:
    made = goals(ROOT_2 if (release or "").startswith("1.") else ROOT_3, release)
    changed = [goal.role for goal in made.files if goal.target != goal.base]
    assert changed == ([DROP_IN_ROLE, ROOT_ROLE] if by_drop_in else [ROOT_ROLE])
    assert bool(made.notes) == (release is None)
    if by_drop_in:
        drop_in, root = (meaning(goal.target or b"") for goal in made.files)
        assert drop_in["version"] == root["version"] == 3
        assert root["imports"] == ["/etc/containerd/conf.d/99-nvidia.toml"]
        runtimes = lookup(drop_in, (*TABLE[3], "runtimes"))
        assert runtimes["nvidia"]["options"] == {"SystemdCgroup": True, "BinaryName": HANDLERS[0].executable}


def test_no_drop_in_of_another_version_than_the_roots_is_made() -> None:
    made = goals(ROOT_3, "v2.1.4", drop_in=b"version = 2\n[debug]\n")
    assert [goal.role for goal in made.files if goal.target != goal.base] == [ROOT_ROLE]


def test_an_untouched_drop_in_of_ours_goes_and_so_does_an_older_installers() -> None:
    made = goals(ROOT_3, "v2.1.4")
    text = made.files[0].target or b""
    adapter, ours = Containerd(), file(DROP_IN_ROLE, "/d", text)
    remembered = RecordedFile(None, frozenset({digest_of(text)}), made.files[0].ownership)
    assert adapter.remove_ours(ours, remembered, FOLDER).base is None
    theirs = file(DROP_IN_ROLE, "/d", text.replace(b"# Added by toolkit-installer", b"# Written by something else"))
    assert adapter.remove_ours(theirs, RecordedFile(), FOLDER).base is None


def test_a_root_that_is_not_there_is_made_for_the_daemon_that_runs() -> None:
    versions = {
        release: meaning(goals(None, release).files[0].target or b"") for release in ("1.7.2", "v2.0.1", "v2.2.0")
    }
    assert [document["version"] for document in versions.values()] == [2, 3, 3]
    assert not any("imports" in document for document in versions.values())  # no daemon imports any without a file


def test_a_relative_import_is_resolved_next_to_the_file_of_the_daemons_start() -> None:
    root = b'imports = ["conf.d/*.toml"]\n' + ROOT_3
    path = "/srv/containerd/conf.d/99-nvidia.toml"
    files = (file(ROOT_ROLE, "/srv/containerd/config.toml", root), file(DROP_IN_ROLE, path, None))
    live = LiveState("v2.1.4", {"runc": None}, "runc")
    request = Request(EngineTarget(EngineName.CONTAINERD, EngineSettings(drop_in=path)), HANDLERS, "nvidia", FOLDER)
    made = Containerd().build_desired_state(Inspection("/s", files, live), request, {})
    assert {goal.role: goal.target for goal in made.files}[ROOT_ROLE] == root  # imported already: nothing to add


@pytest.mark.parametrize("root", [None, b"", b"version = 1\n", b"version = 1\nroot = '/srv'\n"], ids=repr)
def test_for_a_daemon_of_version_1_that_does_not_run_its_own_table_alone_is_written(root: bytes | None) -> None:
    files = (file(ROOT_ROLE, "/etc/containerd/config.toml", root), file(DROP_IN_ROLE, "/d/99-nvidia.toml", None))
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(use_legacy_config=True)), HANDLERS, "nvidia", FOLDER
    )
    made = Containerd().build_desired_state(Inspection("/s", files, None), request, {})
    text = next(each.target for each in made.files if each.role == ROOT_ROLE)
    assert text is not None
    assert meaning(text)["version"] == 1
    assert list(meaning(text)["plugins"]) == ["cri"]
    assert lookup(meaning(text), ("plugins", "cri", "containerd", "default_runtime", "options", "BinaryName")) == (
        HANDLERS[0].executable
    )


OTHERS = ImportedFile(
    "/srv/other.conf", "/srv/other.conf", b"version = 2\n[debug]\nlevel = 'info'\n", file="/srv/other.conf"
)


@pytest.mark.parametrize("release", ["1.7.24", "1.6.33", None])
def test_an_imported_file_that_cannot_be_edited_and_has_no_runtimes_is_no_obstacle(
    release: str | None,
) -> None:
    live = None if release is None else LiveState(release, {"runc": None}, "runc")
    root = ROOT_2 + b"\n"
    files = (file(ROOT_ROLE, "/etc/containerd/config.toml", root), file(DROP_IN_ROLE, "/d/99-nvidia.toml", None))
    request = Request(EngineTarget(EngineName.CONTAINERD), HANDLERS, "nvidia", FOLDER)
    made = Containerd().build_desired_state(Inspection("/s", files, live, graph=(OTHERS,)), request, {})
    assert [each.role for each in made.files if each.changes] == [ROOT_ROLE]


def test_an_imported_file_that_has_the_runtimes_and_cannot_be_edited_is_named() -> None:
    theirs = msgspec.structs.replace(OTHERS, content=ROOT_2)
    files = (
        file(ROOT_ROLE, "/etc/containerd/config.toml", b"version = 2\n"),
        file(DROP_IN_ROLE, "/d/99-nvidia.toml", None),
    )
    request = Request(EngineTarget(EngineName.CONTAINERD), HANDLERS, "nvidia", FOLDER)
    live = LiveState("1.7.24", {"runc": None}, "runc")
    with pytest.raises(ConfigurationError, match=r"cannot be changed from here: its name has no \.toml") as refused:
        Containerd().build_desired_state(Inspection("/s", files, live, graph=(theirs,)), request, {})
    assert refused.value.path == "/srv/other.conf"


@pytest.mark.parametrize(
    "others, alone",
    [
        ((), True),
        (("/usr/bin/runc", "/usr/bin/kata"), True),
        (("/usr/bin/nvidia-container-runtime",), False),
        (("/opt/nvidia/toolkit/nvidia-container-runtime.cdi",), False),
    ],
)
def test_a_drop_in_with_an_nvidia_runtime_elsewhere_is_not_ours_alone(others: tuple[str, ...], *, alone: bool) -> None:
    table = "plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes"
    paths = (f"{FOLDER}/nvidia-container-runtime", *others)
    lines = [f"[{table}.r{at}.options]\nBinaryName = '{path}'" for at, path in enumerate(paths)]
    assert containerd_config.has_only_our_runtimes("\n".join(lines).encode(), FOLDER) is alone
    assert not containerd_config.has_only_our_runtimes("\n".join(lines[1:]).encode(), FOLDER)


MIGRATED_FROM = b"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "crun"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    options.BinaryName = "/opt/nv"
"""


def migrated(content: bytes) -> bytes:
    """Return a file as an administrator writes it for a newer containerd: its CRI table has another name there."""
    newer = content.replace(b"version = 2", b"version = 3")
    return newer.replace(b"io.containerd.grpc.v1.cri", b"io.containerd.cri.v1.runtime")


@pytest.mark.parametrize("default", ["nvidia", None])
def test_what_stood_there_returns_also_under_the_new_name_of_the_table(default: str | None) -> None:
    plugin = containerd_tables.GRPC
    made = containerd_config.build_entries({}, plugin, HANDLERS)
    target, ownership = containerd_config.add_parts(MIGRATED_FROM, [TableAdditions(plugin, made, default)])
    now = migrated(target).replace(b'default_runtime_name = "crun"', b'default_runtime_name = "nvidia"')
    left, _ = containerd_config.remove_ours_from_text(
        now, ownership, FOLDER, MIGRATED_FROM, [each.name for each in HANDLERS]
    )
    assert left.decode() == migrated(MIGRATED_FROM).decode()
