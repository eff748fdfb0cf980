"""Files as nodes have them, driven by the field's own flags: right while installed, untouched after the signal."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.program import WAITING, Installer
from tests.node.corpus import (
    HANDLERS,
    Case,
    Entry,
    Site,
    binary,
    cases,
    comments,
    containerd_table,
    installed_containerd,
    installed_docker,
    missing_lines,
    parse_json,
    parse_toml,
    pruned,
    snapshot,
    version,
    without_older_containerd,
    without_older_docker,
)
from tests.support import payloads

CONTAINERD = Path("/usr/bin/containerd")
PROGRAM = "nvidia-ctk-installer"

OWNED_DOCKER = rb'\s*"(default(-|\\u002d)runtime|run(t|\\u0074)imes)"\s*:'
OWNED_CONTAINERD = rb"""\s*([^#=]*\.)?["']?default_runtime_name["']?\s*="""
"""Lines in which a value of ours may stand instead of another."""

ONE_LINE = {
    "deep",
    "only-whitespace",
    "empty-object",
    "empty-object-newline",
    "empty-object-spaces",
    "one-line",
    "one-line-spaced",
} | {"very-long-line"}
"""daemon.json files that are one line: it cannot stay as it is, and every character of it can."""

ALSO_OWNED = {
    "v3-inline-runtimes": rb"plugins\.",
    "inline-all": rb"plugins = ",
    "inline-runtimes": rb"\s*runtimes = ",
    "inline-empty": rb"containerd = ",
    "manual-nvidia-inline": rb"\s*nvidia = ",
    "manual-nvidia": rb".*(runtimes\.nvidia|nvidia-container-runtime)|\s*(runtime_type|privileged|SystemdCgroup)",
    "manual-nvidia-not-default": rb".*runtimes\.nvidia|runtime_(type|engine|root) = ",
    "manual-nvidia-only": rb".",
}
"""Further lines that are ours to change, where an inline table or a hand-made `nvidia` has to give way."""

REFUSED_BY_1_6 = {"numbers-and-dates"}
"""Valid files that containerd 1.6 does not take, without us: its parser knows no local dates."""


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payloads.build(tmp_path_factory.mktemp("payload"))


@pytest.fixture
def installer(tmp_path: Path) -> Iterator[Installer]:
    made = Installer(tmp_path, anew=False)
    yield made
    made.close()


def mode_of(case: Case) -> int:
    """Give each file one of several modes, always the same."""
    return (0o600, 0o640, 0o644, 0o664)[len(case.name) % 4]


def installed(installer: Installer, site: Site, payload: Path) -> tuple[bytes, dict[str, Entry]]:
    """Run until the signal is waited for, look, stop it; return what stood in the file, and all that is left."""
    run = installer.start(PROGRAM, *site.flags(payload))
    run.wait_for(WAITING)
    while_installed = site.config.read_bytes()
    assert site.pid_file.read_text().strip() == str(run.pid)
    for handler in HANDLERS:
        assert os.access(site.executable(handler), os.X_OK)
    assert run.terminate() == 0, run.output
    assert "Traceback" not in run.output
    return while_installed, snapshot(site.root, without=(site.install_dir,))


@pytest.mark.parametrize("case", cases("docker"), ids=str)
def test_daemon_json_is_right_while_installed_and_untouched_afterwards(
    case: Case, tmp_path: Path, installer: Installer, payload: Path
) -> None:
    site = Site(tmp_path / "node", "docker")
    content = case.content(site.toolkit)
    site.build(content, mode=mode_of(case))
    before = snapshot(site.root)
    text, after = installed(installer, site, payload)
    meaning = parse_json(content or b"")
    assert parse_json(text) == installed_docker(meaning, site)
    if case.name in ONE_LINE:
        assert is_subsequence(content or b"", text)
    elif not case.older_installer:
        owned = re.compile(OWNED_DOCKER + (rb'|.*"(nvidia|path|args|runtimeArgs)"' if "manual" in case.name else b""))
        assert [line for line in missing_lines(content or b"", text) if not owned.match(line)] == []
    if case.older_installer:
        left = site.config.read_bytes()
        assert pruned(parse_json(left)) == pruned(without_older_docker(meaning, site.toolkit))
        assert same_but_content(site, before, after)
        assert installed(installer, site, payload) == (text, after)
    else:
        assert after == before


@pytest.mark.parametrize("case", cases("containerd"), ids=str)
def test_config_toml_is_right_while_installed_and_untouched_afterwards(
    case: Case, tmp_path: Path, installer: Installer, payload: Path
) -> None:
    site = Site(tmp_path / "node", "containerd")
    content = case.content(site.toolkit)
    site.build(content, mode=mode_of(case))
    before = snapshot(site.root)
    text, after = installed(installer, site, payload)
    meaning = parse_toml(content or b"")
    assert pruned(parse_toml(text)) == pruned(installed_containerd(meaning, site))
    if containerd_is_1_6() and version(meaning) == 2:  # it ignores the CRI tables of version 3
        in_the_engines_eyes(case, content or b"version = 2\n", text, site, tmp_path)
    if not case.older_installer:
        assert comments(content or b"") - comments(text) == Counter()
        owned = re.compile(rb"|".join(filter(None, (OWNED_CONTAINERD, ALSO_OWNED.get(case.name)))))
        assert [line for line in missing_lines(content or b"", text) if not owned.match(line)] == []
        assert after == before
    else:
        left = site.config.read_bytes()
        assert pruned(parse_toml(left)) == pruned(without_older_containerd(meaning, site.toolkit))
        assert comments(content or b"") - comments(left) == Counter()
        assert same_but_content(site, before, after)
        assert installed(installer, site, payload) == (text, after)


def is_subsequence(part: bytes, whole: bytes) -> bool:
    """Tell whether `whole` is `part` with something put in between."""
    rest = iter(whole)
    return all(byte in rest for byte in part)


def same_but_content(site: Site, before: dict[str, Entry], after: dict[str, Entry]) -> bool:
    """Tell whether all but the engine's file is as it was, and that one's metadata too."""
    name = str(site.config.relative_to(site.root))

    def others(tree: dict[str, Entry]) -> dict[str, Entry]:
        return {path: entry for path, entry in tree.items() if path != name}

    def metadata(entry: Entry) -> tuple[str, int, int]:
        return entry.mode, entry.uid, entry.gid

    return others(before) == others(after) and metadata(before[name]) == metadata(after[name])


@functools.cache
def containerd_is_1_6() -> bool:
    """Tell whether the machine has the containerd whose view is compared."""
    if not CONTAINERD.exists():
        return False
    done = subprocess.run([str(CONTAINERD), "--version"], capture_output=True, check=True, text=True, timeout=30)
    return " 1.6." in done.stdout


def dumped(folder: Path, content: bytes) -> dict[str, Any] | None:
    """Return a configuration as the real containerd sees it, None where it does not take the file."""
    path = folder / "config.toml"
    path.write_bytes(content)
    command = [str(CONTAINERD), "--config", str(path), "config", "dump"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=30)
    return parse_toml(done.stdout) if done.returncode == 0 else None


def said(value: Any) -> Any:
    """Return a dumped configuration without the values that are there by themselves: empty, zero and false ones."""
    if not isinstance(value, dict):
        return value
    return {key: inner for key, each in value.items() if (inner := said(each)) not in ({}, "", 0, [], None)}


def in_the_engines_eyes(case: Case, before: bytes, text: bytes, site: Site, folder: Path) -> None:
    """Compare what the real containerd 1.6 makes of the file before and while installed."""
    had, has = dumped(folder, before), dumped(folder, text)
    assert (had is None, has is None) == (case.name in REFUSED_BY_1_6,) * 2
    if had is None or has is None:
        return
    if case.name == "cri-disabled":  # the configuration of a disabled plugin is not printed
        assert said(has) == said(had)
        return
    without = without_older_containerd(had, site.toolkit)
    table = containerd_table(has)
    assert {name: binary(table["runtimes"][name]) for name in HANDLERS} == {
        name: site.executable(name) for name in HANDLERS
    }
    assert table["default_runtime_name"] == "nvidia"
    assert containerd_table(without)["runtimes"].keys() <= table["runtimes"].keys()
    for each in (table, containerd_table(without)):
        each.pop("default_runtime_name", None)
        for name in HANDLERS:
            each["runtimes"].pop(name, None)
    assert said(has) == said(without)
