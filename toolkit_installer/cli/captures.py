"""Captures as commands are given them: files, and folders of files; read, and worked on in several processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from toolkit_installer.errors import ConfigurationError, InstallerError, UsageError
from toolkit_installer.lifecycle.capture import archive, tapping
from toolkit_installer.lifecycle.capture.archive import Archive
from toolkit_installer.lifecycle.capture.fleet import Refusal
from toolkit_installer.lifecycle.capture.replaying import NotCapturedError
from toolkit_installer.node.disk.reading import read_bounded

_MOST_SECONDS = 10
"""Of processor time for one capture; a hundredth of a second is usual."""
_AGAIN_SECONDS = 1
"""How long after that a work that caught the first end is told again."""
_MOST_MEMORY = 512 * 1024 * 1024
"""Bytes that the work on one capture may take beside what the program has."""
_LONGEST_SHOWN = 200
_DAMAGED = "leave it out, or capture the node again"
_AT_ONCE = 16
"""What a process is given at a time: each takes a hundredth of a second."""
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def files(place: str) -> Iterator[str]:
    """Yield the files that an argument means. Raises UsageError."""
    try:
        mode = os.stat(place).st_mode
        names = sorted(os.listdir(place)) if stat.S_ISDIR(mode) else None
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror}", hint="name files of `capture`, or folders of them") from error
    if names is None:
        yield place
        return
    found = [os.path.join(place, name) for name in names if name.endswith(archive.SUFFIX)]
    if not found:
        raise UsageError(f"there is no file *{archive.SUFFIX} in {place}", hint="name the files, or their folder")
    yield from found


def read(path: str) -> Archive:
    """Return the capture in a file. Raises ConfigurationError."""
    try:
        content = read_bounded(os.path.realpath(path), archive.LONGEST)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", path=path) from error
    return archive.read(content, path)


def each(function: Callable[[_Given], _Made], given: Sequence[_Given]) -> Iterator[_Made]:
    """Yield what a function makes of each, in their order, on all processors. Raises ConfigurationError."""
    workers = min(len(os.sched_getaffinity(0)), (len(given) + _AT_ONCE - 1) // _AT_ONCE)
    tapping.prepare()
    if workers <= 1:
        yield from _several(function, given)
        return
    forked = multiprocessing.get_context("fork")  # each has all that is imported, and its own place for a player
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=forked) as pool:
        pending: list[concurrent.futures.Future[list[_Made]]] = []
        portions = (given[start : start + _AT_ONCE] for start in range(0, len(given), _AT_ONCE))
        try:
            for portion in portions:
                pending.append(pool.submit(_several, function, portion))
                if len(pending) > 2 * workers:  # so that what is done does not pile up
                    yield from pending.pop(0).result()
            for future in pending:
                yield from future.result()
        except concurrent.futures.BrokenExecutor as error:
            raise ConfigurationError(
                "a process that looked at captures was ended from outside", hint="look whether there is enough memory"
            ) from error


def refusal(error: InstallerError) -> Refusal:
    """Return why a capture, or its node, is refused."""
    where = f"{error.path}:{error.line}" if error.line is not None else error.path
    reason = f"{where}: {error.reason}" if where is not None else error.reason
    return Refusal(reason, error.hint, int(error.exit_code), error.exit_code.event)


def _several(function: Callable[[_Given], _Made], given: Sequence[_Given]) -> list[_Made]:
    return list(map(function, given))


@contextlib.contextmanager
def limited(path: str) -> Iterator[None]:
    """Let the work on one capture take so much memory and processor time, and no more.

    Raises ConfigurationError where it takes more, and where it fails in a way that no capture of a node leads to: one
    that is damaged, or that somebody made, is to cost the others nothing.
    """
    try:
        with _memory(), _processor_time():
            yield
    except (InstallerError, NotCapturedError):
        raise
    except _TooLongError as error:
        why = f"takes more than {_MOST_SECONDS} s to plan for"
        raise ConfigurationError(why, path=path, hint=_DAMAGED) from error
    except MemoryError as error:
        why = f"takes more than {_MOST_MEMORY >> 20} MiB of memory to plan for"
        raise ConfigurationError(why, path=path, hint=_DAMAGED) from error
    except Exception as error:
        why = f"holds what no node answers: {type(error).__name__}: {str(error)[:_LONGEST_SHOWN]}"
        raise ConfigurationError(why, path=path, hint=_DAMAGED) from error


class _TooLongError(Exception):
    """The work on a capture took too much processor time."""


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii", newline="\n") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + _MOST_MEMORY
    if soft != resource.RLIM_INFINITY:
        most = min(soft, most)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _processor_time() -> Iterator[None]:
    def end(_number: int, _frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, end)
    try:
        signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS, _AGAIN_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
