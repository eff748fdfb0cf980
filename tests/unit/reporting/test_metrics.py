"""The process that answers, as the run has it: started, told, lost, and replaced; and nothing of it stops the run."""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import signals
from toolkit_installer.reporting import metrics
from toolkit_installer.reporting.metrics import MetricsEndpoint
from toolkit_installer.settings import Address
from toolkit_installer.waiting import child_process

_ENDED = os.WEXITED | os.WNOWAIT


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def made(port: int) -> Iterator[MetricsEndpoint]:
    found = MetricsEndpoint(Address("127.0.0.1", port))
    found.prepare()
    yield found
    found.process.close()
    found.process.end_left_over()


def killed(made: MetricsEndpoint) -> int:
    """End the process, and return which it was; nobody has waited for it yet."""
    os.kill(made.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, made.process.pid, _ENDED)
    return made.process.pid


def said(port: int, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def is_lost(made: MetricsEndpoint) -> bool:
    return made.lost


def tell(made: MetricsEndpoint) -> None:
    made.send(ready=True, why="Serving: all", metrics="")


def test_what_was_told_is_said(made: MetricsEndpoint, port: int) -> None:
    tell(made)
    assert said(port) == (200, "Serving: all\n")
    assert not is_lost(made)
    made.send_shutdown("the run was told to stop")
    assert said(port) == (503, "the run was told to stop\n")


def test_one_that_ended_is_lost_until_it_is_told_something(made: MetricsEndpoint, port: int) -> None:
    killed(made)
    assert is_lost(made)
    tell(made)
    assert not is_lost(made)
    assert said(port) == (200, "Serving: all\n")


def test_one_that_is_stopped_is_replaced(made: MetricsEndpoint, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_CONFIRM_SECONDS", 0.1)
    stopped = made.process.pid
    os.kill(stopped, signal.SIGSTOP)
    tell(made)
    assert made.process.pid != stopped
    assert said(port) == (200, "Serving: all\n")
    assert not Path(f"/proc/{stopped}").exists()


def test_whoever_leaves_starts_none_in_place_of_one_that_ended(made: MetricsEndpoint, port: int) -> None:
    ended = killed(made)
    made.send_shutdown("the run was told to stop")
    assert made.process.pid == ended
    with pytest.raises(ConnectionRefusedError):
        said(port)


def no_more(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


FAILING = {
    "the list of its children cannot be read": (child_process, "open"),
    "no process can be killed": (os, "kill"),
    "no process can be waited for": (os, "waitpid"),
    "no address can be listened on": (socket, "create_server"),
    "no channel can be made": (socket, "socketpair"),
    "no program can be started": (os, "posix_spawn"),
}
"""Where the function is looked up, and its name."""


@pytest.mark.parametrize("what", FAILING)
def test_no_error_on_the_way_to_a_new_process_is_the_runs(
    made: MetricsEndpoint, port: int, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    stopped = made.process.pid
    os.kill(stopped, signal.SIGSTOP)  # so that it has to be killed, too
    monkeypatch.setattr(metrics, "_CONFIRM_SECONDS", 0.1)
    with monkeypatch.context() as patched:
        where, name = FAILING[what]
        patched.setattr(where, name, no_more, raising=False)
        tell(made)
        assert is_lost(made)
        made.send_shutdown("the run was told to stop")
        with pytest.raises(ConfigurationError, match=r"Too many open files"):
            MetricsEndpoint(Address("127.0.0.1", port)).prepare()
    if name == "waitpid":
        os.kill(stopped, signal.SIGKILL)  # as it was, unless another child was to be waited for before it
        os.waitid(os.P_PID, stopped, _ENDED)  # until then it has the port
    tell(made)
    assert not is_lost(made)
    assert said(port) == (200, "Serving: all\n")


@pytest.fixture
def held_back() -> Iterator[Callable[[], bool]]:
    """Signals are held back as in a run; yields what tells whether TERM came."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    yield lambda: signal.SIGTERM in signal.sigpending()
    while signal.sigtimedwait(signals.HANDLED, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_signal_ends_the_wait_for_one_that_does_not_begin(
    port: int, monkeypatch: pytest.MonkeyPatch, held_back: Callable[[], bool]
) -> None:
    waits = "os.read(int(sys.argv[2]), 1)"  # until the run closes the channel
    monkeypatch.setattr(
        metrics, "_PROGRAM", f"import os, signal, sys\nos.kill(os.getppid(), signal.SIGTERM)\n{waits}\n"
    )
    made = MetricsEndpoint(Address("127.0.0.1", port))
    try:
        with pytest.raises(signals.Stopped):
            made.prepare()
        assert held_back(), "it is left for whoever takes care of it"
        assert is_lost(made)
    finally:
        made.process.end_left_over()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(
    "host, reached", [("", ["127.0.0.1", "::1"]), ("127.0.0.1", ["127.0.0.1"]), ("::1", ["::1"])], ids=["all", "4", "6"]
)
def test_it_answers_at_the_addresses_that_were_asked_for_and_at_no_other(
    port: int, host: str, reached: list[str]
) -> None:
    made = MetricsEndpoint(Address(host, port))
    made.prepare()
    try:
        tell(made)
        for each in ("127.0.0.1", "::1"):
            if each in reached:
                assert said(port, each) == (200, "Serving: all\n")
            else:
                with pytest.raises(ConnectionRefusedError):
                    said(port, each)
    finally:
        made.process.close()
        made.process.end_left_over()


def test_a_process_that_says_nothing_is_waited_for_so_long_and_no_longer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def receive(_: child_process.ChildProcess, seconds: float) -> bytes:
        waited.append(seconds)
        return b""

    monkeypatch.setattr(child_process.ChildProcess, "receive", receive)
    with pytest.raises(ConfigurationError, match="did not begin"):
        MetricsEndpoint(Address("127.0.0.1", port)).prepare()
    assert len(waited) == 1
    assert 0 < waited[0] < 120
