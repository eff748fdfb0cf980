"""Find other installers on this node: NVIDIA's own, other installations of this program, and leftovers.

NVIDIA's installer and this one would delete each other's files. A running one is found by its executable and by its
install folder, which both see through mounts of their own, as its PID file may be an unusual one. It copies the toolkit
at each start, and removes its handlers from the engine's files when it ends.

Handlers that another installer left run executables in the toolkit's folder: they are replaced, and removed with that
folder. So cleanup does not restore them, and the program reports that (`taken_over`).
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node import locks, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import NRI_PID_FILE, PID_FILES, Program

if TYPE_CHECKING:
    from toolkit_installer.planning.plan import Plan


_RUNTIMES = "runtimes"
"""The table of handlers in every engine's files."""


def list_replaced(previous: Receipt | None, plan: Plan) -> tuple[str, ...]:
    """Return the leftovers that a plan replaces, as text, after those that the receipt lists already."""
    known = set(previous.file_paths()) if previous is not None else set()
    folder = plan.toolkit.folder
    new = []
    for wanted in (wanted for engine in plan.engines for wanted in engine.desired.files):
        if wanted.path not in known:
            kept = find_handlers(wanted.base, folder)
            new += _in_file(
                wanted.path, [name for name in find_handlers(wanted.file.content, folder) if name not in kept]
            )
    if previous is None:
        new += describe_folder(folder, sorted(plan.toolkit.present))
    return tuple(dict.fromkeys([*(previous.taken_over if previous is not None else ()), *new]))


def describe_handlers(files: Sequence[tuple[str, bytes | None]], folder: str) -> tuple[str, ...]:
    """Return the handlers of another installer in files, given as paths and contents, as text."""
    return tuple(words for path, content in files for words in _in_file(path, find_handlers(content, folder)))


def describe_folder(folder: str, names: Sequence[str]) -> list[str]:
    """Return the files of another installer in the toolkit's folder, as text; an empty list if there are none."""
    return [f"{folder}: {len(names)} {'file' if len(names) == 1 else 'files'}"] if names else []


def list_gone(receipt: Receipt, *, toolkit_stays: bool) -> list[str]:
    """Return the replaced leftovers that are gone after a cleanup."""
    files = f"{receipt.toolkit_folder}: "
    return [words for words in receipt.taken_over if not (toolkit_stays and words.startswith(files))]


def find_handlers(content: bytes | None, folder: str) -> list[str]:
    """Return the handlers in an engine's file whose executable lies in `folder`; none if the file is broken."""
    if content is None or folder.encode() not in content:
        return []
    try:
        if b"{{" in content:
            from toolkit_installer.engines.containerd import templates  # noqa: PLC0415  # few nodes have one

            document = templates.document(content) or {}
        else:
            document = json.loads(content) if content.lstrip().startswith(b"{") else toml_document.parse(content)
    except (ValueError, RecursionError, ConfigurationError):
        return []
    return list(dict.fromkeys(_handlers(document, folder, ())))


def _in_file(path: str, names: Sequence[str]) -> list[str]:
    return [f"{path}: {'handler' if len(names) == 1 else 'handlers'} {', '.join(names)}"] if names else []


def _handlers(value: Any, folder: str, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _handlers(each, folder, (*path, key))
    elif isinstance(value, str) and is_beneath(posixpath.normpath(value), folder) and _RUNTIMES in path[:-1]:
        yield path[path.index(_RUNTIMES) + 1]


_PROGRAMS = frozenset(Program)
NAMES = frozenset(name[:15] for name in Program)
"""The names of its processes, of which the kernel keeps 15 bytes (proc_pid_comm(5))."""
_FLAGS = ("--toolkit-install-dir", "-toolkit-install-dir", "--root", "-root")
_VARIABLES = ("TOOLKIT_INSTALL_DIR", "ROOT")
_USUAL_FOLDER = "/usr/local/nvidia"
_PROGRAM_OF_A_TOOLKIT = b"/toolkit/nvidia-"
"""In the path of a runtime, hook or CDI hook that an engine's file or a CDI specification names."""
_WORD = re.compile(rb"[^\"'\s]+")


class OtherInstaller(msgspec.Struct, frozen=True):
    """Another installer that is running."""

    program: str
    pid: int

    def __str__(self) -> str:
        return f"{self.program} (PID {self.pid})"


@Query()
def find_running(node: Node, install_dir: str) -> OtherInstaller | None:
    """Return another installer that works on the install folder, or that a usual PID file names, else None.

    This program's own instances are found by their locks instead. Raises NodeError.
    """
    running = processes.find_by_name(NAMES)
    others = [each for each in running if posixpath.basename(each.executable) in _PROGRAMS]
    if not others:
        return None
    named = {locks.read_pid(node.files, path) for path in PID_FILES}
    for each in others:
        if each.pid in named or _works_on(node, each, install_dir):
            return OtherInstaller(posixpath.basename(each.executable), each.pid)
    return None


def refuse_running(node: Node, install_dir: str) -> None:
    """Raise AlreadyRunningError if another installer works on the install folder, NodeError."""
    other = find_running(node, install_dir)
    if other is not None:
        raise AlreadyRunningError(
            f"another installer, {other.program}, is running with PID {other.pid}",
            path=install_dir,
            hint="stop it first: delete its pod, or disable the toolkit in what deploys it",
        )


def explain_lock(error: AlreadyRunningError) -> AlreadyRunningError:
    """Return the error of a locked PID file, made specific if it is the NRI plugin's. Pure."""
    if posixpath.basename(error.path or "") != posixpath.basename(NRI_PID_FILE):
        return error
    return AlreadyRunningError(
        f"{error.reason}, which serves the NRI plugin: two would give each device twice, and engines refuse that",
        path=error.path,
        hint="run one of them without --method nri and --enable-nri-plugin, or stop the other one first",
    )


def remove_plugin_pid_file(node: Node) -> None:
    """Remove the PID file of a killed run of the NRI plugin; failures are only logged, at debug level."""
    try:
        locks.remove_stale(node.files, NRI_PID_FILE)
    except (AlreadyRunningError, ConfigurationError) as error:
        log.get().debug(
            "Left the NRI plugin's PID file", key="plugin-pid-file-left", file=error.path, reason=error.reason
        )


def find_named_installations(node: Node, content: bytes | None, folder: str) -> list[str]:
    """Return the install folders of this program whose programs a file names, except the toolkit `folder`'s.

    An installation counts while its receipt exists. Raises NodeError.
    """
    named = dict.fromkeys(map(os.fsdecode, _find_toolkit_folders(content or b"")))
    return [
        other
        for other in named
        if f"{other}/toolkit" != folder and node.files.is_file(f"{other}/{RECEIPT_FOLDER}/{RECEIPT_FILE}")
    ]


def _find_toolkit_folders(content: bytes) -> Iterator[bytes]:
    """Yield the folders whose `toolkit` has a program that the content names; takes linear time."""
    if _PROGRAM_OF_A_TOOLKIT not in content:
        return
    for word in _WORD.findall(content):
        end = word.rfind(_PROGRAM_OF_A_TOOLKIT)
        if end > word.find(b"/"):
            yield word[word.find(b"/") : end]


def _works_on(node: Node, process: Process, install_dir: str) -> bool:
    """Return whether an installer's folder is this one; each installer may see it through a mount of its own."""
    variables = processes.environment(process)
    given = command_line.last_flag_value(process.arguments, *_FLAGS)
    theirs = given or next(filter(None, map(variables.get, _VARIABLES)), _USUAL_FOLDER)
    view = processes.root_of(process)
    try:
        place = view.outside(view.canonical(command_line.place(process, theirs)))
        return os.path.samefile(place, node.root.outside(node.files.canonical(install_dir)))
    except (OSError, NodeError):
        return False  # it ended meanwhile, or one of the folders does not exist
