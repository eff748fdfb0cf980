"""The idle process: waits for a signal or a change of a managed file, then executes the installer again.

It runs for months, so it is a program of its own that imports only built-in modules of the standard library, and
`_socket` if an engine is probed.

    python -I -S idle_process.py FD

`FD` is a memory file with NUL-separated fields: the installer's saved state, seconds between two checks of the files,
seconds until a wake-up in any case (empty: never), the number of words of the command to execute, these words, and per
watched file its event, its path, and its identity as returned by `identity`. Then an empty field, a file that the
command needs (empty: none), a file that an alternative command needs, and the words of the alternative command, which
is executed if the first cannot be.

The order of the fields never changes, and neither do the formats of older packages: the reader may be newer or older
than the writer.
"""

# signal's C module, without the classes that signal makes of the numbers: with enum, they took a sixth of the memory
import _signal as signal  # type: ignore[import-not-found]
import posix as os  # the system calls only: what os adds to them took a fourteenth of the memory
import sys
import time

RESUME = "TOOLKIT_INSTALLER_RESUME"
"""Environment variable that tells the installer why it was woken: `FD:EVENT`, several events separated by commas."""

DRIFT = "DRIFT"
"""A managed file changed."""
ENGINE = "ENGINE"
"""An engine was started or stopped."""
SILENT = "SILENT"
"""An engine runs but did not respond."""
DRIVER = "DRIVER"
"""The driver appeared, disappeared or was replaced."""
GPU = "GPU"
"""A device appeared or disappeared on a node that showed no GPU."""
BUSY = "BUSY"
"""The reason for which an engine was not reloaded may be gone."""
CHILD = "CHILD"
"""A child process of the run ended, or has output."""
LATER = "LATER"
"""It is time to inspect the node again, as something was unknown."""
STOPPING = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGQUIT: "SIGQUIT"}
SIGNALS = STOPPING | {signal.SIGHUP: "SIGHUP"}
"""The names of the signals, which are their events."""
PROBE_SUFFIX = "?"
"""Suffix of a socket's path for which the idle process probes whether an engine responds there."""
ANSWERS = "answers"
_GREETING = b"GET /_ping HTTP/1.0\r\nHost: it\r\n\r\n"
"""docker and CRI-O respond to it; containerd greets every client (HTTP/2, RFC 9113, 3.4)."""
_ANSWER_SECONDS = 2.0
"""Time limit for an engine's response. Signals wait meanwhile."""
_SETTLE_SECONDS = 1.0
"""Delay between a change in a watched folder and the check of its files: most writers write more than one, and a writer
that never stops costs one check a second."""
LIMIT = 1 << 24
_SHORTEST = 1e-6
"""Seconds. A timer of zero would wait forever."""
_BAD_CONFIGURATION = 3
"""ExitCode.BAD_CONFIGURATION, which is not imported here."""


def identity(path: str) -> str:
    """Return a text that changes with every write to, or replacement of, the file.

    For a folder, whose path ends in a slash, it is the names in it: sysfs records no time of their change. For a path
    with the suffix PROBE_SUFFIX it is whether an engine responds on the socket.
    """
    try:
        if path.endswith(PROBE_SUFFIX):
            return ANSWERS if _responds(path.removesuffix(PROBE_SUFFIX)) else "silent"
        if path.endswith("/"):
            return "/".join(sorted(os.listdir(path)))
        status = os.lstat(path)
    except OSError as error:
        return f"absent {error.errno}"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_mode}"


def _responds(path: str) -> bool:
    """Return whether the server of a socket sends anything. Raises OSError."""
    import _socket as sockets  # noqa: PLC0415  # saves its memory where nothing is probed

    folder, _, name = path.rpartition("/")
    fd = os.open(folder or "/", os.O_PATH | os.O_CLOEXEC)
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(f"/proc/self/fd/{fd}/{name}")  # a socket's path is limited to 107 bytes
        connection.send(_GREETING)
        return bool(connection.recv(1))
    finally:
        connection.close()
        os.close(fd)


def wait(seconds: float, later: float | None, watched: list[tuple[str, str, str]]) -> str:
    """Return the name of the received signal, the events of the changed files, or LATER.

    The entries of `watched` are checked every `seconds`, and soon after the kernel reports a change in one of their
    folders (SIGIO, `wait._notified`); LATER comes after `later` seconds (None: never).
    """
    began = looked = time.monotonic()
    settles = False
    if any(path.endswith(PROBE_SUFFIX) for _, path, _ in watched):
        import _socket  # noqa: F401, PLC0415  # at the first probe, its file may be gone
    while True:
        now = time.monotonic()
        pauses = [max(0.0, looked + seconds - now)] if watched else []
        pauses += [max(0.0, began + later - now)] if later is not None else []
        pauses += [_SETTLE_SECONDS] if settles else []
        number = signal_within(min(pauses) if pauses else None, folders=not settles)
        if number in SIGNALS:
            return str(SIGNALS[number])
        if number == signal.SIGIO:
            settles = True
            continue
        if number:  # changes of files in the meantime are reported as well
            return ",".join(sorted({CHILD} | _find_changed_events(watched, asked=False)))
        changed = _find_changed_events(watched, asked=False)
        if not changed and watched and time.monotonic() >= looked + seconds:
            # a stopped engine is not probed: systemd would start it for the connection
            changed, looked = _find_changed_events(watched, asked=True), time.monotonic()
        if changed:
            return ",".join(sorted(changed))
        settles = False
        if later is not None and time.monotonic() - began >= later:
            return LATER


def _find_changed_events(watched: list[tuple[str, str, str]], *, asked: bool) -> set[str]:
    """Return the events of the changed entries: those of probed sockets, or those of everything else."""
    return {event for event, path, known in watched if path.endswith(PROBE_SUFFIX) is asked and identity(path) != known}


def signal_within(seconds: float | None, *, folders: bool = False) -> int:
    """Wait up to `seconds` (None: without limit) for a signal; return its number, 0 if none came.

    With `folders`, a change in a watched folder counts as a signal.

    sigtimedwait is not used: if the process is stopped meanwhile and continues after the time is over, Python reports
    an arbitrary signal from uninitialized memory. The end of the time is a signal as well, and this process has no
    other thread that could receive it.
    """
    awaited = _awaited(folders=folders)
    if seconds is None:
        return int(signal.sigwaitinfo(awaited).si_signo)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST))
    number = signal.sigwaitinfo((*awaited, signal.SIGALRM)).si_signo
    # the timer and the pending signal survive the exec of another program, which does not expect them
    signal.setitimer(signal.ITIMER_REAL, 0)
    if signal.SIGALRM in signal.sigpending():
        signal.sigwaitinfo([signal.SIGALRM])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    return 0 if number == signal.SIGALRM else int(number)


def _awaited(*, folders: bool) -> tuple[int, ...]:
    """Return the signals to wait for: those of children and of folders only if the run has blocked them."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    more = (signal.SIGCHLD, signal.SIGIO) if folders else (signal.SIGCHLD,)
    return (*SIGNALS, *(number for number in more if number in held))


class IdleState:
    """The fields of the saved state, as written by this package or an older one."""

    def __init__(self, fields: list[str]) -> None:
        """Parse the fields."""
        if fields[3].isdigit():
            size, head = 3, fields[1:4]
        else:  # the first packages have no time of a wake-up in any case, and DRIFT is their only event
            size, head = 2, [fields[1], "", fields[2]]
        self.seconds = float(head[0] or 0.0)
        self.later = float(head[1]) if head[1] else None
        first = size + 1
        last = first + int(head[2])
        command, rest = fields[first:last], fields[last:]
        self.watched: list[tuple[str, str, str]] = []
        while len(rest) >= size and rest[0]:
            event, path, known = rest[:3] if size == 3 else (DRIFT, *rest[:2])  # noqa: PLR2004  # event, path, identity
            self.watched.append((event, path, known))
            rest = rest[size:]
        if not head[0]:  # no files are to be checked
            self.watched = []
        need, other_need, *other = rest[1:] if len(rest) > 2 else ["", ""]  # noqa: PLR2004  # empty field, two files
        self.commands = [(need, command), *([(other_need, other)] if other else [])]


def execute_first(commands: list[tuple[str, list[str]]]) -> str:
    """Execute the first command that can be executed; return the reasons why none could."""
    reasons = []
    for need, command in commands:
        try:
            if need:
                os.stat(need)
            os.execv(command[0], command)  # by absolute path, no shell
        except OSError as error:
            reasons.append(f"{error.filename or command[0]}: {error.strerror}")
    return "; ".join(dict.fromkeys(reasons))


def write_to_stderr(line: str) -> None:
    """Write a line to stderr; a closed stderr is no error."""
    try:
        os.write(2, line.encode("utf-8", "surrogateescape"))
    except OSError:
        return  # stderr has no reader any more, which is no reason to stop


def main() -> None:
    """Wait, then execute the installer with the same arguments, locks and PID.

    If the installer's files are gone, a signal to stop ends the process with an exit code that says so; any other event
    is dropped, because the files may be back at the next one.
    """
    fd = int(sys.argv[1])
    told = IdleState(os.pread(fd, LIMIT, 0).decode("utf-8", "surrogateescape").split("\0"))
    event = wait(told.seconds, told.later, told.watched)
    while True:
        os.putenv(RESUME, f"{fd}:{event}")
        why = execute_first(told.commands)
        write_to_stderr(
            f"toolkit-installer cannot be started again ({why}), so the node stays configured: install it again, then "
            "run `toolkit-installer uninstall` with the install folder and --node-root of this run\n"
        )
        if event in STOPPING.values():
            sys.exit(_BAD_CONFIGURATION)
        event = wait(told.seconds, None, [])
