"""The node's own programs: by absolute path, with a time limit, a clean environment, and no shell.

A program of the node is run only if nobody else could have written it (trust.py), by the descriptor that was looked at.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import trust
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.running import (
    PATH,
    Completed,
    ProgramError,
    ProgramTimeoutError,
    Start,
    completed,
    reap,
    run,
)

__all__ = ["PATH", "Completed", "ProgramError", "ProgramTimeoutError", "Programs", "reap", "run"]

_SCRIPT = b"#!"
_LONGEST_LINE = 4096


class Programs:
    """Programs beneath `root`; where that is not `/`, they run in a chroot there."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._path: tuple[str, ...] | None = None

    def find_program(self, name: str) -> str | None:
        """Return the node's path of the program `name`, or None."""
        return next((path for path in self._places(name) if self.runs(path)), None)

    def refusal(self, name: str) -> ConfigurationError | None:
        """Return why the first program `name` that is there is not run, None where there is none, or it is."""
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
        """Yield where a program of that name may be: most folders have none, which is quicker seen than looked into."""
        for path in (f"{folder}/{name}" for folder in PATH.split(":")):
            try:
                if os.path.lexists(self.root.outside(self.root.canonical(path))):
                    yield path
            except NodeError:
                yield path  # who looks closer can say why

    def runs(self, path: str) -> bool:
        """Tell whether the node has a program at `path` that would be run."""
        return trust.is_program(self.root, path)

    def run(self, command: Sequence[str], *, seconds: float, given: bytes = b"", keep: Sequence[int] = ()) -> Completed:
        """Run `command`, its first word an absolute path on the node. Raises ProgramError, Stopped.

        `given` is its standard input; the descriptors in `keep` stay open in it, under their numbers.
        """
        try:
            with trust.program(self.root, command[0]) as program:
                image = self._image(program, command[0])
                start = Start(
                    tuple(command), program, image, "/", tuple(keep), enter=self._enter, folders=self._folders()
                )
                return completed(start, given, seconds)
        except ProgramError:
            raise
        except ConfigurationError as error:
            raise ProgramError(
                f"cannot start {command[0]}: {error.reason}", path=command[0], hint=error.hint
            ) from error

    def _image(self, program: int, path: str) -> str:
        """Return the path that is executed: the descriptor under /proc, unless the program has to be opened again.

        A script is opened once more, by its interpreter; and where the program's own root has no /proc, no descriptor
        has a name. Nobody else could have changed what is at the path since: its folders were looked at as well.
        """
        name = f"/proc/self/fd/{program}"
        try:
            with open(name, "rb") as image:
                first = image.readline(_LONGEST_LINE)
        except OSError:
            first = b""  # who may not read a script may not run it either
        if first.startswith(_SCRIPT):
            words = os.fsdecode(first.removeprefix(_SCRIPT)).split()
            with trust.program(self.root, words[0] if words else "/"):
                return self.root.canonical(path)
        seen = os.path.exists(self.root.outside("/proc/self/fd"))
        return name if seen else self.root.canonical(path)

    def _folders(self) -> tuple[str, ...]:
        """Return where a program looks for others: what they call by name is run as root, too."""
        if self._path is None:
            self._path = tuple(folder for folder in PATH.split(":") if trust.is_folder(self.root, folder))
        return self._path

    def _enter(self) -> None:
        if self.root.folder != "/":
            os.chroot(self.root.folder)
            os.chdir("/")
