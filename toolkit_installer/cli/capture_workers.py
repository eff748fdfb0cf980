"""Reads captures from files and folders of files, and works on them in child processes.

Each capture has its own limits of time and memory: beyond them, only its own result is lost. A child works on a portion
of the captures, one after the other. If the kernel ends it, the capture that it worked on is refused, and a new child
takes the rest. Memory that earlier captures of the portion used up may be at fault: then the capture is tried again, as
the first one of a new child.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import resource
import selectors
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NoReturn, TypeVar

from toolkit_installer.cli.options import build
from toolkit_installer.errors import ConfigurationError, InstallerError, UsageError
from toolkit_installer.fleet import archive
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.capture import DamagedError, NotCapturedError
from toolkit_installer.fleet.forecast import Refusal
from toolkit_installer.fleet.values import NotReadableError
from toolkit_installer.node.reading import read_bounded
from toolkit_installer.run import preload
from toolkit_installer.settings import Program, Settings

MOST_SECONDS: Final = 10
"""Seconds of processor time for one capture; a hundredth is usual. The kernel counts whole seconds."""
MOST_MEMORY: Final = 512 * 1024 * 1024
"""Bytes that a child may allocate on top of the program's own."""
_LONGEST_RESULT: Final = 16 * 1024 * 1024
"""Bytes of one capture's result, which the parent holds in memory; most take a thousandth."""
_PORTION: Final = 32
"""The most captures of a child: enough that the cost of starting it counts little."""
_HEAD: Final = 5
"""Bytes before each message of a child: its kind, and its length."""
_PATH, _RESULT = b"p", b"r"
_PIECE: Final = 1 << 16
_OUT_OF_MEMORY, _TOO_LARGE, _FAILED = 101, 102, 103
"""Exit statuses of a child."""
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

_parent: list[int] = []
"""In a child: the descriptor to write to its parent."""


def run_workers(
    function: Callable[[_Given], _Made], given: Sequence[_Given], lost: Callable[[_Given, str | None, str], _Made]
) -> Iterator[_Made]:
    """Yield the function's result for each item, in order, using all processors. Raises ConfigurationError.

    `lost` makes the result if a child was ended at an item: from the item, the capture's path if known, and the reason.
    """
    most = len(os.sched_getaffinity(0))
    size = max(1, min(_PORTION, -(-len(given) // most)))
    waiting = collections.deque(given[start : start + size] for start in range(0, len(given), size))
    taken: collections.deque[_Portion[_Given, _Made]] = collections.deque()
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        stack.callback(_end, taken)
        while waiting or taken:
            # portions hold their results until the earlier ones are done: at most two portions per processor
            while waiting and len(taken) < 2 * most and sum(not portion.done for portion in taken) < most:
                portion = _Portion(function, waiting.popleft(), lost)
                taken.append(portion)
                portion.start(selector)
            while taken and (taken[0].results or taken[0].done):
                yield from taken[0].results
                taken[0].results.clear()
                if taken[0].done:
                    taken.popleft()
            for key, _ in selector.select() if selector.get_map() else ():
                key.data.receive(selector)


def _end(portions: Iterable[_Portion[Any, Any]]) -> None:
    for portion in portions:
        portion.end()


def begin(path: str) -> None:
    """In a child, report to the parent that work on the capture at `path` begins, and set that capture's limits."""
    if not _parent:
        return
    used = int(time.process_time()) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = used + MOST_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    _send(_PATH, os.fsencode(path))


class _Portion(Generic[_Given, _Made]):
    """Captures that children work on, one child at a time."""

    def __init__(
        self,
        function: Callable[[_Given], _Made],
        given: Sequence[_Given],
        lost: Callable[[_Given, str | None, str], _Made],
    ) -> None:
        self._function = function
        self._given = given
        self._lost = lost
        self._finished = 0
        """The number of captures with a result."""
        self._first = 0
        """The index of the capture that the child began with."""
        self._child: tuple[int, int] | None = None
        """The child's PID, and the descriptor to read from it."""
        self._path: str | None = None
        self._received = bytearray()
        self.results: list[_Made] = []
        """Results that were not yielded yet."""

    @property
    def done(self) -> bool:
        """Whether all captures have a result."""
        return self._finished == len(self._given) and self._child is None

    def start(self, selector: selectors.BaseSelector) -> None:
        """Start a child for the captures without a result. Raises ConfigurationError."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            raise ConfigurationError(
                f"cannot start a process: {error.strerror}", hint="look at the limits of memory and of processes"
            ) from error
        if pid == 0:
            os.close(reading)
            _run_child(self._function, self._given[self._finished :], writing)
        os.close(writing)
        self._child = pid, reading
        self._first, self._path = self._finished, None
        self._received.clear()
        selector.register(reading, selectors.EVENT_READ, self)

    def receive(self, selector: selectors.BaseSelector) -> None:
        """Read what the child has sent; if it has ended, start another for the rest. Raises ConfigurationError."""
        assert self._child is not None  # noqa: S101  # its descriptor is registered
        pid, reading = self._child
        piece = os.read(reading, _PIECE)
        self._received += piece
        while (message := self._message()) is not None:
            kind, text = message
            if kind == _PATH:
                self._path = os.fsdecode(text)
            else:
                self._finish(pickle.loads(text))  # noqa: S301  # written by our own child
        if piece:
            return
        selector.unregister(reading)
        os.close(reading)
        self._child = None
        self._judge(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if self._finished < len(self._given):
            self.start(selector)

    def end(self) -> None:
        """Kill the child: its results are no longer needed."""
        if self._child is None:
            return
        pid, reading = self._child
        self._child = None
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _message(self) -> tuple[bytes, bytes] | None:
        """Remove and return the next complete message, None if there is none."""
        if len(self._received) < _HEAD:
            return None
        end = _HEAD + int.from_bytes(self._received[1:_HEAD], "big")
        if len(self._received) < end:
            return None
        kind, text = bytes(self._received[:1]), bytes(self._received[_HEAD:end])
        del self._received[:end]
        return kind, text

    def _finish(self, made: _Made) -> None:
        self.results.append(made)
        self._finished += 1
        self._path = None

    def _judge(self, status: int) -> None:
        """Refuse the capture at which the child ended, unless it may succeed in a new child."""
        if self._finished == len(self._given):
            return
        reason = _REASONS.get(status)
        if reason is None:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            reason = f"ended the process that looked at it, by {how}"
        # processor time was counted for this capture alone; earlier captures may have used up the memory
        if self._finished == self._first or status in _ITS_OWN:
            self._finish(self._lost(self._given[self._finished], self._path, reason))


_REASONS: Final = {
    -signal.SIGXCPU: f"takes more than {MOST_SECONDS} s to plan for",
    _OUT_OF_MEMORY: f"takes more than {MOST_MEMORY >> 20} MiB of memory to plan for",
    _TOO_LARGE: f"leads to an answer of more than {_LONGEST_RESULT >> 20} MiB",
}
_ITS_OWN: Final = frozenset({-signal.SIGXCPU, _TOO_LARGE})


def _run_child(function: Callable[[Any], Any], given: Sequence[Any], writing: int) -> NoReturn:
    """Run the child: work on each item, send the results, and exit."""
    status = _FAILED
    try:
        _parent.append(writing)
        _limit_memory()
        for one in given:
            text = pickle.dumps(function(one), pickle.HIGHEST_PROTOCOL)
            if len(text) > _LONGEST_RESULT:
                status = _TOO_LARGE
                break
            _send(_RESULT, text)
        else:
            status = 0
    except MemoryError:
        status = _OUT_OF_MEMORY
    except KeyboardInterrupt:
        pass  # the parent gets it, too
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _limit_memory() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii", newline="\n") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _send(kind: bytes, text: bytes) -> None:
    left = memoryview(kind + len(text).to_bytes(_HEAD - 1, "big") + text)
    while left:
        left = left[os.write(_parent[0], left) :]


_LONGEST_SHOWN = 200
_DAMAGED = "leave it out, or capture the node again"


def find_captures(place: str) -> Iterator[str]:
    """Yield the captures' files for an argument, which is a file or a folder. Raises UsageError."""
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


def read_capture(path: str) -> Archive:
    """Return the capture in a file. Raises ConfigurationError."""
    try:
        content = read_bounded(os.path.realpath(path), archive.LONGEST)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", path=path) from error
    return archive.read(content, path)


def each_capture(
    function: Callable[[_Given], _Made],
    given: Sequence[_Given],
    lost: Callable[[_Given, str | None, Refusal], _Made],
) -> Iterator[_Made]:
    """Yield the function's result for each item, in order, using all processors. Raises ConfigurationError.

    `lost` makes the result if the work exceeds the limits of a capture: from the item, the capture's path if known, and
    the refusal.
    """
    preload.import_all()  # the children share what is imported

    def refused(one: _Given, path: str | None, reason: str) -> _Made:
        return lost(one, path, make_refusal(ConfigurationError(reason, path=path, hint=_DAMAGED)))

    return run_workers(function, given, refused)


def make_refusal(error: InstallerError) -> Refusal:
    """Return an error as the refusal of a capture, or of its node."""
    where = f"{error.path}:{error.line}" if error.line is not None else error.path
    reason = f"{where}: {error.reason}" if where is not None else error.reason
    return Refusal(reason, error.hint, int(error.exit_code), error.exit_code.event)


def build_settings(given: Mapping[str, Sequence[str]], environment: Mapping[str, str], path: str) -> Settings:
    """Return the settings that a capture was made with. Raises UsageError, which names the capture."""
    try:
        return build.build(given, environment, Program.TOOLKIT_INSTALLER)
    except InstallerError as error:
        error.path = error.path or path
        raise


@contextlib.contextmanager
def apply_limits(path: str) -> Iterator[None]:
    """Apply the limits of the capture at `path` to the work inside the block, if this is a child of `run_workers`.

    Raises ConfigurationError if the capture is damaged, also if the work fails in a way that no capture of a real node
    leads to: a forged capture must not cost the others their results.
    """
    begin(path)
    try:
        yield
    except (InstallerError, NotCapturedError, MemoryError):
        raise
    except (DamagedError, NotReadableError) as error:
        raise ConfigurationError(str(error), path=path, hint=_DAMAGED) from error
    except OSError as error:  # from the captured node: this machine is not accessed
        why = f"holds an error of the system that ends a run: {str(error)[:_LONGEST_SHOWN]}"
        raise ConfigurationError(why, path=path, hint=_DAMAGED) from error
    except Exception as error:
        raise ConfigurationError(unexpected(error), path=path, hint=_DAMAGED) from error


def unexpected(error: Exception) -> str:
    """Return the reason to refuse a capture that leads to an unexpected error."""
    return f"holds what no node answers: {type(error).__name__}: {str(error)[:_LONGEST_SHOWN]}"
