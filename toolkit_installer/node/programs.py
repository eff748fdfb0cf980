"""The node's own programs: by absolute path, with a time limit, a clean environment, and no shell."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from toolkit_installer.errors import InstallerError
from toolkit_installer.node.root import Root
from toolkit_installer.node.signals import unblock_all

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OUTPUT_LIMIT = 16 * 1024 * 1024
_LOOK_SECONDS = 0.2


class ProgramError(InstallerError):
    """A program could not be started, or did not end in time."""


class ProgramTimeoutError(ProgramError):
    """A program did not end in time, and was killed."""


@dataclasses.dataclass(frozen=True)
class Completed:
    """What a program left: its exit status (negative: the signal it died of) and its output."""

    status: int
    output: bytes
    errors: str


class Programs:
    """Programs beneath `root`; where that is not `/`, they run in a chroot there."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def find(self, name: str) -> str | None:
        """Return the node's path of the program `name`, or None."""
        for folder in PATH.split(":"):
            path = f"{folder}/{name}"
            if self.runs(path):
                return path
        return None

    def runs(self, path: str) -> bool:
        """Tell whether the node has an executable at `path`."""
        return os.access(self.root.outside(self.root.canonical(path)), os.X_OK)

    def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        given: bytes = b"",
        keep: Sequence[int] = (),
        unless: Callable[[], bool] | None = None,
    ) -> Completed:
        """Run `command`, its first word an absolute path on the node. Raises ProgramError.

        `given` is its standard input; the descriptors in `keep` stay open in it, under their numbers. Once `unless` is
        true it is not waited for any more.
        """
        enter = self._enter if self.root.folder != "/" else None
        return run(command, seconds=seconds, enter=enter, given=given, keep=keep, unless=unless)

    def _enter(self) -> None:
        os.chroot(self.root.folder)
        os.chdir("/")


def run(  # what a program is started with
    command: Sequence[str],
    *,
    seconds: float,
    enter: Callable[[], None] | None = None,
    folder: str = "/",
    given: bytes = b"",
    keep: Sequence[int] = (),
    unless: Callable[[], bool] | None = None,
) -> Completed:
    """Run a program of the installer's own namespace, or of where `enter` leads. Raises ProgramError."""

    def prepare() -> None:
        unblock_all()
        if enter is not None:
            enter()

    try:
        # prepare runs between fork and exec: this process has no threads
        child = subprocess.Popen(  # noqa: S603  # an argument list, by absolute path
            list(command),
            stdin=subprocess.PIPE,
            pass_fds=keep,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": PATH, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509  # see above
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ProgramError(f"cannot start {command[0]}: {error}", path=command[0]) from error
    try:
        output, errors = _end(child, given, time.monotonic() + seconds, unless)
    except subprocess.TimeoutExpired as error:
        os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, and somebody has to go on
            _end(child, None, math.inf, unless)
        raise ProgramTimeoutError(f"{' '.join(command)} did not end within {seconds:g} s", path=command[0]) from error
    return Completed(child.returncode, output[:_OUTPUT_LIMIT], errors.decode(errors="replace").strip())


def _end(
    child: subprocess.Popen[bytes], given: bytes | None, deadline: float, unless: Callable[[], bool] | None
) -> tuple[bytes, bytes]:
    """Return the output once it has ended. Raises TimeoutExpired at the deadline, or when `unless` is true."""
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        pause = remaining if unless is None else min(remaining, _LOOK_SECONDS)
        try:
            return child.communicate(given, None if pause == math.inf else pause)
        except subprocess.TimeoutExpired:
            if pause == remaining or (unless is not None and unless()):
                raise
            given = None  # it has it
