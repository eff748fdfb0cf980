"""The program in a forked child: as another user, or with system calls that fail, or kill it, at a chosen instant."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import gc
import importlib
import inspect
import os
import pkgutil
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import toolkit_installer
from tests.support.fake_node import FakeNode
from toolkit_installer.cli import commands
from toolkit_installer.node import calls, signals
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.settings import Program

NEVER = 1 << 30
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin"}
_OF_OTHER_PROGRAMS = ("__main__", "cri_canary", "cri_child", "cri_pb2")
PRELOADED = (
    *(
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(toolkit_installer.__path__, f"{toolkit_installer.__name__}.")
        if not module.name.endswith(_OF_OTHER_PROGRAMS)
    ),
    *(importlib.import_module(name) for name in ("encodings.ascii", "encodings.utf_8_sig", "structlog", "tomlkit")),
)
"""What the program imports late is imported here: each fork would do it again, and another
user might not be able to."""


class Fault(enum.StrEnum):
    """What happens at the instant."""

    KILL = "SIGKILL before the call"
    ONCE = "the call fails"
    FULL = "the disk is full: this call and all later ones that need space fail"
    READ_ONLY = "the disk is read-only, as after an error of it: this call and all later ones that change it fail"


NEED_SPACE = frozenset(
    {
        "mkdir",
        "create",
        "create_unnamed",
        "link",
        "open_or_create",
        "write",
        "clone",
        "copy_range",
        "symlink",
        "setxattr",
    }
)
RENAMES = frozenset({"rename", "rename_new", "exchange"})
NO_CHANGE_OF_THE_DISK = frozenset({"fsync", "signal", "restart_unit", "make_device_nodes"})


@dataclasses.dataclass(frozen=True)
class Call:
    """A call as it was made: its name, and where each file or folder that it names lies."""

    name: str
    paths: tuple[str, ...]
    failed: bool = False


@dataclasses.dataclass
class Plan:
    """Which of the calls, counted from 0, meets the fault; `happened` names them, with their paths.

    `stop_at` is the call before which a SIGTERM comes; `trace` has the calls with their places.
    """

    at: int = NEVER
    fault: Fault = Fault.KILL
    error: int = errno.EIO
    stop_at: int = NEVER
    happened: list[str] = dataclasses.field(default_factory=list)
    trace: list[Call] = dataclasses.field(default_factory=list)
    pause: Callable[[], None] | None = None
    """Called before each call: whoever is asked here sees what a kill would leave."""

    @property
    def is_deadly(self) -> bool:
        """Whether the program is killed at a call."""
        return self.fault is Fault.KILL and self.at != NEVER

    def meet(self, name: str, paths: list[str]) -> None:
        """Count a call, and let it meet the fault if it is its turn."""
        number = len(self.happened)
        self.happened.append(" ".join([name, *paths]))
        if self.pause is not None:
            self.pause()
        if number == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        if number == self.at and self.fault is Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.at and self.fault is Fault.ONCE:
            reason = os.strerror(self.error)
            # a program is no system call: what fails is to start it
            started = name in ("restart_unit", "make_device_nodes")
            raise ProgramError(f"cannot start it: {reason}") if started else OSError(self.error, reason)
        if number >= self.at and self.fault is Fault.FULL and name in NEED_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if number >= self.at and self.fault is Fault.READ_ONLY and name not in NO_CHANGE_OF_THE_DISK:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def placed(parameters: Sequence[str], name: str, arguments: Sequence[Any]) -> Call:
    """Return a call with its places: names are joined to the folder that they are given with, descriptors followed."""
    given = dict(zip(parameters, arguments, strict=True))
    folder = given.pop("folder", None)
    if name == "symlink":
        del given["target"]  # what it says, not where it lies
    paths = [value for value in given.values() if isinstance(value, str)] if folder is not None else []
    fds = [given[key] for key in ("fd", "source", "target") if isinstance(given.get(key), int)]
    places = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
    where = os.readlink(f"/proc/self/fd/{folder}") if folder is not None else ""
    return Call(name, (*places, *(os.path.join(where, path) for path in paths)))


def faulty(plan: Plan) -> type[calls.SystemCalls]:
    """Return system calls that meet the plan's fault. fsync does nothing else: it only costs time here."""

    def wrapped(name: str) -> Callable[..., Any]:
        real = getattr(calls.SystemCalls, name)
        parameters = list(inspect.signature(real).parameters)[1:]

        def call(self: calls.SystemCalls, *arguments: Any) -> Any:
            if not plan.is_deadly:  # who is killed tells nobody of its calls
                plan.trace.append(placed(parameters, name, arguments))
            try:
                plan.meet(name, [argument for argument in arguments if isinstance(argument, str)])
                return None if name == "fsync" else real(self, *arguments)
            except (OSError, ProgramError):
                if not plan.is_deadly:
                    plan.trace[-1] = dataclasses.replace(plan.trace[-1], failed=True)
                raise

        return call

    names = [name for name in vars(calls.SystemCalls) if not name.startswith("_")]
    return type("Faulty", (calls.SystemCalls,), {name: wrapped(name) for name in names})


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The exit code (negative: the signal it died of), the calls it made with their paths, and what it said."""

    code: int
    calls: tuple[str, ...]
    output: str
    trace: tuple[Call, ...] = ()
    """The calls with their places; empty where it was killed, and where nobody asked."""

    def index(self, call: str) -> int:
        """Return when this call happened first."""
        return self.calls.index(call)


def run(
    node: FakeNode,
    folder: Path,
    command: str,
    *more: str,
    engine: str = "docker",
    plan: Plan | None = None,
    user: int | None = None,
) -> Outcome:
    """Run a command of the program to its end, in a fork, with the faults of `plan`, as `user` (None: as the test)."""
    plan = plan or Plan()
    said, counted = folder / "said", folder / "counted"
    counted.write_text("")
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            code = _child(node.arguments(command, *more, engine=engine), plan, said)
            counted.write_text("\n".join(plan.happened))
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Outcome(status, tuple(counted.read_text().splitlines()), said.read_text(errors="replace"))


def _child(arguments: list[str], plan: Plan, said: Path) -> int:
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signals.block()
    gc.disable()  # as late as it comes in the program by itself; looking would copy the pages of what is looked at
    return invoke(arguments, plan)


def invoke(arguments: list[str], plan: Plan) -> int:
    """Run a command in this process, whose standard streams are the test's own; whatever it does, return a number."""
    with mock.patch("toolkit_installer.node.node.SystemCalls", faulty(plan)):
        try:
            with (
                open(1, "w", closefd=False, encoding="utf-8") as out,
                mock.patch("sys.stdout", out),
                mock.patch("sys.stderr", out),
            ):
                return commands.main(Program.TOOLKIT_INSTALLER, arguments, ENVIRONMENT)
        except BaseException:  # noqa: BLE001  # a fork must not go on as the test
            os.write(2, traceback.format_exc().encode())
            return 98
