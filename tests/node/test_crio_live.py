"""The whole job beside a CRI-O that answers: a stand-in, restarted where systemd would restart CRI-O."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.node.engines.crio_machine import SITE, UNIT, Machine, beside_crio, etc
from tests.support import wiping
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode
from toolkit_installer.applying import reload
from toolkit_installer.applying.reload_gate import ReloadGate
from toolkit_installer.errors import SIGNALLED
from toolkit_installer.node.services import Services
from toolkit_installer.reporting import outcome
from toolkit_installer.settings import Cleanup

DROP_IN = "/etc/crio/crio.conf.d/99-nvidia.toml"
HOOK = "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"


@pytest.fixture
def machine(node: FakeNode, tmp_path: Path) -> Iterator[Machine]:
    with beside_crio(node, tmp_path) as machine:
        yield machine


@pytest.fixture
def crio(machine: Machine) -> Machine:
    machine.start()
    return machine


def test_crio_is_restarted_once_and_serves_until_we_go(crio: Machine) -> None:
    before, pid = etc(crio.node), crio.pid
    said = crio.good("run")
    assert "The engine serves its configuration" in said
    assert crio.starts == 2
    assert crio.pid != pid
    assert crio.handlers() == {
        "crun": "/usr/bin/crun",
        "nvidia": f"{TOOLKIT}/nvidia-container-runtime",
        "nvidia-cdi": f"{TOOLKIT}/nvidia-container-runtime.cdi",
        "nvidia-legacy": f"{TOOLKIT}/nvidia-container-runtime.legacy",
    }
    # the files give no path: it is the one that the live CRI-O found
    toolkit = tomllib.loads(crio.node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
    assert toolkit["nvidia-container-runtime"]["runtimes"][0] == "/usr/bin/crun"

    stamps = crio.node.stamps()
    assert NOTHING_TO_DO in crio.good("run")
    assert crio.node.stamps() == stamps
    assert crio.starts == 2
    assert "serves them" in crio.good("status")

    crio.good("uninstall")
    assert crio.starts == 3
    assert crio.handlers() == {"crun": "/usr/bin/crun"}
    assert etc(crio.node) == before


def test_the_plan_names_the_unit_and_touches_nothing(crio: Machine) -> None:
    before = crio.node.snapshot()
    assert f"Reload by systemd of {UNIT}" in crio.good("plan")
    assert crio.node.snapshot() == before


def test_an_edit_beside_ours_stays_when_we_go(crio: Machine) -> None:
    crio.good("run")
    text = crio.node.read(DROP_IN).decode()
    crio.node.write(DROP_IN, text.replace("[crio.runtime]\n", '[crio.runtime]\n  log_level = "debug" # theirs\n', 1))
    crio.good("uninstall")
    assert '  log_level = "debug" # theirs' in crio.node.read(DROP_IN).decode()
    assert tomllib.loads(crio.node.read(DROP_IN).decode()) == {"crio": {"runtime": {"log_level": "debug"}}}
    assert crio.handlers() == {"crun": "/usr/bin/crun"}


def test_a_drop_in_that_somebody_deleted_comes_back(crio: Machine) -> None:
    crio.good("run")
    content = crio.node.read(DROP_IN)
    crio.node.place(DROP_IN).unlink()
    crio.good("run")
    assert crio.node.read(DROP_IN) == content
    assert crio.starts == 3


def test_one_that_does_not_start_with_our_change_gets_its_files_back(machine: Machine) -> None:
    machine.flags = ("--refuses", "nvidia")
    machine.start()
    before = etc(machine.node)
    failed = machine.do("run", "--reload-timeout", "5")
    assert failed.code == 5, failed.output
    assert "it was told to refuse nvidia" in failed.output
    assert etc(machine.node) == before
    assert machine.handlers() == {"crun": "/usr/bin/crun"}


def test_a_list_of_the_old_process_proves_nothing(crio: Machine) -> None:
    crio.signals_only = True
    failed = crio.do("run", "--reload-timeout", "1")
    assert failed.code == 6, failed.output
    assert "it was not restarted" in failed.output
    assert not crio.node.exists(DROP_IN)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an engine that has not ended soon be taken for one that waits for its caller."""
    monkeypatch.setattr(reload, "_END_SECONDS", 0.1)


def stopped_by_way_of_it(crio: Machine, *flags: str) -> None:
    """Run, and have CRI-O stop the run just when it is to restart, which it does once the run has ended."""
    crio.stops_caller = True
    stopped = crio.do("run", *flags)
    crio.stops_caller = False
    assert stopped.code == SIGNALLED + signal.SIGTERM, stopped.output
    assert "event=engine-ends-after-us" in stopped.output


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("cleanup", list(Cleanup))
def test_a_first_run_that_is_stopped_by_the_engines_restart_reverts_everything(crio: Machine, cleanup: Cleanup) -> None:
    before = etc(crio.node)
    stopped_by_way_of_it(crio, "--cleanup", cleanup)
    assert etc(crio.node) == before
    crio.restart(UNIT)  # as systemd does once the run has ended
    assert crio.handlers() == {"crun": "/usr/bin/crun"}
    assert not [path for path in crio.node.snapshot() if path.endswith(outcome.FILE)]


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("cleanup", list(Cleanup))
def test_an_update_that_is_stopped_by_the_engines_restart_keeps_what_was_installed(
    crio: Machine, cleanup: Cleanup
) -> None:
    before = etc(crio.node)
    crio.good("run")
    installed, handlers = etc(crio.node), crio.handlers()
    stopped_by_way_of_it(crio, "--cleanup", cleanup, "--set-as-default=false")
    assert etc(crio.node) == installed
    crio.restart(UNIT)
    assert crio.handlers() == handlers
    assert NOTHING_TO_DO in crio.good("run")
    crio.good("uninstall")
    assert etc(crio.node) == before


@pytest.mark.parametrize("cleanup", list(Cleanup))
def test_a_run_that_is_asked_to_stop_before_crio_is_restarted_does_not_restart_it(
    crio: Machine, cleanup: Cleanup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(_gate: ReloadGate, _seen: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)  # held back: it is seen where it is safe

    before = etc(crio.node)
    monkeypatch.setattr(ReloadGate, "require", require)
    stopped = crio.do("run", "--cleanup", cleanup)
    assert stopped.code == SIGNALLED + signal.SIGTERM, stopped.output
    assert etc(crio.node) == before
    assert crio.starts == 1
    assert "Reloading the engine" not in stopped.output


def test_a_signal_is_refused_before_anything_is_written(crio: Machine) -> None:
    before = etc(crio.node)
    refused = crio.do("run", "--restart-mode", "signal")
    assert refused.code == 3
    assert "CRI-O takes no handler over on a signal" in refused.output
    assert etc(crio.node) == before
    assert crio.starts == 1


def test_status_names_a_default_runtime_without_a_table(crio: Machine) -> None:
    crio.good("run", "--set-as-default=false")
    other = "/etc/crio/crio.conf.d/50-default.conf"
    crio.node.write(other, '[crio.runtime]\ndefault_runtime = "gone"\n')
    for running in (True, False):
        if not running:
            crio.end()
        said = crio.do("status").output
        assert f"{other}:2" in said, said
        assert "default_runtime is 'gone', and no file that CRI-O reads has a table for it" in said


def test_a_hook_needs_no_restart_coming_or_going(crio: Machine) -> None:
    before = etc(crio.node)
    assert "the engine takes the change over by itself" in crio.good("plan", "--config-mode", "hook")
    assert "next restart" not in crio.good("run", "--config-mode", "hook")
    assert crio.node.exists(HOOK)
    assert not crio.node.exists(DROP_IN)
    assert NOTHING_TO_DO in crio.good("run", "--config-mode", "hook")
    crio.good("uninstall")
    assert crio.starts == 1
    assert etc(crio.node) == before


def test_a_hook_in_a_folder_that_crio_does_not_know_needs_one(crio: Machine) -> None:
    flags = ("--config-mode", "hook", "--hooks-dir", "/etc/containers/oci/hooks.d")
    crio.good("run", *flags)
    assert crio.starts == 2
    assert NOTHING_TO_DO in crio.good("run", *flags)
    assert crio.starts == 2


def test_from_handlers_to_a_hook_crio_is_made_to_forget_the_handlers(crio: Machine) -> None:
    crio.good("run")
    crio.good("run", "--config-mode", "hook")
    assert crio.starts == 3
    assert crio.handlers() == {"crun": "/usr/bin/crun"}
    assert crio.node.exists(HOOK)


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--default-runtime", "crun"), "CRI-O was started with --default-runtime crun"),
        (("--runtimes", "nvidia:/usr/bin/x:/run/x"), "CRI-O was started with --runtimes nvidia:"),
    ],
)
def test_a_command_line_that_goes_before_the_files_is_refused(
    machine: Machine, flags: tuple[str, ...], message: str
) -> None:
    machine.flags = flags
    machine.start()
    before = etc(machine.node)
    refused = machine.do("run")
    assert refused.code == 3
    assert message in refused.output
    assert etc(machine.node) == before


def test_a_crio_that_has_wiped_its_command_line_is_refused_until_its_file_is_named(machine: Machine) -> None:
    machine.flags = ("--default-runtime", "crun")
    machine.start()
    wiping.wipe(machine.pid, "crio")
    before = etc(machine.node)
    refused = machine.do("run")
    assert refused.code == 3
    assert f"(PID {machine.pid}) has wiped its command line" in refused.output
    assert etc(machine.node) == before
    named = machine.do("plan", "--config", "/etc/crio/crio.conf")
    assert named.code == 0, named.output
    assert "flags of its own that contradict its files cannot be seen" in named.output
    machine.children[-1].kill()  # it is not known by its arguments any more


def test_a_file_that_is_read_after_ours_and_says_otherwise_is_named(crio: Machine) -> None:
    crio.node.write("/etc/crio/crio.conf.d/zz-last.conf", '# site\n[crio.runtime]\ndefault_runtime = "crun"\n')
    before = etc(crio.node)
    refused = crio.do("run")
    assert refused.code == 3
    assert "sets crio.runtime.default_runtime, and CRI-O reads it after" in refused.output
    assert "/etc/crio/crio.conf.d/zz-last.conf line=3" in refused.output
    assert etc(crio.node) == before
    crio.good("run", "--set-as-default=false")
    assert "nvidia" in crio.handlers()


def test_another_engine_on_the_socket_is_not_taken_for_crio(machine: Machine) -> None:
    machine.flags = ("--name", "containerd")
    machine.start()
    refused = machine.do("run", "--restart-mode", "systemd")
    assert refused.code == 3
    assert "containerd answers there, not CRI-O" in refused.output


@pytest.mark.parametrize("flag", ["--lists-nothing", "--hides-config"])
def test_older_ones_that_tell_less_are_understood(machine: Machine, flag: str) -> None:
    machine.flags = (flag, "--version", "1.29.1")
    machine.start()
    assert "The engine serves its configuration" in machine.good("run")
    assert NOTHING_TO_DO in machine.good("run")
    machine.good("uninstall")
    assert machine.starts == 3


def test_the_engine_that_answers_is_found(crio: Machine) -> None:
    said = crio.good("run", engine="auto")
    assert "crio 1.37.0 answers" in said
    assert "nvidia" in crio.handlers()


def test_files_of_a_package_alone_are_evidence(machine: Machine) -> None:
    assert "crio has the file /etc/crio/crio.conf.d/10-site.conf" in machine.good("run", engine="auto")


def test_what_the_running_crio_says_lends_its_settings_where_it_is_asked(crio: Machine) -> None:
    site = "/etc/crio/crio.conf.d/10-site.conf"
    crio.node.write(site, SITE.replace("/usr/bin/conmon", "/edited/since"))

    def monitor() -> str:
        runtimes = tomllib.loads(crio.node.read(DROP_IN).decode())["crio"]["runtime"]["runtimes"]
        return str(runtimes["nvidia"]["monitor_path"])

    said = crio.good("run", "--config-source", "command", "--restart-mode", "none")
    assert "the settings of the default runtime in what CRI-O says on its socket" in said
    assert monitor() == "/usr/bin/conmon"
    crio.good("run", "--config-source", "file")
    assert monitor() == "/edited/since"
    assert NOTHING_TO_DO in crio.good("run", "--config-source", "command")
    crio.good("uninstall")
    assert crio.handlers() == {"crun": "/usr/bin/crun"}


def test_files_that_crio_is_told_by_its_environment_are_its_files(machine: Machine) -> None:
    machine.variables = {"CONTAINER_CONFIG_DIR": "/opt/crio.d"}
    machine.start()
    before = machine.node.snapshot()
    machine.good("run")
    assert TOOLKIT in machine.node.read("/opt/crio.d/99-nvidia.toml").decode()
    assert not machine.node.exists(DROP_IN)
    assert "nvidia" in machine.handlers()
    machine.good("uninstall")
    assert {path for path in machine.node.snapshot() if not path.startswith("/run")} == {
        path for path in before if not path.startswith("/run")
    }


def test_a_default_that_the_environment_puts_over_all_files_is_refused(machine: Machine) -> None:
    machine.variables = {"CONTAINER_DEFAULT_RUNTIME": "crun"}
    machine.start()
    refused = machine.do("run")
    assert refused.code == 3
    assert "CRI-O was started with --default-runtime crun" in refused.output
    assert "nvidia" in machine.good("run", "--set-as-default=false")


@pytest.mark.parametrize(
    "manager, mode, warned",
    [("cgroupfs", "control-group", True), ("cgroupfs", "process", False), ("systemd", "control-group", False)],
)
def test_a_restart_that_may_end_containers_is_warned_of(
    machine: Machine, manager: str, mode: str, *, warned: bool
) -> None:
    machine.flags = ("--cgroup-manager", manager)
    machine.start()
    with mock.patch.object(Services, "property", lambda _services, _unit, name: mode if name == "KillMode" else None):
        said = machine.good("run")
    assert ("its restart may end running containers" in said) is warned


def test_cdi_needs_nothing_of_crio(crio: Machine) -> None:
    crio.good("run")
    content = crio.node.read(DROP_IN)
    assert NOTHING_TO_DO in crio.good("run", "--enable-cdi-in-runtime")
    assert crio.node.read(DROP_IN) == content


def test_a_file_that_only_lost_an_older_installers_entries_goes_without_ours(crio: Machine) -> None:
    older = "/etc/crio/crio.conf.d/50-gpu.conf"
    entry = f'[crio.runtime.runtimes.nvidia-cdi]\nruntime_path = "{TOOLKIT}/nvidia-container-runtime.cdi"\n'
    crio.node.write(older, entry)
    crio.good("run")
    assert TOOLKIT not in crio.node.read(older).decode()
    starts = crio.starts
    crio.node.place(older).unlink()
    assert "taking the handlers back" not in crio.good("run")
    assert crio.starts == starts
