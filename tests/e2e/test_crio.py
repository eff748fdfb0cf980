"""The whole job on a live CRI-O, restarted by the test: what it says and runs before, during and after."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of, traces_of_writing
from tests.e2e.program import WAITING, Installer
from tests.e2e.sites import wait_for
from tests.support.engines.containers import ContainerError, PodContainers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.engines.crio import CrioEngine

HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
OWN = {"runc", "crun"}
"""crun is built in."""
HOOK_NAME = "oci-nvidia-hook.json"
_NOTING_HOOK = """\
#!/bin/sh
printf '%s\\n' "$*" >>'{journal}'
"""


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def flags(crio: CrioEngine, folder: Path, install_dir: Path, payload: Path) -> list[object]:
    """Return the peer's flags; the restart is this test's business."""
    crio.config.chmod(0o640)
    return [
        *("--runtime", "crio", "--config", crio.config, "--socket", crio.socket, "--restart-mode", "none"),
        *("--toolkit-install-dir", install_dir, "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


@pytest.fixture
def drop_in(crio: CrioEngine) -> Path:
    return crio.drop_ins / "99-nvidia.toml"


@pytest.fixture
def pods(crio: CrioEngine, cgroup: str) -> Iterator[PodContainers]:
    with PodContainers(crio, cgroup) as containers:
        yield containers


@pytest.fixture
def journal(folder: Path, payload: Path) -> Path:
    """Have a hook in the payload that makes a note of being run; return where."""
    journal = folder / "hook-journal"
    hook = payload / "usr/bin/nvidia-container-runtime-hook"
    hook.write_text(_NOTING_HOOK.format(journal=journal))
    return journal


def run_one(pods: PodContainers, name: str, handler: str) -> None:
    pods.start(name, handler)
    assert pods.enter(name) == "busybox"
    assert pods.stop(name) == 0
    pods.delete(name)


def test_crio_serves_the_handlers_until_the_installer_is_told_to_stop(
    crio: CrioEngine, installer: Installer, flags: list[object], install_dir: Path, drop_in: Path, pods: PodContainers
) -> None:
    before, pid, runtimes = state_of(crio.config), crio.pid, crio.runtimes()
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    assert crio.pid == pid
    assert crio.alive(), "asked not to restart CRI-O, it did"
    assert state_of(crio.config) == before
    crio.restart()

    toolkit = install_dir / "toolkit"
    assert crio.handlers() == {
        "runc": "/usr/sbin/runc",
        "crun": "/usr/bin/crun",
        "nvidia": str(toolkit / "nvidia-container-runtime"),
        "nvidia-cdi": str(toolkit / "nvidia-container-runtime.cdi"),
        "nvidia-legacy": str(toolkit / "nvidia-container-runtime.legacy"),
    }
    assert crio.default_handler() == "nvidia"
    live = crio.runtimes()
    assert {name: live[name] for name in OWN} == runtimes
    for name in HANDLERS:  # what the monitor gets, what a pod may ask for, the rest: the default runtime's
        assert live[name] | {"runtime_path": "/usr/sbin/runc"} == runtimes["runc"]
    for handler in ("", "nvidia", "nvidia-cdi", "nvidia-legacy", "runc"):
        run_one(pods, f"by-{handler}", handler)

    assert run.terminate() == 0, run.output
    assert state_of(crio.config) == before
    assert not drop_in.exists()
    crio.restart()
    assert crio.runtimes() == runtimes
    assert crio.default_handler() == "runc"
    run_one(pods, "ordinary", "")
    with pytest.raises(ContainerError, match="failed to find runtime handler nvidia"):
        pods.start("gone", "nvidia")


def test_a_signal_makes_crio_list_the_handlers_and_start_no_pod_with_them(
    crio: CrioEngine, installer: Installer, flags: list[object], pods: PodContainers
) -> None:
    run = installer.start("toolkit-installer", "run", *flags, "--no-daemon")
    assert run.finish() == 0, run.output
    assert "was not reloaded" in run.output
    os.kill(crio.pid, signal.SIGHUP)
    wait_for(lambda: crio.handlers().keys() >= HANDLERS)
    with pytest.raises(ContainerError, match="failed to find runtime handler nvidia"):
        pods.start("early", "nvidia")
    signalled = installer.start("toolkit-installer", "run", *flags, "--no-daemon", "--restart-mode", "signal")
    assert signalled.finish() == 3
    assert "CRI-O takes no handler over on a signal" in signalled.output
    crio.restart()
    run_one(pods, "late", "nvidia")


def test_a_handler_whose_executable_is_missing_is_dropped_when_crio_starts(crio: CrioEngine, drop_in: Path) -> None:
    table = "crio.runtime.runtimes.nvidia"
    drop_in.write_text(f'[{table}]\nruntime_path = "{crio.folder}/missing"\nruntime_type = "oci"\n')
    crio.restart()
    assert crio.handlers().keys() == OWN


@pytest.mark.parametrize("source", ["command", "file"])
def test_the_handlers_have_the_settings_of_the_source_that_was_asked_for(
    crio: CrioEngine, installer: Installer, flags: list[object], drop_in: Path, source: str
) -> None:
    said = crio.runtimes()["runc"]
    crio.config.write_text(crio.config.read_text().replace("TEAM=storage", "TEAM=other"))
    run = installer.start("nvidia-toolkit", *flags, "--no-daemon", "--config-source", source)
    assert run.finish() == 0, run.output
    made = tomllib.loads(drop_in.read_text())["crio"]["runtime"]["runtimes"]["nvidia"]
    assert ("TEAM=storage" in made["monitor_env"]) == (source == "command"), run.output
    assert made["allowed_annotations"] == said["allowed_annotations"]
    assert ("status" in run.output) == (source == "command")
    crio.restart()
    assert crio.handlers().keys() == OWN | HANDLERS


def test_the_hook_runs_before_a_container_and_crio_is_not_restarted_for_it(
    crio: CrioEngine, installer: Installer, flags: list[object], pods: PodContainers, journal: Path
) -> None:
    hooks = crio.folder / "hooks.d"
    own = hooks / "10-theirs.json"
    own.write_text(json.dumps({"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {}, "stages": ["prestart"]}))
    before = traces_of_writing(crio.config, crio.drop_ins, own)
    pid = crio.pid
    mode = ("--config-mode", "hook", "--hooks-dir", hooks)
    run = installer.start("toolkit-installer", "run", *flags, *mode)
    run.wait_for(WAITING)
    assert (hooks / HOOK_NAME).exists()
    run_one(pods, "with-hook", "")
    assert journal.read_text().split()[-1] == "prestart"
    assert crio.pid == pid
    assert traces_of_writing(crio.config, crio.drop_ins, own) == before

    assert run.terminate() == 0, run.output
    journal.unlink()
    assert list(hooks.iterdir()) == [own]
    run_one(pods, "without", "")
    assert not journal.exists()
    assert crio.pid == pid


def test_a_new_hooks_folder_is_named_in_the_drop_in_next_to_crios_own(
    crio: CrioEngine, installer: Installer, flags: list[object], pods: PodContainers, journal: Path, drop_in: Path
) -> None:
    hooks = crio.folder / "more-hooks.d"
    mode = ("--config-mode", "hook", "--hooks-dir", hooks)
    run = installer.start("toolkit-installer", "run", *flags, *mode, "--no-daemon")
    assert run.finish() == 0, run.output
    assert tomllib.loads(drop_in.read_text())["crio"]["runtime"] == {
        "hooks_dir": [str(crio.folder / "hooks.d"), str(hooks)]
    }
    crio.restart()
    run_one(pods, "with-hook", "")
    assert journal.read_text().split()[-1] == "prestart"

    uninstall = installer.start("toolkit-installer", "uninstall", *flags, *mode)
    assert uninstall.finish() == 0, uninstall.output
    assert not drop_in.exists()
    crio.restart()
    journal.unlink(missing_ok=True)
    run_one(pods, "without", "")
    assert not journal.exists()
