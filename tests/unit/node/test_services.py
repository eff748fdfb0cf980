"""The node's systemctl, played by a script that writes down how it is called; real ones are in the end-to-end tests."""

from __future__ import annotations

import lzma
import shutil
import signal
from pathlib import Path

import pytest

from toolkit_installer.node import programs
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import ProgramError, Programs
from toolkit_installer.node.root import Root
from toolkit_installer.node.services import Services
from toolkit_installer.node.signals import Stopped

JOURNALS = Path(__file__).parents[2] / "data" / "journal"


class Scripts(Programs):
    """Finds its programs in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Root("/"))
        self.folder = folder

    def find_program(self, name: str) -> str | None:
        path = self.folder / name
        return str(path) if path.exists() else None

    def script(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >>"{self.folder}/calls"\n{body}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.fixture
def services(scripts: Scripts) -> Services:
    return Services(scripts, SystemCalls())


def test_a_unit_at_its_start_limit_is_started_all_the_same(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", "")
    services.restart("containerd.service", seconds=10)
    assert scripts.calls() == ["systemctl reset-failed containerd.service", "systemctl restart containerd.service"]


def test_a_restart_is_left_to_systemd_once_it_was_asked_and_not_sooner(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", 'if [ "$1" = restart ]; then exec sleep 60; else exec sleep 0.5; fi')

    def leave() -> None:
        raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        services.restart("crio.service", seconds=60, meanwhile=leave)
    assert scripts.calls() == ["systemctl reset-failed crio.service", "systemctl restart crio.service"]


def test_people_are_told_meanwhile_also_where_nothing_is_asked_of_it(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", '[ "$1" != restart ] || exec sleep 0.5')
    told: list[None] = []
    with programs.report_progress(lambda: told.append(None)):
        services.restart("crio.service", seconds=60)
    assert told


def test_a_restart_that_fails_is_told_in_systemds_words_and_the_units(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", '[ "$1" != restart ] || { echo "Job failed." >&2; exit 3; }')
    scripts.script("journalctl", "printf 'invalid plugin config\\nexit 1\\n'")
    with pytest.raises(ProgramError, match=r"Job failed\.; its log says: invalid plugin config \| exit 1$"):
        services.restart("containerd.service", seconds=10)


def test_a_restart_that_fails_without_a_journal_is_told_in_systemds_words(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", '[ "$1" != restart ] || { echo "Job failed." >&2; exit 1; }')
    with pytest.raises(ProgramError, match=r"ended with 1: Job failed\.$"):
        services.restart("containerd.service", seconds=10)


def test_the_lines_about_trouble_in_a_units_log_are_reported_and_not_the_last_ones(
    scripts: Scripts, services: Services
) -> None:
    scripts.script("journalctl", "cat <<'E'\nlevel=warning msg=b\n\npanic: c\nlevel=info msg=d\nStarted it.\nE")
    assert services.last_words("docker.service", 1700000000.9) == "level=warning msg=b | panic: c"
    (call,) = scripts.calls()
    assert "--since=@1700000000 " in call


def test_a_units_log_without_trouble_is_told_all_the_same(scripts: Scripts, services: Services) -> None:
    scripts.script("journalctl", "seq -f 'level=info %g' 1 20")
    assert services.last_words("docker.service", 0) == " | ".join(f"level=info {number}" for number in range(13, 21))


@pytest.fixture
def journal(scripts: Scripts, tmp_path: Path) -> str:
    """Make the node's journalctl the real one, with a journal that systemd-journal-remote made of docker.export.

    docker's unit has lines of its own, of systemd and of systemd-coredump, and lines of containers by the log drivers
    journald and syslog.
    """
    program = shutil.which("journalctl")
    if program is None:
        pytest.skip("no journalctl here")
    (tmp_path / "docker.journal").write_bytes(lzma.decompress((JOURNALS / "docker.journal.xz").read_bytes()))
    scripts.script("journalctl", f'exec {program} --file={tmp_path}/docker.journal "$@"')
    return program


@pytest.mark.usefixtures("journal")
def test_lines_of_containers_are_no_words_of_their_engine(services: Services) -> None:
    assert (JOURNALS / "docker.export").read_text().count("ContainerSecret") == 3
    own = [
        'level=error msg="own words"',
        "docker.service: Main process exited, code=exited, status=1/FAILURE",
        "Process 77 (dockerd) of user 0 dumped core.",
    ]
    assert services.trouble("docker.service", "@0", 20) == own
    assert services.last_words("docker.service", 0) == " | ".join(own)
    assert services.trouble("docker.service", "@0", 1) == own[-1:]
    log = services.log("docker.service", 2)
    assert log is not None
    assert [line.split(": ", 1)[1] for line in log.splitlines()] == own[-2:]


def test_daemon_reload_is_never_asked_for(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", "echo LoadState=loaded")
    assert services.knows("containerd.service")
    services.property("containerd.service", "Restart")
    services.restart("containerd.service", seconds=10)
    assert not any("daemon-re" in call for call in scripts.calls())


@pytest.mark.parametrize("body", ["echo LoadState=not-found", "exit 1", "echo 'Failed to connect to bus' >&2; exit 1"])
def test_a_unit_that_systemd_does_not_know_cannot_be_restarted(scripts: Scripts, services: Services, body: str) -> None:
    scripts.script("systemctl", body)
    assert not services.knows("containerd.service")


def test_of_several_units_the_properties_are_told_by_unit(scripts: Scripts, services: Services) -> None:
    scripts.script("systemctl", "printf 'BoundBy=\\nActiveState=active\\n\\nBoundBy=x.service y.service\\n'")
    assert services.properties(["a.service", "b.service"], ["ActiveState", "BoundBy"]) == {
        "a.service": {"ActiveState": "active", "BoundBy": ""},
        "b.service": {"BoundBy": "x.service y.service"},
    }
    assert scripts.calls() == ["systemctl show --property=ActiveState,BoundBy -- a.service b.service"]


@pytest.mark.parametrize("body", ["", "echo A=b", "echo A=b; echo; echo A=c; exit 1", "echo A=b; echo; echo what"])
def test_of_units_of_which_systemd_does_not_tell_nothing_is_known(
    scripts: Scripts, services: Services, body: str
) -> None:
    scripts.script("systemctl", body)
    assert services.properties(["a.service", "b.service"], ["A"]) is None


def test_a_node_without_systemctl_says_so(services: Services) -> None:
    assert not services.knows("containerd.service")
    assert services.property("containerd.service", "Restart") is None
    assert services.properties(["containerd.service"], ["Restart"]) is None
    with pytest.raises(ProgramError, match="no systemctl"):
        services.restart("containerd.service", seconds=10)


@pytest.mark.parametrize(
    "systemctl, loginctl, stopping",
    [
        ("echo stopping; exit 1", None, True),
        ("echo running", "echo PreparingForShutdown=yes", True),
        ("echo degraded; exit 1", "echo PreparingForShutdown=no", False),
        ("echo 'Failed to connect to bus' >&2; exit 1", "exit 1", False),
        ("echo stopping-or-not", None, False),
        (None, None, False),
    ],
)
def test_a_node_goes_down_when_systemd_or_its_login_manager_says_so(
    scripts: Scripts, services: Services, systemctl: str | None, loginctl: str | None, *, stopping: bool
) -> None:
    for name, body in (("systemctl", systemctl), ("loginctl", loginctl)):
        if body is not None:
            scripts.script(name, body)
    assert services.is_stopping() is stopping
    if loginctl is not None:
        assert scripts.calls() == [
            "systemctl is-system-running",
            "loginctl show-session --property=PreparingForShutdown",
        ]
