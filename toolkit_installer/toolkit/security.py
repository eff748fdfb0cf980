"""Warnings about the security of the payload and of its configuration."""

from __future__ import annotations

import re
import tomllib
from typing import Final

from toolkit_installer.documents.changes import lookup
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import CLI

Version = tuple[int, int, int]

FIXES: Final[tuple[tuple[Version, str], ...]] = (
    ((1, 16, 2), "CVE-2024-0132"),
    ((1, 17, 1), "CVE-2024-0136 and CVE-2024-0137"),
    ((1, 17, 4), "CVE-2025-23359"),
    ((1, 17, 8), "CVE-2025-23266"),
)
"""The releases that fixed container escapes (NVIDIA's security bulletins)."""

_VERSION_LINE = r"(?m)^(?P<program>.*?)version:?\s+v?(?P<numbers>\d+\.\d+\.\d+)(?P<rest>\S*)"
_OTHERS = r"(?i)\b(runc|crun|lib-)"

_DANGEROUS_FEATURES: Final = {
    "allow-ldconfig-from-container": "a program of the container is run with the node's privileges",
    "allow-cuda-compat-libs-from-container": "libraries of the container take the place of the driver's",
}


def find_warnings(
    settings: ToolkitSettings, config: bytes, version_output: str | None, library_release: str | None = None
) -> tuple[str, ...]:
    """Return warnings, one sentence each, for the log.

    `config` is the config.toml as it will be installed; `version_output` is the output of the payload's
    `nvidia-container-runtime --version` or `nvidia-container-cli --version`, None if neither was run.
    `library_release` is the release in the library's name, used if the program prints none.
    """
    document = tomllib.loads(config.decode())
    found = [] if version_output is None else _version_notes(version_output, library_release)
    features = lookup(document, ("features",))
    if isinstance(features, dict):
        found += [
            f"features.{name} is on: {danger}"
            for name, danger in _DANGEROUS_FEATURES.items()
            if features.get(name) is True
        ]
    ldconfig = lookup(document, (CLI, "ldconfig"))
    if isinstance(ldconfig, str) and not ldconfig.startswith("@"):
        found.append(f"{CLI}.ldconfig = {ldconfig!r} names the container's ldconfig, not the node's: it needs a '@'")
    return (*found, *_device_request_notes(settings))


def payload_version(version_output: str) -> Version | None:
    """Return the toolkit's release from the output of one of its programs, None if the output has none.

    A pre-release counts as the previous release. The runtime's output also has the low-level runtime's version, and in
    2021 had no other: that version is ignored.
    """
    line = _own_line(version_output)
    if line is None:
        return None
    major, minor, patch = map(int, line["numbers"].split("."))
    return (major, minor, patch - 1) if re.match(r"[-~]?rc", line["rest"]) else (major, minor, patch)


def parse_release(version_output: str) -> str | None:
    """Return the toolkit's release as one of its programs printed it, such as "1.19.0-rc.1"; None if there is none."""
    line = _own_line(version_output)
    return None if line is None else line["numbers"] + line["rest"]


def _own_line(version_output: str) -> re.Match[str] | None:
    lines = re.finditer(_VERSION_LINE, version_output)
    return next((line for line in lines if not re.search(_OTHERS, line["program"])), None)


def _version_notes(version_output: str, library_release: str | None) -> list[str]:
    version = payload_version(version_output)
    if version is None and library_release is not None:
        version = payload_version(f"version {library_release}")
    newest = ".".join(map(str, FIXES[-1][0]))
    if version is None:
        return [f"the payload does not say which release it is; before {newest} containers can break out"]
    if version >= FIXES[-1][0]:
        return []
    open_holes = ", ".join(names for fixed, names in FIXES if version < fixed)
    return [f"the payload is older than {newest}: containers can break out of it ({open_holes})"]


def _device_request_notes(settings: ToolkitSettings) -> list[str]:
    """Return warnings about the two accept-… keys, of which exactly one should be true, by default the variable's.

    The keys decide whether an unprivileged pod may request GPUs by a variable, or by volume mounts.
    """
    variable, mounts = (
        "accept-nvidia-visible-devices-envvar-when-unprivileged",
        "accept-nvidia-visible-devices-as-volume-mounts",
    )
    if settings.accept_envvar_when_unprivileged != settings.accept_volume_mounts:
        return []
    if settings.accept_volume_mounts:
        return [f"{mounts} protects nothing while {variable} is true: any pod can still ask for every GPU"]
    advice = "set the latter to true and the device plugin's strategy to volume-mounts"
    return [f"{variable} and {mounts} are both false: unprivileged pods get no GPU; {advice}"]
