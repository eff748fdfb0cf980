"""CRI-O's texts with our handlers and without them, and the hook that CRI-O is to ignore."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import lookup
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import ConfigurationError

FOLDER = "/usr/local/nvidia/toolkit"
NVIDIA = Handler("nvidia", f"{FOLDER}/nvidia-container-runtime")


def effective(*texts: str, release: tuple[int, int] | None = None) -> dict[str, Any]:
    return crio_config.merge_files(
        crio_config.build_built_in(release), [crio_config.parse_checked(text.encode()) for text in texts]
    )


def handler(*texts: str, release: tuple[int, int] | None = None) -> dict[str, Any]:
    ((_, entry),) = crio_config.build_entries(effective(*texts, release=release), [NVIDIA])
    return entry


@pytest.mark.parametrize(
    "text, line",
    [
        ("crio = 1\n", 1),
        ("[crio]\nruntime = []\n", 2),
        ("[crio.runtime]\nruntimes = 'x'\n", 2),
        ("[crio.runtime.runtimes]\n\nrunc = '/usr/bin/runc'\n", 3),
        ("[crio.runtime.runtimes.runc]\nruntime_path = 7\n", 2),
        ("[crio.runtime.runtimes.runc]\nruntime_type = true\n", 2),
        ("[crio.runtime]\ndefault_runtime = ['runc']\n", 2),
        ("[crio.runtime]\nhooks_dir = '/hooks'\n", 2),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        crio_config.parse_checked(text.encode())
    assert caught.value.line == line


def test_a_later_table_replaces_a_runtime_whole_and_leaves_the_others() -> None:
    first = "[crio.runtime.runtimes.runc]\nruntime_path = '/a'\nmonitor_path = '/m'\n[crio.runtime.runtimes.x]\n"
    second = "[crio.runtime.runtimes.runc]\nruntime_root = '/r'\n"
    runtimes = effective(first, second)["crio"]["runtime"]["runtimes"]
    assert runtimes["runc"] == {"runtime_root": "/r"}
    assert set(runtimes) == {"crun", "runc", "x"}


def test_an_empty_default_means_the_built_in_one() -> None:
    texts = ("[crio.runtime]\ndefault_runtime = 'runc'\n", "[crio.runtime]\ndefault_runtime = ''\n")
    assert effective(*texts)["crio"]["runtime"]["default_runtime"] == "crun"


@pytest.mark.parametrize(
    "release, name", [((1, 25), "runc"), ((1, 30), "runc"), ((1, 31), "crun"), ((2, 0), "crun"), (None, "crun")]
)
def test_the_built_in_default_depends_on_the_release(release: tuple[int, int] | None, name: str) -> None:
    assert handler(release=release)["runtime_root"] == f"/run/{name}"


def test_the_executables_own_settings_are_not_carried_over() -> None:
    text = """
[crio.runtime]
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/bin/runc"
runtime_type = ""
inherit_default_runtime = true
monitor_path = "/usr/bin/conmon"
platform_runtime_paths = { "wasi/wasm32" = "/usr/bin/crun-wasm", "linux/amd64" = "/usr/bin/runc-amd64" }
"""
    assert handler(text) == {
        "runtime_path": NVIDIA.executable,
        "runtime_type": "oci",
        "monitor_path": "/usr/bin/conmon",
        "platform_runtime_paths": {"wasi/wasm32": "/usr/bin/crun-wasm"},
    }


def test_low_level_runtimes_are_paths_in_the_order_of_use() -> None:
    text = """
[crio.runtime]
default_runtime = "youki"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/bin/runc"
[crio.runtime.runtimes.youki]
runtime_path = "/usr/bin/youki"
[crio.runtime.runtimes.kata]
runtime_path = "/usr/bin/containerd-shim-kata-v2"
runtime_type = "vm"
"""
    known = effective(text)
    assert crio_config.list_low_level_runtimes(known, {}) == ("/usr/bin/youki", "/usr/bin/runc")
    assert crio_config.list_low_level_runtimes(known, {"crun": "/live/crun", "kata": "/x"}) == (
        "/usr/bin/youki",
        "/live/crun",
        "/usr/bin/runc",
    )


@pytest.mark.parametrize("default,first", [("runc", "runc"), ("crun", "/usr/bin/crun")])
def test_a_runtime_with_a_path_does_not_take_the_place_of_a_default_without_one(default: str, first: str) -> None:
    text = f"""
[crio.runtime]
default_runtime = "{default}"
[crio.runtime.runtimes.runc]
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
"""
    assert crio_config.list_low_level_runtimes(effective(text), {})[0] == first


def test_a_virtual_machines_shim_is_no_low_level_runtime() -> None:
    text = """
[crio.runtime]
default_runtime = "kata"
[crio.runtime.runtimes.kata]
runtime_type = "vm"
runtime_path = "/k"
"""
    assert crio_config.list_low_level_runtimes(effective(text), {}) == ()


def test_a_default_runtime_whose_path_nobody_says_is_used_by_its_name() -> None:
    assert crio_config.list_low_level_runtimes(effective(""), {}) == ("crun",)
    assert crio_config.list_low_level_runtimes(
        effective("[crio.runtime]\ndefault_runtime = 'runc'\n", release=(1, 29)), {}
    ) == ("runc",)
    assert crio_config.list_low_level_runtimes(effective(""), {"crun": "/usr/libexec/crio/crun"}) == (
        "/usr/libexec/crio/crun",
    )


LIVE = f"""
[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_type = "oci"
runtime_config_path = ""
monitor_path = "/usr/libexec/crio/conmon"
privileged_without_host_devices = false
allowed_annotations = []
DisallowedAnnotations = ["io.kubernetes.cri-o.Devices"]
[crio.runtime.runtimes.nvidia]
runtime_path = "{NVIDIA.executable}"
monitor_path = "/of/ours"
"""


def lent(source: str, *files: str) -> dict[str, Any]:
    return crio_config.build_base_configuration(
        crio_config.parse_checked(source.encode()), crio_config.build_built_in(None), effective(*files), FOLDER
    )


def test_the_configuration_of_a_running_crio_lends_settings_of_the_default_before_us() -> None:
    table = lent(LIVE)
    ((_, entry),) = crio_config.build_entries(table, [NVIDIA])
    assert entry == {
        "runtime_path": NVIDIA.executable,
        "runtime_type": "oci",
        "monitor_path": "/usr/libexec/crio/conmon",
    }
    assert crio_config.list_low_level_runtimes(table, {}) == ("/usr/libexec/crio/crun",)


def test_the_default_of_a_source_goes_before_that_of_the_files() -> None:
    source = "[crio.runtime]\ndefault_runtime = 'runc'\n[crio.runtime.runtimes.runc]\nruntime_root = '/source'\n"
    files = "[crio.runtime]\ndefault_runtime = 'youki'\n[crio.runtime.runtimes.youki]\nruntime_path = '/y'\n"
    assert lookup(lent(source, files), crio_config.DEFAULT) == "runc"
    assert lookup(lent(LIVE, files), crio_config.DEFAULT) == "crun"  # it does not know the files' own


def test_where_the_default_of_a_source_is_ours_that_of_the_files_is_taken() -> None:
    """Else handlers had the settings of a runtime that nobody chose, and another one in its place after cleanup."""
    source = f"{LIVE}\n[crio.runtime.runtimes.youki]\nruntime_path = '/y'\n"
    files = "[crio.runtime]\ndefault_runtime = 'youki'\n[crio.runtime.runtimes.youki]\nruntime_path = '/y'\n"
    assert lookup(lent(source, files), crio_config.DEFAULT) == "youki"


def test_what_differs_from_what_is_wanted_is_named_by_its_key() -> None:
    known = effective(f"[crio.runtime.runtimes.nvidia]\nruntime_path = '{NVIDIA.executable}'\n")
    assert crio_config.find_differences(known, {"nvidia": NVIDIA.executable}, None) == []
    assert crio_config.find_differences(known, {"nvidia": "/other"}, "nvidia") == [
        ("crio", "runtime", "runtimes", "nvidia"),
        ("crio", "runtime", "default_runtime"),
    ]


def test_losses_name_what_would_be_missing_or_other() -> None:
    before = toml_document.parse(b"[crio.runtime.runtimes.runc]\nruntime_path = '/runc'\n")
    after = toml_document.parse(b"[crio.runtime]\ndefault_runtime = 'runc'\n[crio.runtime.runtimes.runc]\n")
    assert crio_config.find_losses(before, after, {"nvidia": "/n", "with.dot": "/d"}, "nvidia") == [
        "it does not see the handler nvidia",
        "its default runtime would be 'runc'",
        "the runtime runc would not be what it was",
    ]


def test_the_part_that_is_tried_has_runtimes_and_default_and_means_the_same() -> None:
    known = effective("[crio.runtime]\nlog_level = 'debug'\n[crio.runtime.runtimes.'a.b']\nruntime_path = '/a'\n")
    part = toml_document.parse(crio_config.extract_runtimes(known))["crio"]["runtime"]
    assert part == {key: known["crio"]["runtime"][key] for key in ("default_runtime", "runtimes")}


@pytest.mark.parametrize("text", ["", "[crio]\n  [crio.runtime]\n\n    [crio.runtime.runtimes]\n"])
def test_headers_alone_say_nothing(text: str) -> None:
    assert crio_config.has_no_content(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "[crio.runtime]\n# mine\n",
        "[crio.runtime]\nlog_level = 'info'\n",
        "[crio.runtime.runtimes.x]\nallowed_annotations = []\n",
    ],
)
def test_a_comment_or_a_value_of_somebodys_keeps_a_file(text: str) -> None:
    assert not crio_config.has_no_content(text.encode())


OURS = crio_config.build_hook(FOLDER)
WRITTEN = frozenset({hashlib.sha256(OURS).hexdigest()})
THEIRS = b'{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-toolkit"}, "when": {}, "stages": []}'


def test_the_file_is_what_an_oci_hook_has_to_be() -> None:
    document = json.loads(OURS)
    assert document["version"] == "1.0.0"
    assert document["hook"]["path"] == f"{FOLDER}/nvidia-container-runtime-hook"
    assert document["hook"]["args"] == ["nvidia-container-runtime-hook", "prestart"]
    assert document["when"] == {"always": True, "commands": [".*"]}
    assert document["stages"] == ["prestart"]


def test_what_we_wrote_gives_back_what_stood_there() -> None:
    assert crio_config.remove_our_hook(OURS, THEIRS, WRITTEN, FOLDER) == (THEIRS, ())
    assert crio_config.remove_our_hook(OURS, None, WRITTEN, FOLDER) == (None, ())


def test_somebodys_edit_of_our_hook_goes_with_the_program_that_it_runs_and_is_named() -> None:
    edited = OURS.replace(b'".*"', b'"cuda.*"')
    base, left = crio_config.remove_our_hook(edited, None, WRITTEN, FOLDER)
    assert base is None
    assert len(left) == 1


def test_a_hook_that_runs_something_else_by_now_is_theirs() -> None:
    assert crio_config.remove_our_hook(THEIRS, None, WRITTEN, FOLDER) == (THEIRS, ())
    assert crio_config.remove_our_hook(b"{ broken", None, WRITTEN, FOLDER) == (b"{ broken", ())


def test_an_older_installers_hook_is_known_without_a_record() -> None:
    older = OURS.replace(b"nvidia-container-runtime-hook", b"nvidia-container-toolkit")
    assert crio_config.remove_our_hook(older, None, frozenset(), FOLDER) == (None, ())
