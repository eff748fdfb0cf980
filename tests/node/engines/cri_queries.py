"""The program's CRI queries without a new Python each time: its child is forked from a Python that has imported it.

The program starts a Python for its questions, which imports gRPC: that takes longer than all that is tried with one.
What that start itself does, tests/node/test_cri_queries.py and make e2e try.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import traceback
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from unittest import mock

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def forked_queries() -> Iterator[None]:
    """Have this process and its forks ask so meanwhile; a fork that became another user starts a Python as ever."""
    from toolkit_installer.engines.common import cri  # noqa: PLC0415  # the program below needs none of it
    from toolkit_installer.node import signals  # noqa: PLC0415  # as above
    from toolkit_installer.node.programs import ProgramError, ProgramTimeoutError  # noqa: PLC0415  # as above

    started, address = cri._CHILD.ask, _forker().address

    def ask(question: bytes, seconds: float) -> bytes:
        if os.geteuid():
            return started(question, seconds)
        signals.raise_if_pending()
        with Client(address, "AF_UNIX") as connection:
            connection.send_bytes(question)
            if not connection.poll(seconds):
                raise ProgramTimeoutError(f"no answer within {seconds:g} s")
            answer = connection.recv_bytes()
            if not answer.endswith(b"}\n"):
                raise ProgramError(answer.decode())
            return answer

    with mock.patch.object(cri._CHILD, "ask", ask):
        yield


class _Forker:
    """The Python that forks, and where it is asked."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex
        self.address = f"\0{name}"
        self._program = subprocess.Popen([sys.executable, __file__, name], stdout=subprocess.PIPE)
        assert self._program.stdout is not None
        assert self._program.stdout.readline() == b"ready\n"


_forker = functools.cache(_Forker)


def serve(name: str) -> None:
    """Run the child for one question after the other, until the tests' process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from toolkit_installer.engines.common import cri_child  # noqa: F401, PLC0415  # once for all questions

    with Listener(f"\0{name}", "AF_UNIX", backlog=16) as listener:
        print("ready", flush=True)  # noqa: T201  # to whoever started it
        while True:
            with contextlib.suppress(EOFError, ConnectionError), listener.accept() as connection:  # who asks was killed
                connection.send_bytes(_answer_in_fork(connection.recv_bytes()))


def _answer_in_fork(question: bytes) -> bytes:
    """Return the line that a fork answers with, or how it failed: gRPC leaves threads behind, and they do not fork."""
    from toolkit_installer.engines.common import cri_child  # noqa: PLC0415  # see above

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = json.dumps(cri_child.answer_request(json.loads(question))) + "\n"
        except BaseException:  # noqa: BLE001  # nobody is above it
            said = traceback.format_exc()
        with open(writing, "w", encoding="utf-8") as output:
            output.write(said)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as output:
        answer = output.read()
    os.waitpid(pid, 0)
    return answer


if __name__ == "__main__":
    serve(sys.argv[1])
