"""The node as a whole: its files, programs and services beneath one root."""

from __future__ import annotations

import contextlib
import os

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.processes import Process, has_root
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.reading import Found, Reader
from toolkit_installer.node.root import INIT_ROOT, Root, attempt, is_mounted
from toolkit_installer.node.services import Services


class Node:
    """The node that the installer works on.

    `root` is where the node's `/` is visible here. `programs_root` is where the node's own programs are run; it differs
    if only single folders of the node are mounted into the container.
    """

    def __init__(
        self, root: str, programs_root: str | None = None, calls: SystemCalls | None = None, *, whole: bool = True
    ) -> None:
        self.calls = calls or SystemCalls()
        self.whole = whole
        """Whether all of the node is visible at `root`. If not, single folders of it are mounted here."""
        self.given: tuple[str, ...] = ()
        """The paths given to this run: if a file is visible in several places, it is accessed in one of these
        (places.py)."""
        self.root = Root(root)
        self.files = Files(self.root, self.calls)
        self.programs = Programs(Root(programs_root or root))
        self.services = Services(self.programs, self.calls)

    @classmethod
    def open(cls, node_root: str | None, host_root: str, calls: SystemCalls | None = None) -> Node:
        """Return the node that the flags name: everything beneath `node_root`, or the paths as they are here."""
        if node_root is not None:
            return cls(node_root, calls=calls)
        return cls("/", host_root if is_mounted(host_root) else "/", calls=calls, whole=False)

    def is_home_of(self, process: Process) -> bool:
        """Return whether the process is the node's own, not a container's or another node's.

        If single folders are mounted, the node's own processes are those with the root of its init, or with the root
        here.
        """
        homes = (self.root,) if self.whole else (Root(INIT_ROOT), self.root)
        return any(has_root(process, home) for home in homes)

    def readers(self) -> list[Reader]:
        """Return the readers of the node's files: those mounted here, and those beneath the host's root."""
        if self.files.root.folder == self.programs.root.folder:
            return [self.files]
        return [self.files, Reader(self.programs.root)]

    def locate_file(self, path: str) -> tuple[str, Found | None]:
        """Return the canonical path and the file there, None if absent. Raises ConfigurationError, NodeError.

        If only single folders of the node are mounted, a symlink that leads out of its mount leads to a file of the
        container: that is refused.
        """
        canonical = self.files.canonical(path)
        entry = self.files.in_folder(path)
        if not self.whole and canonical != entry:
            mount = self._mount(canonical)
            where = os.path.dirname(canonical)
            if mount is None:
                raise ConfigurationError(
                    f"is a symlink to {canonical}, and there is no {where} here",
                    path=path,
                    hint=f"make {where} or remove the link; or, if this is a container and the node has that folder, "
                    "mount it here as well and name the file itself, or mount the node's / and use --node-root",
                )
            if mount != self._mount(entry):
                raise ConfigurationError(
                    f"is a symlink to {canonical}, which is on another mount: the node's file may not be what is seen "
                    "here",
                    path=path,
                    hint=f"mount the node's {where} as well and name the file itself, "
                    "or mount the node's / and use --node-root",
                )
        return canonical, self.files.read_file(path)

    def _mount(self, path: str) -> int | None:
        with attempt("find its mount", path), contextlib.suppress(FileNotFoundError):
            return self.root.mount_of(path)
        return None  # the path leads nowhere from here
