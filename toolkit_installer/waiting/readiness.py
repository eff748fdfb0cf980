"""The ready marker: a file of the installer's own that is there while the engines serve the handlers.

Beside it lies another one, from when the engines have served them for the first time until the run leaves. A pod's
startup probe looks at that: a driver that is away makes a node not ready, and is no reason to start the pod anew.

Whether the node of a waiting instance is ready: the engines serve the handlers, and the toolkit is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.common import serving
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.kubernetes.node_state import NodeState, Reason
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
"""What the name of the other file ends with."""
_MODE = 0o644


class Marker:
    """The file at `path` in the installer's own mount namespace; with None there is none, and nothing is done."""

    def __init__(self, path: str | None, calls: SystemCalls) -> None:
        self.path = path
        self._files = Files(Root("/"), calls)

    def prepare(self) -> None:
        """Remove what an earlier run left. Raises ConfigurationError where there is no folder for the file."""
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
        """Remove the file, if it is there. Raises NodeError, ConfigurationError."""
        self._remove()

    def clear_before_cleanup(self) -> None:
        """Remove both files; a failure is said, and no reason to leave the node as it is."""
        try:
            self._remove()
            self._remove(STARTED)
        except InstallerError as error:
            log.get().error(
                "The ready file cannot be removed", key="ready-file-stays", file=error.path, reason=error.reason
            )

    def write(self, text: str, why: str = "the engines serve the handlers") -> None:
        """Write the file, unless it is there already, and say `why`. Raises NodeError, ConfigurationError."""
        self.start(text)
        if self._write(text):
            log.get().info("Wrote the ready file", key="ready", file=self.path, why=why)

    def start(self, text: str) -> None:
        """Write the file beside it that says that the run has done its work. Raises NodeError, ConfigurationError."""
        self._write(text, STARTED)

    def _write(self, text: str, end: str = "") -> bool:
        """Write one of the files, unless it is there already; tell whether it was not."""
        if self.path is None or self._files.own_status(self.path + end) is not None:
            return False
        self._files.overwrite(self._place(end), text.encode(), own_metadata(_MODE))
        return True

    def _remove(self, end: str = "") -> None:
        if self.path is not None and self._files.own_status(self.path + end) is not None:
            self._files.remove(self._place(end))

    def _place(self, end: str = "") -> str:
        assert self.path is not None  # noqa: S101  # asked for only where there is one
        return self._files.in_folder(self.path + end)


def described(receipt: Receipt, plugin: PluginStatus | None = None) -> str:
    """Return what the file says: a line for each engine, with its handlers, and one for the engine of the plugin."""
    engines = [" ".join([each.name, *_served(receipt, each)]) for each in receipt.asked()]
    served = [f"NRI plugin of {plugin.engine}"] if plugin is not None else []
    return "".join(f"{line}\n" for line in (*engines, *served))


def _served(receipt: Receipt, engine: EngineRecord) -> tuple[str, ...]:
    """Return the handlers of an engine, or the word for the other way to its containers."""
    return tuple(name for name, _ in engine.handlers) or (("cdi",) if receipt.reads_cdi(engine.name) else ())


_SOON_SECONDS = 5.0
"""What an engine gets to answer before the node is said not to be ready: somebody is to know within a minute."""

Watched = tuple[tuple[str, str, str], ...]
"""Events, paths in the installer's mount namespace, and their identities (idling.identity)."""


class Readiness:
    """Keeps the ready file as the node is, and knows what to watch, as that changes with an engine."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self.marker = Marker(settings.ready_file, node.calls)
        self.engine_changed = False
        """An engine was started or stopped while nobody looked."""
        self.stopped = False
        """An engine does not run, and would if it were asked, or runs and does not answer: it is looked for again."""
        self.state = NodeState(Reason.INSTALLING)
        """How the node stood when it was last looked at."""
        self.unserved: frozenset[str] = frozenset()
        """The engines that did not serve the handlers then, by their names."""
        self.damaged = 0
        """How many of the toolkit's files would not work."""
        self.driver_away = False
        self.pending: Pending | None = None
        """The reload that is not allowed yet."""
        self.plugin: PluginStatus | None = None
        """How the NRI plugin stands, None where none is served."""
        self._settings = settings
        self._node = node
        self._told = settings.reports is not None or settings.counts
        self._asked: Watched | None = None
        """What changes with the engines, from before they were asked; None: they were not."""

    @property
    def due(self) -> bool:
        """Whether anybody wants to know: a ready file is kept, somebody is told, or an engine changed."""
        return self._settings.ready_file is not None or self._told or self.engine_changed

    def mark(self, receipt: Receipt | None, *, driver_away: bool, tell: Callable[[], None]) -> None:
        """Ask the engines, note the `state`, and write or remove the ready file. Raises Stopped, NodeError.

        An engine that runs and does not answer is waited for. `tell` is called before: it may not come back.
        """
        patience = self._settings.reload_timeout
        seen, damage = ask_engines(self._node, receipt, min(_SOON_SECONDS, patience)), self._damage(receipt)
        hint = self._while_down(seen)
        _say(receipt, seen.wrong, damage, driver_away=driver_away, waits=self.pending is not None, hint=hint)
        if self.plugin is not None and not self.plugin.connected:
            log.get().warning(
                "Not ready: the NRI plugin is not connected", key="not-ready-plugin", why=self.plugin.reason
            )
        if seen.hangs and patience > _SOON_SECONDS:
            self._note(receipt, seen, damage, driver_away=driver_away)
            tell()
            before, seen = seen, ask_engines(self._node, receipt, patience - _SOON_SECONDS)
            if seen.wrong not in ((), before.wrong):
                _say(receipt, seen.wrong, [], driver_away=False, waits=False, hint=self._while_down(seen))
        self._note(receipt, seen, damage, driver_away=driver_away)

    def _note(self, receipt: Receipt | None, seen: Answers, damage: list[str], *, driver_away: bool) -> None:
        """Note how the node stands, and write or remove the ready file. Raises NodeError."""
        self._asked, self.stopped = seen.watched, seen.stopped or seen.hangs
        self.unserved, self.damaged, self.driver_away = seen.unserved, len(damage), driver_away
        if damage:
            from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # of a node that is damaged

            command = refresh_command.of_self()
            damage = [f"{'; '.join(damage)} (`--on-drift repair` or `{command}` puts the toolkit's files back)"]
        if (hint := self._while_down(seen)) is not None:
            seen = msgspec.structs.replace(seen, wrong=(*seen.wrong, hint))
        self.state = _state(receipt, seen, damage, driver_away=driver_away, pending=self.pending, plugin=self.plugin)
        if receipt is None and self.state.reason is Reason.INSTALLING:
            from toolkit_installer.planning import installed  # noqa: PLC0415  # of a node without a receipt

            if installed.is_there(self._node, self._settings.toolkit.folder):
                self.state = NodeState(Reason.DRIFT, _owed(None))
        if self._told:
            from toolkit_installer import foreign_words  # noqa: PLC0415  # only where somebody is told

            self.state = msgspec.structs.replace(self.state, message=foreign_words.own(self.state.message))
        if receipt is not None and _is_installed(receipt) and driver_away and not (seen.wrong or damage):
            self.marker.start(described(receipt, self.plugin))
        if self.pending is not None:  # all is done that may be done, and a new pod could do no more
            self.marker.start(f"{self.pending.words}\n")
        if receipt is None or not self.state.ready:
            self.marker.clear()
            return
        if self.engine_changed:
            log.get().info("An engine was started: it serves the handlers", key="engine-started")
        self.marker.write(described(receipt, self.plugin))

    def _while_down(self, seen: Answers) -> str | None:
        """Return how to ask for the status while an engine is down; None if it is not, or outside a container."""
        if not seen.silent:
            return None
        from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # of an engine that is down

        command = refresh_command.status_without_engine()
        return f"on the node, `{command}` works without the engine" if command is not None else None

    def _damage(self, receipt: Receipt | None) -> list[str]:
        """Return in words which of the toolkit's files would not work, where they are looked after."""
        if self._settings.on_drift is OnDrift.IGNORE:
            return []
        damage = node_watch.damage(self._settings, self._node, receipt)
        return [f"{each.name}: {each.what}" for each in damage if each.certain]

    def watched(self, receipt: Receipt | None, processes: Mapping[EngineName, Process | None]) -> Watched:
        """Return what changes with the engines: as they were asked, else as converging saw their `processes`."""
        if self._asked is not None or receipt is None:
            return self._asked or ()
        seen = [each for engine in receipt.asked() for each in _process_of(processes.get(engine.name))]
        alive = [each for each in seen if each[2]]  # the others were restarted by us
        return (*alive, *(_socket_of(self._node, engine) for engine in receipt.asked()))


_NO_RECEIPT = "there is no receipt of what is installed: `{}` rebuilds it"
_UNFINISHED = "a change of the node was not finished: `{}` finishes it"


def _is_installed(receipt: Receipt | None) -> bool:
    return receipt is not None and receipt.state is State.INSTALLED


def _owed(receipt: Receipt | None) -> str:
    """Return what is to be done on a node that was not left as installed, and by which command."""
    from toolkit_installer.waiting import refresh_command  # noqa: PLC0415  # of a run that was cut short

    return (_NO_RECEIPT if receipt is None else _UNFINISHED).format(refresh_command.of_self())


def _say(
    receipt: Receipt | None,
    wrong: Sequence[str],
    damage: Sequence[str],
    *,
    driver_away: bool,
    waits: bool,
    hint: str | None,
) -> None:
    """Say what keeps the node from being ready."""
    if wrong or not (_is_installed(receipt) or driver_away or waits):
        owed = [] if _is_installed(receipt) else [_owed(receipt)]
        log.get().warning(
            "Not ready: the engines do not serve the handlers",
            key="not-ready-engine",
            why="; ".join([*wrong, *owed]),
            hint=hint,
        )
    if damage:
        log.get().warning("Not ready: the toolkit is damaged", key="not-ready-toolkit", why="; ".join(damage))
    if driver_away:
        log.get().warning("Not ready: no driver is usable", key="not-ready-driver")


def _state(
    receipt: Receipt | None,
    seen: Answers,
    damage: Sequence[str],
    *,
    driver_away: bool,
    pending: Pending | None,
    plugin: PluginStatus | None,
) -> NodeState:
    """Return how the node stands; of several things that are wrong, the one that the others come from. Pure."""
    if driver_away:
        return NodeState(Reason.DRIVER_NOT_READY, "No driver is usable: `kubectl logs` of the pod says what is missing")
    if pending is not None and not seen.silent and not (pending.served and _is_installed(receipt)):
        return NodeState(Reason.RELOAD_PENDING, pending.words)
    if receipt is None or not _is_installed(receipt):
        return NodeState(Reason.INSTALLING, "The toolkit is not installed yet")
    if seen.wrong:
        reason = Reason.ENGINE_DOWN if seen.silent else Reason.DRIFT
        return NodeState(reason, "; ".join(seen.wrong))
    if (amiss := _amiss(damage, plugin)) is not None:
        return amiss
    served = "; ".join(described(receipt, plugin).splitlines())
    served = served or "The toolkit is installed, and no engine is configured for it"
    return NodeState(Reason.SERVING, served if pending is None else f"{served}; {pending.words}")


def _amiss(damage: Sequence[str], plugin: PluginStatus | None) -> NodeState | None:
    """Return what else keeps a node from being ready whose engines serve all that they are to serve. Pure."""
    if plugin is not None and not plugin.connected:
        return NodeState(Reason.PLUGIN_DOWN, f"The NRI plugin is not connected: {plugin.reason}")
    if damage:
        return NodeState(Reason.DRIFT, "; ".join(damage))
    return None


class Answers(msgspec.Struct, frozen=True):
    """What the engines said: what is `wrong`, what to watch, and whether one of them is not running at all."""

    wrong: tuple[str, ...] = ()
    watched: Watched = ()
    stopped: bool = False
    unserved: frozenset[str] = frozenset()
    """The engines of which something is wrong, by their names."""
    silent: bool = False
    """Whether one of them does not answer."""
    hangs: bool = False
    """Whether one of these runs, or took the question, all the same."""


def ask_engines(node: Node, receipt: Receipt | None, seconds: float) -> Answers:
    """Ask the engines what they serve; one that is starting gets `seconds`. Raises Stopped on a pending signal.

    One that somebody stopped, and that systemd would start for it, is not asked.
    """
    wrong: list[str] = []
    unserved: set[str] = set()
    watched: list[tuple[str, str, str]] = []
    stopped = silent = hangs = False
    for engine in receipt.asked() if receipt is not None else ():
        # taken before the engine is asked: a restart from here on is seen
        watched.append(_socket_of(node, engine))
        if serving.starts_when_asked(node, engine.name, engine.socket):
            wrong.append(_silence(node, engine, "it is not running"))
            unserved.add(str(engine.name))
            stopped = silent = True
            continue
        live, heard = serving.heard(adapter_of(engine.name), node, engine.socket, seconds)
        if live is None:
            process, silent = serving.process_of(node, engine.name, engine.socket), True
            hangs |= process is not None or heard.endswith(serving.SILENCE)
            missing = [_silence(node, engine, heard)]
        else:
            process = live.process
            missing = [f"{engine.name}: {each}" for each in observe.unserved(node, receipt, engine, live)]
            watched += _answer_of(node, engine) if process is not None else []
        unserved |= {str(engine.name)} if missing else set()
        wrong += missing
        watched += _process_of(process)
    return Answers(tuple(wrong), tuple(watched), stopped, frozenset(unserved), silent, hangs)


def _silence(node: Node, engine: EngineRecord, heard: str) -> str:
    """Return in words that an engine does not answer, with its socket, and where to look."""
    unit = serving.unit_of(node, engine.name, engine.socket)
    place = f"`systemctl status {unit}`" if unit is not None else "what starts it"
    return f"{engine.name}: {heard} ({engine.socket}; look at {place})"


def _socket_of(node: Node, engine: EngineRecord) -> tuple[str, str, str]:
    """Return what changes with an engine's socket. Raises NodeError."""
    socket = node.root.outside(node.files.canonical(engine.socket))
    return idling.ENGINE, socket, idling.identity(socket)


def _answer_of(node: Node, engine: EngineRecord) -> list[tuple[str, str, str]]:
    """Return what changes when an engine that runs answers no more; nothing of one that has another language."""
    socket = f"{node.root.outside(node.files.canonical(engine.socket))}{idling.ASKED}"
    answers = idling.identity(socket) == idling.ANSWERS
    return [(idling.SILENT, socket, idling.ANSWERS)] if answers else []


def _process_of(process: Process | None) -> list[tuple[str, str, str]]:
    """Return what changes when an engine's process ends: the folder that the kernel shows of it; nothing of none.

    The identity is empty, which nothing ever has, where the process is gone already.
    """
    if process is None:
        return []
    place = f"/proc/{process.pid}"
    return [(idling.ENGINE, place, idling.identity(place) if os.path.exists(place) else "")]
