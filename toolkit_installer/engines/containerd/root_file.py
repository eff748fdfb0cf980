"""Which file a running containerd reads, and whose: as its command line says, else as what the kernel shows tells.

k3s links a library that wipes the arguments of every program in its binary, its containerd among them: `containerd` is
all that is left. What such a process is shows in its executable, in the database that it has open, in the sockets that
it has bound and in its unit. A file counts only if it is there, as the process sees it; where nothing tells, that is
said, and nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.containerd.distributions.all import DISTRIBUTIONS, layout_of
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import descriptors
from toolkit_installer.node.processes import Process, read_as

CONFIG_FLAGS = ("--config", "-config", "-c")
_DATABASE = "/io.containerd.metadata.v1.bolt/meta.db"
"""Below a containerd's root folder, and open as long as it runs."""


def behind(process: Process) -> Layout | None:
    """Return the layout of a running containerd's distribution, in whose own eyes its files lie; None if unknown."""
    try:
        config = told_config(process)
        return layout_of(lambda path: read_as(process, path), config) if config is not None else None
    except ConfigurationError:
        return None  # it ended meanwhile, or hides


def told_config(process: Process) -> str | None:
    """Return the file that a containerd was started with, None where it was given none.

    Raises NodeError, and HiddenError where its command line is wiped and nothing else tells.
    """
    given = command_line.last(process.arguments, *CONFIG_FLAGS)
    if given:
        return command_line.place(process, given)
    if not process.hidden:
        return None
    for candidates in _candidates(process):
        there = [path for path in dict.fromkeys(candidates) if path is not None and read_as(process, path) is not None]
        if len(there) == 1:
            return there[0]
    raise command_line.hidden(process, "which configuration it reads")


def config_of(process: Process, usual: str) -> str | None:
    """Return the file that a containerd was started with, `usual` where it was given none; None if that is not seen.

    Raises NodeError.
    """
    try:
        return told_config(process) or usual
    except command_line.HiddenError:
        return None


def _candidates(process: Process) -> Iterator[Iterable[str | None]]:
    """Yield the files that a containerd may have been started with, by each kind of evidence, the strongest first.

    Of two distributions of which the evidence is the same, the one whose file is there counts; where both are, none.
    """
    yield [each.started_by(process.executable) for each in DISTRIBUTIONS]
    roots = [name.removesuffix(_DATABASE) for name in descriptors.opened(process) if name.endswith(_DATABASE)]
    yield [each.started_in(root) for root in roots for each in DISTRIBUTIONS]
    yield [each.started_with for each in DISTRIBUTIONS if process.unit in each.units]
    for socket in descriptors.bound(process.pid) or ():
        yield [each.started_with for each in DISTRIBUTIONS if each.serves(socket)]
