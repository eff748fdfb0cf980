"""`wait-driver`: waits until the driver is usable, and says meanwhile what is missing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, VERSION, install
from tests.support.fake_node import DEADLINE, NOTHING_TO_DO, SCRIPTS, STORE, TOOLKIT, FakeNode, Run
from toolkit_installer.driver.roots import CONTAINER_READY, DRIVER_READY

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
RECEIPT = f"{STORE}/receipt.json"
PROGRAM = str(SCRIPTS / "toolkit-installer")
WAITING = "Waiting for the driver"


def command(node: FakeNode, *more: str) -> list[str]:
    return [PROGRAM, "wait-driver", "--node-root", str(node.root), *more]


def start(node: FakeNode, *more: str) -> Run:
    return node._started(command(node, "--log-format", "logfmt", *more))


@runs_drivers
@pytest.mark.parametrize("root", [CONTAINER, HOST])
def test_it_ends_when_the_driver_comes(node: FakeNode, root: str) -> None:
    before = node.snapshot()
    waiting = start(node)
    waiting.wait_for(WAITING)
    waiting.wait_for("/run/nvidia/driver: there is no such folder; /: there is no nvidia-smi")
    assert node.snapshot() == before
    install(node.place(root))
    assert waiting.finish() == 0
    assert (
        f'msg="The driver is ready" event=driver-ready root={root} dev_root={root} version={VERSION}' in waiting.output
    )


@runs_drivers
def test_it_keeps_saying_what_is_missing_as_that_changes(node: FakeNode) -> None:
    waiting = start(node)
    waiting.wait_for("there is no such folder")
    install(node.place(CONTAINER), works=False)
    waiting.wait_for(f"nvidia-smi ends with 9: {driver_roots.NO_DRIVER}")
    node.write(DRIVER_READY, "NVIDIA_DRIVER_ROOT=/opt/driver\n")
    waiting.wait_for("/opt/driver: there is no such folder")
    waiting.wait_for(CONTAINER_READY)
    install(node.place("/opt/driver"))
    assert waiting.finish() == 0
    assert "root=/opt/driver" in waiting.output


def test_what_is_missing_is_not_said_over_and_over(node: FakeNode) -> None:
    waiting = start(node, "--timeout", "4")
    assert waiting.finish() == 8
    assert waiting.output.count(WAITING) == 1


def test_a_driver_that_does_not_come_in_time_is_exit_code_8(node: FakeNode) -> None:
    waiting = start(node, "--timeout", "0.2")
    assert waiting.finish() == 8
    assert "did not become ready within 0.2 s" in waiting.output
    assert "/: there is no nvidia-smi" in waiting.output.splitlines()[-1]


HANGS = "#!/bin/busybox sh\necho $$ >/started\nexec /bin/busybox sleep 3600\n"


@runs_drivers
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_nvidia_smi_that_hangs_does_not_keep_it_from_ending(node: FakeNode, number: signal.Signals) -> None:
    place = node.place(HOST)
    install(place).write_text(HANGS)
    waiting = start(node)
    eventually((place / "started").exists)
    assert waiting.stop(number) == 128 + number
    assert "Stopped before the driver was ready" in waiting.output
    assert WAITING not in waiting.output, "it was stopped, and said that it had waited for nvidia-smi in vain"
    eventually(lambda: not Path("/proc", (place / "started").read_text().strip()).exists())


@runs_drivers
def test_an_nvidia_smi_that_hangs_does_not_get_more_time_than_there_is(node: FakeNode) -> None:
    install(node.place(HOST)).write_text(HANGS)
    waiting = start(node, "--timeout", "0.5")
    assert waiting.finish() == 8
    assert "did not become ready within 0.5 s" in waiting.output
    assert re.search(r"nvidia-smi \S+ \S+ did not end within 1 s", waiting.output)


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_variable_is_the_flags(node: FakeNode) -> None:
    done = subprocess.run(
        command(node), env={"DRIVER_TIMEOUT": "0.1"}, timeout=DEADLINE, check=False, capture_output=True
    )
    assert done.returncode == 8


@runs_drivers
def test_a_root_that_is_named_is_the_only_one(node: FakeNode) -> None:
    install(node.place(HOST))
    other = start(node, "--driver-root", "/opt/driver", "--timeout", "0.2")
    assert other.finish() == 8
    assert "/opt/driver: there is no such folder" in other.output
    assert "/: " not in other.output
    assert start(node, "--driver-root", "/").finish() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_can_be_stopped(node: FakeNode, number: signal.Signals) -> None:
    waiting = start(node)
    waiting.wait_for(WAITING)
    assert waiting.stop(number) == 128 + number
    assert "Stopped before the driver was ready" in waiting.output


@runs_drivers
def test_a_hangup_has_it_look_at_once(node: FakeNode) -> None:
    waiting = start(node)
    waiting.wait_for(WAITING)
    install(node.place(HOST))
    waiting.process.send_signal(signal.SIGHUP)
    assert waiting.finish() == 0


# --- a node that has the toolkit ---


def test_a_node_that_has_the_toolkit_is_not_waited_for_when_that_was_asked(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon").process.returncode == 0
    before = node.stamps()
    done = start(node, "--unless-installed", "--timeout", "600")
    assert done.finish() == 0, done.output
    assert done.output.count("\n") == 1
    assert (
        f'msg="The toolkit is installed: the driver is not waited for" event=driver-not-awaited folder={TOOLKIT}'
        in done.output
    )
    assert node.stamps() == before
    other = start(node, "--timeout", "0.2")
    assert other.finish() == 8, "nobody asked for it"


@runs_drivers
def test_the_driver_of_a_node_that_has_the_toolkit_is_not_even_looked_at(node: FakeNode) -> None:
    """nvidia-smi may take a minute to fail, on a GPU that has fallen off the bus."""
    assert node.do("run", "--no-daemon").process.returncode == 0
    install(node.place(HOST)).write_text("#!/bin/busybox sh\n: >/looked-at\nexit 9\n")
    assert start(node, "--unless-installed").finish() == 0
    assert not node.exists("/looked-at")
    assert start(node, "--timeout", "0.2").finish() == 8
    assert node.exists("/looked-at")


@pytest.mark.parametrize("state", [None, "applying", "reverting"], ids=str)
def test_a_node_that_was_never_configured_or_only_half_is_waited_for(node: FakeNode, state: str | None) -> None:
    if state is not None:
        assert node.do("run", "--no-daemon").process.returncode == 0
        receipt = json.loads(node.read(RECEIPT))
        node.place(RECEIPT).write_text(json.dumps(receipt | {"state": state}))
    waiting = start(node, "--unless-installed", "--timeout", "0.2")
    assert waiting.finish() == 8
    assert WAITING in waiting.output


def test_a_node_that_was_given_back_is_waited_for(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon").process.returncode == 0
    assert node.do("uninstall").process.returncode == 0
    assert start(node, "--unless-installed", "--timeout", "0.2").finish() == 8


def test_the_toolkit_is_looked_for_where_this_run_would_install_it(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--toolkit-install-dir", "/opt/nvidia").process.returncode == 0
    assert start(node, "--unless-installed", "--timeout", "0.2").finish() == 8
    for place in ("--toolkit-install-dir=/opt/nvidia", "/opt/nvidia"):
        assert start(node, "--unless-installed", place).finish() == 0


def test_a_file_that_only_the_run_was_told_of_keeps_nobody_waiting(node: FakeNode) -> None:
    node.write("/opt/engine/docker.json", "{}")
    assert node.do("run", "--no-daemon", "--config", "/opt/engine/docker.json").process.returncode == 0
    done = start(node, "--unless-installed")
    assert done.finish() == 0, done.output


def test_a_receipt_that_cannot_be_trusted_is_said_at_once(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon").process.returncode == 0
    node.place(RECEIPT).chmod(0o666)
    waiting = start(node, "--unless-installed")
    assert waiting.finish() == 3
    assert "can be written to by others" in waiting.output
    assert RECEIPT in waiting.output


@runs_drivers
def test_the_run_that_follows_finds_nothing_to_do_while_the_driver_is_away(node: FakeNode) -> None:
    program = install(node.place(CONTAINER))
    assert node.do("run", "--no-daemon", "--driver-root", "auto").process.returncode == 0
    program.unlink()
    assert start(node, "--unless-installed").finish() == 0
    run = node.waiting("--driver-root", "auto")
    assert NOTHING_TO_DO in run.output
    assert run.stop() == 0, run.output
    assert not node.exists(TOOLKIT)


# --- how it is asked, and what it shows ---


@pytest.mark.parametrize("flags", [("--timeout", "soon"), ("--timeout", "0"), ("--driver-root", "driver")])
def test_what_makes_no_sense_is_exit_code_2(node: FakeNode, flags: tuple[str, ...]) -> None:
    assert start(node, *flags).finish() == 2


def test_a_terminal_sees_one_line_with_the_time(node: FakeNode) -> None:
    look = re.compile(r"\r\x1b\[K(Waiting for the driver, (\d+) s: /run/nvidia/driver: [^\r\n]*)")
    with on_terminal(command(node), {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}) as terminal:
        terminal.read_until(lambda said: len({shown[1] for shown in look.findall(said)}) >= 2)
        assert terminal.stop() == 128 + signal.SIGTERM
    assert all(len(line) < 100 for line, _ in look.findall(terminal.said))
    lines = terminal.said.rstrip("\n").split("\n")
    assert len(lines) == 2, lines  # what is missing, and that it was stopped
    assert re.search(r"\r\x1b\[K\d{4}-\S+ info +Stopped", lines[1])


@pytest.mark.parametrize("how", [{"TERM": "dumb"}, {"TERM": "xterm", "LOG_FORMAT": "json"}], ids=str)
def test_who_wants_lines_gets_lines(node: FakeNode, how: dict[str, str]) -> None:
    with on_terminal(command(node, "--timeout", "1.5"), how) as terminal:
        terminal.read_until(lambda _: False)
    assert "\r" not in terminal.said
    assert len(terminal.said.splitlines()) == 2


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.said = ""
        self._ours, theirs = pty.openpty()
        attributes = termios.tcgetattr(theirs)
        attributes[1] &= ~termios.OPOST  # a line's end stays what it is
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        self._process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)

    def read_until(self, seen: Callable[[str], bool]) -> None:
        """Read until what it said is `seen`, or it has ended."""
        deadline = time.monotonic() + DEADLINE
        while not seen(self.said):
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], self.said
            try:
                self.said += os.read(self._ours, 4096).decode()
            except OSError:  # EIO: nobody has the other end any more
                return

    def stop(self) -> int:
        """End it as a shell would, and return its exit code."""
        self._process.terminate()
        self.read_until(lambda _: False)
        return self._process.wait(DEADLINE)

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def on_terminal(words: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal(words, environment)
    try:
        yield terminal
    finally:
        terminal.close()
