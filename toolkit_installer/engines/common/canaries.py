"""Shared parts of all engines' canaries: requesting GPUs, and checking whether the container got any."""

from __future__ import annotations

from toolkit_installer.node import processes
from toolkit_installer.node.reading import Reader
from toolkit_installer.node.root import NodeError

NAME = "toolkit-installer-canary"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
"""The environment variable by which a container requests GPUs from NVIDIA's runtime."""


def choose_visible_devices(*, shows_gpus: bool) -> str:
    """Return the variable's value for a container that should see all GPUs, or none. Pure."""
    return "all" if shows_gpus else "void"


def describe_missing_gpus(pid: int) -> str:
    """Return in words that a process's container shows no GPU.

    Empty if it shows one, or if the process is not visible: we may lack access to the node's processes.
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
