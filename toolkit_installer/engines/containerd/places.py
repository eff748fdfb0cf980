"""containerd as distributions bring it: k3s, RKE2 and k0s make its configuration anew, microk8s makes it of a template.

Each has a place of its own for what is added; the file that is made is read and never written. A containerd that is
none of these is the plain room's.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

from toolkit_installer import log
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import lookup
from toolkit_installer.engines.api import (
    EngineFile,
    EngineSilentError,
    Goal,
    Goals,
    Live,
    Memory,
    Reload,
    Request,
    Survey,
)
from toolkit_installer.engines.common import answering, serving, trial
from toolkit_installer.engines.containerd import additions, back, links, started, templates
from toolkit_installer.engines.containerd import config as containerd_config
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.layouts import Layout
from toolkit_installer.engines.containerd.placed import (
    DROP_IN_ROLE,
    FILE_ROLE,
    GENERATED_ROLE,
    TEMPLATE_ROLE,
    PlacedSurvey,
    Placing,
)
from toolkit_installer.engines.containerd.sources import COMMAND, FILE, Sources
from toolkit_installer.engines.containerd.tables import executable, shape
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, read_as
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

_OURS = frozenset({GENERATED_ROLE, DROP_IN_ROLE, TEMPLATE_ROLE, FILE_ROLE})


class PlacedContainerd(Containerd):
    """containerd's room, wherever a distribution has it."""

    def has_role(self, role: str) -> bool:
        """Tell whether containerd, or that of a distribution, has a file of that role."""
        return role in _OURS or super().has_role(role)

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role may be called `name`."""
        return ".toml" in name if role in _OURS else super().may_be(role, name)

    def ask(self, node: Node, socket: str, seconds: float) -> Live:
        """Ask the CRI for its handlers, and tell those apart that the distribution registered. Raises as there."""
        live = super().ask(node, socket, seconds)
        return dataclasses.replace(live, own=_found_by_itself(live))

    def survey(self, node: Node, settings: EngineSettings) -> Survey:
        """Find the distribution's files; read them, and ask the CRI. Raises ConfigurationError."""
        socket = settings.socket or self.socket
        config = settings.config
        if config is None:
            process = serving.process_of(node, self.name, socket)
            config = started.told_config(process) if process is not None else None
        layout = started.find(node, config) if config is not None else None
        if config is None or layout is None or _is_copied(node, layout, config, socket):
            return super().survey(node, settings)
        try:
            live = answering.wait(self, node, socket, settings.answer_timeout)
            silence = ""
        except EngineSilentError as error:
            live, silence = None, error.reason
        way, notes = layout.way(node, live.version if live is not None else None)
        drop_in, ignored = layout.drop_in_for(settings)
        files = [
            EngineFile(GENERATED_ROLE, *node.find(layout.generated)),
            EngineFile(FILE_ROLE if layout.in_place else DROP_IN_ROLE, *node.find(drop_in)),
        ]
        if layout.template is not None:
            files.append(EngineFile(TEMPLATE_ROLE, *node.find(layout.template)))
        own = layout.low_level(node, live.process if live is not None else None)
        source = node.files.find(layout.source)
        return PlacedSurvey(
            socket,
            tuple(files),
            live,
            silence,
            layout=layout,
            way=way,
            content=source.content if source is not None else None,
            low_level=own,
            notes=(*notes, *ignored),
            sources=_sources(node, live.process if live is not None else None, layout, settings),
        )

    def goals(self, survey: Survey, request: Request, memories: Mapping[str, Memory]) -> Goals:
        """Return what the drop-in and the template should be. Raises ConfigurationError."""
        if not isinstance(survey, PlacedSurvey) or survey.layout is None:
            return super().goals(survey, request, memories)
        links.refuse_one_for_two(survey.files)
        without = {
            file.role: self.without_us(file, memories.get(file.path, Memory()), request.toolkit_folder)
            for file in survey.files
            if file.role != GENERATED_ROLE
        }
        return Placing(survey, survey.layout, request, without).goals()

    def recognised(self, survey: Survey, settings: EngineSettings, toolkit_folder: str) -> Mapping[str, Ownership]:
        """Return nothing: what is ours in a distribution's place is marked, or lies in our toolkit folder."""
        if isinstance(survey, PlacedSurvey):
            return {}
        return super().recognised(survey, settings, toolkit_folder)

    def without_us(self, file: EngineFile, memory: Memory, toolkit_folder: str) -> Goal:
        """Return a file without us. Raises ConfigurationError."""
        if file.role not in _OURS:
            return super().without_us(file, memory, toolkit_folder)
        with located(file.path):
            base, left = _base(file, memory, toolkit_folder)
        return Goal(file.role, file.path, base, base, left=left)

    def reload(self, node: Node, survey: Survey, settings: EngineSettings) -> Reload:
        """Restart the distribution's unit; k0s restarts its containerd by itself."""
        live = survey.live
        if live is None or live.process is None or (layout := started.behind(live.process)) is None:
            return super().reload(node, survey, settings)
        if layout.reloads_itself and settings.reload_mode in (None, ReloadMode.SIGNAL):
            return Reload(ReloadMode.SIGNAL, watched_by=layout.name)
        unit = layout.unit(node, live.process)
        process = dataclasses.replace(live.process, unit=unit)
        known = dataclasses.replace(survey, live=dataclasses.replace(live, process=process))
        return super().reload(node, known, settings)

    def try_out(self, node: Node, survey: Survey, goals: Goals) -> None:
        """Let containerd print what it would make of the additions, and compare. Raises ConfigurationError."""
        if not isinstance(survey, PlacedSurvey) or survey.layout is None:
            super().try_out(node, survey, goals)
            return
        process = survey.live.process if survey.live is not None else None
        if process is not None and survey.content is not None:
            _try_out(node, process, survey.layout, survey.content, goals)

    def signal(self, node: Node, process: Process) -> None:
        """Signal containerd, where the distribution does not do it itself. Raises ConfigurationError."""
        layout = started.behind(process)
        if layout is not None and layout.reloads_itself:
            log.get().info("Waiting for the distribution to restart its containerd", distribution=layout.name)
            return
        super().signal(node, process)


def _is_copied(node: Node, layout: Layout, config: str, socket: str) -> bool:
    """Tell whether `config` is a copy that a plain containerd reads: nobody makes it anew, and nobody serves there."""
    copied = layout.may_be_copied(config, socket, lambda path: node.files.status(path) is not None)
    return copied and serving.process_of(node, EngineName.CONTAINERD, socket) is None


def _sources(node: Node, process: Process | None, layout: Layout, settings: EngineSettings) -> Sources:
    """Look into what the handlers' settings may come from, beside what the distribution made. Raises NodeError."""
    asked = settings.config_sources
    printed = None
    if process is not None and (not asked or COMMAND in asked):
        place = started.config_or(process, layout.generated)
        printed, _ = trial.containerd_dump_of(node.programs, process.executable, place)
    paths = (word.removeprefix(f"{FILE}=") for word in asked if word not in (COMMAND, FILE))
    found = {path: node.files.find(path) for path in paths}
    files = {path: each.content if each is not None else None for path, each in found.items()}
    return Sources(asked, printed, files)


def _base(file: EngineFile, memory: Memory, toolkit_folder: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us, and what there is to say of it."""
    content = file.content
    if content is None or content == memory.before or file.role == GENERATED_ROLE:
        return content, ()
    if hashlib.sha256(content).hexdigest() in memory.written:
        return memory.before, ()
    if file.role in (DROP_IN_ROLE, FILE_ROLE):
        whole = file.role == DROP_IN_ROLE
        if whole and not memory.ownership.keys:
            memory = dataclasses.replace(memory, ownership=containerd_config.recognised(content, whole=True))
        return back.without_us(content, memory, toolkit_folder, whole=whole)
    base = templates.without_block(content)
    if memory.before is None and base != content and base.strip() in (b"", templates.BASE.strip()):
        return None, ()  # it was created for us, and nobody else put anything in
    return base, ()


def _try_out(node: Node, process: Process, layout: Layout, content: bytes, goals: Goals) -> None:
    """Compare what the binary makes of the generated file with what it would make of it with the additions."""
    target = next((goal for goal in goals.files if goal.target != goal.base), None)
    if target is None:
        return
    changed = _with_additions(content, layout, target)
    before, _ = trial.containerd_dump(node.programs, process.executable, content)
    if before is None:
        return  # it cannot be asked, or fails on what it runs with, which it makes anew
    after, words = trial.containerd_dump(node.programs, process.executable, changed)
    served, default = dict(goals.served), goals.default
    losses = trial.containerd_losses(before, after, served, default) if after is not None else []
    if after is None or losses:
        wrong = trial.shown(words, changed) if after is None else trial.shown("; ".join(losses))
        raise ConfigurationError(
            f"containerd's own binary ({process.executable}) would not serve the additions: {wrong}",
            path=target.path,
            hint=f"nothing was changed; look at what `containerd config dump` says to {layout.generated} with them",
        )


def _with_additions(content: bytes, layout: Layout, target: Goal) -> bytes:
    """Return the generated file with what the target adds, as the engine will read both together."""
    plugin = layout.plugin
    if target.role != TEMPLATE_ROLE:
        added = toml_document.parse(target.target or b"")
    else:
        present = frozenset(additions.runtimes(layout.document(content, ""), plugin))
        added = templates.meaning(target.target or b"", present)
    default = lookup(added, shape(plugin).default)
    made = tuple(additions.runtimes(added, plugin).items())
    part = Part(plugin, made, default if isinstance(default, str) else None)
    return containerd_config.with_us(content, [part])[0]


def _found_by_itself(live: Live) -> frozenset[str]:
    """Return the handlers that a distribution registered on its own, because it found the toolkit when it started.

    One that runs something else than the distribution's file says is somebody else's by now.
    """
    process = live.process
    layout = started.behind(process) if process is not None else None
    if process is None or layout is None or not layout.detects:
        return frozenset()
    try:
        # a template's block of ours is in what was made of it, and is none of the distribution's
        document = layout.document(templates.without_block(read_as(process, layout.source) or b""), "")
    except ConfigurationError:
        return frozenset()  # nothing is known of it then
    made = additions.runtimes(document, layout.plugin)
    return frozenset(
        name
        for name in layout.detects.handlers & made.keys() & live.handlers.keys()
        if live.handlers[name] in (None, executable(made[name]))
    )
