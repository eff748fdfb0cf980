"""Entry points of the program, one for each of its names."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import sys
from typing import Final

from toolkit_installer import lazy
from toolkit_installer.node import signals

_UNUSED: Final = (
    "textwrap",  # click reads docstrings with it, and has none to read here; --help uses it
    "locale",  # subprocess decodes programs' output with it; this program reads bytes
    "psutil._ntuples",  # psutil's results for memory, disks and the like; half of its import time
    *("msgspec.inspect", "msgspec.json", "msgspec.msgpack", "msgspec.toml", "msgspec.yaml"),  # structs alone are used
)
"""Modules that libraries import and no change of the node uses: a fifteenth of a run with nothing to do."""

_GC_THRESHOLD: Final = 50_000
"""Allocations before the garbage collector runs: imports make half as many objects, and none of those is garbage."""


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null: otherwise the next opened file would get their descriptor."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)  # noqa: FBT003  # its only form
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


_NO_CORE: Final = 1
"""Bytes. With a limit of 1 the kernel neither writes a core file nor starts a program for one; with 0 it still starts
the program that core_pattern names (core(5), do_coredump in fs/coredump.c)."""


def _forbid_core_dumps() -> None:
    """Keep the node's secrets out of core files of this process, of its children and of programs that it execs."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
    except ValueError:  # the limit is 0, and only CAP_SYS_RESOURCE raises it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _start(name: str) -> int:
    _open_standard_streams()
    _forbid_core_dumps()
    # before any import that could start a thread: a thread without the mask would receive the signals
    signals.block()
    gc.set_threshold(_GC_THRESHOLD)
    lazy.defer(*_UNUSED)
    from toolkit_installer.cli import commands  # noqa: PLC0415  # see above
    from toolkit_installer.settings import Program  # noqa: PLC0415  # see above

    return _exit_process(commands.main(Program(name), sys.argv[1:]))


def _exit_process(code: int) -> int:
    """End the process at once with this exit code, so that the kernel frees its memory as one piece.

    Python would collect garbage and free each object: a sixth of a command's time. Exit handlers of libraries run here
    as well. Returns the code if a stream can't be flushed: Python's own shutdown reports that.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  # no public function does this; multiprocessing calls it at the same point
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
