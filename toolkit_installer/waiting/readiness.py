"""Readiness of a waiting instance's node: the engines serve the handlers, and the toolkit is whole.

The ready marker is a file of the installer's own that exists while the node is ready. A second file next to it exists
from when the engines first served the handlers until the run ends. A pod's startup probe checks the second file: a
missing driver makes a node not ready, and is no reason to restart the pod.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.engines.adapters import get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState
from toolkit_installer.node import idling
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import Root
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.planning import observe
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.settings import EngineName, OnDrift, Settings
from toolkit_installer.waiting import node_watch
from toolkit_installer.waiting.plugin_protocol import PluginStatus

STARTED = ".started"
"""Suffix of the second file's name."""
_MODE = 0o644


class Marker:
    """The ready file at `path` in the installer's own mount namespace; None: no file, and every method does nothing."""

    def __init__(self, path: str | None, calls: SystemCalls) -> None:
        self.path = path
        self._files = Files(Root("/"), calls)

    def prepare(self) -> None:
        """Remove the files of an earlier run. Raises ConfigurationError if there is no folder for the file."""
        if self.path is None:
            return
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "the folder of the ready file does not exist", path=folder, hint="mount it, or choose another one"
            )
        for end in ("", STARTED):
            self._files.sweep(self._place(end))
            self._remove(end)

    def clear(self) -> None:
        """Remove the ready file, if it exists. Raises NodeError, ConfigurationError."""
        self._remove()

    def clear_before_cleanup(self) -> None:
        """Remove both files; a failure is logged, and does not stop the cleanup."""
        try:
            self._remove()
            self._remove(STARTED)
        except InstallerError as error:
            log.get().error(
                "The ready file cannot be removed", key="ready-file-stays", file=error.path, reason=error.reason
            )

    def write(self, text: str, why: str = "the engines serve the handlers") -> None:
        """Write the ready file, unless it exists, and log `why`. Raises NodeError, ConfigurationError."""
        self.start(text)
        if self._write(text):
            log.get().info("Wrote the ready file", key="ready", file=self.path, why=why)

    def start(self, text: str) -> None:
        """Write the second file: the run has done its work. Raises NodeError, ConfigurationError."""
        self._write(text, STARTED)

    def _write(self, text: str, end: str = "") -> bool:
        """Write one of the files, unless it exists; return whether it was written."""
        if self.path is None or self._files.own_status(self.path + end) is not None:
            return False
        self._files.overwrite(self._place(end), text.encode(), own_metadata(_MODE))
        return True

    def _remove(self, end: str = "") -> None:
        if self.path is not None and self._files.own_status(self.path + end) is not None:
            self._files.remove(self._place(end))

    def _place(self, end: str = "") -> str:
        assert self.path is not None  # noqa: S101  # called only with a path
        return self._files.in_folder(self.path + end)


def format_marker(receipt: Receipt, plugin: PluginStatus | None = None) -> str:
    """Return the ready file's content: a line for each engine, with its handlers, and one for the plugin's engine."""
    engines = [" ".join([each.name, *_list_handlers(receipt, each)]) for each in receipt.asked()]
    served = [f"NRI plugin of {plugin.engine}"] if plugin is not None else []
    return "".join(f"{line}\n" for line in (*engines, *served))


def _list_handlers(receipt: Receipt, engine: EngineRecord) -> tuple[str, ...]:
    """Return an engine's handlers, or the word "cdi" if its containers get the GPU by CDI alone."""
    return tuple(name for name, _ in engine.handlers) or (("cdi",) if receipt.reads_cdi(engine.name) else ())


_SOON_SECONDS = 5.0
"""The time for an engine's answer before the node is reported as not ready: reports must come within a minute."""

WatchedPaths = tuple[tuple[str, str, str], ...]
"""Events, paths in the installer's mount namespace, and their identities (idling.identity)."""


class Readiness:
    """A keeper of the ready file, which follows the node's status, and of the engines' paths to watch."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self.marker = Marker(settings.ready_file, node.calls)
        self.engine_changed = False
        """Whether an engine was started or stopped while the run was idle."""
        self.stopped = False
        """Whether the run must poll for an engine: one that is stopped but starts on a request, or hangs."""
        self.state = NodeState(ConditionReason.INSTALLING)
        """The node's status at the last inspection."""
        self.unserved: frozenset[str] = frozenset()
        """The names of the engines that did not serve the handlers then."""
        self.damaged = 0
        """The number of the toolkit's files that would not work."""
        self.driver_away = False
        self.pending: Pending | None = None
        """The reload that is not allowed yet."""
        self.plugin: PluginStatus | None = None
        """The NRI plugin's status, None if no plugin is served."""
        self._settings = settings
        self._node = node
        self._told = settings.reports is not None or settings.counts
        self._asked: WatchedPaths | None = None
        """The engines' paths to watch, identified before the engines were queried; None: they were not."""

    @property
    def due(self) -> bool:
        """Whether the status is needed: for a ready file, a report or metrics, or because an engine changed."""
        return self._settings.ready_file is not None or self._told or self.engine_changed

    def mark(self, receipt: Receipt | None, *, driver_away: bool, tell: Callable[[], None]) -> None:
        """Query the engines, set `state`, and write or remove the ready file. Raises Stopped, NodeError.

        An engine that runs and does not answer is waited for. `tell` is called before that wait, which a signal may
        end.
        """
        patience = self._settings.reload_timeout
        seen, damage = query_engines(self._node, receipt, min(_SOON_SECONDS, patience)), self._damage(receipt)
        hint = self._while_down(seen)
        _log_reasons(receipt, seen.wrong, damage, driver_away=driver_away, waits=self.pending is not None, hint=hint)
        if self.plugin is not None and not self.plugin.connected:
            log.get().warning(
                "Not ready: the NRI plugin is not connected", key="not-ready-plugin", why=self.plugin.reason
            )
        if seen.hangs and patience > _SOON_SECONDS:
            self._note(receipt, seen, damage, driver_away=driver_away)
            tell()
            before, seen = seen, query_engines(self._node, receipt, patience - _SOON_SECONDS)
            if seen.wrong not in ((), before.wrong):
                _log_reasons(receipt, seen.wrong, [], driver_away=False, waits=False, hint=self._while_down(seen))
        self._note(receipt, seen, damage, driver_away=driver_away)

    def _note(self, receipt: Receipt | None, seen: EngineAnswers, damage: list[str], *, driver_away: bool) -> None:
        """Set the node's status, and write or remove the ready file. Raises NodeError."""
        self._asked, self.stopped = seen.watched, seen.stopped or seen.hangs
        self.unserved, self.damaged, self.driver_away = seen.unserved, len(damage), driver_away
        if damage:
            from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for a damaged node

            command = refresh_command.of_self()
            damage = [f"{'; '.join(damage)} (`--on-drift repair` or `{command}` puts the toolkit's files back)"]
        if (hint := self._while_down(seen)) is not None:
            seen = msgspec.structs.replace(seen, wrong=(*seen.wrong, hint))
        self.state = _judge_state(
            receipt, seen, damage, driver_away=driver_away, pending=self.pending, plugin=self.plugin
        )
        if receipt is None and self.state.reason is ConditionReason.INSTALLING:
            from toolkit_installer.planning import installed  # noqa: PLC0415  # only for a node without a receipt

            if installed.is_toolkit_installed(self._node, self._settings.toolkit.folder):
                self.state = NodeState(ConditionReason.DRIFT, _describe_pending_work(None))
        if self._told:
            from toolkit_installer import foreign_words  # noqa: PLC0415  # only for reports

            self.state = msgspec.structs.replace(self.state, message=foreign_words.mask_own_text(self.state.message))
        if receipt is not None and _is_installed(receipt) and driver_away and not (seen.wrong or damage):
            self.marker.start(format_marker(receipt, self.plugin))
        if self.pending is not None:  # nothing more is allowed now, and a new pod could do no more
            self.marker.start(f"{self.pending.words}\n")
        if receipt is None or not self.state.ready:
            self.marker.clear()
            return
        if self.engine_changed:
            publish(EventKind.ENGINE_STARTED, "An engine was started: it serves the handlers")
        self.marker.write(format_marker(receipt, self.plugin))

    def _while_down(self, seen: EngineAnswers) -> str | None:
        """Return how to get the status while an engine is down; None if none is, or outside a container."""
        if not seen.silent:
            return None
        from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for an engine that is down

        command = refresh_command.status_without_engine()
        return f"on the node, `{command}` works without the engine" if command is not None else None

    def _damage(self, receipt: Receipt | None) -> list[str]:
        """Return descriptions of the toolkit's files that would not work; [] if drift is ignored."""
        if self._settings.on_drift is OnDrift.IGNORE:
            return []
        damage = node_watch.find_damage(self._settings, self._node, receipt)
        return [f"{each.name}: {each.what}" for each in damage if each.certain]

    def watched(self, receipt: Receipt | None, processes: Mapping[EngineName, Process | None]) -> WatchedPaths:
        """Return the engines' paths to watch: from the last query, else by the `processes` that converging found."""
        if self._asked is not None or receipt is None:
            return self._asked or ()
        seen = [each for engine in receipt.asked() for each in _watch_process(processes.get(engine.name))]
        alive = [each for each in seen if each[2]]  # the run itself restarted the others
        return (*alive, *(_watch_socket(self._node, engine) for engine in receipt.asked()))


_NO_RECEIPT = "there is no receipt of what is installed: `{}` rebuilds it"
_UNFINISHED = "a change of the node was not finished: `{}` finishes it"


def _is_installed(receipt: Receipt | None) -> bool:
    return receipt is not None and receipt.state is State.INSTALLED


def _describe_pending_work(receipt: Receipt | None) -> str:
    """Return the message that names the pending work on a node and the command that does it."""
    from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for an interrupted run

    return (_NO_RECEIPT if receipt is None else _UNFINISHED).format(refresh_command.of_self())


def _log_reasons(
    receipt: Receipt | None,
    wrong: Sequence[str],
    damage: Sequence[str],
    *,
    driver_away: bool,
    waits: bool,
    hint: str | None,
) -> None:
    """Log the reasons why the node is not ready."""
    if wrong or not (_is_installed(receipt) or driver_away or waits):
        owed = [] if _is_installed(receipt) else [_describe_pending_work(receipt)]
        publish(
            EventKind.ENGINE_NOT_SERVING,
            "Not ready: the engines do not serve the handlers",
            level="warning",
            why="; ".join([*wrong, *owed]),
            hint=hint,
        )
    if damage:
        log.get().warning("Not ready: the toolkit is damaged", key="not-ready-toolkit", why="; ".join(damage))
    if driver_away:
        log.get().warning("Not ready: no driver is usable", key="not-ready-driver")


def _judge_state(
    receipt: Receipt | None,
    seen: EngineAnswers,
    damage: Sequence[str],
    *,
    driver_away: bool,
    pending: Pending | None,
    plugin: PluginStatus | None,
) -> NodeState:
    """Return the node's status; of several faults, the one that causes the others. Pure."""
    if driver_away:
        return NodeState(
            ConditionReason.DRIVER_NOT_READY, "No driver is usable: `kubectl logs` of the pod says what is missing"
        )
    if pending is not None and not seen.silent and not (pending.served and _is_installed(receipt)):
        return NodeState(ConditionReason.RELOAD_PENDING, pending.words)
    if receipt is None or not _is_installed(receipt):
        return NodeState(ConditionReason.INSTALLING, "The toolkit is not installed yet")
    if seen.wrong:
        reason = ConditionReason.ENGINE_DOWN if seen.silent else ConditionReason.DRIFT
        return NodeState(reason, "; ".join(seen.wrong))
    if (amiss := _find_other_fault(damage, plugin)) is not None:
        return amiss
    served = "; ".join(format_marker(receipt, plugin).splitlines())
    served = served or "The toolkit is installed, and no engine is configured for it"
    return NodeState(ConditionReason.SERVING, served if pending is None else f"{served}; {pending.words}")


def _find_other_fault(damage: Sequence[str], plugin: PluginStatus | None) -> NodeState | None:
    """Return the status for a fault outside the engines, None if there is none. Pure."""
    if plugin is not None and not plugin.connected:
        return NodeState(ConditionReason.PLUGIN_DOWN, f"The NRI plugin is not connected: {plugin.reason}")
    if damage:
        return NodeState(ConditionReason.DRIFT, "; ".join(damage))
    return None


class EngineAnswers(msgspec.Struct, frozen=True):
    """The engines' answers: their faults (`wrong`), the paths to watch, and whether an engine is not running at all."""

    wrong: tuple[str, ...] = ()
    watched: WatchedPaths = ()
    stopped: bool = False
    unserved: frozenset[str] = frozenset()
    """The names of the engines with faults."""
    silent: bool = False
    """Whether an engine does not answer."""
    hangs: bool = False
    """Whether a silent engine runs, or accepted the request."""


def query_engines(node: Node, receipt: Receipt | None, seconds: float) -> EngineAnswers:
    """Query the engines' handlers; an engine that is starting gets `seconds`. Raises Stopped on a pending signal.

    A stopped engine that systemd would start on a request is not queried.
    """
    wrong: list[str] = []
    unserved: set[str] = set()
    watched: list[tuple[str, str, str]] = []
    stopped = silent = hangs = False
    for engine in receipt.asked() if receipt is not None else ():
        # identified before the query: a restart from here on is seen
        watched.append(_watch_socket(node, engine))
        if serving.is_socket_activated(node, engine.name, engine.socket):
            wrong.append(_describe_silence(node, engine, "it is not running"))
            unserved.add(str(engine.name))
            stopped = silent = True
            continue
        live, heard = serving.query_engine(get_adapter(engine.name), node, engine.socket, seconds)
        if live is None:
            process, silent = serving.find_process(node, engine.name, engine.socket), True
            hangs |= process is not None or heard.endswith(serving.SILENCE)
            missing = [_describe_silence(node, engine, heard)]
        else:
            process = live.process
            missing = [f"{engine.name}: {each}" for each in observe.find_unserved(node, receipt, engine, live)]
            watched += _watch_answers(node, engine) if process is not None else []
        unserved |= {str(engine.name)} if missing else set()
        wrong += missing
        watched += _watch_process(process)
    return EngineAnswers(tuple(wrong), tuple(watched), stopped, frozenset(unserved), silent, hangs)


def _describe_silence(node: Node, engine: EngineRecord, heard: str) -> str:
    """Return the message that an engine does not answer, with its socket, and where to look."""
    unit = serving.find_unit(node, engine.name, engine.socket)
    place = f"`systemctl status {unit}`" if unit is not None else "what starts it"
    return f"{engine.name}: {heard} ({engine.socket}; look at {place})"


def _watch_socket(node: Node, engine: EngineRecord) -> tuple[str, str, str]:
    """Return the watch of an engine's socket. Raises NodeError."""
    socket = node.root.outside(node.files.canonical(engine.socket))
    return idling.ENGINE, socket, idling.identity(socket)


def _watch_answers(node: Node, engine: EngineRecord) -> list[tuple[str, str, str]]:
    """Return the watch of a running engine's answers; [] for an engine that does not speak HTTP."""
    socket = f"{node.root.outside(node.files.canonical(engine.socket))}{idling.PROBE_SUFFIX}"
    answers = idling.identity(socket) == idling.ANSWERS
    return [(idling.SILENT, socket, idling.ANSWERS)] if answers else []


def _watch_process(process: Process | None) -> list[tuple[str, str, str]]:
    """Return the watch of an engine's process, by its folder in /proc; [] without a process.

    If the process is gone already, the identity is empty, which no file ever has.
    """
    if process is None:
        return []
    place = f"/proc/{process.pid}"
    return [(idling.ENGINE, place, idling.identity(place) if os.path.exists(place) else "")]
