"""containerd as distributions bring it: k3s, RKE2 and k0s make its configuration anew, microk8s makes it of a template.

Each has a place of its own for what is added; the file that is made is read and never written. A containerd that is
none of these is the plain room's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from toolkit_installer import log
from toolkit_installer.documents import secrets, toml_document
from toolkit_installer.documents.changes import Table, lookup
from toolkit_installer.engines import (
    answering,
    containerd_additions,
    containerd_copies,
    containerd_trial,
    serving,
    templates,
    trial,
)
from toolkit_installer.engines.base import (
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
from toolkit_installer.engines.containerd import Containerd
from toolkit_installer.engines.containerd_additions import Addition
from toolkit_installer.engines.containerd_layouts import FOUND, Layout, Way, behind, find
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.errors import ConfigurationError, located
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, read_as
from toolkit_installer.settings import EngineSettings, ReloadMode

GENERATED_ROLE = "generated"
DROP_IN_ROLE = "distribution's drop-in"
TEMPLATE_ROLE = "distribution's template"
_ON_BY_DEFAULT = 3
"""The first version of containerd's files whose daemons have CDI on unless they are told otherwise."""
FILE_ROLE = "distribution's file"
"""A file of the distribution's own that has the additions in it: microk8s'."""
_OURS = frozenset({GENERATED_ROLE, DROP_IN_ROLE, TEMPLATE_ROLE, FILE_ROLE})


@dataclasses.dataclass(frozen=True)
class PlacedSurvey(Survey):
    """A containerd of a distribution as it was found."""

    layout: Layout | None = None
    way: Way = Way.NONE
    content: bytes | None = None
    """What the distribution made, with the runtimes in it."""
    low_level: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class PlacedContainerd(Containerd):
    """containerd's room, wherever a distribution has it."""

    def may_be(self, role: str, name: str) -> bool:
        """Tell whether a file of that role may be called `name`."""
        return ".toml" in name if role in _OURS else super().may_be(role, name)

    def ask(self, node: Node, socket: str, seconds: float) -> Live:
        """Ask the CRI for its handlers, and tell those apart that the distribution registered. Raises as there."""
        live = super().ask(node, socket, seconds)
        return dataclasses.replace(live, own=_found_by_itself(live.process))

    def survey(self, node: Node, settings: EngineSettings) -> Survey:
        """Find the distribution's files; read them, and ask the CRI. Raises ConfigurationError."""
        socket = settings.socket or self.socket
        config = settings.config
        if config is None:
            process = serving.process_of(node, self.name, socket)
            config = containerd_trial.told_config(process) if process is not None else None
        layout = find(node, config) if config is not None else None
        if config is None or layout is None or containerd_copies.is_copy(node, layout, config, socket):
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
        )

    def goals(self, survey: Survey, request: Request, memories: Mapping[str, Memory]) -> Goals:
        """Return what the drop-in and the template should be. Raises ConfigurationError."""
        if not isinstance(survey, PlacedSurvey) or survey.layout is None:
            return super().goals(survey, request, memories)
        return _goals(self, survey, survey.layout, request, memories)

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
        if live is None or live.process is None or (layout := behind(live.process)) is None:
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
        layout = behind(process)
        if layout is not None and layout.reloads_itself:
            log.get().info("Waiting for the distribution to restart its containerd", distribution=layout.name)
            return
        super().signal(node, process)


def _goals(
    room: PlacedContainerd, survey: PlacedSurvey, layout: Layout, request: Request, memories: Mapping[str, Memory]
) -> Goals:
    without = {
        file.role: room.without_us(file, memories.get(file.path, Memory()), request.toolkit_folder)
        for file in survey.files
        if file.role != GENERATED_ROLE
    }
    if (template := without.get(TEMPLATE_ROLE)) is not None:
        with located(template.path):
            templates.refuse_twice(template.base or b"", layout.finding(request.toolkit_folder))
    document, version = layout.document(survey.content, request.toolkit_folder)
    addition = Addition(
        containerd_additions.entries(
            document,
            version,
            request.handlers,
            request.settings.runtime_type,
            request.settings.container_annotations,
            json.loads(request.settings.runtime_config_override),
        ),
        request.default,
        request.settings.enable_cdi and _wants_cdi(document, version),
    )
    served = {handler.name: handler.executable for handler in request.handlers}
    default = request.default
    notes = list(survey.notes)
    if survey.way is Way.DROP_IN:
        role = FILE_ROLE if layout.in_place else DROP_IN_ROLE
        goal = without[role]
        with located(goal.path):
            text, ownership = containerd_additions.with_us(goal.base or b"", version, addition)
        without[role] = _goal(survey, goal, text, ownership)
    else:
        other = containerd_additions.disagrees(document, version, addition)
        if other is not None and not layout.finds(request.toolkit_folder):
            raise ConfigurationError(
                f"{layout.name} registers a runtime {other!r} of its own, which runs something else",
                path=layout.generated,
                hint="register under another name with --runtime-name",
            )
        if default is not None:
            default = None
            notes.append(f"{layout.name} sets the default runtime itself (its --default-runtime): it stays as it is")
        if addition.cdi:
            notes.append(f"CDI stays off in the containerd of {layout.name}: its own configuration decides on that")
        if survey.way is Way.TEMPLATE:
            goal = without[TEMPLATE_ROLE]
            with located(goal.path):
                base = goal.base if goal.base is not None else templates.BASE
                version = templates.version_of(base, version)
                text = templates.with_block(base, version, addition)
            without[TEMPLATE_ROLE] = dataclasses.replace(goal, target=text)
        else:
            served = layout.found_by_itself(request)
            notes.append(f"{layout.name} has no place for additions: it finds the toolkit's folder when it starts")
    own = (*containerd_additions.low_level(document, version), *survey.low_level)
    return Goals(tuple(without.values()), served, default, tuple(dict.fromkeys(own)), tuple(notes))


def _wants_cdi(document: Table, version: int) -> bool:
    """Tell whether CDI has to be turned on: files of version 2 may be a 1.7's, which has it off unless told."""
    said = lookup(document, containerd_additions.enable_cdi(version))
    return said is not True and (said is False or version < _ON_BY_DEFAULT)


def _goal(survey: Survey, without: Goal, text: bytes, ownership: Ownership) -> Goal:
    """Return the goal for a drop-in; one that says all this already, in somebody's own order, stays as it is."""
    present = survey.file(without.role).content
    if present is not None and toml_document.parse(present) == toml_document.parse(text):
        text = present
    return dataclasses.replace(without, target=text, ownership=ownership)


def _base(file: EngineFile, memory: Memory, toolkit_folder: str) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us: the very bytes from before if nobody touched ours, else ours taken out."""
    content = file.content
    if content is None or content == memory.before or file.role == GENERATED_ROLE:
        return content, ()
    if hashlib.sha256(content).hexdigest() in memory.written:
        return memory.before, ()
    if file.role in (DROP_IN_ROLE, FILE_ROLE):
        return containerd_additions.without_us(content, memory, toolkit_folder, whole=file.role == DROP_IN_ROLE)
    base = templates.without_block(content)
    if memory.before is None and base != content and base.strip() in (b"", templates.BASE.strip()):
        return None, ()  # it was created for us, and nobody else put anything in
    return base, ()


def _try_out(node: Node, process: Process, layout: Layout, content: bytes, goals: Goals) -> None:
    """Compare what the binary makes of the generated file with what it would make of it with the additions."""
    target = next((goal for goal in goals.files if goal.target != goal.base), None)
    if target is None:
        return
    document, version = layout.document(content, "")
    changed = _with_additions(content, document, version, target)
    before, _ = trial.containerd_dump(node.programs, process.executable, content)
    if before is None:
        return  # it cannot be asked, or fails on what it runs with, which it makes anew
    after, words = trial.containerd_dump(node.programs, process.executable, changed)
    served, default = dict(goals.served), goals.default
    wrong = [words] if after is None else trial.containerd_losses(before, after, served, default)
    if wrong:
        raise ConfigurationError(
            f"containerd's own binary ({process.executable}) would not serve the additions: "
            f"{secrets.mask('; '.join(wrong))}",
            path=target.path,
            hint=f"nothing was changed; look at what `containerd config dump` says to {layout.generated} with them",
        )


def _with_additions(content: bytes, document: Table, version: int, target: Goal) -> bytes:
    """Return the generated file with what the target adds, as the engine will read both together."""
    if target.role != TEMPLATE_ROLE:
        added = toml_document.parse(target.target or b"")
    else:
        present = frozenset(containerd_additions.runtimes(document, version))
        added = templates.meaning(target.target or b"", present)
    place = containerd_additions.shape(version)
    entries: dict[str, Any] = containerd_additions.runtimes(added, version)
    named = added.get("plugins", {}).get(containerd_additions.PLUGINS[version], {}).get("containerd", {})
    default = named.get(place.default[-1]) if isinstance(named, dict) else None
    addition = Addition(tuple(entries.items()), default if isinstance(default, str) else None)
    changes = containerd_additions.changes(version, addition)
    return toml_document.edit(content, changes, marker=containerd_additions.MARKER)


def _found_by_itself(process: Process | None) -> frozenset[str]:
    """Return the handlers that a distribution registered on its own, because it found the toolkit when it started."""
    layout = behind(process) if process is not None else None
    if process is None or layout is None or not layout.detects:
        return frozenset()
    try:
        document, version = layout.document(read_as(process, layout.source), "")
    except ConfigurationError:
        return frozenset()  # nothing is known of it then
    return FOUND & containerd_additions.runtimes(document, version).keys()
