"""What a live engine answers is in a capture: the plan that is made of it is the one made beside the engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.support import manifests
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine, DockerEngine
from tests.support.fake_node import SCRIPTS


def told(*arguments: object, within: Sequence[str] = ()) -> tuple[int, str]:
    """Return the exit code of the program, started by `within`, and what it prints."""
    done = subprocess.run(
        [*within, str(SCRIPTS / "toolkit-installer"), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout or done.stderr


def replays_as_it_plans(folder: Path, flags: Sequence[object]) -> str:
    """Hold the replay of a capture against the plan that is made on the node; return it."""
    file = folder / f"{len(os.listdir(folder))}.capture"
    code, plan = told("plan", *flags)
    assert code == 0, plan
    code, said = told("capture", *flags, file)
    assert code == 0, said
    assert told("replay", file) == (0, plan)
    return plan


def of_the_example() -> list[str]:
    """Return what starts a program with the rights that the example's pods have, and no others."""
    daemon_set = yaml.safe_load((manifests.PROJECT / "daemonset/examples/capture/daemonset.yaml").read_text())
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    given = container["securityContext"]["capabilities"]["add"]
    bounds = ",".join(["-all", *(f"+{name.lower()}" for name in given)])
    return ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all"]


def flags_of(
    engine: str, live: DockerEngine | ContainerdEngine | CrioEngine, folder: Path, payload: Path
) -> list[object]:
    """Return the options for an installation with this engine."""
    return [
        *("--runtime", engine, "--config", live.config, "--socket", live.socket),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def test_docker(docker: DockerEngine, folder: Path, payload: Path) -> None:
    flags = flags_of("docker", docker, folder, payload)
    assert "Reload by signal" in replays_as_it_plans(folder, flags)
    assert told("run", *flags, "--no-daemon", "--cleanup", "never")[0] == 0
    assert "Nothing to do" in replays_as_it_plans(folder, flags)


@pytest.mark.parametrize("drop_in", ["x.toml", "conf.d/99-nvidia.toml"])
def test_containerd(drop_in: str, containerd: ContainerdEngine, folder: Path, payload: Path) -> None:
    flags = [*flags_of("containerd", containerd, folder, payload), "--restart-mode", "none"]
    flags += ["--drop-in-config", folder / drop_in]
    assert "nvidia-container-runtime" in replays_as_it_plans(folder, flags)
    assert told("run", *flags, "--no-daemon", "--cleanup", "never")[0] == 0
    containerd.restart()
    assert "Nothing to do" in replays_as_it_plans(folder, flags)


def test_crio(crio: CrioEngine, folder: Path, payload: Path) -> None:
    flags = [*flags_of("crio", crio, folder, payload), "--restart-mode", "none"]
    assert "nvidia-container-runtime" in replays_as_it_plans(folder, flags)


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_with_the_rights_of_the_examples_pods_the_same_is_captured(
    engine: str, folder: Path, payload: Path, request: pytest.FixtureRequest
) -> None:
    flags = flags_of(engine, request.getfixturevalue(engine), folder, payload)
    flags += [] if engine == "docker" else ["--restart-mode", "none"]
    file = folder / "node.capture"
    code, said = told("capture", *flags, file, within=of_the_example())
    assert (code, "could not be captured" in said) == (0, False), said
    code, plan = told("plan", *flags)
    assert (code, "nvidia-container-runtime" in plan) == (0, True), plan
    assert told("replay", file) == (0, plan)
