"""CDI in daemon.json, byte order marks and flags of the command line, on a real dockerd of each release."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.program import WAITING, Installer
from tests.support.built.releases import Release, Suite
from tests.support.engines.daemons import DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable

HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
FEATURES = '{\n  "features":   {"buildkit": true},\n  "debug": false\n}'


class Flagged(DockerEngine):
    """A dockerd with more on its command line."""

    flags: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Return the command line."""
        return [*super().command(), *self.flags]


@pytest.fixture
def engine(folder: Path, release: Callable[[Suite], Release], request: pytest.FixtureRequest) -> Flagged:
    """Return a dockerd of the release that the test is about, not started; the test closes it."""
    if DockerEngine.missing():
        pytest.skip("docker.io is not installed")
    suite = request.param
    made = Flagged(folder / "engine", release(suite) if suite is not None else None)
    request.addfinalizer(made.close)  # noqa: PT021  # an engine that a test never started is closed as well
    return made


@pytest.fixture
def flags(folder: Path, payload: Path, engine: Flagged) -> list[object]:
    return [
        *("--runtime", "docker", "--config", engine.config, "--socket", engine.socket),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def started(engine: Flagged, content: bytes) -> None:
    engine.folder.mkdir(mode=0o700, exist_ok=True)
    engine.config.write_bytes(content)
    engine.start()


def cdi_is_on(engine: DockerEngine) -> bool:
    return bool(engine.info().get("CDISpecDirs"))


@pytest.mark.parametrize(
    "engine, at_first, at_last, told",
    [
        pytest.param(None, False, False, "knows no CDI", id="20.10"),
        pytest.param(Suite.TRIXIE, False, True, "when it is restarted, not by a signal", id="26"),
        pytest.param(Suite.SID, True, True, "", id="28"),
    ],
    indirect=["engine"],
)
def test_cdi_is_on_after_the_next_restart_and_every_other_feature_stays(
    engine: Flagged, installer: Installer, flags: list[object], *, at_first: bool, at_last: bool, told: str
) -> None:
    started(engine, FEATURES.encode())
    before = state_of(engine.config)
    assert cdi_is_on(engine) is at_first
    run = installer.start("nvidia-toolkit", *flags, "--enable-cdi-in-runtime")
    run.wait_for(WAITING)
    assert json.loads(engine.config.read_text())["features"] == {"buildkit": True, "cdi": True}
    assert engine.handlers().keys() >= HANDLERS
    assert told in run.output
    assert ("restarted" in run.output or "no CDI" in run.output) == bool(told)
    assert engine.starts == 1, "its containers would be gone"

    engine.restart()
    assert cdi_is_on(engine) is at_last
    assert engine.handlers().keys() >= HANDLERS
    assert run.terminate() == 0, run.output
    assert state_of(engine.config) == before
    assert "keeps CDI on until its next restart" in run.output
    engine.restart()
    assert cdi_is_on(engine) is at_first


@pytest.mark.parametrize(
    "engine", [pytest.param(Suite.TRIXIE, id="26"), pytest.param(Suite.SID, id="28")], indirect=True
)
def test_a_byte_order_mark_stays_and_dockerd_takes_the_file(
    engine: Flagged, installer: Installer, flags: list[object]
) -> None:
    started(engine, b'\xef\xbb\xbf{"debug": true}\r\n')
    before = state_of(engine.config)
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    assert engine.config.read_bytes().startswith(b"\xef\xbb\xbf{")
    assert engine.handlers().keys() >= HANDLERS
    engine.restart()
    assert engine.handlers().keys() >= HANDLERS
    assert run.terminate() == 0, run.output
    assert state_of(engine.config) == before


@pytest.mark.parametrize("engine", [pytest.param(None, id="20.10")], indirect=True)
def test_a_byte_order_mark_that_dockerd_rejects_is_found_before_any_write(
    engine: Flagged, installer: Installer, flags: list[object], folder: Path
) -> None:
    started(engine, b"{}")
    engine.config.write_bytes(b'\xef\xbb\xbf{"debug": true}')
    before = state_of(engine.config)
    run = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert run.finish() == 3, run.output
    assert f"file={engine.config} line=1" in run.output
    assert "byte order mark" in run.output
    assert state_of(engine.config) == before
    assert not (folder / "nvidia").exists()


@pytest.mark.parametrize(
    "engine, given, more",
    [
        pytest.param(None, ("--add-runtime", "own=/usr/bin/runc"), (), id="20.10-add-runtime"),
        pytest.param(None, ("--default-runtime=runc",), (), id="20.10-default-runtime"),
        pytest.param(Suite.SID, ("--add-runtime=own=/usr/bin/runc",), (), id="28-add-runtime"),
        pytest.param(Suite.SID, ("--default-runtime", "runc"), (), id="28-default-runtime"),
        pytest.param(Suite.SID, ("--feature", "buildkit"), ("--enable-cdi-in-runtime",), id="28-feature"),
    ],
    indirect=["engine"],
)
def test_a_directive_of_the_command_line_is_refused_before_anything_is_written(
    engine: Flagged,
    installer: Installer,
    flags: list[object],
    folder: Path,
    given: tuple[str, ...],
    more: tuple[str, ...],
) -> None:
    engine.flags = given
    started(engine, b"{}")
    before, handlers = state_of(engine.config), engine.handlers()
    run = installer.start("nvidia-toolkit", *flags, *more, "--no-daemon")
    assert run.finish() == 3, run.output
    assert given[0].split("=")[0] in run.output
    assert f"file={engine.config}" in run.output
    assert state_of(engine.config) == before
    assert engine.handlers() == handlers
    assert not (folder / "nvidia").exists()
    assert engine.log_count("Got signal to reload configuration") == 0


@pytest.mark.parametrize("engine", [pytest.param(Suite.SID, id="28")], indirect=True)
def test_cdi_that_the_command_line_turns_on_is_left_to_it(
    engine: Flagged, installer: Installer, flags: list[object]
) -> None:
    engine.flags = ("--feature", "cdi")
    started(engine, b'{"debug": true}')
    run = installer.start("nvidia-toolkit", *flags, "--enable-cdi-in-runtime")
    run.wait_for(WAITING)
    assert "daemon.json need not say it" in run.output
    assert "features" not in json.loads(engine.config.read_text())
    engine.restart()
    assert cdi_is_on(engine)
    assert engine.handlers().keys() >= HANDLERS
    assert run.terminate() == 0, run.output
    assert engine.config.read_bytes() == b'{"debug": true}'


@pytest.mark.parametrize("engine", [pytest.param(None, id="20.10"), pytest.param(Suite.SID, id="28")], indirect=True)
def test_the_low_level_runtime_is_the_runc_that_dockerd_itself_runs(
    engine: Flagged, installer: Installer, flags: list[object], folder: Path
) -> None:
    started(engine, b"{}")
    assert engine.handlers()["runc"] == "runc", "it says no more than the name"
    run = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert run.finish() == 0, run.output
    config = folder / "nvidia" / "toolkit" / ".config" / "nvidia-container-runtime" / "config.toml"
    first = tomllib.loads(config.read_text())["nvidia-container-runtime"]["runtimes"][0]
    assert first == shutil.which("runc", path=engine.path)


@pytest.mark.parametrize("engine", [pytest.param(None, id="20.10")], indirect=True)
def test_sources_that_docker_does_not_have_are_said_to_be_none(
    engine: Flagged, installer: Installer, flags: list[object]
) -> None:
    started(engine, b"{}")
    run = installer.start("nvidia-toolkit", *flags, "--config-source", "command,file")
    run.wait_for(WAITING)
    assert "--config-source command: not for docker" in run.output
    assert run.terminate() == 0, run.output
    assert engine.config.read_bytes() == b"{}"
