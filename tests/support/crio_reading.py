"""How CRI-O reads its configuration and starts with it, told afresh: the installer's own idea of it is not asked.

Source: cri-o v1.3x, pkg/config/config.go (UpdateFromFile, UpdateFromPath, ValidateDefaultRuntime, ValidateRuntimes),
which walks with Go's filepath.Walk and decodes with BurntSushi/toml, whose answers on merging, hidden, torn and empty
files, symlinks to folders and a --config-dir that is a file were tried out.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BUILT_IN = "crun"
_BUILT_IN_RUNTIME = {
    "runtime_path": "",
    "runtime_type": "oci",
    "runtime_root": "/run/crun",
    "allowed_annotations": ["io.containers.trace-syscall", "io.kubernetes.cri-o.Devices"],
    "monitor_env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    "container_min_memory": "500KiB",
}


class RefusedError(Exception):
    """CRI-O would not start with this."""


@dataclasses.dataclass
class Reading:
    """What CRI-O runs with, as far as it matters here. `files` were read, in this order."""

    default: str = BUILT_IN
    runtimes: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=lambda: {BUILT_IN: copy.deepcopy(_BUILT_IN_RUNTIME)}
    )
    hooks_dirs: list[str] = dataclasses.field(default_factory=lambda: ["/usr/share/containers/oci/hooks.d"])
    rest: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Everything else that the files say, by its dotted key."""
    files: list[str] = dataclasses.field(default_factory=list)


def read(config: Path, drop_ins: Path) -> Reading:
    """Return what crio.conf and the files below crio.conf.d say together. Raises RefusedError."""
    reading = Reading()
    if os.path.lexists(config):
        _take(reading, config)
    if os.path.lexists(drop_ins):
        for path in _walk(drop_ins):
            _take(reading, path)
    if reading.default == "":
        reading.default = BUILT_IN
        reading.runtimes.setdefault(BUILT_IN, copy.deepcopy(_BUILT_IN_RUNTIME))
    if reading.default not in reading.runtimes:
        raise RefusedError(f"default_runtime set to {reading.default!r}, but no runtime entry table was found")
    return reading


def start(reading: Reading, find: Callable[[str, str], str | None]) -> Reading:
    """Return what is left of it when CRI-O starts. Raises RefusedError.

    `find(runtime_path, name)` returns the executable's path, None if there is none.
    """
    started = copy.deepcopy(reading)
    default = started.runtimes[started.default]
    for name, runtime in started.runtimes.items():
        if runtime.get("inherit_default_runtime"):
            runtime["runtime_path"] = default.get("runtime_path") or find("", started.default) or ""
        path = find(runtime.get("runtime_path", ""), name)
        if path is None and name == started.default:
            raise RefusedError(f"the default runtime {name} has no executable: {runtime}")
        runtime["runtime_path"] = path
    started.runtimes = {name: runtime for name, runtime in started.runtimes.items() if runtime["runtime_path"]}
    return started


def _walk(place: Path) -> Iterator[Path]:
    if not stat.S_ISDIR(place.lstat().st_mode):
        yield place
        return
    for name in sorted(os.listdir(os.fsencode(place))):
        yield from _walk(place / os.fsdecode(name))


def _take(reading: Reading, path: Path) -> None:
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {error}") from error
    reading.files.append(str(path))
    runtime = document.get("crio", {}).get("runtime", {})
    reading.default = runtime.pop("default_runtime", reading.default)
    reading.hooks_dirs = runtime.pop("hooks_dir", reading.hooks_dirs)
    reading.runtimes |= runtime.pop("runtimes", {})
    reading.rest |= dict(_dotted(document, ""))


def _dotted(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _dotted(inner, f"{place}.{key}")
    else:
        yield place, value
