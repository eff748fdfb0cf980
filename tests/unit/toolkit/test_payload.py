"""What a payload has to hold, and which low-level runtime is chosen."""

from __future__ import annotations

import ctypes
import platform
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import payloads
from tests.support.payloads import Generation, Package, Tree
from toolkit_installer.errors import ExitCode, PayloadError, UsageError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import (
    HOOK,
    HOOK_2021,
    Library,
    Payload,
    SourceTree,
    choose_low_level,
    find_payload,
    source_root,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def found(root: Path, machine: str | None = None) -> Payload:
    tree: SourceTree = Tree(root)
    return find_payload(tree, str(root), machine)


def refusal(root: Path, machine: str | None = None) -> str:
    with pytest.raises(PayloadError) as caught:
        found(root, machine)
    assert caught.value.exit_code == ExitCode.PAYLOAD_INCOMPLETE
    assert caught.value.path == str(root)
    assert "--toolkit-source-root" in str(caught.value)
    return caught.value.reason


def test_a_made_program_runs_and_a_made_library_loads(tmp_path: Path) -> None:
    payloads.build(tmp_path)
    answer = subprocess.run([tmp_path / "usr/bin/nvidia-ctk"], check=True, capture_output=True, text=True)
    assert answer.stdout == f"nvidia-ctk version {payloads.VERSION}\n"
    assert not answer.stderr
    folder = f"usr/lib/{platform.machine()}-linux-gnu"
    assert ctypes.CDLL(str(tmp_path / folder / "libnvidia-container-go.so.1"))._handle


def test_a_made_arm64_program_makes_the_system_calls_of_that_architecture() -> None:
    """No arm64 machine is at hand: the instructions are compared with the architecture manual's encodings."""
    content = payloads.executable("x\n", machine="aarch64")
    words = struct.unpack_from("<14I", content, 120)
    message = 0x400000 + len(content) - 2
    assert words[:2] == (0xD2800020, 0xF2A00000)  # mov x0, #1
    assert words[2:4] == (0xD2800001 | (message & 0xFFFF) << 5, 0xF2A00801)  # mov x1, message
    assert words[4] == 0xD2800042  # mov x2, #2
    assert words[6] == 0xD2800808  # mov x8, #64 (write)
    assert words[8] == words[13] == 0xD4000001  # svc #0
    assert words[11] == 0xD2800BA8  # mov x8, #93 (exit)


@pytest.mark.parametrize("package", Package)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_current_payload_is_found_in_the_folders_of_either_family(
    tmp_path: Path, package: Package, machine: str
) -> None:
    payloads.build(tmp_path, package=package, machine=machine)
    payload = found(tmp_path, machine)
    folder = "/usr/lib64" if package is Package.RPM else f"/usr/lib/{machine}-linux-gnu"
    assert payload.libraries == tuple(
        Library(f"{stem}.so.1", f"{stem}.so.{payloads.VERSION}", f"{folder}/{stem}.so.{payloads.VERSION}")
        for stem in ("libnvidia-container", "libnvidia-container-go")
    )
    assert payload.hook == HOOK
    assert payload.config == payloads.CONFIG
    assert payload.executables == {
        "nvidia-cdi-hook",
        "nvidia-container-cli",
        "nvidia-container-runtime",
        "nvidia-container-runtime-hook",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.legacy",
        "nvidia-container-toolkit",
        "nvidia-ctk",
    }


def test_a_payload_of_2021_has_its_hook_under_the_old_name(tmp_path: Path) -> None:
    payload = found(payloads.build(tmp_path, generation=Generation.Y2021))
    assert payload.hook == HOOK_2021
    assert dict(payload.programs)[HOOK_2021] == f"/usr/bin/{HOOK_2021}"
    assert HOOK not in dict(payload.programs)
    assert payload.executables == {"nvidia-container-cli", "nvidia-container-runtime", HOOK, HOOK_2021}
    assert [library.soname for library in payload.libraries] == ["libnvidia-container.so.1"]


@pytest.mark.parametrize(
    "generation, left_out, hook",
    [(Generation.CURRENT, HOOK_2021, HOOK), (Generation.Y2021, HOOK, HOOK_2021)],
)
def test_a_hook_without_its_other_name_is_enough(
    tmp_path: Path, generation: Generation, left_out: str, hook: str
) -> None:
    payload = found(payloads.build(tmp_path, generation=generation, without=[left_out]))
    assert payload.hook == hook
    assert payload.executables >= {HOOK, HOOK_2021}


def test_every_missing_file_is_listed_in_one_message(tmp_path: Path) -> None:
    reason = refusal(tmp_path)
    hook = f"{HOOK} (or {HOOK_2021})"
    for name in ("nvidia-container-runtime", hook, "nvidia-container-cli", "libnvidia-container.so.1"):
        assert f"{name} is missing" in reason
    for folder in ("usr/bin", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"):
        assert f"{tmp_path}/{folder}" in reason
    assert "nvidia-ctk" not in reason


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-ctk",
        "nvidia-cdi-hook",
        "nvidia-container-runtime.cdi",
        "nvidia-container-runtime.legacy",
        "libnvidia-container-go.so.1",
    ],
)
def test_a_payload_without_an_optional_file_is_complete(tmp_path: Path, name: str) -> None:
    payload = found(payloads.build(tmp_path, without=[name]))
    assert name not in payload.executables
    assert name not in {library.soname for library in payload.libraries}


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def looping(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def not_executable(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("name", ["nvidia-container-runtime", "nvidia-container-runtime.cdi", HOOK])
@pytest.mark.parametrize("damage", [emptied, a_folder, dangling, looping, not_executable])
def test_a_damaged_program_is_refused(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    payloads.build(tmp_path)
    damage(tmp_path / "usr/bin" / name)
    assert f"/usr/bin/{name} is " in refusal(tmp_path)


@pytest.mark.parametrize("damage", [emptied, a_folder, dangling])
def test_a_damaged_library_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    payloads.build(tmp_path, package=Package.RPM)
    damage(tmp_path / f"usr/lib64/libnvidia-container.so.{payloads.VERSION}")
    assert "/usr/lib64/libnvidia-container.so.1 is " in refusal(tmp_path)


def test_a_sound_library_in_a_later_folder_stands_in_for_a_damaged_one(tmp_path: Path) -> None:
    payloads.build(tmp_path, package=Package.RPM)
    broken = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1"
    broken.parent.mkdir(parents=True)
    broken.touch()
    assert found(tmp_path).libraries[0].source.startswith("/usr/lib64/")


def test_a_payload_of_another_architecture_is_refused(tmp_path: Path) -> None:
    payloads.build(tmp_path, machine="aarch64")
    assert "nvidia-container-cli is built for aarch64, not for x86_64" in refusal(tmp_path, "x86_64")


def test_a_payload_for_both_architectures_gives_the_library_of_the_node(tmp_path: Path) -> None:
    payloads.build(tmp_path, machine="aarch64")
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnvidia-container.so.1").write_bytes(payloads.library("libnvidia-container.so.1", machine="x86_64"))
    assert found(tmp_path, "aarch64").libraries[0].source.startswith("/usr/lib/aarch64-linux-gnu/")


def test_a_cut_off_program_is_refused(tmp_path: Path) -> None:
    payloads.build(tmp_path, machine="x86_64")
    (tmp_path / "usr/bin/nvidia-container-cli").write_bytes(b"\x7fELF\x02\x01")
    assert "/usr/bin/nvidia-container-cli is cut off" in refusal(tmp_path, "x86_64")


def test_a_program_that_is_a_script_is_taken_on_any_machine(tmp_path: Path) -> None:
    payloads.build(tmp_path, machine="x86_64")
    (tmp_path / "usr/bin/nvidia-ctk").write_bytes(b"#!/bin/sh\n")
    assert "nvidia-ctk" in found(tmp_path, "x86_64").executables


def test_a_library_that_is_no_symlink_keeps_its_name(tmp_path: Path) -> None:
    payloads.build(tmp_path, package=Package.RPM)
    link = tmp_path / "usr/lib64/libnvidia-container.so.1"
    link.unlink()
    (tmp_path / f"usr/lib64/libnvidia-container.so.{payloads.VERSION}").rename(link)
    assert found(tmp_path).libraries[0].name == "libnvidia-container.so.1"


def test_absolute_symlinks_stay_below_the_root(tmp_path: Path) -> None:
    payloads.build(tmp_path)
    program = tmp_path / "usr/bin/nvidia-container-cli"
    (tmp_path / "opt").mkdir()
    program.rename(tmp_path / "opt/cli")
    program.symlink_to("/opt/cli")
    assert dict(found(tmp_path).programs)["nvidia-container-cli"] == "/opt/cli"


def test_a_config_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    payloads.build(tmp_path, config=None)
    (tmp_path / "etc/nvidia-container-runtime/config.toml").mkdir(parents=True)
    assert "/etc/nvidia-container-runtime/config.toml is not a regular file" in refusal(tmp_path)


def test_a_payload_without_a_config_has_none(tmp_path: Path) -> None:
    assert found(payloads.build(tmp_path, config=None)).config is None


BOTH = {"/artifacts/deb", "/artifacts/rpm"}


@pytest.mark.parametrize(
    "given, kind, node_has_rpm, present, expected",
    [
        (None, "auto", False, BOTH, "/artifacts/deb"),
        (None, "auto", True, BOTH, "/artifacts/rpm"),
        (None, "deb", True, BOTH, "/artifacts/deb"),
        (None, "rpm", False, BOTH, "/artifacts/rpm"),
        (None, "auto", True, {"/artifacts/deb"}, "/artifacts/deb"),
        ("/", "rpm", True, {*BOTH, "/"}, "/"),
        ("/elsewhere", "auto", True, {"/elsewhere"}, "/elsewhere"),
    ],
)
def test_the_payload_is_taken_from(
    given: str | None,
    kind: str,
    node_has_rpm: bool,  # noqa: FBT001 - one column of the table
    present: set[str],
    expected: str,
) -> None:
    assert source_root(given, kind, node_has_rpm, present.__contains__) == expected


def test_a_folder_that_is_named_and_not_there_is_said_to_be_missing_and_nothing_more() -> None:
    with pytest.raises(PayloadError, match="there is no such folder") as caught:
        source_root("/nope", "auto", node_has_rpm=False, exists=BOTH.__contains__)
    assert caught.value.path == "/nope"
    assert "usr/bin" not in caught.value.reason


def test_an_image_without_the_package_type_asked_for_is_refused() -> None:
    with pytest.raises(PayloadError, match="/artifacts/rpm"):
        source_root(None, "rpm", node_has_rpm=False, exists={"/artifacts/deb"}.__contains__)


FOLDER = "/usr/local/nvidia/toolkit"


@pytest.mark.parametrize(
    "engines, expected",
    [
        ((), ("runc", "crun")),
        (("/usr/bin/runc",), ("/usr/bin/runc", "runc", "crun")),
        (("crun",), ("crun", "runc")),
        (("/a", "/b", "/a"), ("/a", "/b", "runc", "crun")),
        (("", "./runc", "bin/runc", "/usr/bin/\ud800", "/usr/bin/\0", "ru\nc"), ("runc", "crun")),
        ((f"{FOLDER}/nvidia-container-runtime", "/usr/bin/runc"), ("/usr/bin/runc", "runc", "crun")),
        ((f"{FOLDER}/../toolkit/other",), ("runc", "crun")),
        (("/elsewhere/nvidia-container-runtime.cdi.real", "nvidia-container-runtime"), ("runc", "crun")),
    ],
)
def test_the_engines_own_runtimes_come_first(engines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert choose_low_level(ToolkitSettings(), engines, FOLDER) == expected


def test_the_users_list_stands_alone() -> None:
    settings = ToolkitSettings(low_level_runtimes=("kata", "/opt/crun", "kata"))
    assert choose_low_level(settings, ("/usr/bin/runc",), FOLDER) == ("kata", "/opt/crun")


@pytest.mark.parametrize("runtime", ["", "./runc", "a/b", "run\0c", "nvidia-container-runtime", f"{FOLDER}/x"])
def test_a_runtime_that_cannot_work_is_refused(runtime: str) -> None:
    with pytest.raises(UsageError, match="runtimes"):
        choose_low_level(ToolkitSettings(low_level_runtimes=(runtime,)), (), FOLDER)
