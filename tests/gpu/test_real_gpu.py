"""A real GPU is seen in a container through our handlers: nvidia-smi tells its name there, and only there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts.gpu_nodes import CONTAINERD_2
from tests.gpu import kit
from tests.support.built import real_payload
from tests.support.engines.containers import ContainerError, PodContainers
from tests.support.engines.daemons import ContainerdEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.program import Installer

ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
NAMES = ("--query-gpu=name", "--format=csv,noheader")
_SECONDS = 120


@pytest.fixture
def engine(folder: Path, programs: Path) -> Iterator[ContainerdEngine]:
    """Yield a live containerd of our own, with what it runs."""
    with ContainerdEngine(folder / "engine", None, programs) as engine:
        engine.folder.mkdir(mode=0o700)
        text = CONTAINERD_2.replace("@FOLDER@", str(engine.folder)).replace("@CDI@", str(folder / "cdi"))
        engine.config.write_text(text)
        engine.start()
        yield engine


def said(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_SECONDS).stdout


def libraries_of(program: Path) -> dict[str, Path]:
    """Return the C library that a program runs with, its loader among them, by where they belong in an image."""
    paths = [Path(found) for found in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said("ldd", program), re.MULTILINE)]
    assert paths, f"{program} is linked with nothing"
    return {str(path).lstrip("/"): path.resolve() for path in paths}


def test_nvidia_smi_names_the_gpu_in_a_container_that_asks_for_it_and_in_no_other(
    nvidia_smi: Path, programs: Path, folder: Path, engine: ContainerdEngine, installer: Installer, cgroup: str
) -> None:
    names = said(nvidia_smi, *NAMES)
    before = engine.config.read_bytes()
    specifications = folder / "cdi"
    specifications.mkdir()
    payload = real_payload.build(folder / "payload", programs, specifications)
    flags: list[object] = [
        *("--runtime", "containerd", "--config", engine.config, "--socket", engine.socket, "--restart-mode", "none"),
        *("--drop-in-config", engine.folder / "conf.d" / "99-nvidia.toml", "--toolkit-install-dir", folder / "nvidia"),
        *("--pid-file", folder / "pid" / "toolkit.pid", "--toolkit-source-root", payload, "--driver-root", "/"),
    ]
    run = installer.start("toolkit-installer", "run", "--no-daemon", *flags, "--nvidia-container-runtime.mode", "cdi")
    assert run.finish(within=_SECONDS) == 0, run.output
    engine.restart()
    assert {"nvidia", "nvidia-cdi"} <= engine.handlers().keys()

    toolkit = folder / "nvidia" / "toolkit"
    hook = f"--nvidia-cdi-hook-path={toolkit / 'nvidia-cdi-hook'}"
    said(toolkit / "nvidia-ctk", "cdi", "generate", hook, f"--output={specifications / 'nvidia.yaml'}")

    more = {"bin/busybox": programs / kit.BUSYBOX, **libraries_of(nvidia_smi)}
    look = ("sh", "-c", " ".join([str(nvidia_smi), *NAMES]))
    with PodContainers(engine, cgroup, more) as containers:
        for name, handler in (("by-name", "nvidia"), ("by-cdi", "nvidia-cdi"), ("by-default", "")):
            containers.start(name, handler, environment=ALL)
            assert containers.execute(name, *look) == names
        print(f"\nGPU seen in a container: {', '.join(names.splitlines())}")  # noqa: T201  # what the run is for
        containers.start("without", "runc", environment=ALL)
        with pytest.raises(ContainerError, match=f"{nvidia_smi}: not found"):
            containers.execute("without", *look)
        for name in ("by-name", "by-cdi", "by-default", "without"):
            assert containers.stop(name) == 0
            containers.delete(name)

    run = installer.start("toolkit-installer", "uninstall", *flags)
    assert run.finish(within=_SECONDS) == 0, run.output
    assert engine.config.read_bytes() == before
