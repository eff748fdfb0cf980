"""NVIDIA's own nvidia-ctk and device plugin take the tests' NVML for a driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import fake_ctk, manifests
from tests.support.built import go_tools, nvml
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.built.go_tools import Tool

EXAMPLE, DRIVER_ROOT = "examples/device-plugin-cdi", "/driver-root"
# The plugin, which registers with no kubelet, until it has written its specification into folders of its own.
RUN_PLUGIN = """\
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins || exit
"$0" --kubelet-socket= >&2 &
while kill -0 $! 2>/dev/null; do
    if cat /run/cdi/k8s.device-plugin.nvidia.com-gpu.json 2>/dev/null; then kill $! && break; fi
    sleep 0.1
done
"""


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


def test_the_device_plugin_of_the_cdi_example_finds_nvml_below_the_drivers_root(
    root: Path, go_tool: Callable[[Tool], Path]
) -> None:
    container = manifests.containers(EXAMPLE)["nvidia-device-plugin"]
    environment = {
        name: value.replace(DRIVER_ROOT, str(root)) for name, value in manifests.environment(container).items()
    }
    program = go_tool(go_tools.DEVICE_PLUGIN) / "nvidia-device-plugin"
    command = ["unshare", "--mount", "env", *(f"{name}={value}" for name, value in environment.items())]
    done = subprocess.run(
        [*command, "sh", "-c", RUN_PLUGIN, program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": PATH},
    )
    specification = json.loads(done.stdout or "{}")
    assert [each["name"] for each in specification.get("devices", [])] == [nvml.uuid(0), nvml.uuid(1)], done.stderr
