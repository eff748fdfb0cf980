"""What `status` says, field by field: the form of `status --json`, of which docs/status.schema.json is made."""

from __future__ import annotations

import enum

import msgspec

from toolkit_installer.planning.toolkit_state import Damage
from toolkit_installer.reporting.outcome import LastRun

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
    exit_code: int | None = None
    """The exit code of that failure, None where there is none, or the run's release does not say."""
    file: str | None = None
    """The file that the failure names."""


class PendingReload(msgspec.Struct, frozen=True):
    """A reload that the waiting instance may not make yet (`--reload-when`)."""

    engines: tuple[str, ...]
    reason: str
    since: str
    """When the instance began to wait: RFC 3339, UTC."""
    opens: str | None
    """When the next window opens, None where no window is waited for: RFC 3339, UTC."""


class ProcessState(enum.StrEnum):
    """Why a process that runs does nothing."""

    STOPPED = "stopped"
    """By a signal (SIGSTOP), or by a debugger."""
    IN_KERNEL = "in the kernel"
    """It waits for the kernel, which may hang (state D of proc_pid_stat(5))."""
    SILENT = "silent"
    """It took the question, and did not answer in time."""


class DriverHealth(msgspec.Struct, frozen=True):
    """The driver: its root on the node and its version, or in `wrong`, root by root, why none is usable."""

    usable: bool
    root: str | None
    version: str | None
    wrong: tuple[str, ...]
    meant_for: str | None
    """The root in the installed toolkit's config.toml: containers get the driver from there."""
    hangs: bool = False
    """nvidia-smi did not end in time: the driver, or a GPU, hangs."""
    absent: bool = False
    """No root has as much as nvidia-smi."""


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
    lost: tuple[str, ...] = ()
    """What of ours is no longer in the file, or says something else, in words."""


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
    """What is wrong with an engine's files, or with what it runs containers with, and what to do about it."""

    what: str
    """With file and line, where it is in a file."""
    remedy: str
    stops: bool = False
    """The engine does not start with it, or starts no container."""
    path: str | None = None
    """The file that it is about."""


class SilentEngine(msgspec.Struct, frozen=True):
    """Why an engine does not answer."""

    pid: int | None
    """Its process, None where none runs."""
    process: ProcessState | None
    unit: str | None
    """The systemd unit that runs it, None where none is known."""
    unit_state: str | None
    """masked, failed, inactive, activating, active or what else systemd says; None where it says nothing."""
    result: str | None
    """How the unit's last start ended, where that was a failure, such as exit-code."""
    log: tuple[str, ...] = ()
    """The last lines of its own log that tell of trouble."""


class EngineHealth(msgspec.Struct, frozen=True):
    """An engine that was configured: its handlers with their executables, its files, and what it answers."""

    name: str
    socket: str
    handlers: dict[str, str]
    default: str | None
    files: tuple[FileHealth, ...]
    live: LiveHealth
    faults: tuple[FileFault, ...] = ()
    silent: SilentEngine | None = None
    """None where it answers."""


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
    running_state: ProcessState | None = None
    """Whether the running instance is stopped; None: it is not."""
    receipt_gone: bool = False
    """An instance runs and the toolkit is installed, and the receipt of it is gone."""
    killed_pid: int | None
    """The PID in a PID file that nobody holds any more: its instance was killed."""
    other_installer: str | None = None
    """Another installer that is at work on this node, with its PID; None where none is."""
    refresh: str | None = None
    """The command that makes the running instance look at the node again; None where none runs."""
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
