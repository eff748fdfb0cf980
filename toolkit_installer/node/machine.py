"""Which machine this is."""

from __future__ import annotations

import os


def architecture() -> str:
    """Return its architecture as uname(2) has it, such as "x86_64"."""
    return os.uname().machine


def name() -> str:
    """Return what it calls itself, as uname(2) has it."""
    return os.uname().nodename
