"""Runs programs with a clean environment, a time limit and no shell.

Input is written to a program, its output is read, and it is killed when its time is over: whatever it does, the caller
waits no longer than that, and uses no more memory than the output may. A coprocess keeps running, and answers requests
one at a time.

The node's own programs are run by absolute path, and only if no other user could have written them (trust.py), by the
descriptor that was checked.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node import signals, trust
from toolkit_installer.node.queries import Query, Secrecy, is_absolute_if_any
from toolkit_installer.node.root import NodeError, Root

if TYPE_CHECKING:
    Child = subprocess.Popen[bytes]
    """A started program with its three streams."""


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes of each stream. A program that prints more is killed, and the rest is not read."""
_LOOK_SECONDS = 0.2
_KILL_SECONDS = 2.0
"""Time in which a killed program has to end. One that hangs in the kernel (state D, proc_pid_stat(5)) does not."""
_PIECE = 1 << 16
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""
_ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # only a folder with a name of its own is used there
"""Where a private folder is created: in the first that is writable. A read-only container may have the last one
alone."""


class ProgramError(InstallerError):
    """A program could not be started, printed too much, or did not end in time."""

    exit_code = ExitCode.BAD_CONFIGURATION


class ProgramTimeoutError(ProgramError):
    """A program did not end in time, and was killed."""


class CompletedProgram(msgspec.Struct, frozen=True):
    """The result of a program: its exit status (negative: the signal that killed it) and its output."""

    status: int
    output: bytes
    errors: str


class ProgramStart(msgspec.Struct, frozen=True):
    """How a program is started: its words, its image's descriptor and name, its folder, what it inherits."""

    command: tuple[str, ...]
    program: int | None
    image: str
    folder: str
    keep: tuple[int, ...]
    enter: Callable[[], None] | None = None
    folders: tuple[str, ...] = tuple(PATH.split(":"))
    temporary: str | None = None
    """The folder for its temporary files (TMPDIR), if it has one of its own."""


def reap_children() -> None:
    """Reap children that hung when they were killed and have ended since, even those from before an idle phase."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class _ProgressCallback:
    """The callback that is called repeatedly while a program runs."""

    tick: Callable[[], None] | None = None


@contextlib.contextmanager
def report_progress(tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` repeatedly while a program runs inside the block, so that people see progress."""
    before, _ProgressCallback.tick = _ProgressCallback.tick, tick
    try:
        yield
    finally:
        _ProgressCallback.tick = before


def run(command: Sequence[str], *, seconds: float, folder: str = "/", given: bytes = b"") -> CompletedProgram:
    """Run a program of the image or of the payload, with a private folder for its temporary files.

    If nothing is writable, it gets no such folder, and itself reports what it could not do. Raises ProgramError,
    Stopped.
    """
    with private_folder() as temporary:
        return run_to_completion(
            ProgramStart(tuple(command), None, command[0], folder, (), temporary=temporary), given, seconds
        )


@contextlib.contextmanager
def private_folder() -> Iterator[str | None]:
    """Create an empty folder that only this user can read, and remove it with its content at the end.

    Yield None if no folder for temporary files is writable.
    """
    for place in _TEMPORARY:
        folder = f"{place}/toolkit-installer-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            os.mkdir(folder, 0o700)
        except OSError:
            continue
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):  # a program that hangs in the kernel may still write there
                _remove(folder)
        return
    yield None


def _remove(folder: str) -> None:
    """Remove a folder with its content, following no symlink. Raises OSError."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for path in (os.path.join(parent, name) for name in (*folders, *files)):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)
    os.rmdir(folder)


def run_to_completion(start: ProgramStart, given: bytes, seconds: float) -> CompletedProgram:
    """Run the program to its end and return status and output. Raises ProgramError, Stopped."""
    with signals.polled():
        signals.raise_if_pending()
        child = start_program(start)
        try:
            return RunningProgram(child, start.command, given, seconds).completed()
        finally:
            close_streams(child)


def start_program(start: ProgramStart) -> Child:
    """Start the program in a session of its own, with unbuffered streams. Raises ProgramError."""
    parent, libc = os.getpid(), ctypes.CDLL(None) if signals.is_killed_by_signals() else None

    def prepare() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent ended before prctl
                os.kill(os.getpid(), signal.SIGKILL)
        signals.unblock_all()
        if start.enter is not None:
            start.enter()

    kept = start.keep if start.program is None else (*start.keep, start.program)
    try:
        # prepare runs between fork and exec: this process has no threads
        return subprocess.Popen(  # noqa: S603  # an argument list, by absolute path
            list(start.command),
            executable=start.image,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=kept,
            cwd=start.folder,
            env=_environment(start),
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509  # see above
        )
    except (OSError, subprocess.SubprocessError) as error:
        path = start.command[0]
        raise ProgramError(f"cannot start {path}: {error}", path=path) from error


def _environment(start: ProgramStart) -> dict[str, str]:
    own = {"TMPDIR": start.temporary} if start.temporary is not None else {}
    return {**_ENVIRONMENT, "PATH": ":".join(start.folders), **own}


def close_streams(child: Child) -> None:
    """Close the streams of a program."""
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


class RunningProgram:
    """A running program: fed, read from, and killed when its time is over or its caller stops waiting."""

    def __init__(self, child: Child, command: Sequence[str], given: bytes, seconds: float) -> None:
        assert child.stdin is not None  # noqa: S101  # all three are pipes
        assert child.stdout is not None  # noqa: S101
        assert child.stderr is not None  # noqa: S101
        self._child = child
        self._command = command
        self._given = memoryview(given)
        self._seconds = seconds
        self._input = child.stdin
        self._output, self._errors = bytearray(), bytearray()
        self._streams = {child.stdout.fileno(): self._output, child.stderr.fileno(): self._errors}
        self._poll = select.poll()
        for fd in self._streams:
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        os.set_blocking(child.stdin.fileno(), False)
        self._poll.register(child.stdin.fileno(), select.POLLOUT)
        self._hangs = False
        """Whether the program was killed and has not ended."""
        self._end = os.pidfd_open(child.pid)
        self._poll.register(self._end, select.POLLIN)

    def completed(self) -> CompletedProgram:
        """Wait for the program's end, kill its children, and return status and output. Raises ProgramError, Stopped."""
        try:
            self._attend(time.monotonic() + self._seconds)
        finally:
            self.finish()
        return CompletedProgram(self._child.returncode, bytes(self._output), self.errors)

    @property
    def errors(self) -> str:
        """The program's output so far on its standard error."""
        return self._errors.decode(errors="replace").strip()

    def finish(self) -> None:
        """Kill the program and its children, and wait for its end, unless it hangs in the kernel."""
        # before wait(): until then its PID is that of the process group, and cannot be reused
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        gone = self._ends_in(0.0 if self._hangs else _KILL_SECONDS)
        os.close(self._end)
        if gone:
            self._child.wait()
        else:
            # so that Popen neither waits for it nor polls it when this object is deleted
            self._child.returncode = -signal.SIGKILL

    def _attend(self, deadline: float) -> None:
        """Write input and read output until the program has ended or `_has_all`. Raises ProgramError, Stopped."""
        look = time.monotonic() + _LOOK_SECONDS
        while True:
            events = dict(self._poll.poll(max(0.0, min(deadline, look) - time.monotonic()) * 1000))
            if not self._input.closed and self._input.fileno() in events:
                self._feed()
            for fd in self._streams.keys() & events.keys():
                self._read(fd)
            if self._end in events:
                for fd in list(self._streams):
                    self._read(fd)  # the rest of its output, still in the pipe
                return
            if self._has_all():
                return
            now = time.monotonic()
            if now >= min(deadline, look):
                look = now + _LOOK_SECONDS
                signals.raise_if_pending()
                if _ProgressCallback.tick is not None:
                    _ProgressCallback.tick()
                if now >= deadline:
                    raise self._timeout()

    def _has_all(self) -> bool:
        """Return whether the awaited output is complete although the program has not ended."""
        return False

    def _fed(self) -> None:
        """Close the program's input, after the last byte or when the program no longer reads."""
        self._input.close()

    def _feed(self) -> None:
        """Write as much input as the pipe takes."""
        try:
            if self._given:
                self._given = self._given[os.write(self._input.fileno(), self._given[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._given = memoryview(b"")
        if not self._given:
            self._poll.unregister(self._input.fileno())
            self._fed()

    def _read(self, fd: int) -> None:
        """Read the available output. Raises ProgramError beyond OUTPUT_LIMIT."""
        kept = self._streams[fd]
        while True:
            try:
                piece = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                with contextlib.suppress(KeyError):
                    self._poll.unregister(fd)
                return
            kept += piece
            if len(kept) > OUTPUT_LIMIT:
                raise ProgramError(
                    f"{self._command[0]} printed more than {OUTPUT_LIMIT >> 20} MiB, and was killed",
                    path=self._command[0],
                    hint="look at what it prints",
                )

    def _timeout(self) -> ProgramTimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        late = ""
        self._hangs = not self._ends_in(_KILL_SECONDS)
        if self._hangs:
            late = f"; nor when it was killed: it hangs in the kernel, as PID {self._child.pid}"
        words = f"{' '.join(self._command)} did not end within {self._seconds:g} s{late}"
        return ProgramTimeoutError(words, path=self._command[0])

    def _ends_in(self, seconds: float) -> bool:
        ended = select.poll()
        ended.register(self._end, select.POLLIN)
        return bool(ended.poll(seconds * 1000))


__all__ = ["PATH", "CompletedProgram", "ProgramError", "ProgramTimeoutError", "Programs", "reap_children", "run"]

_SCRIPT = b"#!"
_LONGEST_LINE = 4096


class Programs:
    """Programs beneath `root`; if that is not `/`, they run in a chroot there."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._path: tuple[str, ...] | None = None

    @Query(is_valid=is_absolute_if_any)
    def find_program(self, name: str) -> str | None:
        """Return the node's path of the program `name`, or None."""
        return next((path for path in self._places(name) if self.runs(path)), None)

    @Query()
    def refusal(self, name: str) -> ConfigurationError | None:
        """Return why the first existing program `name` is not run, None if none exists or it is run."""
        for path in self._places(name):
            try:
                with trust.program(self.root, path):
                    return None
            except NodeError as error:
                if error.number not in (errno.ENOENT, errno.ENOTDIR):
                    return error
            except ConfigurationError as error:
                return error
        return None

    def _places(self, name: str) -> Iterator[str]:
        """Yield the paths where a program of that name exists: most folders have none, and that is quickly checked."""
        for path in (f"{folder}/{name}" for folder in PATH.split(":")):
            try:
                if os.path.lexists(self.root.outside(self.root.canonical(path))):
                    yield path
            except NodeError:
                yield path  # the caller's inspection reports why

    def runs(self, path: str) -> bool:
        """Return whether the node has a program at `path` that would be run."""
        return trust.is_program(self.root, path)

    @Query(ignored=("seconds",), secrecy=Secrecy.TEXT)
    def run(
        self, command: Sequence[str], *, seconds: float, given: bytes = b"", keep: Sequence[int] = ()
    ) -> CompletedProgram:
        """Run `command`, its first word an absolute path on the node. Raises ProgramError, Stopped.

        `given` is its standard input; it inherits the descriptors in `keep`, under their numbers.
        """
        try:
            with trust.program(self.root, command[0]) as program:
                image = self._image(program, command[0])
                start = ProgramStart(
                    tuple(command), program, image, "/", tuple(keep), enter=self._enter, folders=self._folders()
                )
                return run_to_completion(start, given, seconds)
        except ProgramError:
            raise
        except ConfigurationError as error:
            raise ProgramError(
                f"cannot start {command[0]}: {error.reason}", path=command[0], hint=error.hint
            ) from error

    def _image(self, program: int, path: str) -> str:
        """Return the path that is executed: the descriptor under /proc, unless the program has to be opened again.

        A script is opened once more, by its interpreter; and if the program's own root has no /proc, no descriptor has
        a path. No other user could have changed the file at the path since: its folders were checked as well.
        """
        name = f"/proc/self/fd/{program}"
        try:
            with open(name, "rb") as image:
                first = image.readline(_LONGEST_LINE)
        except OSError:
            first = b""  # a user who may not read a script may not run it either
        if first.startswith(_SCRIPT):
            words = os.fsdecode(first.removeprefix(_SCRIPT)).split()
            with trust.program(self.root, words[0] if words else "/"):
                return self.root.canonical(path)
        seen = os.path.exists(self.root.outside("/proc/self/fd"))
        return name if seen else self.root.canonical(path)

    def _folders(self) -> tuple[str, ...]:
        """Return the trusted folders in which a program finds others by name: these run as root, too."""
        if self._path is None:
            self._path = tuple(folder for folder in PATH.split(":") if trust.is_folder(self.root, folder))
        return self._path

    def _enter(self) -> None:
        if self.root.folder != "/":
            os.chroot(self.root.folder)
            os.chdir("/")


_begun: set[Coprocess] = set()


def end_coprocesses() -> None:
    """Kill all running coprocesses, before this process ends or executes another program."""
    for each in list(_begun):
        each.end()


atexit.register(end_coprocesses)


class Coprocess:
    """The program that `command` starts; its first word is an absolute path."""

    def __init__(self, command: Sequence[str]) -> None:
        self._start = ProgramStart(tuple(command), None, command[0], "/", ())
        self._child: Child | None = None
        self._owner = 0
        """PID of the process that started the child: a fork of that process starts its own."""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a request, a line with its line end, and return the response line. Raises ProgramError, Stopped.

        A program that does not respond in time is killed; the next request starts another. A program that ended since
        its last response, or ends at this request, is restarted once.
        """
        with signals.polled():
            signals.raise_if_pending()
            if self._stays():
                line, _ = self._exchange(question, seconds)
                if line is not None:
                    return line
            self._begin()
            line, errors = self._exchange(question, seconds)
        if line is None:
            raise ProgramError(errors.split("\n")[-1] or "it ended without an answer")
        return line

    def end(self) -> None:
        """Kill the program, and wait for its end, unless it hangs in the kernel."""
        if self._stays():
            assert self._child is not None  # noqa: S101  # it runs
            RunningProgram(self._child, self._start.command, b"", 0.0).finish()
            self._forget()

    def _stays(self) -> bool:
        """Return whether the child runs; forget a child that ended or that belongs to another process."""
        if self._child is None:
            return False
        if self._owner != os.getpid():
            self._child.returncode = 0  # so that Popen neither waits for it nor polls it when this object is deleted
        if self._child.poll() is None:
            return True
        self._forget()
        return False

    def _begin(self) -> None:
        self._child, self._owner = start_program(self._start), os.getpid()
        _begun.add(self)

    def _exchange(self, question: bytes, seconds: float) -> tuple[bytes | None, str]:
        """Return the response, or None if the program ended without one, and its standard error."""
        child = self._child
        assert child is not None  # noqa: S101  # it was started
        turn = _Turn(child, self._start.command, question, seconds)
        try:
            return turn.line(), turn.errors
        finally:
            if child.returncode is not None:
                self._forget()

    def _forget(self) -> None:
        if self._child is not None:
            close_streams(self._child)
        self._child = None
        _begun.discard(self)


class _Turn(RunningProgram):
    """One request and its response line; the program keeps running afterwards."""

    def line(self) -> bytes | None:
        """Return the response, or None if the program ended without one. Raises ProgramError, Stopped."""
        whole = False
        try:
            self._attend(time.monotonic() + self._seconds)
            whole = self._has_all()
        finally:
            if whole:
                os.close(self._end)
            else:
                self.finish()
        return bytes(self._output) if whole else None

    def _has_all(self) -> bool:
        return self._output.endswith(b"\n")

    def _fed(self) -> None:
        """Leave the program's input open for the next request."""
