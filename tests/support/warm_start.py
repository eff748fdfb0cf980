"""The program as a process of its own, at once: forked from a Python that has imported it (`zygote`), not started anew.

`Popen` and `run` are those of subprocess, and what they start is the test's own child as ever: with the command line,
environment, folder, descriptors and signals that it would have, from its first line on. A start from scratch is what
they do where the command is none of ours, where the kernel or the Python does not allow the other way, where `anew` is
asked for, and in tests that are marked `real_start`: those of the start itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import inspect
import itertools
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.zygote import LONGEST, MOST_DESCRIPTORS, READY
from toolkit_installer.settings import Program

SCRIPTS = Path(sys.executable).parent
"""Where the installed programs lie: beside the interpreter that runs the tests."""
ZYGOTE = Path(__file__).with_name("zygote.py")

WARM: dict[str, tuple[str, ...]] = {str(SCRIPTS / name): () for name in Program}
"""The scripts that are started warm, and what each imports besides the package."""
_LONGEST_NAME = 15
"""Bytes of a process's name (proc_pid_comm(5))."""
_OF_THE_START = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_", "COVERAGE_", "COV_CORE_")
_VARIABLES_OF_THE_START = frozenset({"LANG", "LANGUAGE", "TZ"})
_MEASURED = ("COVERAGE_", "COV_CORE_")
_SUBREAPER = 36
_GIVEN = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]  # CPython's own, as below
_KNOWN = """
    self args executable preexec_fn close_fds pass_fds cwd env startupinfo creationflags shell p2cread p2cwrite c2pread
    c2pwrite errread errwrite restore_signals gid gids uid umask start_new_session process_group
"""
"""What Python 3.11 to 3.13 give it. Another one may mean something else by them."""

_libc = ctypes.CDLL(None, use_errno=True)
_lock = threading.Lock()
_anew = False


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a Python takes with it from its own start: one is needed for each."""

    script: str
    environment: tuple[tuple[bytes, bytes], ...]
    process: int
    user: tuple[object, ...]
    namespaces: tuple[str, ...]


class _Zygote:
    """A running one. Raises OSError where it cannot be, and where it has ended."""

    def __init__(self, kind: _Kind) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        with theirs:
            command = [sys.executable, str(ZYGOTE), str(theirs.fileno()), kind.script, *WARM[kind.script]]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(kind.environment),
                pass_fds=(theirs.fileno(),),
            )
        if self._socket.recv(len(READY)) != READY:
            self.close()
            raise OSError("the program cannot be started warm here")

    def start(self, request: bytes, descriptors: list[int]) -> int:
        """Make a process, a child of this one, and return its PID."""
        if _libc.prctl(_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "orphans are not given to this process")
        try:
            socket.send_fds(self._socket, [request], descriptors)
            answer = self._socket.recv(LONGEST)
        finally:
            _libc.prctl(_SUBREAPER, 0, 0, 0, 0)
        if not answer.isdigit():
            raise OSError(f"the program cannot be started warm: {answer.decode(errors='replace')}")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_zygotes: dict[_Kind, _Zygote | None] = {}
"""None for a kind that cannot be."""


class Popen(subprocess.Popen[Any]):
    """As subprocess has it. `anew`: the process is started from scratch in any case."""

    def __init__(self, args: list[Any], *more: Any, anew: bool = False, **given: Any) -> None:
        self._from_scratch = anew
        self.warm = False
        """Whether it was forked from a Python that had the program."""
        super().__init__(args, *more, **given)

    def _execute_child(self, *given: Any) -> None:
        if not self._from_scratch and not _anew and list(_GIVEN.parameters) == _KNOWN.split():
            asked = _GIVEN.bind(self, *given).arguments
            with _lock:
                pid = _started(asked)
            if pid is not None:
                self.warm = True
                self.pid = pid
                self._child_created = True
                numbers = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                self._close_pipe_fds(*(asked[name] for name in numbers))  # type: ignore[attr-defined]  # as above
                return
        super()._execute_child(*given)  # type: ignore[misc]  # as above


def run(
    command: list[Any], *, check: bool, timeout: float | None = None, capture_output: bool = False, **given: Any
) -> subprocess.CompletedProcess[Any]:
    """Do what subprocess.run does."""
    if capture_output:
        given |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **given) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def from_scratch() -> Iterator[None]:
    """Start all processes from scratch meanwhile."""
    global _anew  # noqa: PLW0603  # as long as a test takes
    before, _anew = _anew, True
    try:
        yield
    finally:
        _anew = before


def _started(asked: dict[str, Any]) -> int | None:
    """Start a process and return its PID; None where it has to be started from scratch."""
    words = _words(asked)
    if words is None:
        return None
    environment = _inherited() if asked["env"] is None else _encoded(asked["env"])
    if any(name.decode(errors="replace").startswith(_MEASURED) for name in environment):
        return None
    script = words[1] if words[0] == os.fsencode(sys.executable) else words[0]
    named_by_script = os.fspath(asked["args"][0]) != sys.executable
    passed = sorted(map(int, asked["pass_fds"]))
    fields = {
        "words": words,
        "script": script,
        "comm": os.path.basename(script if named_by_script else words[0])[:_LONGEST_NAME],
        "environment": environment,
        "cwd": os.fsencode(asked["cwd"] or os.getcwd()),
        "umask": asked["umask"] if asked["umask"] >= 0 else _umask(),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "start_new_session": bool(asked["start_new_session"]),
        "pass_fds": passed,
    }
    streams = [number if (number := asked[name]) != -1 else place for place, name in enumerate(_STREAMS)]
    request = marshal.dumps(fields)
    if len(request) > LONGEST or (zygote := _zygote_for(os.fsdecode(script), environment)) is None:
        return None
    return zygote.start(request, [*streams, *passed])


_STREAMS = ("p2cread", "c2pwrite", "errwrite")


def _words(asked: dict[str, Any]) -> list[bytes] | None:
    """Return the command line that the process is to have, None for one that is not started warm."""
    unusual = (asked["preexec_fn"], asked["shell"], asked["uid"], asked["gid"], asked["gids"], asked["executable"])
    unlike = not asked["close_fds"] or not asked["restore_signals"] or asked["process_group"] not in (None, -1)
    if unlike or any(each not in (None, False) for each in unusual) or isinstance(asked["args"], str | bytes):
        return None
    if len(asked["pass_fds"]) + len(_STREAMS) > MOST_DESCRIPTORS:
        return None
    words = list(map(os.fsencode, asked["args"]))
    if words[0] == os.fsencode(sys.executable):
        return words if len(words) > 1 and os.fsdecode(words[1]) in WARM else None
    if os.fsdecode(words[0]) not in WARM:
        return None
    with open(words[0], "rb") as file:
        first = file.readline()
    # as the kernel does; another Python, or one with flags, is another program
    return [os.fsencode(sys.executable), *words] if first == b"#!" + os.fsencode(sys.executable) + b"\n" else None


def _inherited() -> dict[bytes, bytes]:
    """Return this process's variables as a child gets them: libraries in C set some that `os.environ` does not have."""
    variables = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found: dict[bytes, bytes] = {}
    for variable in itertools.takewhile(lambda each: each is not None, map(variables.__getitem__, itertools.count())):
        name, _, value = variable.partition(b"=")
        found[name] = value
    return found


def _encoded(environment: Any) -> dict[bytes, bytes]:
    return {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}


def _zygote_for(script: str, environment: dict[bytes, bytes]) -> _Zygote | None:
    names = {name: name.decode(errors="replace") for name in environment}
    chosen = {n for n, text in names.items() if text.startswith(_OF_THE_START) or text in _VARIABLES_OF_THE_START}
    kind = _Kind(
        script,
        tuple(sorted((name, environment[name]) for name in chosen)),
        os.getpid(),
        (os.getresuid(), os.getresgid(), tuple(os.getgroups())),
        tuple(os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid_for_children", "user")),
    )
    if kind not in _zygotes:
        try:
            _zygotes[kind] = _Zygote(kind)
        except OSError:
            _zygotes[kind] = None
    return _zygotes[kind]


def _umask() -> int:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
        return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


@atexit.register
def close() -> None:
    """End the Pythons that wait for more to start."""
    for kind, zygote in list(_zygotes.items()):
        if zygote is not None and kind.process == os.getpid():
            zygote.close()
            del _zygotes[kind]
