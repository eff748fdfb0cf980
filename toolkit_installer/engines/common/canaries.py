"""What the canaries of all engines have in common: how one asks for GPUs, and whether it has got any."""

from __future__ import annotations

from toolkit_installer.node import processes
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError

NAME = "toolkit-installer-canary"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
"""What a container's environment asks NVIDIA's runtime for GPUs by."""


def asking(*, shows_gpus: bool) -> str:
    """Return the variable's value for a container that is to see all GPUs, or none. Pure."""
    return "all" if shows_gpus else "void"


def without_gpus(pid: int) -> str:
    """Return in words that the container of a process shows no GPU.

    Empty where it shows one, and where it cannot be seen: this may not be among the node's processes.
    """
    process = processes.inspect_process(pid)
    if process is None:
        return ""
    try:
        shown = Reader(processes.root_of(process)).list("/dev")
    except NodeError:
        return ""
    if any(name.startswith("nvidia") for name in shown):
        return ""
    return f"a container that asks for all GPUs ({VARIABLE}=all) has no device of NVIDIA's in its /dev"
