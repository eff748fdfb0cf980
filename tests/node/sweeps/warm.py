"""The program in a child that stays warm: it runs one command after the other.

A fork of the tests for each would spend most of its time on copying pages, and on all that a program does but once:
what the end of a process does (locks, descriptors, pending signals) is done between two commands. What a SIGKILL does
is left to a real SIGKILL: a command that is to meet one runs in a fork of the warm child.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import netrc  # requests would, too
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import docker.errors  # the program would import it in each child anew
import requests.exceptions  # this too

from tests.node.engines.live import keep_only
from tests.node.faults import ENVIRONMENT, Outcome, Plan, invoke
from tests.support.patching import answering
from toolkit_installer.cli import tree
from toolkit_installer.node import processes, signals
from toolkit_installer.node.programs import CompletedProgram
from toolkit_installer.reporting import versions
from toolkit_installer.settings import Program

PRELOADED = (docker.errors, requests.exceptions, netrc)
DEADLINE = 120.0
"""Seconds. Far more than any command takes."""


_STANDING = "standing"
_COMMANDS = tree.top_command(Program.TOOLKIT_INSTALLER, ENVIRONMENT)


@contextlib.contextmanager
def _own_time() -> Iterator[None]:
    """Have a clock that the command's own waiting moves, and nothing else.

    An engine that does not come back is given up at once, and one that is slow as others use the processors is not.
    """
    seconds = time.monotonic()

    def monotonic() -> float:
        return seconds

    def sleep(more: float) -> None:
        nonlocal seconds
        seconds += more

    with mock.patch("time.monotonic", monotonic), mock.patch("time.sleep", sleep):
        yield


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Do but once what costs each command much and is the same each time: the flags' table, the payload's version.

    And look at no processes: containers of this machine are none of the made node's.
    """
    version = CompletedProgram(0, b"", "")
    with (
        mock.patch.object(processes, "list_pids", answering([])),
        mock.patch.object(tree, "top_command", answering(_COMMANDS)),
        mock.patch.object(versions, "run", answering(version)),
    ):
        yield


@functools.cache  # asking how much is frozen counts it
def _freeze() -> None:
    """Have what is there now looked at no more, in no child: looking would copy its pages."""
    gc.collect()
    gc.freeze()


class Warm:
    """Runs commands of the program. `inside` is entered once in each child."""

    def __init__(self, inside: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        self._inside = inside
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._pid = 0

    def run(
        self,
        arguments: list[str],
        plan: Plan | None = None,
        *,
        stopped: bool = False,
        at_each: Callable[[], object] | None = None,
    ) -> Outcome:
        """Run a command to its end. `stopped`: a SIGTERM waits for it when it starts.

        `at_each` is called while the command stands still before each of its calls.
        """
        if not self._pid:
            self._start()
        self._connection.send((arguments, plan or Plan(), stopped, at_each is not None))
        with contextlib.suppress(EOFError, ConnectionError):  # it was killed: waited for below
            while (answer := self._answer(arguments)) == _STANDING:
                if at_each is not None:
                    at_each()
                self._connection.send(_STANDING)
            code, happened, trace = answer
            return Outcome(code, tuple(happened), self._output(), tuple(trace))
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        self._connection.close()
        return Outcome(status, (), self._output())

    def _answer(self, arguments: list[str]) -> Any:
        if not self._connection.poll(DEADLINE):
            self._kill()
            raise AssertionError(f"{arguments} does not end")
        return self._connection.recv()

    def close(self) -> None:
        """End the child, for good."""
        self._kill()
        self._said.close()

    def _kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            self._connection.close()

    def _output(self) -> str:
        return os.pread(self._said.fileno(), 1 << 20, 0).decode(errors="replace")

    def _start(self) -> None:
        _freeze()
        self._connection, other = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                keep_only(other.fileno(), self._said.fileno())
                self._serve(other)
            except BaseException:  # noqa: BLE001  # nobody is above it: the test finds it in what was said
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(97)
        other.close()

    def _serve(self, connection: Connection) -> None:
        for stream in (1, 2):
            os.dup2(self._said.fileno(), stream)
        signals.block()
        gc.disable()  # what a command leaves is young then, and found at its end
        with self._inside(), quick(), _own_time():
            while True:
                try:
                    arguments, plan, stopped, standing = connection.recv()
                except EOFError:
                    os._exit(0)  # the test has ended
                os.truncate(self._said.fileno(), 0)
                os.lseek(self._said.fileno(), 0, os.SEEK_SET)
                if standing:
                    plan.pause = lambda: self._stand(connection)
                if not plan.is_deadly or (pid := os.fork()) == 0:
                    if stopped:
                        os.kill(os.getpid(), signal.SIGTERM)
                    code = invoke(arguments, plan)
                    self._end(connection.fileno())
                    connection.send((code, plan.happened, plan.trace))
                    if plan.is_deadly:  # and yet it came to its end, before the call that was to be its last
                        os._exit(0)
                elif status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
                    connection.send((status, (), ()))

    @staticmethod
    def _stand(connection: Connection) -> None:
        connection.send(_STANDING)
        connection.recv()

    def _end(self, connection: int) -> None:
        """Do what the end of a process does to what the command held."""
        gc.collect(0)  # sockets and files close themselves before their numbers are taken from them
        keep_only(connection, self._said.fileno())
        while signals.take_signal() is not None:
            pass
