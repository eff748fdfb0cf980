"""What a run must know again after it waited as the idle process: one value, saved in a memory file as JSON.

The idle process holds the memory file open. Another release of the program may read it: it ignores unknown
fields and gives missing ones their defaults. A state of another form, or with a value of a wrong type, counts as
unknown: then the run inspects the node anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.kubernetes.node_state import SavedReports
from toolkit_installer.kubernetes.verdicts import CleanupState
from toolkit_installer.reporting.metrics_text import Counts
from toolkit_installer.reporting.outcome import InspectionOutcome
from toolkit_installer.waiting import wait
from toolkit_installer.waiting.node_watch import DriverHistory
from toolkit_installer.waiting.plugin_protocol import PluginState


class SavedState(msgspec.Struct, frozen=True):
    """The state of a run while it waits."""

    driver: tuple[tuple[str, str], ...] = ()
    """Paths that change with the driver, with their identities (idling.identity) before the last inspection."""
    driver_missing: bool = False
    """No driver was usable."""
    driver_history: DriverHistory = DriverHistory.UNKNOWN
    """What was seen so far of a driver in a root that was named."""
    tries: int = 0
    """How often in a row the run was woken to find out what is still unknown."""
    without_gpu: bool = False
    """The node shows no GPU: nothing is installed, and nothing is to be."""
    command: tuple[str, ...] = ()
    """The words that the program was first started with; empty: those that it was started with now."""
    cleanup_state: CleanupState = CleanupState()
    """What is known of the DaemonSet, and what this run may change and has installed."""
    engine_stopped: bool = False
    """An engine was not running."""
    converged_at: float = 0.0
    """When the run last converged, or tried to: seconds since 1970, 0 for never."""
    failure: str = ""
    """Why that failed; empty: it did not."""
    line_digests: tuple[str, ...] = ()
    """What was logged then (`log.get_line_digests`): a later inspection logs only what is new."""
    fault_digests: tuple[str, ...] = ()
    """The faults that were found then (`events.get_fault_digests`): a later poll reports only new ones."""
    differences: tuple[tuple[str, str], ...] = ()
    """Files that another program changed, and a masked diff of what a run would change in each."""
    report: SavedReports | None = None
    """What the cluster was told, and what is still to be."""
    counts: Counts | None = None
    """What the metrics count."""
    metrics_process: tuple[int, int] | None = None
    """PID of the metrics server, and the descriptor of the channel to it."""
    plugin: PluginState | None = None
    """The NRI plugin's process and status, None where it is not served."""
    pending: Pending | None = None
    """The reload that was not allowed yet."""
    inspection: InspectionOutcome | None = None
    """How the last inspection ended."""
    parsed: bool = True
    """The whole state was understood. If not, the run inspects the node anew."""


FORM = 1
"""The form of a saved state. It changes whenever an older release would misunderstand a newer state."""


def parse(saved: Any) -> SavedState:
    """Return the state in values that JSON has. A state that is not understood is `SavedState(parsed=False)`. Pure."""
    if not isinstance(saved, dict) or saved.get("form") != FORM:
        return SavedState(parsed=False)
    try:
        state = msgspec.convert(saved, SavedState)
    except (msgspec.ValidationError, ValueError):  # ValueError: a key is not valid Unicode
        return SavedState(parsed=False)
    return state if _is_command(state.command) else SavedState(parsed=False)


def plain(state: SavedState) -> dict[str, Any]:
    """Return the state as values that JSON has. Pure."""
    return {"form": FORM, **msgspec.to_builtins(state)}


def of_run(pid: int) -> SavedState | None:
    """Return the state of the run that waits as the process `pid`; None where that run is at work, or gone.

    Of a state that is not understood, such as another release's, only the command is known.
    """
    saved = wait.read_saved(pid)
    if saved is None:
        return None
    state, command = parse(saved.get("state")), saved.get("command")
    if not state.parsed and isinstance(command, list) and _is_command(command):
        return SavedState(command=tuple(command), parsed=False)
    return state


def _is_command(words: Sequence[Any]) -> bool:
    """Return whether these can be the words of a command line."""
    return all(isinstance(word, str) and "\0" not in word for word in words)
