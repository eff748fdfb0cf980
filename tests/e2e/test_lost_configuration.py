"""Files of live engines that are lost, and defaults that NVIDIA's own program writes, while the handlers are there."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.file_states import state_of
from tests.support.built import go_tools

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.program import Installer
    from tests.support.built.go_tools import Tool
    from tests.support.engines.crio import CrioEngine
    from tests.support.engines.daemons import ContainerdEngine, DockerEngine, Engine

HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
LOST = pytest.mark.parametrize("lost", ["missing", "empty"])
NOT_DEFAULT = "--set-as-default=false"


class Installation:
    """The program on a node with one live engine, which the test restarts."""

    def __init__(
        self, engine: Engine, name: str, file: Path, installer: Installer, folder: Path, payload: Path
    ) -> None:
        self.engine, self.file, self.installer = engine, file, installer
        self.toolkit = folder / "nvidia" / "toolkit"
        self.flags: list[object] = [
            *("--runtime", name, "--config", engine.config, "--socket", engine.socket, "--restart-mode", "none"),
            *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
            *("--pid-file", folder / "pid" / "toolkit.pid"),
        ]
        file.chmod(0o640)

    def do(self, command: str, *more: object) -> str:
        """Run a command, restart the engine, and return what was logged."""
        run = self.installer.start("toolkit-installer", command, *self.flags, *more)
        assert run.finish() == 0, run.output
        self.engine.restart()
        return run.output

    def loses(self, lost: str) -> None:
        if lost == "missing":
            self.file.unlink()
        else:
            self.file.write_bytes(b"")


def check_lost(made: Installation, lost: str, settings: Callable[[], Any]) -> None:
    """Fail unless a run and a cleanup leave the engine with all that it had, whichever of them finds the file lost."""
    before, had = state_of(made.file), settings()
    for command in ("run", "uninstall"):
        made.do("run", "--no-daemon")
        assert set(made.engine.handlers()) >= HANDLERS
        made.loses(lost)
        said = made.do(command, *(["--no-daemon"] if command == "run" else []))
        assert "what stood there before is restored" in said
        assert settings() == had
        assert HANDLERS.isdisjoint(made.engine.handlers()) is (command == "uninstall")
        made.do("uninstall")
        assert state_of(made.file) == before
        assert settings() == had


@LOST
def test_docker_keeps_what_it_had_where_its_file_is_lost(
    docker: DockerEngine, installer: Installer, folder: Path, payload: Path, lost: str
) -> None:
    made = Installation(docker, "docker", docker.config, installer, folder, payload)
    check_lost(made, lost, lambda: sorted(docker.info()["Labels"]))


@LOST
def test_containerd_keeps_what_it_had_where_its_file_is_lost(
    containerd: ContainerdEngine, installer: Installer, folder: Path, payload: Path, lost: str
) -> None:
    made = Installation(containerd, "containerd", containerd.config, installer, folder, payload)
    made.flags += ["--drop-in-config", containerd.folder / "conf.d" / "99-nvidia.toml"]
    check_lost(made, lost, lambda: {key: containerd.info()["config"].get(key) for key in ("sandboxImage", "registry")})


@LOST
def test_crio_keeps_what_it_had_where_its_drop_in_is_lost(
    crio: CrioEngine, installer: Installer, folder: Path, payload: Path, lost: str
) -> None:
    drop_in = crio.drop_ins / "99-nvidia.toml"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text('[crio.image]\npause_image = "registry.example/mine:1"\n')
    crio.restart()
    made = Installation(crio, "crio", drop_in, installer, folder, payload)
    check_lost(made, lost, lambda: crio.running_config()["image"]["pause_image"])


@pytest.fixture
def configure(go_tool: Callable[[Tool], Path]) -> Callable[..., None]:
    """Return what has NVIDIA's own program make the handler the default."""
    program = go_tool(go_tools.TOOLKIT) / "nvidia-ctk"

    def run(made: Installation, name: str, *more: object) -> None:
        command = [program, "runtime", "configure", "--runtime", name, "--config", made.file, "--set-as-default"]
        command += ["--nvidia-runtime-path", made.toolkit / "nvidia-container-runtime", *more]
        subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=60)
        made.engine.restart()
        assert made.engine.default_handler() == "nvidia"

    return run


def test_the_default_that_nvidias_program_writes_for_docker_stays_until_the_cleanup(
    docker: DockerEngine, installer: Installer, folder: Path, payload: Path, configure: Callable[..., None]
) -> None:
    made = Installation(docker, "docker", docker.config, installer, folder, payload)
    was = docker.default_handler()
    made.do("run", "--no-daemon", NOT_DEFAULT)
    configure(made, "docker")
    made.do("run", "--no-daemon", NOT_DEFAULT)
    assert docker.default_handler() == "nvidia"
    made.do("uninstall")
    assert docker.default_handler() == was
    assert HANDLERS.isdisjoint(docker.handlers())


def test_the_default_that_is_written_into_crios_file_stays_until_the_cleanup(
    crio: CrioEngine, installer: Installer, folder: Path, payload: Path
) -> None:
    made = Installation(crio, "crio", crio.config, installer, folder, payload)
    site, was = crio.drop_ins / "10-site.conf", crio.default_handler()
    made.do("run", "--no-daemon", NOT_DEFAULT)
    for runs in (0, 1):
        site.write_text('[crio.runtime]\ndefault_runtime = "nvidia"\n')
        crio.restart()
        assert crio.default_handler() == "nvidia"
        for _ in range(runs):
            made.do("run", "--no-daemon", NOT_DEFAULT)
            assert crio.default_handler() == "nvidia"
        made.do("uninstall")
        assert crio.default_handler() == was
        assert "nvidia" not in site.read_text()
        made.do("run", "--no-daemon", NOT_DEFAULT)


@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
def test_the_default_that_is_written_into_containerds_file_stays_until_the_cleanup(
    containerd: ContainerdEngine, installer: Installer, folder: Path, payload: Path, *, again: bool
) -> None:
    text = containerd.config.read_text().replace("runtimes.runc", "runtimes.mine")
    text = text.replace('snapshotter = "native"', 'snapshotter = "native"\ndefault_runtime_name = "mine"')
    containerd.config.write_text(text)
    containerd.restart()
    assert containerd.default_handler() == "mine"
    made = Installation(containerd, "containerd", containerd.config, installer, folder, payload)
    made.flags += ["--drop-in-config", containerd.folder / "conf.d" / "99-nvidia.toml"]
    before = state_of(containerd.config)
    made.do("run", "--no-daemon", NOT_DEFAULT)
    written = containerd.config.read_text().replace('default_runtime_name = "mine"', 'default_runtime_name = "nvidia"')
    containerd.config.write_text(written)
    if again:
        made.do("run", "--no-daemon", NOT_DEFAULT)
        assert containerd.default_handler() == "nvidia"
    made.do("uninstall")
    assert containerd.default_handler() == "mine"
    assert state_of(containerd.config) == before
