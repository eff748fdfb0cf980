"""The idle process: waits for a signal, or for a managed file to change, then becomes the installer again.

It runs for months, so it is a program of its own: the standard library's built-in modules and nothing else.

    python -I -S waiter.py FD

`FD` is a memory file with NUL-separated fields: what the installer wants to remember, seconds between looks at the
files, seconds until it is to be woken in any case (empty: never), the number of words of the command to become, these
words, and per watched file the event that its change is, its path, and its identity as `identity` gives it.
"""

import os
import signal
import sys
import time

RESUME = "TOOLKIT_INSTALLER_RESUME"
"""The variable that tells the installer what it was woken for: `FD:EVENT`, several separated by commas."""

DRIFT = "DRIFT"
"""A managed file was changed."""
ENGINE = "ENGINE"
"""An engine was started or stopped."""
DRIVER = "DRIVER"
"""The driver came, went, or was replaced."""
LATER = "LATER"
"""What could not be found out before may be known now."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
LIMIT = 1 << 24


def identity(path: str) -> str:
    """Return a text that changes with every write to, or replacement of, the file."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return f"absent {error.errno}"
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_mode}"


def wait(seconds: float, later: float | None, watched: list[tuple[str, str, str]]) -> str:
    """Return the name of the signal that came, or the events of what changed, or LATER.

    `watched`, if any, are looked at every `seconds`; LATER comes after `later` seconds (None: never).
    """
    began = time.monotonic()
    look = seconds if watched else None
    while True:
        remaining = None if later is None else max(0.0, later - (time.monotonic() - began))
        pauses = [pause for pause in (look, remaining) if pause is not None]
        if not pauses:
            return signal.Signals(signal.sigwaitinfo(SIGNALS).si_signo).name
        info = signal.sigtimedwait(SIGNALS, min(pauses))
        # of a signal 0 Python tells where the process was stopped and went on only after the time was over
        if info is not None and info.si_signo in SIGNALS:
            return signal.Signals(info.si_signo).name
        changed = {event for event, path, known in watched if identity(path) != known}
        if changed:
            return ",".join(sorted(changed))
        if later is not None and time.monotonic() - began >= later:
            return LATER


def main() -> None:
    """Wait, then execute the installer with the same arguments, locks and PID."""
    fd = int(sys.argv[1])
    fields = os.pread(fd, LIMIT, 0).decode("utf-8", "surrogateescape").split("\0")
    seconds, later = float(fields[1]), float(fields[2]) if fields[2] else None
    count = int(fields[3])
    command = fields[4 : 4 + count]
    rest = fields[4 + count :]
    watched = list(zip(rest[::3], rest[1::3], rest[2::3], strict=True))
    event = wait(seconds, later, watched)
    os.environ[RESUME] = f"{fd}:{event}"
    os.execv(command[0], command)  # noqa: S606  # by absolute path, no shell


if __name__ == "__main__":
    main()
