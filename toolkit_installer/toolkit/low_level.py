"""The low-level runtimes: what runs a container in the end, and what stands in for the NVIDIA runtime in need."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from toolkit_installer.errors import UsageError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import RUNTIMES

BUILT_IN: Final = "runc"
"""What docker and containerd run where their files say nothing."""
DEFAULTS: Final = (BUILT_IN, "crun")


def choose(settings: ToolkitSettings, engines: Sequence[str], toolkit_folder: str) -> tuple[str, ...]:
    """Return the low-level runtimes to use, best first: the user's own list, or the engine's and then the usual ones.

    An engine's runtime that is the NVIDIA runtime itself, left by an older installation, is passed over: it would run
    itself for ever. Raises UsageError where the user asks for that, or for what is neither path nor name.
    """
    for runtime in settings.low_level_runtimes:
        if not is_usable(runtime):
            raise UsageError(
                f"--nvidia-container-runtime.runtimes {runtime!r} is no runtime",
                hint="give an absolute path, or a name that is found in PATH",
            )
        if is_nvidia(runtime, toolkit_folder):
            raise UsageError(
                f"--nvidia-container-runtime.runtimes {runtime!r} is the NVIDIA runtime, which would run itself",
                hint="name a low-level runtime, such as runc or crun",
            )
    found = (runtime for runtime in engines if is_usable(runtime) and not is_nvidia(runtime, toolkit_folder))
    return tuple(dict.fromkeys(settings.low_level_runtimes or (*found, *DEFAULTS)))


def is_usable(runtime: str) -> bool:
    """Tell whether `runtime` is an absolute path, or a name that can be looked for in PATH."""
    return bool(runtime) and runtime.isprintable() and ("/" not in runtime or posixpath.isabs(runtime))


def is_nvidia(runtime: str, toolkit_folder: str) -> bool:
    """Tell whether a runtime is one of ours, in this folder or in another one, with or without its wrapper."""
    if posixpath.basename(runtime).removesuffix(".real") in RUNTIMES:
        return True
    return posixpath.dirname(posixpath.normpath(runtime)) == posixpath.normpath(toolkit_folder)
