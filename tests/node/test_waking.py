"""A waiting run cleans up although what it was started by is gone, and whatever package told it what it remembers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import psutil
import pytest

import toolkit_installer
from tests.support import fake_node
from tests.support.fake_node import DAEMON_JSON, PID_FILE, SCRIPTS, STORE, TOOLKIT, WAITING, FakeNode, Run
from toolkit_installer.reporting import saved_state

pytestmark = pytest.mark.real_start

DOCKER = b'{\n  "debug": true\n}\n'
GONE = 3
NOT_AGAIN = "toolkit-installer cannot be started again"
ASLEEP = Path(__file__).with_name("waiting_fork.py")
NAMES = ("toolkit-installer", "nvidia-toolkit", "nvidia-ctk-installer")


class Releases:
    """Folders with an environment and the program each, and a link `current` to one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "current"
        self.make("release-1")
        self.switch("release-1")

    def make(self, name: str) -> Path:
        """Make a release as `python -m venv` and an installation make it."""
        release = self.folder / name
        packages = release / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        package = packages / "toolkit_installer"
        (release / "bin").mkdir(parents=True)
        (release / "bin/python").symlink_to(sys.executable)
        home = Path(getattr(sys, "_base_executable", sys.executable)).parent
        (release / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
        shutil.copytree(Path(toolkit_installer.__file__).parent, package)
        (packages / "others.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
        for program in NAMES:
            script = release / "bin" / program
            first, rest = (SCRIPTS / program).read_text().split("\n", 1)
            assert first.startswith("#!")
            script.write_text(f"#!{self.current}/bin/python\n{rest}")
            script.chmod(0o755)
        return release

    def switch(self, name: str) -> None:
        """Lead the link to another release."""
        self.current.unlink(missing_ok=True)
        self.current.symlink_to(name)

    def words(self, program: str = "toolkit-installer") -> list[str]:
        """Return how the program is started through the link."""
        return [str(self.current / "bin/python"), str(self.current / "bin" / program)]


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "opt")


def waiting(node: FakeNode, words: list[str], *more: str) -> Run:
    """Start `run` and return it once the idle process is there."""
    node.write(DAEMON_JSON, DOCKER)
    command, *arguments = node.arguments("run", *more)
    old_name = Path(words[-1]).name in NAMES[1:]
    run = node._started([*words, *([] if old_name else [command]), *arguments])
    run.wait_for(WAITING)
    assert b"nvidia" in node.read(DAEMON_JSON)
    asleep(run)
    return run


def asleep(run: Run) -> None:
    """Wait until the process is the idle one, and sleeps."""
    deadline = time.monotonic() + 30
    process = psutil.Process(run.pid)
    while b"idle_process." not in Path(f"/proc/{run.pid}/cmdline").read_bytes() or process.status() != "sleeping":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def away(releases: Releases) -> None:
    releases.current.unlink()


def switched(releases: Releases) -> None:
    (releases.folder / "release-2").mkdir()  # of another program's, or only half there
    releases.switch("release-2")


def without_its_bin(releases: Releases) -> None:
    shutil.rmtree(releases.folder / "release-1/bin")


def installed_again(releases: Releases) -> None:
    for script in (releases.folder / "release-1/bin").glob("*nvidia*"):
        script.unlink()
    (releases.folder / "release-1/bin/toolkit-installer").write_text("raise SystemExit('half-written')\n")


def of_another_release(releases: Releases) -> None:
    releases.make("release-2")
    releases.switch("release-2")
    shutil.rmtree(releases.folder / "release-1")


@pytest.mark.parametrize("change", [away, switched, without_its_bin, installed_again, of_another_release])
@pytest.mark.parametrize("woken", [0, 2], ids=["", "after it was woken twice"])
def test_a_run_whose_start_is_gone_gives_everything_back(
    node: FakeNode, releases: Releases, change: Callable[[Releases], None], woken: int
) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    run = waiting(node, releases.words())
    for _ in range(woken):
        run.process.send_signal(signal.SIGHUP)
        run.wait_for("Nothing to do")
        run.wait_for(WAITING)
        asleep(run)
    change(releases)
    assert run.stop() == 0, run.output
    assert node.snapshot() == before


@pytest.mark.parametrize("program", NAMES)
def test_it_comes_back_under_the_name_that_it_was_started_by(node: FakeNode, releases: Releases, program: str) -> None:
    before_stop = waiting(node, releases.words(program))
    away(releases)
    assert before_stop.stop() == 0, before_stop.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert node.exists(TOOLKIT) is (program != "toolkit-installer"), "under the old names the toolkit stays"


@pytest.mark.parametrize("flags", [(), ("-I",), ("-B", "-X", "utf8")], ids=["plain", "-I", "flags"])
def test_a_module_is_started_again_too(node: FakeNode, releases: Releases, flags: tuple[str, ...]) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    run = waiting(node, [str(releases.current / "bin/python"), *flags, "-m", "toolkit_installer"])
    without_its_bin(releases)
    away(releases)
    assert run.stop() == 0, run.output
    assert node.snapshot() == before


def test_the_program_by_a_link_of_another_name_is_started_again_too(
    node: FakeNode, releases: Releases, tmp_path: Path
) -> None:
    link = tmp_path / "installer"
    link.symlink_to(releases.current / "bin/toolkit-installer")
    run = node._started([str(link), *node.arguments("run")])
    run.wait_for(WAITING)
    asleep(run)
    link.unlink()
    away(releases)
    assert run.stop() == 0, run.output
    assert not node.exists(TOOLKIT)


# --- where nothing of it is there any more ---


def test_a_program_that_is_gone_for_good_says_what_to_do_and_loses_nothing(node: FakeNode, releases: Releases) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    run = waiting(node, releases.words())
    shutil.rmtree(releases.folder)
    assert run.stop() == GONE, run.output
    assert NOT_AGAIN in run.output
    assert "toolkit-installer uninstall" in run.output
    assert node.broken_runtimes() == []
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert node.snapshot() == before


def test_a_program_that_is_gone_for_a_while_is_waited_for(node: FakeNode, releases: Releases) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    run = waiting(node, releases.words())
    shutil.move(releases.folder, f"{releases.folder}-away")
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOT_AGAIN)
    shutil.move(f"{releases.folder}-away", releases.folder)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Nothing to do")
    asleep(run)
    assert run.stop() == 0, run.output
    assert node.snapshot() == before


def test_a_package_that_is_not_whole_says_so(node: FakeNode, releases: Releases) -> None:
    run = waiting(node, releases.words())
    (package,) = releases.folder.glob("release-1/lib/*/site-packages/toolkit_installer")
    (package / "cli" / "commands.py").unlink()
    shutil.rmtree(package / "cli" / "__pycache__")
    assert run.stop() == GONE, run.output
    assert "cannot be started again" in run.output
    assert node.do("uninstall").process.returncode == 0
    assert node.read(DAEMON_JSON) == DOCKER


# --- what another release's idle process saved ---

LOCKS = f'"pid_fd": PID_FD, "pid_path": "{PID_FILE}", "pid_folders": ["/run/nvidia"], "lock_fd": LOCK_FD'
COMMAND = f"\n30.0\n2\n/usr/bin/toolkit-installer\nrun\n{DAEMON_JSON}\n1 2 3 4 5"
STATE = '{"form": 1, "driver": [["/run/nvidia/driver", "absent 2"]], "driver_missing": false, "tries": 1}'
STATES = {
    "locks alone": f"{{{LOCKS}}}{COMMAND}",
    "with a state": f'{{{LOCKS}, "state": {STATE}}}{COMMAND}',
    "of another form": f'{{{LOCKS}, "state": ["news"]}}{COMMAND}',
    "of other types": f'{{{LOCKS}, "state": {{"driver": [1], "driver_missing": [], "tries": "x"}}}}',
    "without its locks": f'{{"state": {STATE}}}{COMMAND}',
    "with wrong locks": '{"pid_fd": 1000, "pid_path": 7, "pid_folders": {}, "lock_fd": "2"}',
    "cut off": f"{{{LOCKS}",
    "empty": "",
}
every_state = pytest.mark.parametrize("state", STATES.values(), ids=STATES)


def woken(node: FakeNode, state: str, events: str) -> Run:
    """Wake a process with this state, on a node that was installed before."""
    program = [str(SCRIPTS / "toolkit-installer"), *node.arguments("run")]
    return node._started([sys.executable, str(ASLEEP), str(node.root), state, events, *program])


@pytest.fixture
def installed(node: FakeNode) -> FakeNode:
    node.write(DAEMON_JSON, DOCKER)
    done = node.do("run", "--no-daemon")
    assert done.process.returncode == 0, done.output
    return node


@every_state
def test_term_cleans_up_whatever_a_state_says(installed: FakeNode, state: str) -> None:
    run = woken(installed, state, "SIGTERM")
    assert run.finish() == 0, run.output
    assert installed.read(DAEMON_JSON) == DOCKER
    for path in (TOOLKIT, STORE, PID_FILE, "/run/nvidia"):
        assert not installed.exists(path), path


@every_state
@pytest.mark.parametrize("event", ["SIGHUP", "DRIFT,LATER,NEWS"])
def test_any_other_event_leads_back_to_sleep_with_the_locks_held(installed: FakeNode, state: str, event: str) -> None:
    run = woken(installed, state, event)
    run.wait_for(WAITING)
    asleep(run)
    other = installed.do("run", "--no-daemon")
    assert other.process.returncode == 4, other.output
    assert f"PID {run.pid}" in other.output
    assert run.stop() == 0, run.output
    assert installed.read(DAEMON_JSON) == DOCKER
    assert not installed.exists(STORE)
    assert not installed.exists(PID_FILE)


@pytest.mark.parametrize("state", ["locks alone", "of another form", "of other types", "cut off", "empty"])
def test_what_is_not_understood_is_looked_at_again(installed: FakeNode, state: str) -> None:
    installed.write(DAEMON_JSON, DOCKER)
    run = woken(installed, STATES[state], "LATER")
    run.wait_for("looking again")
    run.wait_for(WAITING)
    assert b"nvidia" in installed.read(DAEMON_JSON)
    assert run.stop() == 0


@pytest.mark.parametrize("value", ["7:SIGTERM", "0:SIGTERM", "x", "SIGTERM", ":"])
def test_a_variable_of_somebody_elses_is_a_fresh_start(
    node: FakeNode, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.write(DAEMON_JSON, DOCKER)
    monkeypatch.setitem(fake_node._ENVIRONMENT, "TOOLKIT_INSTALLER_RESUME", value)
    run = node.start()
    run.wait_for("it starts anew")
    run.wait_for("The node is configured")
    run.wait_for(WAITING)
    assert run.stop() == 0, run.output
    assert node.read(DAEMON_JSON) == DOCKER


def test_a_state_names_its_locks_and_the_command(node: FakeNode) -> None:
    run = waiting(node, [str(SCRIPTS / "toolkit-installer")])
    state = Path(f"/proc/{run.pid}/cmdline").read_bytes().split(b"\0")[-2].decode()
    fields = Path(f"/proc/{run.pid}/fd/{state}").read_bytes().split(b"\0")
    memory = json.loads(fields[0])
    assert os.path.samefile(f"/proc/{run.pid}/fd/{memory['pid_fd']}", node.place(memory["pid_path"]))
    assert os.path.samefile(f"/proc/{run.pid}/fd/{memory['lock_fd']}", node.place(STORE))
    assert memory["pid_folders"] == ["/run/nvidia"]
    assert saved_state.parse(memory["state"]).parsed
    assert float(fields[1]) == 30.0
    assert fields[2] == b""
    count = int(fields[3])
    assert fields[4 + count - 1] == str(node.payload).encode(), "the command ends with the last argument"
    assert run.stop() == 0
