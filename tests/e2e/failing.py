"""What tests of failing engines share: to stop one, to wait for a condition, to do something meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.engines.daemons import Engine

ALIASES = {"io.containerd.runc.v2", "io.containerd.runtime.v1.linux"}
"""What dockerd 20.10 lists besides runc from its start to its first reload."""
HEARD = "Got signal to reload configuration"
"""What dockerd logs of a SIGHUP."""
DOWN = "DOES NOT COME BACK"
"""What the installer says of an engine that it gives up."""


def served(engine: Engine) -> set[str]:
    return engine.handlers().keys() - ALIASES


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def stop(pid: int) -> None:
    """Stop a process as a debugger does, and return once it stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", lambda: "it goes on")


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    stop(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def meanwhile(do: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread; raise at the end what it raised. An engine that is started there ends with it."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as error:  # noqa: BLE001  # it is raised in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(120)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
