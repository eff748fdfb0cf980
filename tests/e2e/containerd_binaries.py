"""The containerds that are at hand, and what one of them makes of files: `containerd config dump`."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.built import go_tools
from tests.support.built.releases import CACHE, Suite
from tests.support.containerd_cases import FOLDER, HANDLERS

NEWEST = "NEWEST_CONTAINERD"
"""The variable that names a containerd in place of the newest one that tests/support/built/go_tools.py builds."""
_NAMES = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Binary:
    """One of them; `release` is such as "1.6"."""

    path: str
    release: str

    def __str__(self) -> str:
        return self.release


def at(path: Path) -> Binary:
    """Return the containerd at `path`."""
    command = [str(path), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout
    match = re.search(r"\bv?(\d+\.\d+)\.\d+", told)
    assert match is not None, told
    return Binary(str(path), match[1])


def found() -> list[Binary]:
    """Return those that are at hand without fetching any, the oldest first, one of each release."""
    newest = Path(os.environ.get(NEWEST) or go_tools.folder_of(go_tools.CONTAINERD) / "containerd")
    places = [Path("/usr/bin/containerd"), *(CACHE / suite / "engines/usr/bin/containerd" for suite in Suite), newest]
    binaries = {each.release: each for each in (at(place) for place in places if place.exists())}
    return sorted(binaries.values(), key=lambda each: tuple(map(int, each.release.split("."))))


def dump(binary: Binary, files: Mapping[str, bytes], folder: Path) -> dict[str, Any] | None:
    """Return what it makes of config.toml among `files`, which are put into `folder`; None if it refuses them.

    Their absolute paths in /etc/containerd mean `folder`.
    """
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.replace(FOLDER.encode(), os.fsencode(folder)))
    command = [binary.path, "--config", str(folder / "config.toml"), "config", "dump"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS, cwd="/")
    return tomllib.loads(done.stdout.decode()) if done.returncode == 0 else None


def table(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table that has the runtimes, as a daemon printed it; empty if the CRI plugin is off."""
    for name in _NAMES:
        found_there = dumped.get("plugins", {}).get(name, {}).get("containerd")
        if isinstance(found_there, dict):
            return found_there
    return {}


def said(value: Any) -> Any:
    """Return a printed value without what is there by itself: empty, zero and false ones, and the sandboxer."""
    if not isinstance(value, dict):
        return value
    told = {key: said(each) for key, each in value.items()}
    return {key: each for key, each in told.items() if each not in ({}, "", 0, [], "podsandbox")}


def differences(before: Mapping[str, Any], after: Mapping[str, Any], *, spared: frozenset[str]) -> list[str]:
    """Return in words how `after` is not `before` and our handlers.

    `spared` are keys of the CRI plugin that the case is about, and the default if that is one of another kind.
    """
    old, new = copy.deepcopy(dict(before)), copy.deepcopy(dict(after))
    runtimes = table(new).get("runtimes", {})
    wrong = [
        f"it does not see {handler.name}"
        for handler in HANDLERS
        if runtimes.pop(handler.name, {}).get("options", {}).get("BinaryName") != handler.executable
    ]
    if "default_runtime" not in spared and table(new).get("default_runtime_name") != "nvidia":
        wrong.append(f"its default is {table(new).get('default_runtime_name')!r}")
    for each in (old, new):
        each.pop("imports", None)  # the paths of what was read
        known = table(each)
        known.pop("default_runtime_name", None)
        known.pop("default_runtime", None)  # it overrides the name if it has a type
        for handler in HANDLERS:
            known.get("runtimes", {}).pop(handler.name, None)
        for name in _NAMES:
            for key in spared:
                each.get("plugins", {}).get(name, {}).pop(key, None)
    wrong += _unlike(said(old), said(new), "")
    return wrong


def _unlike(old: Any, new: Any, path: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in _unlike(old.get(key), new.get(key), f"{path}.{key}")]
    return [] if old == new else [f"{path}: {old!r} became {new!r}"]
