"""Readiness of a waiting instance's node: the engines serve the handlers, and the toolkit is whole.

The ready file is a file of the installer's own that exists while the node is ready. A second file next to it exists
from when the engines first served the handlers until the run ends. A pod's startup probe checks the second file: a
missing driver makes a node not ready, and is no reason to restart the pod.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.engines.api import get_adapter
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
from toolkit_installer.settings import EngineName, ToolkitSettings
from toolkit_installer.waiting import node_watch
from toolkit_installer.waiting.plugin_protocol import PluginStatus

STARTED = ".started"
"""Suffix of the second file's name."""
_MODE = 0o644


class ReadyFile:
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


def format_ready_file(receipt: Receipt, plugin: PluginStatus | None = None) -> str:
    """Return the ready file's content: a line for each engine, with its handlers, and one for the plugin's engine."""
    engines = [" ".join([each.name, *_list_handlers(receipt, each)]) for each in receipt.served_engines()]
    served = [f"NRI plugin of {plugin.engine}"] if plugin is not None else []
    return "".join(f"{line}\n" for line in (*engines, *served))


def _list_handlers(receipt: Receipt, engine: EngineRecord) -> tuple[str, ...]:
    """Return an engine's handlers, or the word "cdi" if its containers get the GPU by CDI alone."""
    return tuple(name for name, _ in engine.handlers) or (("cdi",) if receipt.reads_cdi(engine.name) else ())


_SOON_SECONDS = 5.0
"""The time for an engine's answer before the node is reported as not ready: reports must come within a minute."""

WatchedPaths = tuple[tuple[str, str, str], ...]
"""Events, paths in the installer's mount namespace, and their identities (idling.identity)."""


class Readiness(msgspec.Struct, frozen=True):
    """The node's status at the last inspection of its engines, for the ready file, the reports and the metrics."""

    state: NodeState = NodeState(ConditionReason.INSTALLING)
    unserved: frozenset[str] = frozenset()
    """The names of the engines that did not serve the handlers."""
    damaged: int = 0
    """The number of the toolkit's files that would not work."""
    driver_missing: bool = False
    pending: Pending | None = None
    """The reload that is not allowed yet."""
    plugin: PluginStatus | None = None
    """The NRI plugin's status, None if no plugin is served."""


class ReadinessWatch:
    """A watch of the engines and the toolkit: keeps `current` and the ready file up to date."""

    def __init__(
        self,
        node: Node,
        toolkit: ToolkitSettings,
        ready_file: str | None,
        patience: float,
        *,
        checks_toolkit: bool,
        reports: bool,
    ) -> None:
        """`patience`: the seconds that an engine which runs gets to answer.

        `checks_toolkit`: damaged files of the toolkit make the node not ready. `reports`: the status leaves the node.
        """
        self.ready_file = ReadyFile(ready_file, node.calls)
        self.current = Readiness()
        self.must_poll = False
        """Whether the run must poll for an engine: one that is stopped but starts on a request, or hangs."""
        self._engine_changed = False
        """Whether an engine was started or stopped while the run was idle."""
        self._node = node
        self._toolkit = toolkit
        self._patience = patience
        self._checks_toolkit = checks_toolkit
        self._reports = reports
        self._queried_paths: WatchedPaths | None = None
        """The engines' paths to watch, identified before the engines were queried; None: they were not."""

    @property
    def is_needed(self) -> bool:
        """Whether the status is needed: for a ready file, a report or metrics, or because an engine changed."""
        return self.ready_file.path is not None or self._reports or self._engine_changed

    def restore(self, *, polled: bool, engine_changed: bool) -> None:
        """Restore what the process before the idle one saved, and what woke it."""
        self.must_poll, self._engine_changed = polled, polled or engine_changed

    def set_plugin(self, plugin: PluginStatus | None) -> None:
        """Set the NRI plugin's status, for the next update."""
        self.current = msgspec.structs.replace(self.current, plugin=plugin)

    def update_without_gpu(self) -> None:
        """Set the status of a node without a GPU, and write the ready file. Raises NodeError, ConfigurationError."""
        self.ready_file.write(node_watch.NO_GPU_TEXT, "nothing is to be done on this node")
        state = NodeState(ConditionReason.NO_GPU, "The node shows no NVIDIA GPU: nothing is installed")
        self.current = msgspec.structs.replace(self.current, state=state, pending=None)

    def update(
        self, receipt: Receipt | None, *, driver_missing: bool, pending: Pending | None, report: Callable[[], None]
    ) -> None:
        """Query the engines, set `current`, and write or remove the ready file. Raises Stopped, NodeError.

        An engine that runs and does not answer is waited for. `report` is called before that wait, which a signal may
        end.
        """
        conditions = msgspec.structs.replace(self.current, driver_missing=driver_missing, pending=pending)
        plugin = conditions.plugin
        answers = query_engines(self._node, receipt, min(_SOON_SECONDS, self._patience))
        damage = self._find_damage(receipt)
        _log_reasons(receipt, answers, damage, driver_missing=driver_missing, waits=pending is not None)
        if plugin is not None and not plugin.connected:
            log.get().warning("Not ready: the NRI plugin is not connected", key="not-ready-plugin", why=plugin.reason)
        if answers.hangs and self._patience > _SOON_SECONDS:
            self._set(receipt, answers, damage, conditions)
            report()
            before, answers = answers, query_engines(self._node, receipt, self._patience - _SOON_SECONDS)
            if answers.wrong not in ((), before.wrong):
                _log_reasons(receipt, answers, [], driver_missing=False, waits=False)
        self._set(receipt, answers, damage, conditions)

    def _set(self, receipt: Receipt | None, answers: EngineAnswers, damage: list[str], conditions: Readiness) -> None:
        """Set the node's status, and write or remove the ready file. Raises NodeError."""
        self._queried_paths, self.must_poll = answers.watched, answers.stopped or answers.hangs
        state = self._judge(receipt, answers, damage, conditions)
        self.current = msgspec.structs.replace(conditions, state=state, unserved=answers.unserved, damaged=len(damage))
        text = format_ready_file(receipt, conditions.plugin) if receipt is not None else ""
        if _is_installed(receipt) and conditions.driver_missing and not (answers.wrong or damage):
            self.ready_file.start(text)
        if conditions.pending is not None:  # nothing more is allowed now, and a new pod could do no more
            self.ready_file.start(f"{conditions.pending.words}\n")
        if receipt is None or not state.ready:
            self.ready_file.clear()
            return
        if self._engine_changed:
            publish(EventKind.ENGINE_STARTED, "An engine was started: it serves the handlers")
        self.ready_file.write(text)

    def _judge(
        self, receipt: Receipt | None, answers: EngineAnswers, damage: list[str], conditions: Readiness
    ) -> NodeState:
        """Return the node's status, its message with masked secrets if it is reported. Raises NodeError."""
        if damage:
            from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for a damaged node

            command = refresh_command.of_self()
            damage = [f"{'; '.join(damage)} (`--on-drift repair` or `{command}` puts the toolkit's files back)"]
        if (hint := _describe_way_around(answers)) is not None:
            answers = msgspec.structs.replace(answers, wrong=(*answers.wrong, hint))
        state = _judge_state(receipt, answers, damage, conditions)
        if receipt is None and state.reason is ConditionReason.INSTALLING:
            from toolkit_installer.planning import installed  # noqa: PLC0415  # only for a node without a receipt

            if installed.is_toolkit_installed(self._node, self._toolkit.folder):
                state = NodeState(ConditionReason.DRIFT, _describe_pending_work(None))
        if not self._reports:
            return state
        from toolkit_installer import foreign_words  # noqa: PLC0415  # only for reports

        return msgspec.structs.replace(state, message=foreign_words.mask_own_text(state.message))

    def _find_damage(self, receipt: Receipt | None) -> list[str]:
        """Return descriptions of the toolkit's files that would not work, if they are to be checked."""
        if not self._checks_toolkit:
            return []
        damage = node_watch.find_damage(self._node, self._toolkit, receipt)
        return [f"{each.name}: {each.what}" for each in damage if each.certain]

    def list_watched_paths(
        self, receipt: Receipt | None, processes: Mapping[EngineName, Process | None]
    ) -> WatchedPaths:
        """Return the engines' paths to watch: from the last query, else by the `processes` that converging found."""
        if self._queried_paths is not None or receipt is None:
            return self._queried_paths or ()
        found = [each for engine in receipt.served_engines() for each in _watch_process(processes.get(engine.name))]
        alive = [each for each in found if each[2]]  # the run itself restarted the others
        return (*alive, *(_watch_socket(self._node, engine) for engine in receipt.served_engines()))


_NO_RECEIPT = "there is no receipt of what is installed: `{}` rebuilds it"
_UNFINISHED = "a change of the node was not finished: `{}` finishes it"


def _is_installed(receipt: Receipt | None) -> bool:
    return receipt is not None and receipt.state is State.INSTALLED


def _describe_pending_work(receipt: Receipt | None) -> str:
    """Return the message that names the pending work on a node and the command that does it."""
    from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for an interrupted run

    return (_NO_RECEIPT if receipt is None else _UNFINISHED).format(refresh_command.of_self())


def _describe_way_around(answers: EngineAnswers) -> str | None:
    """Return how to get the status while an engine is down; None if none is, or outside a container."""
    if not answers.silent:
        return None
    from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # only for an engine that is down

    command = refresh_command.status_without_engine()
    return f"on the node, `{command}` works without the engine" if command is not None else None


def _log_reasons(
    receipt: Receipt | None, answers: EngineAnswers, damage: Sequence[str], *, driver_missing: bool, waits: bool
) -> None:
    """Log the reasons why the node is not ready."""
    if answers.wrong or not (_is_installed(receipt) or driver_missing or waits):
        pending_work = [] if _is_installed(receipt) else [_describe_pending_work(receipt)]
        publish(
            EventKind.ENGINE_NOT_SERVING,
            "Not ready: the engines do not serve the handlers",
            level="warning",
            why="; ".join([*answers.wrong, *pending_work]),
            hint=_describe_way_around(answers),
        )
    if damage:
        log.get().warning("Not ready: the toolkit is damaged", key="not-ready-toolkit", why="; ".join(damage))
    if driver_missing:
        log.get().warning("Not ready: no driver is usable", key="not-ready-driver")


def _judge_state(
    receipt: Receipt | None, answers: EngineAnswers, damage: Sequence[str], conditions: Readiness
) -> NodeState:
    """Return the node's status; of several faults, the one that causes the others. Pure."""
    pending, plugin = conditions.pending, conditions.plugin
    if conditions.driver_missing:
        return NodeState(
            ConditionReason.DRIVER_NOT_READY, "No driver is usable: `kubectl logs` of the pod says what is missing"
        )
    if pending is not None and not answers.silent and not (pending.served and _is_installed(receipt)):
        return NodeState(ConditionReason.RELOAD_PENDING, pending.words)
    if receipt is None or not _is_installed(receipt):
        return NodeState(ConditionReason.INSTALLING, "The toolkit is not installed yet")
    if answers.wrong:
        reason = ConditionReason.ENGINE_DOWN if answers.silent else ConditionReason.DRIFT
        return NodeState(reason, "; ".join(answers.wrong))
    if (fault := _find_other_fault(damage, plugin)) is not None:
        return fault
    served = "; ".join(format_ready_file(receipt, plugin).splitlines())
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
    for engine in receipt.served_engines() if receipt is not None else ():
        # identified before the query: a restart from here on is seen
        watched.append(_watch_socket(node, engine))
        if serving.is_socket_activated(node, engine.name, engine.socket):
            wrong.append(_describe_silence(node, engine, "it is not running"))
            unserved.add(str(engine.name))
            stopped = silent = True
            continue
        live, reason = serving.query_engine(get_adapter(engine.name), node, engine.socket, seconds)
        if live is None:
            process, silent = serving.find_process(node, engine.name, engine.socket), True
            hangs |= process is not None or reason.endswith(serving.SILENCE)
            missing = [_describe_silence(node, engine, reason)]
        else:
            process = live.process
            missing = [f"{engine.name}: {each}" for each in observe.find_unserved(node, receipt, engine, live)]
            watched += _watch_answers(node, engine) if process is not None else []
        unserved |= {str(engine.name)} if missing else set()
        wrong += missing
        watched += _watch_process(process)
    return EngineAnswers(tuple(wrong), tuple(watched), stopped, frozenset(unserved), silent, hangs)


def _describe_silence(node: Node, engine: EngineRecord, reason: str) -> str:
    """Return the message that an engine does not answer, with its socket, and where to look."""
    unit = serving.find_unit(node, engine.name, engine.socket)
    place = f"`systemctl status {unit}`" if unit is not None else "what starts it"
    return f"{engine.name}: {reason} ({engine.socket}; look at {place})"


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
