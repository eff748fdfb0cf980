"""Live containerds with files of version 1, without version, and with an imported file that has the last word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import lost_lines, state_of
from tests.e2e.program import WAITING, Installer
from tests.support.built.releases import Release, Suite
from tests.support.engines.daemons import ContainerdEngine

if TYPE_CHECKING:
    from collections.abc import Callable

HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
CNI = 'conf_dir = "@FOLDER@/cni"'
DISABLED = 'disabled_plugins = ["io.containerd.internal.v1.opt"]\n'
VERSION_1 = f'version = 1\ndisabled_plugins = ["opt"]\n[plugins.cri.cni]\n  {CNI}\n'
UNSAID = f'disabled_plugins = ["opt"]\n[plugins.cri.cni]\n  {CNI} # the site\'s\n'
GRPC = 'plugins."io.containerd.grpc.v1.cri"'
ROOT = f'version = 2\nimports = ["site.toml"]\n{DISABLED}[{GRPC}]\n  sandbox_image = "x"\n'
SITE = f"version = 2\n[{GRPC}.cni]\n  {CNI}\n"


@pytest.fixture
def flags(folder: Path, payload: Path) -> list[object]:
    return [
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def engine_of(folder: Path, suite: Suite | None, release: Callable[[Suite], Release]) -> ContainerdEngine:
    return ContainerdEngine(folder / "engine", release(suite) if suite is not None else None)


def put(engine: ContainerdEngine, text: str, **others: str) -> list[Path]:
    """Write the engine's file, and others beside it by their names without ending."""
    engine.folder.mkdir(mode=0o700)
    files = {engine.config: text} | {engine.config.parent / f"{name}.toml": each for name, each in others.items()}
    for path, content in files.items():
        path.write_text(content.replace("@FOLDER@", str(engine.folder)))
    return list(files)


def assert_served_and_forgotten(
    engine: ContainerdEngine, files: list[Path], edited: Path, installer: Installer, flags: list[object]
) -> None:
    engine.start()
    before, runtimes = {path: state_of(path) for path in files}, engine.runtimes()
    place = ("--runtime", "containerd", "--config", engine.config, "--socket", engine.socket)
    run = installer.start("nvidia-toolkit", *flags, *place, "--restart-mode", "none")
    run.wait_for(WAITING)
    assert [path for path in files if state_of(path) != before[path]] == [edited]
    text = before[edited].content.decode().replace('imports = ["site.toml"]\n', "")  # which a drop-in is added to
    assert lost_lines(text, edited.read_text()) == []
    engine.restart()
    assert engine.handlers().keys() == {"runc"} | HANDLERS
    assert engine.default_handler() == "nvidia"
    assert run.terminate() == 0, run.output
    assert {path: state_of(path) for path in files} == before
    engine.restart()
    assert engine.runtimes() == runtimes


@pytest.mark.parametrize("suite", [None, Suite.TRIXIE])
@pytest.mark.parametrize("text", [VERSION_1, UNSAID], ids=["version-1", "no-version"])
def test_a_version_1_file_is_served_by_1_x(
    suite: Suite | None,
    text: str,
    folder: Path,
    release: Callable[[Suite], Release],
    installer: Installer,
    flags: list[object],
) -> None:
    with engine_of(folder, suite, release) as engine:
        files = put(engine, text)
        assert_served_and_forgotten(engine, files, engine.config, installer, flags)


def test_the_newest_is_not_given_what_it_does_not_read(
    folder: Path, release: Callable[[Suite], Release], installer: Installer, flags: list[object]
) -> None:
    with engine_of(folder, Suite.SID, release) as engine:
        put(engine, "version = 1\n[plugins.cri]\n")
        engine.start()
        before = state_of(engine.config)
        place = ("--runtime", "containerd", "--config", engine.config, "--socket", engine.socket)
        run = installer.start("nvidia-toolkit", *flags, *place, "--restart-mode", "none")
        assert run.finish() == 3, run.output
        assert "does not read what such a file says of the CRI plugin" in run.output
        assert state_of(engine.config) == before
        assert not (folder / "nvidia").exists()


@pytest.mark.parametrize("suite", [None, *Suite])
def test_an_imported_file_with_the_plugins_table_is_edited_or_followed_by_a_drop_in(
    suite: Suite | None,
    folder: Path,
    release: Callable[[Suite], Release],
    installer: Installer,
    flags: list[object],
) -> None:
    with engine_of(folder, suite, release) as engine:
        files = put(engine, ROOT, site=SITE)
        drop_in = engine.config.parent / "nvidia.toml"
        edited = engine.config if suite is Suite.SID else files[1]
        assert_served_and_forgotten(engine, files, edited, installer, [*flags, "--drop-in-config", drop_in])
        assert not drop_in.exists()
