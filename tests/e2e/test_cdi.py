"""The CDI specification with NVIDIA's own nvidia-ctk: as its own installer writes it, and as a container uses it.

The driver is made up: device nodes that are real, libraries that are names. This machine's kernel has no driver, so
where device nodes are created, /proc/devices is one that says it has.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import traces_of_writing
from tests.e2e.hosts import gpu, gpu_nodes
from tests.e2e.hosts.gpu import Driver
from tests.e2e.hosts.gpu_nodes import KINDS, Engines, Kind
from tests.e2e.program import Installer
from tests.support import fake_ctk
from tests.support.built import go_tools, real_payload
from tests.support.engines import containers as support
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import PATH, DockerEngine
from tests.support.fake_ctk import CONTROL, NEWER, NO_MODULES, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.built.go_tools import Tool
    from tests.support.built.releases import Release, Suite

NAME = "management.nvidia.com-gpu.yaml"
ON_THE_NODE = "/run/nvidia/driver"
_MAJOR, _UVM = 195, 243
_DEVICES = f"Character devices:\n  1 mem\n{_MAJOR} nvidia\n{_UVM} nvidia-uvm\n\nBlock devices:\n  8 sd\n"
_OTHER_DEVICES = 'mount --bind "$0" /proc/devices && exec "$@"'


@pytest.fixture
def payload(folder: Path, go_tool: Callable[[Tool], Path]) -> Path:
    return real_payload.build(folder / "payload", go_tool(go_tools.TOOLKIT), folder / "specifications")


@pytest.fixture
def root(folder: Path) -> Path:
    """Return a driver's root with one GPU."""
    made = fake_ctk.driver(folder / "root", nodes=())
    for minor, name in enumerate(("nvidia0", *CONTROL)):
        os.mknod(made / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, minor))
    smi = made / "usr/bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    return made


@pytest.fixture
def flags(folder: Path, payload: Path, root: Path) -> list[object]:
    """Return what both installers are told."""
    return [
        *("--no-runtime-config", "--cdi-enabled", "--toolkit-install-dir", folder / "nvidia"),
        *("--toolkit-source-root", payload, "--driver-root", ON_THE_NODE, "--driver-root-ctr-path", root),
        *("--pid-file", folder / "pid" / "toolkit.pid", "--cdi-output-dir", folder / "cdi"),
    ]


def install(installer: Installer, *flags: object) -> str:
    run = installer.start("toolkit-installer", "run", "--no-daemon", *flags)
    assert run.finish(within=120) == 0, run.output
    return run.output


def uninstall(installer: Installer, folder: Path) -> None:
    where = ("--toolkit-install-dir", folder / "nvidia", "--pid-file", folder / "pid" / "toolkit.pid")
    run = installer.start("toolkit-installer", "uninstall", *where)
    assert run.finish(within=120) == 0, run.output


VARIATIONS = {
    "a container's driver": (),
    "device nodes of the node's own": ("--dev-root", "/"),
    "another kind": ("--cdi-kind", "example.com/device"),
    "seen where it is": ("--driver-root", "@ROOT@"),
}


@pytest.mark.parametrize("more", VARIATIONS.values(), ids=VARIATIONS)
def test_it_is_what_nvidias_own_installer_writes_name_mode_and_bytes(
    folder: Path, root: Path, flags: list[object], installer: Installer, peer: Path, more: tuple[str, ...]
) -> None:
    flags += [word.replace("@ROOT@", str(root)) for word in more]
    install(installer, *flags)
    (ours,) = (folder / "cdi").iterdir()
    content, mode = ours.read_bytes(), ours.stat().st_mode
    assert VERSION.encode() in content
    uninstall(installer, folder)
    assert not (folder / "cdi").exists()
    shutil.copy2(peer, folder / "peer")
    # the device nodes are there, and it would not find the driver that made them in this machine's kernel
    command = [folder / "peer", "--no-daemon", "--runtime", "docker", *flags, "--create-device-nodes", "none"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=120, env={"PATH": PATH})
    (theirs,) = (folder / "cdi").iterdir()
    assert (ours, content, mode) == (theirs, theirs.read_bytes(), theirs.stat().st_mode)


def test_the_same_driver_is_left_alone_and_another_one_renews_it(
    folder: Path, root: Path, flags: list[object], installer: Installer
) -> None:
    install(installer, *flags)
    path = folder / "cdi" / NAME
    before = traces_of_writing(folder / "cdi", folder / "nvidia")
    assert "Nothing to do" in install(installer, *flags)
    assert traces_of_writing(folder / "cdi", folder / "nvidia") == before
    fake_ctk.driver(root, NEWER, nodes=())
    install(installer, *flags)
    assert f"{ON_THE_NODE}/{fake_ctk.LIBRARIES}/libcuda.so.{NEWER}" in path.read_text()
    assert VERSION not in path.read_text()
    uninstall(installer, folder)
    assert not path.parent.exists()
    assert not (folder / "nvidia").exists()


# --- the driver's device nodes ---


@pytest.fixture
def with_driver(folder: Path) -> Iterator[Installer]:
    """Yield an installer that finds a driver in the kernel."""
    devices = folder / "devices"
    devices.write_text(_DEVICES)
    logs = folder / "logs-with-driver"
    logs.mkdir()
    made = Installer(logs, ("unshare", "--mount", "sh", "-c", _OTHER_DEVICES, str(devices)))
    yield made
    made.close()


def test_device_nodes_that_are_missing_are_created_as_the_kernel_numbers_them(
    folder: Path, root: Path, flags: list[object], with_driver: Installer
) -> None:
    numbers = {"nvidiactl": (_MAJOR, 255), "nvidia-modeset": (_MAJOR, 254), "nvidia-uvm": (_UVM, 0)}
    for name in numbers:
        (root / "dev" / name).unlink()
    install(with_driver, *flags)
    text = (folder / "cdi" / NAME).read_text()
    for name, (major, minor) in numbers.items():
        made = (root / "dev" / name).stat()
        assert (os.major(made.st_rdev), os.minor(made.st_rdev)) == (major, minor)
        assert stat.S_IMODE(made.st_mode) == 0o666
        assert f"hostPath: {ON_THE_NODE}/dev/{name}\n" in text
    assert "Nothing to do" in install(with_driver, *flags)


def test_without_a_loaded_driver_missing_device_nodes_are_refused_before_any_write(
    folder: Path, root: Path, flags: list[object], installer: Installer
) -> None:
    (root / "dev/nvidia-uvm").unlink()
    run = installer.start("toolkit-installer", "run", "--no-daemon", *flags)
    assert run.finish() == 8, run.output
    assert "no NVIDIA devices found" in run.output
    for name in ("nvidia", "cdi"):
        assert not (folder / name).exists()


# --- the stand-in of the tests on made nodes ---


def _asked(program: Path, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Return how a generator ends, what it prints, and what it gives as its reason."""
    command = [str(program), "--quiet", *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False, env={"PATH": PATH}
    )
    said = re.findall(r'level=error msg="(.*)"', done.stderr)
    return done.returncode, done.stdout, said[-1] if said else ""


def _told(specification: str) -> set[str]:
    """Return the lines that say where something is, and of what kind the devices are."""
    return {line.strip(" -") for line in specification.splitlines() if re.match(r"[- ]*(hostPath|kind|path):", line)}


def test_the_stand_in_says_and_refuses_what_the_real_one_does(
    folder: Path, root: Path, go_tool: Callable[[Tool], Path]
) -> None:
    fake = folder / "fake-ctk"
    fake.write_text(fake_ctk.SCRIPT)
    fake.chmod(0o755)
    real = go_tool(go_tools.TOOLKIT) / "nvidia-ctk"
    generate = ["cdi", "generate", "--mode=management", "--format=yaml", "--vendor=a.com", "--class=bb"]
    generate += [f"--driver-root={root}", f"--dev-root={root}", "--nvidia-cdi-hook-path=/x/nvidia-cdi-hook"]
    made = [_asked(program, *generate) for program in (real, fake)]
    assert [status for status, _, _ in made] == [0, 0]
    (root / "usr/bin/nvidia-smi").unlink()  # the stand-in knows of libraries alone
    expected, told = (_told(_asked(program, *generate)[1]) for program in (real, fake))
    assert told == expected
    transform = ("cdi", "transform", "root", f"--from={root}")
    for target in (ON_THE_NODE, "/"):
        turned = [_asked(program, *transform, f"--to={target}", given=made[0][1])[1] for program in (real, fake)]
        assert turned[1] == turned[0]
    (root / NO_MODULES).touch()
    creating = ("system", "create-device-nodes", "--control-devices", f"--dev-root={root}", "--dry-run")
    assert _asked(fake, *creating) == _asked(real, *creating) != (0, "", "")
    for gone in (fake_ctk.LIBRARIES, "dev"):
        shutil.rmtree(root / gone)
        status, printed, reason = _asked(real, *generate)
        assert (status, printed) == (1, "")
        assert _asked(fake, *generate) == (1, "", reason)


# --- containers ---

ONE_OF_EACH = [KINDS[0], KINDS[3], KINDS[-1]]


@pytest.fixture(params=ONE_OF_EACH, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def driver(folder: Path) -> Iterator[Driver]:
    missing = [name for name in gpu.PROGRAMS if shutil.which(name, path=PATH) is None] + support.missing()
    missing += [name for engine in (DockerEngine, CrioEngine) for name in engine.missing()]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages that .ci/run names)")
    with Driver(folder / "driver") as made:
        yield made


@pytest.fixture
def engine(
    kind: Kind, folder: Path, driver: Driver, release: Callable[[Suite], Release], go_tool: Callable[[Tool], Path]
) -> Iterator[Engines]:
    with gpu_nodes.engine(kind, folder / "engine", driver, release, go_tool) as made:
        made.start()
        yield made


@pytest.fixture
def where(kind: Kind, folder: Path, engine: Engines) -> list[object]:
    return gpu_nodes.places(kind, folder, engine)


@pytest.fixture
def asked(folder: Path, payload: Path, root: Path, driver: Driver) -> list[object]:
    """Return what makes it write a specification for a driver that is loaded."""
    driver.load()
    return [
        *("--toolkit-source-root", payload, "--cdi-enabled", "--cdi-output-dir", folder / "specifications"),
        *("--driver-root", root, "--driver-root-ctr-path", root, "--nvidia-container-runtime.mode", "cdi"),
    ]


def test_a_management_container_gets_all_of_the_driver_until_it_is_taken_back(
    where: list[object], asked: list[object], engine: Engines, folder: Path, cgroup: str, installer: Installer
) -> None:
    install(installer, *where, *asked)
    if not isinstance(engine, DockerEngine):  # which was signalled
        engine.restart()
    look = f"ls /dev/nvidia0 /dev/nvidiactl /{fake_ctk.LIBRARIES}/libcuda.so.{VERSION}"
    with gpu_nodes.containers(engine, cgroup) as containers:
        containers.start("manager", environment={"NVIDIA_VISIBLE_DEVICES": "management.nvidia.com/gpu=all"})
        assert len(containers.execute("manager", "sh", "-c", look).split()) == 3
        containers.stop("manager")
        containers.delete("manager")
    run = installer.start("toolkit-installer", "uninstall", *where)
    assert run.finish(within=120) == 0, run.output
    assert not (folder / "specifications").exists()
    if isinstance(engine, DockerEngine):  # the others offer the handlers until somebody restarts them
        assert not (folder / "nvidia").exists(), run.output
