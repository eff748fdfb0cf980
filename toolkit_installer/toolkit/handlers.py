"""The handlers that are registered with an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from toolkit_installer.toolkit.payload import RUNTIMES

_FIXED = {"nvidia-cdi": RUNTIMES[1], "nvidia-legacy": RUNTIMES[2]}
"""The two handlers whose name is not for the user to choose, and their executables."""

_USUAL = "nvidia"
"""The first handler's name where the one that was given is one of the fixed two, which only chooses the default."""


@dataclasses.dataclass(frozen=True)
class Handler:
    """A named OCI runtime: `executable` is its path on the node."""

    name: str
    executable: str


def handlers(runtime_name: str, executables: Collection[str], toolkit_folder: str) -> tuple[Handler, ...]:
    """Return the handlers to register: `runtime_name` first, then the two fixed ones, as far as `executables` go."""
    wanted = {_USUAL if runtime_name in _FIXED else runtime_name: RUNTIMES[0], **_FIXED}
    return tuple(
        Handler(name, f"{toolkit_folder}/{executable}")
        for name, executable in wanted.items()
        if executable in executables
    )
