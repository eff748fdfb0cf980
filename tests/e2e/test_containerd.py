"""The whole job on a live containerd, restarted by the test: what the CRI says before, during and after."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.file_states import lost_lines, state_of
from tests.e2e.program import WAITING, Installer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.engines.daemons import ContainerdEngine

CRI = "io.containerd.grpc.v1.cri"
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def flags(containerd: ContainerdEngine, folder: Path, install_dir: Path, payload: Path) -> list[object]:
    """Return the peer's flags; the restart is this test's business."""
    containerd.config.chmod(0o640)
    return [
        *("--runtime", "containerd", "--config", containerd.config, "--socket", containerd.socket),
        *("--drop-in-config", containerd.folder / "conf.d" / "99-nvidia.toml", "--restart-mode", "none"),
        *("--toolkit-install-dir", install_dir, "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def test_containerd_serves_the_handlers_until_the_installer_is_told_to_stop(
    containerd: ContainerdEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    before, pid = state_of(containerd.config), containerd.pid
    runc = containerd.runtimes()["runc"]

    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    assert containerd.alive()
    assert containerd.pid == pid, "asked not to restart containerd, it did"
    containerd.restart()

    toolkit = install_dir / "toolkit"
    runtimes = containerd.runtimes()
    assert set(runtimes) == {"runc"} | HANDLERS
    assert containerd.default_handler() == "nvidia"
    assert containerd.handlers() == {
        "runc": "",
        "nvidia": str(toolkit / "nvidia-container-runtime"),
        "nvidia-cdi": str(toolkit / "nvidia-container-runtime.cdi"),
        "nvidia-legacy": str(toolkit / "nvidia-container-runtime.legacy"),
    }
    assert runtimes["runc"] == runc
    for name in HANDLERS:
        assert runtimes[name]["runtimeType"] == "io.containerd.runc.v2"
        assert runtimes[name]["options"]["SystemdCgroup"] is True
        assert runtimes[name]["options"]["NoPivotRoot"] is True

    assert run.terminate() == 0, run.output
    assert state_of(containerd.config) == before
    containerd.restart()
    assert containerd.runtimes() == {"runc": runc}
    assert containerd.default_handler() == "runc"


def test_what_the_operator_wrote_stays_in_config_toml_while_installed(
    containerd: ContainerdEngine, installer: Installer, flags: list[object]
) -> None:
    before, settings_before = containerd.config.read_text(), containerd.info()["config"]
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    containerd.restart()
    after, settings_after = containerd.config.read_text(), containerd.info()["config"]
    assert lost_lines(before, after) == []
    was, now = (tomllib.loads(text)["plugins"][CRI]["containerd"] for text in (before, after))
    assert was["runtimes"].items() <= now["runtimes"].items()
    assert set(now) - set(was) <= {"default_runtime_name"}
    for settings in (settings_before, settings_after):  # what the daemon has besides what we are here to change
        settings["containerd"] = {
            key: value
            for key, value in settings["containerd"].items()
            if key not in {"runtimes", "defaultRuntimeName", "defaultRuntime"}
        }
    assert settings_after == settings_before


def test_a_file_that_containerd_reads_differently_is_refused_before_any_write(
    containerd: ContainerdEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    # TOML says that both spell `runtimes`; containerd 1.6 takes the escape for letters of the name
    text = containerd.config.read_text().replace(".containerd.runtimes.", '.containerd."runtime\\u0073".')
    containerd.config.write_text(text)
    assert tomllib.loads(text)["plugins"][CRI]["containerd"]["runtimes"]["runc"]
    before = state_of(containerd.config)

    run = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert run.finish() == 3
    assert "it does not see the handler nvidia" in run.output
    assert str(containerd.config) in run.output
    assert state_of(containerd.config) == before
    assert not install_dir.exists()
    assert containerd.alive()


def test_a_containerd_started_with_another_file_is_reported_and_its_imports_count(
    containerd: ContainerdEngine, installer: Installer, flags: list[object]
) -> None:
    def status() -> dict[str, Any]:
        run = installer.start("toolkit-installer", "status", "--json", *where)
        assert run.finish() == 0, run.output
        return dict(json.loads(run.output))

    original = containerd.config.read_text()
    done = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert done.finish() == 0, done.output
    where = flags[-6:]
    ours = containerd.config
    live = status()["engines"][0]["live"]
    assert (live["served"], live["reads"]) == (False, None)
    containerd.restart()
    assert status()["engines"][0]["live"]["served"] is True

    containerd.config = ours.with_name("another.toml")
    containerd.config.write_text(original)
    containerd.restart()
    found = status()
    assert found["engines"][0]["live"]["reads"] == str(containerd.config)
    assert any(f"reads {containerd.config}, and not {ours}" in reason["what"] for reason in found["reasons"])

    containerd.config.write_text(f'version = 2\nimports = ["{ours}"]\n')
    containerd.restart()
    live = status()["engines"][0]["live"]
    assert live["served"] is True, live
    assert live["reads"] is None
