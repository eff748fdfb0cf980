"""Where the program starts, under each of its names."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import resource
import sys
from typing import Final

from toolkit_installer import lazy
from toolkit_installer.node import signals

_LATE: Final = ("ctypes", "psutil", "socket", "subprocess", "tomllib")
"""What modules of this program name and most commands do not use."""
_UNUSED: Final = (
    *("inspect", "textwrap"),  # click looks at functions' texts with them, and has none to look at here; the help
    "shlex",  # arguments that are given in one text
    "locale",  # the words of programs that are read as text by the standard library: here they are read as bytes
    "psutil._ntuples",  # what psutil says of memory, disks and the like; half of the time that it takes to come
    *("msgspec.inspect", "msgspec.json", "msgspec.msgpack", "msgspec.toml", "msgspec.yaml"),  # its structs are used
)
"""The same of what no change of the node uses. Together they take an eighth of a start."""

_OBJECTS: Final = 50_000
"""How many objects may come before garbage is looked for among them: what is imported stays, and is half of these."""


def _open_standard_streams() -> None:
    """Give closed standard streams /dev/null: the next file that is opened would get their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(number, True)  # noqa: FBT003  # its only form
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


_NO_CORE: Final = 1
"""Bytes. Under a limit of 1 the kernel neither writes a core file nor starts a program for one; under 0 it still starts
the program that core_pattern names (core(5), do_coredump in fs/coredump.c)."""


def _forbid_core_dumps() -> None:
    """Keep secrets of the node out of core files: of this process and of all that it starts or becomes."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
    except ValueError:  # the limit is 0, and only CAP_SYS_RESOURCE raises it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _start(name: str) -> int:
    _open_standard_streams()
    _forbid_core_dumps()
    # before any import that could start a thread: a thread without the mask would take the signals away
    signals.block()
    gc.set_threshold(_OBJECTS)
    lazy.defer(*_LATE)
    lazy.defer(*_UNUSED, by_a_change=False)
    with lazy.deferred_patterns():
        # msgspec takes the standard library's own typing then, which came later; both know types that we have no
        # values of
        with lazy.without("typing_extensions"), lazy.unused(decimal="Decimal", uuid="UUID SafeUUID"):
            importlib.import_module("msgspec")
            importlib.import_module("click")
        from toolkit_installer.cli import commands  # noqa: PLC0415  # see above
        from toolkit_installer.settings import Program  # noqa: PLC0415  # see above

    return _leave(commands.main(Program(name), sys.argv[1:]))


def _leave(code: int) -> int:
    """End the process at once, with this exit code: the kernel takes its memory back as one piece.

    Python would look at each object for garbage, and take each apart: a sixth of what a command costs. What libraries
    want done at the end is done here as well. Returns where a stream can't be flushed: that is for Python's own end.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  # there is no other way to it; multiprocessing uses it in the same place
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return code
    os._exit(code)


def toolkit_installer() -> int:
    """Start as `toolkit-installer`."""
    return _start("toolkit-installer")


def nvidia_toolkit() -> int:
    """Start as `nvidia-toolkit`, the name of 2019 to today."""
    return _start("nvidia-toolkit")


def nvidia_ctk_installer() -> int:
    """Start as `nvidia-ctk-installer`, today's name."""
    return _start("nvidia-ctk-installer")


if __name__ == "__main__":
    sys.exit(toolkit_installer())
