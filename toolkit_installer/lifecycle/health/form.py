"""What `status` says, field by field: the form of `status --json`, of which docs/status.schema.json is made."""

from __future__ import annotations

import enum

import msgspec

from toolkit_installer.lifecycle.files.intact import Damage
from toolkit_installer.lifecycle.last_run import LastRun

SCHEMA = 1
"""Raised when a field goes or means something else; fields that come raise nothing."""


class Verdict(enum.StrEnum):
    """How a node stands, the better first."""

    OK = "OK"
    """All is as it should be."""
    DEGRADED = "DEGRADED"
    """Containers with a GPU can be started, or none are wanted yet, and something needs to be looked at."""
    BROKEN = "BROKEN"
    """Containers with a GPU cannot be started, or the node was left half-way."""


class Reason(msgspec.Struct, frozen=True):
    """Why the verdict is no better: what is wrong, and what to do about it."""

    verdict: Verdict
    what: str
    remedy: str


class Places(msgspec.Struct, frozen=True):
    """Where was looked: the node's root as the installer sees it, and paths on the node."""

    node_root: str
    receipt: str
    pid_file: str


class LastLook(msgspec.Struct, frozen=True):
    """The last time that the waiting instance brought the node to where it should be, or tried to."""

    at: str
    """RFC 3339, UTC."""
    failure: str | None
    """Why that failed, None if it did not."""


class PendingReload(msgspec.Struct, frozen=True):
    """A reload that the waiting instance may not make yet (`--reload-when`)."""

    engines: tuple[str, ...]
    reason: str
    since: str
    """When the instance began to wait: RFC 3339, UTC."""
    opens: str | None
    """When the next window opens, None where no window is waited for: RFC 3339, UTC."""


class DriverHealth(msgspec.Struct, frozen=True):
    """The driver: its root on the node and its version, or in `wrong`, root by root, why none is usable."""

    usable: bool
    root: str | None
    version: str | None
    wrong: tuple[str, ...]
    meant_for: str | None
    """The root in the installed toolkit's config.toml: containers get the driver from there."""


class ToolkitHealth(msgspec.Struct, frozen=True):
    """The installed toolkit: its folder, how many files it has, and which of them are missing or damaged."""

    folder: str
    files: int
    missing: tuple[str, ...]
    damaged: tuple[Damage, ...]
    version: str | None
    """Which release of NVIDIA's toolkit it is; None where it does not say."""


class FileHealth(msgspec.Struct, frozen=True):
    """A managed file. `state` is in words; "as written" is the good one."""

    path: str
    state: str
    difference: str | None = None
    """What a run would change in it, as the waiting instance saw it: a unified diff in which secrets are masked.

    None where nothing was changed, or nobody waits who could tell.
    """


class LiveHealth(msgspec.Struct, frozen=True):
    """What the running engine answered. `served` is None where it did not."""

    answers: bool
    served: bool | None
    detail: tuple[str, ...] = ()
    """What is wrong, in words."""
    default: str | None = None
    """Its default runtime, None where it does not tell."""
    version: str | None = None
    own: tuple[str, ...] = ()
    """Handlers that a distribution registered by itself."""
    pid: int | None = None
    since: str | None = None
    """When the process that answered was started: RFC 3339, UTC."""
    reads: str | None = None
    """What it reads where it does not serve the handlers, and reads none of the files that have them."""


class MethodHealth(msgspec.Struct, frozen=True):
    """How containers get the GPU here, and whether one that asked for it now would get it."""

    name: str
    """handlers or cdi."""
    why: str
    asked_by: str
    """What a container has to say to be given the GPU, in words."""
    met: bool
    against: tuple[str, ...] = ()
    """Why it would not be given it, in words."""
    not_by: dict[str, str] = {}
    """Handlers that are served, and by which no container is given the GPU; and why."""
    no_runtime: str | None = None
    """That NVIDIA's runtime finds no low-level runtime, in words; None where it does."""


class FileFault(msgspec.Struct, frozen=True):
    """What is wrong with an engine's files taken together, with file and line, and what to do about it."""

    what: str
    remedy: str


class EngineHealth(msgspec.Struct, frozen=True):
    """An engine that was configured: its handlers with their executables, its files, and what it answers."""

    name: str
    socket: str
    handlers: dict[str, str]
    default: str | None
    files: tuple[FileHealth, ...]
    live: LiveHealth
    faults: tuple[FileFault, ...] = ()


class PluginHealth(msgspec.Struct, frozen=True):
    """The NRI plugin that the waiting instance serves."""

    connected: bool
    """Whether the engine asks it about each container."""
    engine: str | None
    """What the engine calls itself, with its version, None where it has not said it."""
    reason: str | None
    """Why it does not ask, None where it does."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on the node. Pure values: `verdict` makes a verdict of them."""

    version: str
    """Of this program."""
    looked_in: Places
    installed: bool
    state: str
    """Of the receipt: installed, applying, reverting, or absent."""
    changed: str | None
    """When the receipt was last written: RFC 3339, UTC."""
    running_pid: int | None
    killed_pid: int | None
    """The PID in a PID file that nobody holds any more: its instance was killed."""
    other_installer: str | None = None
    """Another installer that is at work on this node, with its PID; None where none is."""
    last_look: LastLook | None
    pending_reload: PendingReload | None
    last_run: LastRun | None
    """A run, or an uninstall, that failed and is over; None where none did since this boot, or one succeeded since."""
    gpus: tuple[str, ...]
    has_gpu: bool | None
    """None where that cannot be told."""
    driver: DriverHealth | None
    """None where none is to be expected: the node shows no GPU, or does not tell, and has nothing of a driver."""
    toolkit: ToolkitHealth | None
    engines: tuple[EngineHealth, ...]
    specifications: tuple[FileHealth, ...]
    method: MethodHealth | None = None
    """None where nothing is installed, or no engine was configured or found to read CDI specifications."""
    plugin: PluginHealth | None = None
    """None where none is served, or nobody waits who could tell."""


class Health(Found, frozen=True, kw_only=True):
    """The whole answer: what was found, and what that means."""

    schema: int = SCHEMA
    verdict: Verdict
    reasons: tuple[Reason, ...]
