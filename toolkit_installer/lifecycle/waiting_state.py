"""What the installer remembers while it waits as the idle process, in a memory file that the process holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

import msgspec

from toolkit_installer import log
from toolkit_installer.kubernetes.standing import Standing
from toolkit_installer.lifecycle import idling
from toolkit_installer.lifecycle.reload_when import pending
from toolkit_installer.node import descriptors

VERSION = 5
"""Of what is remembered. The packages before wrote none: what they remembered is told by its keys (`understood`).

What the locks are has stayed the same since the first: `pid_fd`, `pid_path`, `pid_folders`, `lock_fd`, in the first
field of the state. It must stay so, whatever else a state says: the package that reads it may be newer, or older."""
STATE = "toolkit-installer-state"
SEEN_AS = f"/memfd:{STATE} (deleted)"
"""As the kernel names the open state (memfd_create(2), NOTES)."""


class Remembered(msgspec.Struct, frozen=True):
    """What the installer has to know again once it is woken."""

    answered: tuple[str, ...] = ()
    """What the Kubernetes API server has answered for: what the packages before version 5 went by."""
    driver: tuple[tuple[str, str], ...] = ()
    """Paths that change with the driver, with their identities (idling.identity) from before the last look."""
    driver_away: bool = False
    """Whether no driver was usable then."""
    tries: int = 0
    """How often in a row the installer was woken to find out what is not known yet."""
    without_gpu: bool = False
    """Whether the node shows no GPU, so that nothing is installed and nothing is to be."""
    command: tuple[str, ...] = ()
    """What the program was started with at first; empty: what it was started with now."""
    standing: Standing = Standing()
    """What is known of the DaemonSet, and of what this run may change and has installed."""
    engine_stopped: bool = False
    """Whether an engine was not running then."""
    looked_at: float = 0.0
    """When the node was last brought to where it should be, or that was tried: seconds since 1970, 0 for not yet."""
    failure: str = ""
    """Why that failed; empty: it did not."""
    said: tuple[str, ...] = ()
    """What the log said then (`log.said`): looking again after a while says only what is new."""
    differences: tuple[tuple[str, str], ...] = ()
    """Files that somebody changed, and what a run would change in each then: a diff in which secrets are masked."""
    telling: Mapping[str, Any] = {}
    """What was told of the node, and what is still to be (`telling.Telling`)."""
    pending: Mapping[str, Any] = {}
    """The reload that was not allowed then (`reload_when.pending`)."""
    driver_seen: str = ""
    """What was seen so far of a driver in a root that was named (`driver_watch.Seen`)."""
    plugin: Mapping[str, Any] = {}
    """How the NRI plugin stood then, and its process (`plugin.watch`)."""
    look: Mapping[str, Any] = {}
    """What the last look came to (`look_outcome`)."""
    known: bool = True
    """Whether all of the state was understood; if not, the installer inspects the node anew."""


def of_instance(pid: int) -> Remembered | None:
    """Return what the instance remembers that waits as the process `pid`; None where it is at work, or gone."""
    content = descriptors.content(pid, SEEN_AS, idling.LIMIT)
    return understood(memory(content)) if content else None  # empty: it is being written


def memory(content: bytes) -> dict[str, Any]:
    """Return the state's first field, {} where it is no JSON object."""
    try:
        memory = json.loads(content.split(b"\0")[0])
    except (ValueError, RecursionError):
        memory = None
    if isinstance(memory, dict):
        return memory
    log.get().warning(
        "What the idle process was to remember cannot be read: looking at everything again", key="state-unreadable"
    )
    return {}


def understood(memory: dict[str, Any]) -> Remembered:
    """Return what is understood of the remembered values.

    The first packages remembered nothing, the next ones what the API server had answered, as `answered`.
    """
    said = memory.get("remembered", {"answered": memory.get("answered", [])})
    version = memory.get("version", VERSION)
    if type(version) is not int or version > VERSION or not isinstance(said, dict):
        return Remembered(known=False)
    answered, driver, command = said.get("answered"), said.get("driver"), said.get("command", [])
    away, tries = said.get("driver_away"), said.get("tries")
    standing = _standing(said.get("standing"))
    looked_at, failure, lines = said.get("looked_at"), said.get("failure"), said.get("said")
    telling, seen, plugin = said.get("telling"), said.get("driver_seen"), said.get("plugin")
    look = said.get("look")
    pairs, differences = _pairs(driver), _pairs(said.get("differences"))
    return Remembered(
        answered=tuple(answered) if _is_texts(answered) else (),
        driver=pairs or (),
        driver_away=away is True,
        tries=tries if type(tries) is int and tries > 0 else 0,
        without_gpu=said.get("without_gpu") is True,  # the packages before know nothing of it
        command=tuple(command) if _is_texts(command) else (),
        standing=standing or Standing(),
        engine_stopped=said.get("engine_stopped") is True,
        looked_at=looked_at if type(looked_at) is float else 0.0,  # nor of these
        failure=failure if isinstance(failure, str) else "",
        said=tuple(lines) if _is_texts(lines) else (),
        differences=differences or (),
        telling=telling if isinstance(telling, dict) else {},
        pending=pending.plain(pending.understood(said.get("pending"))),
        driver_seen=seen if isinstance(seen, str) else "",
        plugin=plugin if isinstance(plugin, dict) else {},
        look=look if isinstance(look, dict) else {},
        known=_is_texts(answered)
        and pairs is not None
        and type(away) is bool
        and type(tries) is int
        and standing is not None,
    )


def _standing(said: Any) -> Standing | None:
    """Return the run's `Standing`, None where the state's is not understood.

    The packages before version 5 say nothing of it. To them nothing was held back; who installed the toolkit is not
    known, so it was somebody else; and the API server is asked once more.
    """
    if said is None:
        return Standing()
    if not isinstance(said, dict):
        return None
    flags = {name: said.get(name) for name in ("bare", "held", "wanted", "namespace")}
    accepted = said.get("accepted")
    if any(type(flag) is not bool for flag in flags.values()) or not _is_texts(accepted):
        return None
    return Standing(accepted=tuple(accepted), **{name: flag is True for name, flag in flags.items()})


def _pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Return pairs of texts, None for what is something else."""
    if not isinstance(value, list) or not all(_is_texts(each, 2) for each in value):
        return None
    return tuple((one, other) for one, other in value)


def _is_texts(value: Any, count: int | None = None) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and all(isinstance(text, str) and "\0" not in text for text in value)
        and count in (None, len(value))
    )
