"""What is wrong with containerd's files taken together, by release: a missing default runtime, tables not read."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.containerd.faults import check_files, find_served_in
from toolkit_installer.engines.containerd.tables import ConfigFile, parse_file

PLUGIN = {None: "cri", 1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
ROOT, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/a.toml"
FOLDER = "/usr/local/nvidia/toolkit"


def text(version: int | None, *runtimes: str, default: str | None = None, more: str = "") -> str:
    """Return a file of that version with these runtimes; the version is on line 1 where there is one."""
    table = f"plugins.'{PLUGIN[version]}'"
    lines = [] if version is None else [f"version = {version}"]
    lines += [f"[{table}]", more or "x = 1", f"[{table}.containerd]"]
    lines += [] if default is None else [f"default_runtime_name = '{default}'"]
    for name in runtimes:
        lines += [f"[{table}.containerd.runtimes.{name}]", "runtime_type = 'io.containerd.runc.v2'"]
    return "\n".join(lines) + "\n"


def files(*texts: str) -> tuple[ConfigFile, ...]:
    """Return the root and one import."""
    return tuple(parse_file("", path, each.encode()) for path, each in zip((ROOT, DROP_IN), texts, strict=False))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("release", ["1.6.20", "1.7.24"])
def test_an_import_that_takes_the_default_runtime_away_is_named(version: int, release: str) -> None:
    read = files(text(version, "runc", "other"), text(version, "spin"))
    (fault,) = check_files(read, release)
    assert (fault.path, fault.line, fault.stops) == (DROP_IN, 2, True)
    assert "takes the default runtime 'runc' away" in fault.reason
    assert f"{ROOT}:5" in fault.reason


@pytest.mark.parametrize("version", [2, 3])
def test_from_2_1_on_an_import_takes_nothing_away(version: int) -> None:
    assert not check_files(files(text(version, "runc", default="runc"), text(version, "spin")), "2.1.4")


def test_of_an_unknown_release_it_is_a_fault_and_no_reason_to_refuse() -> None:
    (fault,) = check_files(files(text(2, "runc"), text(2, "spin")), "")
    assert not fault.stops
    assert "containerd 1.6" in fault.reason


@pytest.mark.parametrize(
    "version, release",
    [(1, "1.6.20"), (2, "1.7.24"), (2, "2.0.5"), (2, "2.1.4"), (3, "2.0.5"), (3, "2.1.4"), (3, "2.4.2"), (2, "")],
)
def test_a_default_that_no_file_defines_is_named_with_its_line(version: int, release: str) -> None:
    (fault,) = check_files(files(text(version, "runc"), text(version, "crun", default="gone")), release)
    assert (fault.path, fault.line, fault.stops) == (DROP_IN, 5, True)
    assert "the default runtime is 'gone'" in fault.reason


def test_a_runtimes_map_without_the_built_in_default_is_a_fault_on_1_x_alone() -> None:
    read = files(text(2, "kata"))
    (fault,) = check_files(read, "1.7.24")
    assert (fault.path, fault.line) == (ROOT, 4)
    assert not check_files(read, "2.1.4")


@pytest.mark.parametrize("content", ["", "version = 2\n", text(2), text(2, "crun", default="crun")])
def test_files_with_their_default_runtime_have_no_fault(content: str) -> None:
    for release in ("1.6.20", "1.7.24", "2.1.4", "2.4.2", ""):
        assert not check_files(files(content), release)


def test_the_default_of_containerd_before_1_3_counts_and_a_disabled_cri_needs_none() -> None:
    legacy = "[plugins.'io.containerd.grpc.v1.cri'.containerd.default_runtime]\nruntime_type = 'io.containerd.runc.v2'"
    assert not check_files(files(text(2, "kata") + legacy), "1.7.24")
    assert not check_files(files("disabled_plugins = ['io.containerd.grpc.v1.cri']\n" + text(2, "kata")), "1.7.24")


MIXED = {
    # root's version, import's version, release: which of the two is not read, None for neither
    (2, 3, "2.1.4"): ROOT,
    (2, 3, "2.0.5"): ROOT,
    (2, 3, "2.4.2"): None,
    (3, 2, "2.1.4"): DROP_IN,
    (3, 2, "2.4.2"): None,
    (3, None, "2.1.4"): DROP_IN,
    (None, 3, "2.1.4"): ROOT,
    (1, 3, "2.1.4"): ROOT,
    (1, 2, "2.1.4"): None,
    (1, 3, "2.3.7"): None,
    (3, 2, "1.7.24"): ROOT,
    (2, 1, "1.7.24"): ROOT,
    (2, 2, "1.7.24"): None,
    (3, 3, "2.1.4"): None,
}


@pytest.mark.parametrize("mixed", MIXED, ids=str)
def test_a_file_that_is_not_read_for_its_version_is_named_with_the_other(
    mixed: tuple[int | None, int | None, str],
) -> None:
    root, imported, release = mixed
    read = files(text(root, "runc", more="sandbox_image = 'a'"), text(imported, "runc", more="registry = {}"))
    passed_over = [fault for fault in check_files(read, release) if "does not read" in fault.reason]
    assert [fault.path for fault in passed_over] == ([] if MIXED[mixed] is None else [MIXED[mixed]])
    for fault in passed_over:
        assert fault.line is not None
        assert ROOT in f"{fault.path} {fault.reason}"
        assert DROP_IN in f"{fault.path} {fault.reason}"
        assert ("sandbox_image" if fault.path == ROOT else "registry") in fault.reason
        assert not fault.stops


@pytest.mark.parametrize("version, refused", [("2.3.0", True), ("2.3.4", True), ("2.3.5", False), ("2.2.9", False)])
def test_an_import_of_a_newer_version_stops_containerd_2_3_0_to_2_3_4(version: str, *, refused: bool) -> None:
    read = files(text(2, "runc"), text(3, "runc"))
    stopping = [fault for fault in check_files(read, version) if fault.stops]
    assert [fault.path for fault in stopping] == ([DROP_IN] if refused else [])
    assert not [fault for fault in check_files(files(text(3, "runc"), text(2, "runc")), version) if fault.stops]


def test_the_file_by_which_a_handler_of_ours_is_still_served_is_named() -> None:
    ours = f"options = {{ BinaryName = '{FOLDER}/nvidia-container-runtime' }}\n"
    read = files(text(2, "runc", "nvidia") + ours, text(2, "runc"))
    assert not list(find_served_in(read, (1, 7), FOLDER))  # the import replaces the root's table
    (fault,) = find_served_in(read, (2, 1), FOLDER)
    assert (fault.path, fault.line) == (ROOT, 7)
    (fault,) = find_served_in(files(text(2, "runc"), text(2, "runc", "nvidia") + ours), (1, 7), FOLDER)
    assert (fault.path, fault.line) == (DROP_IN, 7)
