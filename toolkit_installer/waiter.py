"""The idle process: waits for a signal, or for a managed file to change, then becomes the installer again.

It runs for months, so it is a program of its own: the standard library's built-in modules and nothing else.

    python -I -S waiter.py FD

`FD` is a memory file with NUL-separated fields: what the installer wants to remember, seconds between looks at the
files (empty: never), the number of words of the command to become, these words, and per watched file its path and
its identity as `identity` gives it.
"""

import os
import signal
import sys

RESUME = "TOOLKIT_INSTALLER_RESUME"
"""The variable that tells the installer what it was woken for: `FD:EVENT`."""

DRIFT = "DRIFT"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
LIMIT = 1 << 24


def identity(path: str) -> str:
    """Return a text that changes with every write to, or replacement of, the file."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"absent {error.errno}"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_mode}"


def wait(seconds: float | None, watched: list[tuple[str, str]]) -> str:
    """Return the name of the signal that came, or DRIFT."""
    while True:
        if seconds is None or not watched:
            return signal.Signals(signal.sigwaitinfo(SIGNALS).si_signo).name
        info = signal.sigtimedwait(SIGNALS, seconds)
        # of a signal 0 Python tells where the process was stopped and went on only after the time was over
        if info is not None and info.si_signo in SIGNALS:
            return signal.Signals(info.si_signo).name
        if any(identity(path) != known for path, known in watched):
            return DRIFT


def main() -> None:
    """Wait, then execute the installer with the same arguments, locks and PID."""
    fd = int(sys.argv[1])
    fields = os.pread(fd, LIMIT, 0).decode("utf-8", "surrogateescape").split("\0")
    seconds = float(fields[1]) if fields[1] else None
    count = int(fields[2])
    command = fields[3 : 3 + count]
    rest = fields[3 + count :]
    watched = list(zip(rest[::2], rest[1::2], strict=True))
    event = wait(seconds, watched)
    os.environ[RESUME] = f"{fd}:{event}"
    os.execv(command[0], command)  # noqa: S606  # by absolute path, no shell


if __name__ == "__main__":
    main()
