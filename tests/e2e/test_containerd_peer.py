"""nvidia-ctk-installer 1.19 on containerd's golden cases: our result means the same, or the case says why not.

tests/support/built/go_tools.py builds it; it copies settings from the file, as we do here.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.containerd_binaries import Binary, dump, said, table
from tests.support import payloads
from tests.support.containerd_cases import FOLDER, TOOLKIT, Case, cases

ASKED = [case for case in cases() if not case.refused]


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payloads.build(tmp_path_factory.mktemp("payload"))


def configured(peer: Path, case: Case, toolkit: Path, root: Path) -> dict[str, bytes]:
    """Return what the peer makes of the case's folder."""
    folder = root / FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    for name, content in case.before().items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.replace(FOLDER.encode(), os.fsencode(folder)))
    variables = {name: value.replace(FOLDER, str(folder)) for name, value in case.about.get("variables", {}).items()}
    if not any("SOURCE" in name for name in variables):
        variables["RUNTIME_CONFIG_SOURCES"] = "file"
    command = [
        *(str(peer), "--no-daemon", "--runtime", "containerd", "--restart-mode", "none"),
        *("--config", str(folder / "config.toml"), "--drop-in-config", str(folder / "conf.d" / "99-nvidia.toml")),
        *("--toolkit-install-dir", str(root / "nvidia"), "--toolkit-source-root", str(toolkit)),
        *("--pid-file", str(root / "run" / "toolkit.pid"), "--socket", str(root / "socket")),
    ]
    subprocess.run(command, env={"PATH": os.environ["PATH"], **variables}, capture_output=True, check=True, timeout=120)
    made = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ours = ((root / "nvidia" / "toolkit", TOOLKIT), (folder, FOLDER))
    for here, there in ours:
        made = {name: text.replace(os.fsencode(here), there.encode()) for name, text in made.items()}
    return made


def meant(dumped: dict[str, Any] | None) -> Any:
    """Return the runtimes and the default that a daemon printed; annotations in no order."""
    if dumped is None:
        return None
    known = table(dumped)
    runtimes = said(known.get("runtimes", {}))
    for entry in runtimes.values():
        if "container_annotations" in entry:
            entry["container_annotations"] = sorted(entry["container_annotations"])
    return runtimes, known.get("default_runtime_name"), said(known.get("default_runtime", {}))


@pytest.mark.parametrize("case", ASKED, ids=str)
def test_the_peer_means_the_same_or_the_case_says_why_not(
    case: Case, peer: Path, binaries: list[Binary], toolkit: Path, tmp_path: Path
) -> None:
    theirs = configured(peer, case, toolkit, tmp_path / "node")
    differing = []
    for binary in [each for each in binaries if each.release in case.about["reads"]]:
        one, other = (
            meant(dump(binary, files, tmp_path / f"{binary}-{whose}"))
            for whose, files in (("ours", case.after()), ("theirs", theirs))
        )
        assert one is not None
        if one != other:
            differing.append(f"{binary}: {one} and {other}")
    assert bool(differing) == ("peer" in case.about), differing
