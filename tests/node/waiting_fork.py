"""Plays the idle process of another package that was woken: `waiting_fork.py ROOT CONTENT EVENTS PROGRAM ARGUMENT…`.

It holds the locks of an installation below ROOT, and becomes the program. In CONTENT, the state, PID_FD and LOCK_FD
stand for its descriptors, and line ends for NULs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fake_node import PID_FILE, STORE
from toolkit_installer.node import idling, locks, signals
from toolkit_installer.node.node import Node


def main() -> None:
    root, content, events, *program = sys.argv[1:]
    signals.block()
    files = Node.open(root, "/host").files
    held = {"PID_FD": locks.PidFile.acquire(files, PID_FILE).fd, "LOCK_FD": locks.lock_folder(files, STORE)}
    for name, fd in held.items():
        os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
        content = content.replace(name, str(fd))
    state = os.memfd_create("toolkit-installer-state", 0)
    os.write(state, content.replace("\n", "\0").encode())
    os.environ[idling.RESUME] = f"{state}:{events}"
    os.execv(program[0], program)  # noqa: S606  # no shell


if __name__ == "__main__":
    main()
