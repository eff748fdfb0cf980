"""The program's questions to a CRI, asked at once: its child is forked from a Python that has imported it.

The program starts a Python for each question, which imports gRPC: that takes longer than all that is tried with one.
What that start itself does, tests/node/test_cri_question.py and make e2e try.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING
from unittest import mock

from toolkit_installer.node import interpreter

if TYPE_CHECKING:
    from toolkit_installer.node.programs import Completed

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def asked_at_once() -> Iterator[None]:
    """Have this process and its forks ask so meanwhile; a fork that became another user starts a Python as ever."""
    from toolkit_installer.node import programs, signals  # noqa: PLC0415  # the program below needs none of it
    from toolkit_installer.node.programs import Completed, ProgramTimeoutError  # noqa: PLC0415  # as above

    started, address = programs.run, _asker().address

    def run(command: Sequence[str], *, seconds: float, folder: str = "/") -> Completed:
        if os.geteuid():
            return started(command, seconds=seconds, folder=folder)
        signals.heed()
        with Client(address, "AF_UNIX") as connection:
            connection.send((list(command[command.index(interpreter.needed(list(command))) :]), folder))
            if not connection.poll(seconds):
                raise ProgramTimeoutError(f"no answer within {seconds:g} s")
            status, output, errors = connection.recv()
            return Completed(status, output, errors)

    with mock.patch("toolkit_installer.engines.common.cri.client.run", run):
        yield


class _Asker:
    """The Python that forks, and where it is asked."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.address = f"\0{name}"
        self._program = subprocess.Popen([sys.executable, __file__, name], stdout=subprocess.PIPE)
        assert self._program.stdout is not None
        assert self._program.stdout.readline() == b"ready\n"


_asker = functools.cache(_Asker)


def serve(name: str) -> None:
    """Run the child for one question after the other, until the tests' process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from toolkit_installer.engines.common.cri import ask  # noqa: F401, PLC0415  # once for all questions

    with Listener(f"\0{name}", "AF_UNIX", backlog=16) as listener:
        print("ready", flush=True)  # noqa: T201  # to whoever started it
        while True:
            with contextlib.suppress(EOFError, ConnectionError), listener.accept() as connection:  # who asks was killed
                connection.send(_done(*connection.recv()))


def _done(arguments: list[str], folder: str) -> tuple[int, bytes, str]:
    """Return the exit status of the program with these arguments, and what it printed."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                os.chdir(folder)
                sys.argv = arguments
                status = interpreter._main()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001  # nobody is above it
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read().decode(errors="replace")


if __name__ == "__main__":
    serve(sys.argv[1])
