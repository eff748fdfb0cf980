from __future__ import annotations

import pytest

from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.layout import find_config_warnings
from toolkit_installer.toolkit.payload import find_release_warnings, library_release, payload_version

SAFE = "NVIDIA Container Runtime version 1.17.8\ncommit: abc\nspec: 1.2.1\n\nrunc version 1.1.4\n"


def warnings(
    config: bytes = b"", version: str | None = SAFE, *, variable: bool = True, mounts: bool = False
) -> list[str]:
    settings = ToolkitSettings(accept_envvar_when_unprivileged=variable, accept_volume_mounts=mounts)
    return [*find_release_warnings(version), *find_config_warnings(settings, config)]


def test_the_fields_defaults_give_no_warning() -> None:
    assert warnings() == []
    assert warnings(version=None) == []


@pytest.mark.parametrize(
    "output, version",
    [
        (SAFE, (1, 17, 8)),
        ("runc version 1.1.4\n", None),
        ("runc version 1.1.4\nNVIDIA Container Runtime version 1.19.0-rc.2\n", (1, 19, -1)),
        ("NVIDIA Container Runtime Hook version 1.17.8~rc.1\n", (1, 17, 7)),
        ("cli-version: 1.17.4\nlib-version: 1.17.5\n", (1, 17, 4)),
        ("nvidia-container-runtime version 1.20.0\n", (1, 20, 0)),
        ("crun version 1.20.0\n", None),
        ("", None),
        ("exec format error", None),
    ],
)
def test_the_release_is_read_from_what_programs_print(output: str, version: tuple[int, int, int] | None) -> None:
    assert payload_version(output) == version


@pytest.mark.parametrize(
    "version, named, unnamed",
    [
        ("1.16.1", ["CVE-2024-0132", "CVE-2024-0136", "CVE-2025-23359", "CVE-2025-23266"], []),
        ("1.16.2", ["CVE-2024-0137", "CVE-2025-23266"], ["CVE-2024-0132"]),
        ("1.17.7", ["CVE-2025-23266"], ["CVE-2025-23359"]),
        ("1.17.8-rc.1", ["CVE-2025-23266"], ["CVE-2025-23359"]),
    ],
)
def test_an_old_payload_is_named_with_its_open_holes(version: str, named: list[str], unnamed: list[str]) -> None:
    (warning,) = warnings(version=f"NVIDIA Container Runtime version {version}\n")
    assert all(name in warning for name in named)
    assert not any(name in warning for name in unnamed)


def test_a_payload_that_does_not_say_its_release_is_pointed_out() -> None:
    (warning,) = warnings(version="runc version 1.0.0\n")
    assert "does not say" in warning


def test_a_library_names_the_release_that_no_program_prints() -> None:
    assert library_release(["nvidia-ctk", "libnvidia-container.so.1", "libnvidia-container.so.1.19.0"]) == "1.19.0"
    assert library_release(["libnvidia-container.so.1"]) is None
    assert find_release_warnings("runc version 1.0.0\n", "1.19.0") == []
    (warning,) = find_release_warnings("runc version 1.0.0\n", "1.16.1")
    assert "CVE-2024-0132" in warning


@pytest.mark.parametrize("feature", ["allow-ldconfig-from-container", "allow-cuda-compat-libs-from-container"])
def test_a_dangerous_feature_is_pointed_out_only_when_it_is_on(feature: str) -> None:
    (warning,) = warnings(f"features.{feature} = true\n".encode())
    assert feature in warning
    assert warnings(f"features.{feature} = false\n".encode()) == []


def test_the_containers_ldconfig_is_pointed_out() -> None:
    (warning,) = warnings(b'nvidia-container-cli.ldconfig = "/sbin/ldconfig"\n')
    assert "'@'" in warning
    assert warnings(b'nvidia-container-cli.ldconfig = "@/sbin/ldconfig"\n') == []


@pytest.mark.parametrize(
    "variable, mounts, words",
    [(True, True, "protects nothing"), (False, False, "get no GPU"), (False, True, None), (True, False, None)],
)
def test_the_two_ways_to_ask_for_gpus_belong_together(
    variable: bool,  # noqa: FBT001 - one column of the table
    mounts: bool,  # noqa: FBT001 - one column of the table
    words: str | None,
) -> None:
    found = warnings(variable=variable, mounts=mounts)
    assert [words in warning for warning in found if words] == ([True] if words else [])
    assert bool(found) is bool(words)
