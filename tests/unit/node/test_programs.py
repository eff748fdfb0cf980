"""The node's programs: found beneath its root, with a time limit and nothing inherited."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from toolkit_installer.node import programs, signals
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.programs import ProgramError, Programs
from toolkit_installer.node.root import Root
from toolkit_installer.node.services import Services
from toolkit_installer.node.signals import Attention, Stopped

PYTHON = (sys.executable, "-I", "-S", "-c")


def test_status_output_and_errors_come_back() -> None:
    done = programs.run(
        [*PYTHON, "import os; os.write(1, b'\\xff out'); os.write(2, b'err\\n'); os._exit(3)"], seconds=20
    )
    assert (done.status, done.output, done.errors) == (3, b"\xff out", "err")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    # the grandchild holds the pipe's writing end: it is gone when reading meets the end
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f"import os, time; os.fork(); fd = os.open({str(pipe)!r}, os.O_WRONLY); time.sleep(600)"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        began = time.monotonic()
        with pytest.raises(ProgramError, match=r"did not end within 0\.5 s"):
            programs.run([*PYTHON, script], seconds=0.5)
        assert time.monotonic() - began < 10
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_program_that_nobody_wants_any_more_is_ended_and_what_it_was_given_was_given_once() -> None:
    asked: list[bool] = []

    def unless() -> bool:
        asked.append(len(asked) == 2)
        return asked[-1]

    with pytest.raises(ProgramError, match="did not end within 600 s"):
        programs.run([*PYTHON, "import time; time.sleep(600)"], seconds=600, unless=unless)
    assert asked == [False, False, True]
    echo = "import sys, time; text = sys.stdin.read(); time.sleep(1); print(text)"
    done = programs.run([*PYTHON, echo], seconds=600, given=b"once", unless=lambda: False)
    assert done.output == b"once\n"


def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(ProgramError, match="cannot start /no/such/program") as raised:
        programs.run(["/no/such/program"], seconds=1)
    assert raised.value.path == "/no/such/program"


def test_a_program_inherits_neither_blocked_signals_nor_environment_nor_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_OR_SO", "x")
    script = """if True:
        import os, signal, sys
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN)
        print(sorted(os.environ), repr(sys.stdin.read()), os.getpid() == os.getsid(0), os.getcwd())
        """
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    try:
        done = programs.run([*PYTHON, script], seconds=20)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    mask, rest = done.output.decode().splitlines()
    assert mask == "set() True"  # Python ignores SIGPIPE by itself
    assert rest.replace("'LC_CTYPE', ", "") == "['LANG', 'LC_ALL', 'PATH'] '' True /"


def test_programs_are_found_beneath_the_root_alone(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    assert Programs(Root(str(tmp_path))).find("sh") is None
    (tmp_path / "usr/bin/sh").write_text("")
    assert Programs(Root(str(tmp_path))).find("sh") is None
    (tmp_path / "usr/bin/sh").chmod(0o755)
    assert Programs(Root(str(tmp_path))).find("sh") == "/usr/bin/sh"


def test_a_node_without_systemctl_knows_no_unit_and_says_so_when_asked_to_restart_one(tmp_path: Path) -> None:
    services = Services(Programs(Root(str(tmp_path))), SystemCalls())
    assert services.knows("docker.service") is False
    assert services.property("docker.service", "Restart") is None
    with pytest.raises(ProgramError, match="no systemctl"):
        services.restart("docker.service", seconds=1)


# --- signals ---


@pytest.fixture
def _blocked() -> object:
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    yield
    while signals.take() is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, old)


@pytest.mark.usefixtures("_blocked")
class TestAttention:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
    def test_a_request_to_stop_waits_for_the_next_safe_point(self, number: signal.Signals) -> None:
        attention = Attention()
        attention.check()
        signal.pthread_kill(threading.get_ident(), number)
        with pytest.raises(Stopped, match=number.name):
            attention.check()
        assert attention.stop is number

    def test_a_request_to_look_again_is_remembered_and_stops_nothing(self) -> None:
        attention = Attention()
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        attention.check()
        assert (attention.again, attention.stop) == (True, None)

    def test_both_at_once_are_both_remembered(self) -> None:
        attention = Attention()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        attention.look()
        attention.look()
        assert (attention.again, attention.stop) == (True, signal.SIGTERM)

    def test_waiting_ends_at_once_for_a_request_to_stop(self) -> None:
        attention = Attention()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        began = time.monotonic()
        attention.look(30)
        assert time.monotonic() - began < 5

    def test_waiting_ends_in_time_without_any_signal(self) -> None:
        attention = Attention()
        attention.look(0.01)
        assert (attention.again, attention.stop) == (False, None)
