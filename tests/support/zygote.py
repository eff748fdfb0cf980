"""A Python that has imported what a script of the program imports, and becomes that script as often as it is asked to.

    python zygote.py SOCKET SCRIPT MODULE…

It imports the MODULEs as SCRIPT would, says so, and then makes a process for each request that comes over the socket
with the number SOCKET: one that is in all that a process sees of itself, and others see of it, as if it had been
started anew, and whose parent is the nearest ancestor that takes such orphans (PR_SET_CHILD_SUBREAPER). It knows
nothing of the tests: what it imports, the process has. It ends when nobody holds the other end of the socket.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import marshal
import mmap
import os
import pkgutil
import signal
import socket
import sys
import threading
import traceback
import types
from typing import Any

READY = b"ready\n"
LONGEST = 1 << 17
"""Bytes of a request or an answer, each of which is one message: less than a socket takes by default."""
MOST_DESCRIPTORS = 64
_PACKAGE = "toolkit_installer"
_IN_OTHER_PROCESSES = ("cri_canary", "cri_child", "cri_pb2")
"""Modules that the program starts as programs of their own, or that only these import."""
_LATE = (
    "docker.constants",
    "docker.errors",
    "email.utils",
    "encodings.ascii",
    "encodings.utf_8_sig",
    "netrc",
    "requests.exceptions",
)
"""Modules of others that the program imports when it needs them."""
_HIGH = 200
"""Descriptors from here on are nobody's target: those that came are put there first."""
_INTERRUPT = signal.getsignal(signal.SIGINT)
"""What SIGINT does in a Python that is started here: where it was ignored before, it stays so."""
_SET_MM, _SET_MM_MAP = 35, 14
_NO_FILE = 0xFFFFFFFF
_UNCHANGED = 0
_STDERR = 2
_FLUSH_FAILED = 120
"""What a Python exits with whose output could not be written (`Py_FinalizeEx`)."""


def _added() -> dict[bytes, bytes]:
    """Return the variables that the interpreter gave itself when it started: LC_CTYPE, unless that made sense."""
    with open("/proc/self/environ", "rb") as file:
        given = {variable.partition(b"=")[0] for variable in file.read().split(b"\0")}
    return {name: value for name, value in os.environb.items() if name not in given}


_ADDED = _added()
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_uint64),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def main() -> None:
    """Import, then serve."""
    number, script, *modules = sys.argv[1:]
    connection = socket.socket(fileno=int(number))
    # where this was started from a terminal, Ctrl-C is for the tests
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    # what the package notes of its start, it notes at its import
    sys.argv = [script]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    for name in (*modules, *_modules()):
        importlib.import_module(name)
    kept = show_as(list(map(os.fsencode, sys.orig_argv)), dict(os.environb))  # it raises where this cannot be done
    gc.collect()
    gc.freeze()  # looking at what is there now would copy its pages, in each process
    connection.sendall(READY)
    while (request := _received(connection)) is not None:
        _answer(connection, *request, code)
    del kept


def _modules() -> list[str]:
    package = importlib.import_module(_PACKAGE)
    found = (each.name for each in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."))
    return [*(name for name in found if name.rpartition(".")[2] not in _IN_OTHER_PROCESSES), *_LATE]


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return a request and the descriptors that came with it; None at the end."""
    content, descriptors, _, _ = socket.recv_fds(connection, LONGEST, MOST_DESCRIPTORS)
    return (marshal.loads(content), descriptors) if content else None  # noqa: S302  # the tests' own


def _answer(connection: socket.socket, fields: dict[str, Any], descriptors: list[int], code: types.CodeType) -> None:
    """Make the process, and answer with its PID, or with what went wrong, once it has another parent."""
    told, telling = os.pipe()
    waiting, going = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork():
            os._exit(0)
        _become(fields, descriptors, code, telling, waiting, going)
    for fd in (telling, waiting, *descriptors):
        os.close(fd)
    os.waitpid(middle, 0)
    os.close(going)  # it has the parent that it is to have, and may go on
    with open(told, "rb") as file:
        answer = file.read()
    connection.send(answer[-LONGEST:])


def _become(
    fields: dict[str, Any], descriptors: list[int], code: types.CodeType, telling: int, waiting: int, going: int
) -> None:
    """Become the process, in a fork. Does not return."""
    status = 1
    try:
        os.close(going)
        os.read(waiting, 1)
        told = fcntl.fcntl(telling, fcntl.F_DUPFD_CLOEXEC, _HIGH + max(fields["pass_fds"], default=0))
        try:
            kept = _prepared(fields, descriptors, told)
        except BaseException:
            os.write(told, traceback.format_exc().encode())
            raise
        os.write(told, str(os.getpid()).encode())
        os.close(told)
        status = _executed(code, os.fsdecode(fields["script"]))
        del kept
    finally:
        os._exit(status)


def _prepared(fields: dict[str, Any], descriptors: list[int], telling: int) -> mmap.mmap:
    """Take over all that a new process is given; return the memory of its command line."""
    words = fields["words"]
    if fields["start_new_session"]:
        os.setsid()
    os.umask(fields["umask"])
    os.chdir(fields["cwd"])
    _take(descriptors, [0, 1, 2, *fields["pass_fds"]], telling)
    os.environb.clear()
    os.environb.update(fields["environment"] | _ADDED)
    with open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(fields["comm"])
    kept = show_as(words, fields["environment"])
    sys.orig_argv[:] = map(os.fsdecode, words)
    sys.argv = list(map(os.fsdecode, words[words.index(fields["script"]) :]))
    _open_streams()
    signal.signal(signal.SIGINT, _INTERRUPT)
    signal.pthread_sigmask(signal.SIG_SETMASK, fields["mask"])
    return kept


def _take(given: list[int], numbers: list[int], telling: int) -> None:
    """Give the descriptors their numbers, and close all others but `telling`."""
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, telling) for fd in given]
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (*moved, telling):
            with contextlib.suppress(OSError):  # that of the list itself is closed already
                os.close(number)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def show_as(words: list[bytes], environment: dict[bytes, bytes]) -> mmap.mmap:
    """Let /proc show these words, and this environment; return the memory that they are in, which has to stay.

    Raises OSError where the kernel does not let us (prctl(2), PR_SET_MM_MAP).
    """
    arguments = b"".join(word + b"\0" for word in words)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(arguments) + len(variables) + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(arguments + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    between, end = start + len(arguments), start + len(arguments) + len(variables)
    with open("/proc/self/stat", "rb") as file:
        # counted from 1, and the third stands behind the name
        stat = [b"", b"", b"", *file.read().rpartition(b")")[2].split()]
    code, stack, data, brk = [int(stat[n]) for n in (26, 27)], int(stat[28]), [int(stat[n]) for n in (45, 46)], stat[47]
    shown = _Map(*code, *data, int(brk), _libc.sbrk(0), stack, start, between, between, end, 0, _UNCHANGED, _NO_FILE)
    if _libc.prctl(_SET_MM, _SET_MM_MAP, ctypes.byref(shown), ctypes.sizeof(shown), 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memory


def _open_streams() -> None:
    """Make stdin, stdout and stderr anew, as `create_stdio` of CPython does: they know what they are open on."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, name)
        through = former.write_through  # PYTHONUNBUFFERED
        mode = "wb" if number else "rb"
        buffer: Any = open(number, mode, buffering=0 if through else -1, closefd=False)  # noqa: SIM115  # it stays open
        raw = buffer if through else buffer.raw
        raw.name = f"<{name}>"
        stream: Any = io.TextIOWrapper(
            buffer,
            encoding=former.encoding,
            errors=former.errors,
            newline="\n",
            line_buffering=not through and (number == _STDERR or raw.isatty()),
            write_through=through,
        )
        stream.mode = mode[0]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _executed(code: types.CodeType, script: str) -> int:
    """Run the script as the main module, and end as an interpreter ends; return the exit code."""
    module = types.ModuleType("__main__")
    vars(module).update({"__file__": script, "__builtins__": builtins})
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(code, vars(module))  # noqa: S102  # the script itself
    except SystemExit as end:
        status = _status_of(end)
    except KeyboardInterrupt as error:
        _shown(error)
        _ended()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:  # noqa: BLE001  # as an interpreter does
        _shown(error)
        status = 1
    return _ended() or status


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1


def _shown(error: BaseException) -> None:
    """Show a traceback, without the frame here."""
    below = error.__traceback__.tb_next if error.__traceback__ else None
    sys.excepthook(type(error), error.with_traceback(below), below)


def _ended() -> int:
    """Do what comes at an interpreter's end; return the exit code where that fails."""
    threading._shutdown()  # type: ignore[attr-defined]  # what CPython itself calls there
    atexit._run_exitfuncs()
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except (OSError, ValueError) as error:
            status = _FLUSH_FAILED
            if stream is sys.stdout:
                said = traceback.format_exception_only(error)[-1]
                print(f"Exception ignored in: {stream!r}\n{said}", end="", file=sys.stderr)  # noqa: T201
    return status


if __name__ == "__main__":
    main()
