"""The idle process: waits for a signal, or for a managed file to change, then becomes the installer again.

It runs for months, so it is a program of its own: the standard library's built-in modules and nothing else, but for
`_socket` where an engine is asked whether it answers.

    python -I -S idle_process.py FD

`FD` is a memory file with NUL-separated fields: what the installer wants to remember, seconds between looks at the
files, seconds until it is to be woken in any case (empty: never), the number of words of the command to become, these
words, and per watched file the event that its change is, its path, and its identity as `identity` gives it. Then an
empty field, a file that the command needs (empty: none), a file that another command needs, and that command's words:
it is taken where the first cannot be.

The order of the fields stays, as does what the packages before wrote: the one that reads may be newer, or older.
"""

# signal's own, without the classes that it makes of the numbers: they, and all of enum, were a sixth of the memory
import _signal as signal  # type: ignore[import-not-found]
import posix as os  # the calls alone: what os has around them was a fourteenth of the memory
import sys
import time

RESUME = "TOOLKIT_INSTALLER_RESUME"
"""The variable that tells the installer what it was woken for: `FD:EVENT`, several separated by commas."""

DRIFT = "DRIFT"
"""A managed file was changed."""
ENGINE = "ENGINE"
"""An engine was started or stopped."""
SILENT = "SILENT"
"""An engine runs, and did not answer."""
DRIVER = "DRIVER"
"""The driver came, went, or was replaced."""
GPU = "GPU"
"""A device came or went on a node that showed no GPU."""
BUSY = "BUSY"
"""What keeps an engine from being reloaded may have ended."""
CHILD = "CHILD"
"""A process beside the run ended, or has something to say."""
LATER = "LATER"
"""The time has come to find out again what was not known."""
STOPPING = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "SIGINT", signal.SIGQUIT: "SIGQUIT"}
SIGNALS = STOPPING | {signal.SIGHUP: "SIGHUP"}
"""Their names, which an event is told by."""
ASKED = "?"
"""What the path of a socket ends with where it is watched whether anybody answers there."""
ANSWERS = "answers"
_GREETING = b"GET /_ping HTTP/1.0\r\nHost: it\r\n\r\n"
"""docker and CRI-O answer it, and a containerd greets whoever comes (HTTP/2, RFC 9113, 3.4)."""
_ANSWER_SECONDS = 2.0
"""What an engine gets for a word. A signal waits meanwhile."""
_SETTLE_SECONDS = 1.0
"""How long after a change in a watched folder its files are looked at: whoever writes there writes more than one, and
one that never stops costs one look a second."""
LIMIT = 1 << 24
_SHORTEST = 1e-6
"""Seconds. Of none a timer makes an endless wait."""
_UNUSABLE = 3
"""ExitCode.BAD_CONFIGURATION, which is not imported here."""


def identity(path: str) -> str:
    """Return a text that changes with every write to, or replacement of, the file.

    Of a folder, whose path ends in a slash, it is the names in it: a sysfs tells no time of their change. Of a socket
    that is ASKED it is whether anybody answers.
    """
    try:
        if path.endswith(ASKED):
            return ANSWERS if _answers(path.removesuffix(ASKED)) else "silent"
        if path.endswith("/"):
            return "/".join(sorted(os.listdir(path)))
        status = os.lstat(path)
    except OSError as error:
        return f"absent {error.errno}"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_mode}"


def _answers(path: str) -> bool:
    """Tell whether whoever serves a socket says anything. Raises OSError."""
    import _socket as sockets  # noqa: PLC0415  # where nothing is asked, it is memory that nobody has

    folder, _, name = path.rpartition("/")
    fd = os.open(folder or "/", os.O_PATH | os.O_CLOEXEC)
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(f"/proc/self/fd/{fd}/{name}")  # a socket's path has 107 bytes at most
        connection.send(_GREETING)
        return bool(connection.recv(1))
    finally:
        connection.close()
        os.close(fd)


def wait(seconds: float, later: float | None, watched: list[tuple[str, str, str]]) -> str:
    """Return the name of the signal that came, or the events of what changed, or LATER.

    `watched`, if any, are looked at every `seconds`, and soon after the kernel reports a change in one of their
    folders (SIGIO, `wait._notified`); LATER comes after `later` seconds (None: never).
    """
    began = looked = time.monotonic()
    settles = False
    if any(path.endswith(ASKED) for _, path, _ in watched):
        import _socket  # noqa: F401, PLC0415  # at the first look, its file may be gone
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
        if number:  # nothing that changed meanwhile is to be forgotten over it
            return ",".join(sorted({CHILD} | _changed(watched, asked=False)))
        changed = _changed(watched, asked=False)
        if not changed and watched and time.monotonic() >= looked + seconds:
            # an engine that somebody stopped is not asked: systemd would start it for that
            changed, looked = _changed(watched, asked=True), time.monotonic()
        if changed:
            return ",".join(sorted(changed))
        settles = False
        if later is not None and time.monotonic() - began >= later:
            return LATER


def _changed(watched: list[tuple[str, str, str]], *, asked: bool) -> set[str]:
    """Return the events of what changed, of the sockets that are asked or of all else."""
    return {event for event, path, known in watched if path.endswith(ASKED) is asked and identity(path) != known}


def signal_within(seconds: float | None, *, folders: bool = False) -> int:
    """Wait for a signal, for so many seconds at most (None: as long as it takes); return its number, 0 for none.

    `folders`: a change in a watched folder counts as one.

    Not by sigtimedwait: where the process is stopped meanwhile and goes on when the time is over, Python tells of any
    signal at all, of what happens to be in its memory. The time's end is a signal as well, and this process has no
    other thread that could get it.
    """
    awaited = _awaited(folders=folders)
    if seconds is None:
        return int(signal.sigwaitinfo(awaited).si_signo)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST))
    number = signal.sigwaitinfo((*awaited, signal.SIGALRM)).si_signo
    # both outlive the exec of another program, which knows nothing of them
    signal.setitimer(signal.ITIMER_REAL, 0)
    if signal.SIGALRM in signal.sigpending():
        signal.sigwaitinfo([signal.SIGALRM])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    return 0 if number == signal.SIGALRM else int(number)


def _awaited(*, folders: bool) -> tuple[int, ...]:
    """Return the signals that are waited for: those of children and of folders where the run holds them back."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    more = (signal.SIGCHLD, signal.SIGIO) if folders else (signal.SIGCHLD,)
    return (*SIGNALS, *(number for number in more if number in held))


class Told:
    """The state's fields, as this package or an older one wrote them."""

    def __init__(self, fields: list[str]) -> None:
        """Parse the fields."""
        if fields[3].isdigit():
            size, head = 3, fields[1:4]
        else:  # of the first packages: no time at which to be woken in any case, and drift is the only event
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
        if not head[0]:  # nothing is to be looked at
            self.watched = []
        need, other_need, *other = rest[1:] if len(rest) > 2 else ["", ""]  # noqa: PLR2004  # the empty one, and two
        self.commands = [(need, command), *([(other_need, other)] if other else [])]


def become(commands: list[tuple[str, list[str]]]) -> str:
    """Execute the first command that can be; return in words why none could."""
    reasons = []
    for need, command in commands:
        try:
            if need:
                os.stat(need)
            os.execv(command[0], command)  # by absolute path, no shell
        except OSError as error:
            reasons.append(f"{error.filename or command[0]}: {error.strerror}")
    return "; ".join(dict.fromkeys(reasons))


def say(line: str) -> None:
    """Write a line to stderr; a closed stderr is no error."""
    try:
        os.write(2, line.encode("utf-8", "surrogateescape"))
    except OSError:
        return  # nobody listens any more, which is no reason not to go on


def main() -> None:
    """Wait, then execute the installer with the same arguments, locks and PID.

    If the installer's files are gone, a signal to stop ends the process with an exit code that says so; any other event
    is dropped, as the files may be back at the next one.
    """
    fd = int(sys.argv[1])
    told = Told(os.pread(fd, LIMIT, 0).decode("utf-8", "surrogateescape").split("\0"))
    event = wait(told.seconds, told.later, told.watched)
    while True:
        os.putenv(RESUME, f"{fd}:{event}")
        why = become(told.commands)
        say(
            f"toolkit-installer cannot be started again ({why}), so the node stays configured: install it again, then "
            "run `toolkit-installer uninstall` with the install folder and --node-root of this run\n"
        )
        if event in STOPPING.values():
            sys.exit(_UNUSABLE)
        event = wait(told.seconds, None, [])
