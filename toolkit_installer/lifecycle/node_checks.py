"""What a node must allow before anything on it is changed: a shell, and places that can be written to.

Immutable systems (Talos, Flatcar, Bottlerocket, ostree) lack some of it. Found half-way, it would cost a change, a
reload and the way back.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.files.cdi import SpecificationWork
from toolkit_installer.lifecycle.plan import EngineWork
from toolkit_installer.node.disk import access
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.node import Node

_SHELL = "/bin/sh"
_SIGNS = ("/etc/os-release", "/usr/lib/os-release", "/bin")
"""What every system has: a root without any is no system, but a few folders of one, or made up."""
_ELSEWHERE = "choose a folder on another one with --toolkit-install-dir, such as /opt/nvidia or /var/lib/nvidia"


def shell(node: Node) -> None:
    """Raise ConfigurationError if the node is seen as a whole, and has no shell for the wrappers."""
    root = node.programs.root
    if root.folder == "/" and not node.whole:
        return  # only folders of the node are mounted here: its shell is not seen
    if not any(_entry(root, sign) for sign in _SIGNS):
        return
    if not node.programs.runs(_SHELL):
        raise ConfigurationError(
            "the node has no shell: the toolkit's wrappers are scripts for it, and no container would start",
            path=_SHELL,
            hint="nothing was changed; use the toolkit that the node's own system brings as an extension or package",
        )


def toolkit_folder(node: Node, folder: str) -> None:
    """Raise ConfigurationError where the toolkit could not be written, or nothing of it be executed."""
    flags = node.files.mount_flags(folder)
    if flags & (os.ST_RDONLY | os.ST_NOEXEC):
        how = "noexec: no container would start through it" if flags & os.ST_NOEXEC else "read-only"
        raise ConfigurationError(
            f"the toolkit's folder is on a file system that is mounted {how}", path=folder, hint=_ELSEWHERE
        )
    # the receipt stands beside it
    for place in (folder, posixpath.dirname(folder)):
        _refuse(access.obstacle(node.root, f"{node.files.canonical(place)}/."), _ELSEWHERE)


def engine_files(node: Node, engines: Sequence[EngineWork]) -> None:
    """Raise ConfigurationError for an engine's file that is to be changed and cannot be replaced."""
    for work in engines:
        for goal in work.goals.files:
            if goal.target != work.survey.file(goal.role).content:
                _refuse(
                    access.obstacle(node.root, goal.path),
                    "--no-runtime-config installs the toolkit and leaves the engine to you",
                )


def specifications(node: Node, works: Sequence[SpecificationWork]) -> None:
    """Raise ConfigurationError for a CDI specification that is to be changed and cannot be replaced."""
    for work in works:
        if work.changes:
            _refuse(access.obstacle(node.root, work.path), "--cdi-output-dir chooses another folder")


def _refuse(obstacle: NodeError | None, way_out: str) -> None:
    if obstacle is not None:
        hints = [obstacle.hint] if obstacle.hint else []
        obstacle.hint = "; ".join(["nothing was changed", *hints, way_out])
        raise obstacle


def _entry(root: Root, path: str) -> bool:
    return os.path.lexists(root.outside(path))
