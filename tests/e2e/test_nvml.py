"""NVIDIA's own nvidia-ctk takes the tests' NVML for a driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import fake_ctk
from tests.support.built import go_tools, nvml
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.built.go_tools import Tool


@pytest.fixture
def root(folder: Path) -> Path:
    missing = [name for name in nvml.PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    return nvml.install(folder / "driver", gpus=3)


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_nvidia_ctk_describes_each_gpu_that_nvml_reports(
    gpus: int, root: Path, go_tool: Callable[[Tool], Path]
) -> None:
    environment = {"PATH": PATH} | ({nvml.VARIABLE: str(gpus)} if gpus != nvml.GPUS else {})
    command: list[str | Path] = [
        go_tool(go_tools.TOOLKIT) / "nvidia-ctk",
        "cdi",
        "generate",
        "--mode=nvml",
        "--format=json",
    ]
    roots = ["--device-name-strategy=uuid", f"--driver-root={root}", f"--dev-root={root}"]
    done = subprocess.run([*command, *roots], capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    specification = json.loads(done.stdout)
    devices = {device["name"]: device["containerEdits"]["deviceNodes"] for device in specification["devices"]}
    assert set(devices) == {nvml.uuid(index) for index in range(gpus)} | {"all"}
    for index in range(gpus):
        assert [node["path"] for node in devices[nvml.uuid(index)]] == [f"/dev/nvidia{index}"]
    mounts = {os.path.basename(mount["hostPath"]) for mount in specification["containerEdits"]["mounts"]}
    assert mounts == {f"{name}.so.{fake_ctk.VERSION}" for name in ("libcuda", "libnvidia-ml")}
