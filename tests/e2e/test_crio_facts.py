"""What we hold of how CRI-O reads its files, asked of the real binary."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.built import go_tools
from tests.support.crio_reading import BUILT_IN, RefusedError, read
from toolkit_installer.engines.api import DesiredState
from toolkit_installer.engines.crio import engine as crio_trial
from toolkit_installer.node.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.built.go_tools import Tool

CASES = Path(__file__).parents[1] / "data" / "crio"
STATES = sorted(
    path.relative_to(CASES) for case in CASES.iterdir() for path in case.iterdir() if (path / "etc/crio").exists()
)
RUNC = '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/sbin/runc"\n'
_EMPTY = {"runtime_path": ""}
OURS = '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/true"\nruntime_type = "oci"\n'


@pytest.fixture(scope="session")
def binary(go_tool: Callable[[Tool], Path]) -> Path:
    return go_tool(go_tools.CRIO) / "crio"


def meant(binary: Path, config: Path, drop_ins: Path) -> tuple[str, dict[str, str]] | None:
    """Return the default runtime and each runtime's executable as CRI-O prints them; None if it refuses the files."""
    flags = ["--config", str(config)] if config.exists() else []
    command = [str(binary), *flags, "--config-dir", str(drop_ins), "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return None
    runtime: dict[str, Any] = tomllib.loads(done.stdout)["crio"]["runtime"]
    # it leaves out the map where that is the built-in one
    runtimes = {name: entry["runtime_path"] for name, entry in runtime.get("runtimes", {BUILT_IN: _EMPTY}).items()}
    return runtime.get("default_runtime", BUILT_IN), runtimes


def expected(config: Path, drop_ins: Path) -> tuple[str, dict[str, str]] | None:
    try:
        reading = read(config, drop_ins)
    except RefusedError:
        return None
    return reading.default, {name: entry.get("runtime_path", "") for name, entry in reading.runtimes.items()}


@pytest.mark.parametrize("state", STATES, ids=str)
def test_crio_means_by_the_files_of_each_case_what_the_cases_are_judged_by(
    binary: Path, state: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "crio"
    shutil.copytree(CASES / state / "etc/crio", folder, ignore=shutil.ignore_patterns(".keep"))
    places = folder / "crio.conf", folder / "crio.conf.d"
    assert meant(binary, *places) == expected(*places)
    assert (folder / "crio.conf").exists() or not Path("/etc/crio/crio.conf").exists(), "it read the machine's own"


@pytest.mark.parametrize(
    "files, default",
    [
        pytest.param({"10.conf": "runc", "9.conf": "crun"}, "crun", id="by the bytes of their names"),
        pytest.param({"a/z": "crun", "a-b": "runc"}, "runc", id="a folder stands where its name does"),
        pytest.param({"10.conf": "crun", "20.conf/a~": "runc"}, "runc", id="whatever the ending"),
        pytest.param({".hidden": "runc"}, "runc", id="hidden"),
        pytest.param({"10.conf": "runc", "20.conf": ""}, BUILT_IN, id="an empty default is the built-in one"),
        pytest.param({"10.conf": "gone"}, None, id="a default without a runtime"),
    ],
)
def test_crio_reads_every_file_of_its_folder_in_the_order_of_their_names(
    binary: Path, tmp_path: Path, files: dict[str, str], default: str | None
) -> None:
    config, drop_ins = tmp_path / "crio.conf", tmp_path / "crio.conf.d"
    config.write_text(RUNC)
    for name, runtime in files.items():
        place = drop_ins / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f'[crio.runtime]\ndefault_runtime = "{runtime}"\n')
    real = meant(binary, config, drop_ins)
    assert real == expected(config, drop_ins)
    assert (real and real[0]) == default


@pytest.mark.parametrize(
    "after, served, default, words",
    [
        pytest.param(RUNC + OURS, {"nvidia": "/usr/bin/true"}, None, [], id="as intended"),
        pytest.param(RUNC, {"nvidia": "/usr/bin/true"}, None, ["it does not see the handler nvidia"], id="no handler"),
        pytest.param(OURS, {}, None, ["the runtime runc would not be what it was"], id="another runtime is lost"),
        pytest.param(RUNC + OURS, {}, "nvidia", ["its default runtime would be the built-in one"], id="no default"),
        pytest.param("[", {}, None, ["unable to decode configuration"], id="broken"),
        pytest.param(
            f'[crio.runtime]\ndefault_runtime = "gone"\n{RUNC}', {}, None, ["default_runtime set to"], id="refused"
        ),
    ],
)
def test_crio_says_of_files_that_are_given_in_memory_what_it_would_make_of_them(
    binary: Path, after: str, served: dict[str, str], default: str | None, words: list[str]
) -> None:
    programs = Node("/").programs
    said = crio_trial.find_trial_faults(
        programs, str(binary), b"", (RUNC.encode(), after.encode()), DesiredState((), served, default)
    )
    assert len(said) == len(words), said
    assert all(word in line for word, line in zip(words, said, strict=True)), said


def test_crio_is_not_asked_about_a_change_where_it_refuses_what_is_there(binary: Path) -> None:
    broken = b"[crio.runtime]\nlog_size_max = 1\n"
    programs = Node("/").programs
    assert (
        crio_trial.find_trial_faults(
            programs, str(binary), broken, (b"", b""), DesiredState((), {"nvidia": "/x"}, "nvidia")
        )
        == []
    )
