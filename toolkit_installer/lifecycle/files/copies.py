"""Which of the toolkit's files are copies of the payload's, as stat(2) still says of both what it said then.

Every write, rename and change of mode sets a file's ctime, and only the clock could set it back: a file whose size,
mtime, ctime and inode are what they were holds what it held. The device is not compared: each mount has another number.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterable

from toolkit_installer.node.disk.readers import Tree
from toolkit_installer.node.disk.reading import Identity, let_files_clock_move_on
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Copy


class Copies:
    """Looks at the files of one toolkit folder, and of the payload that it is filled from."""

    def __init__(self, node: Node, folder: str, payload: Tree) -> None:
        self._files = node.files
        self._folder = folder
        self._payload = payload

    def taken(self, name: str, source: str, *, settled: bool = False) -> Copy | None:
        """Return the stamps of a file of the toolkit and of the payload's, to be taken before their contents are read.

        None where one of them is no regular file; with `settled`, also where a change that comes now might not show:
        the kernel's clock has not moved on since the last one. Raises NodeError.
        """
        identities = []
        for status in self._files.own_status(posixpath.join(self._folder, name)), self._payload.status(source):
            if status is None or not stat.S_ISREG(status.st_mode):
                return None
            identities.append(Identity.of(status))
        if settled and not all(each.will_differ() for each in identities):
            return None
        return Copy(name, source, *(each.stamp for each in identities))

    def settled(self, copies: Iterable[Copy]) -> tuple[Copy, ...]:
        """Return those that nobody has changed since their stamps were taken, and that any change from now on shows.

        What was copied since the kernel's clock moved on is waited for, a few milliseconds: each run from now on would
        have to read it again.
        """
        stand = [each for each in copies if self.taken(each.name, each.source) == each]
        if not all(self._is_settled(each) for each in stand):
            let_files_clock_move_on()
        return tuple(each for each in stand if self._is_settled(each))

    def _is_settled(self, copy: Copy) -> bool:
        return self.taken(copy.name, copy.source, settled=True) == copy
