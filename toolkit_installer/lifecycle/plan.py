"""What is to be changed on the node, and in which order. Pure: from what is and what should be."""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence

from toolkit_installer.engines.api import Goals, Live, Reload, Survey
from toolkit_installer.node.disk.reading import Found
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt, State
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.toolkit.layout import ToolkitFile


@dataclasses.dataclass(frozen=True)
class Installed:
    """A file of the toolkit as it is on the node, or as it should be: SHA-256 or symlink target, and mode."""

    digest: str | None = None
    link: str | None = None
    mode: int = 0


@dataclasses.dataclass(frozen=True)
class ToolkitWork:
    """The toolkit's part: `write` in this order, `remove` last of all."""

    folder: str
    files: tuple[ToolkitFile, ...]
    write: tuple[ToolkitFile, ...]
    remove: tuple[str, ...]
    present: frozenset[str] = frozenset()
    """Names that stood there before, whoever put them there."""


@dataclasses.dataclass(frozen=True)
class EngineWork:
    """An engine's part. `reload_why` says in words why it is to be reloaded; empty: it is not."""

    name: EngineName
    survey: Survey
    goals: Goals
    reload: Reload
    reload_why: str

    @property
    def changes(self) -> bool:
        """Whether any of the engine's files is to be changed."""
        return any(goal.target != self.survey.file(goal.role).content for goal in self.goals.files)


@dataclasses.dataclass(frozen=True)
class SpecificationWork:
    """A CDI specification's part, at the canonical `path`.

    `base`: what cleanup leaves (None: no file). `target`: what is to stand there now. `note`: what there is to say of
    somebody else's version.
    """

    path: str
    found: Found | None
    base: bytes | None
    target: bytes | None
    note: str = ""

    @property
    def content(self) -> bytes | None:
        """What stands there, None where there is no file."""
        return None if self.found is None else self.found.content

    @property
    def changes(self) -> bool:
        """Whether the file is to be changed."""
        return self.target != self.content


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a run would do."""

    toolkit: ToolkitWork
    engines: tuple[EngineWork, ...]
    specifications: tuple[SpecificationWork, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """The driver's device nodes that are to be created first, as the installer sees them; what is generated from them
    is looked at again then."""

    @property
    def empty(self) -> bool:
        """Whether the node is as it should be."""
        return (
            not self.toolkit.write
            and not self.toolkit.remove
            and not any(engine.changes or engine.reload_why for engine in self.engines)
            and not any(specification.changes for specification in self.specifications)
            and not self.device_nodes
        )


def folders(engines: Sequence[EngineWork]) -> list[str]:
    """Return where the engines' files are that are to be changed."""
    goals = [(goal, work.survey.file(goal.role).content) for work in engines for goal in work.goals.files]
    return list(dict.fromkeys(posixpath.dirname(goal.path) for goal, now in goals if goal.target != now))


def moved(recorded: Sequence[EngineRecord], engines: Sequence[EngineWork]) -> EngineRecord | None:
    """Return the record of an engine that is configured in another file now; None if there is none."""
    now = {engine.name: {goal.path for goal in engine.goals.files} for engine in engines}
    for record in recorded:
        if record.name in now and any(file.path not in now[record.name] and _of_ours(file) for file in record.files):
            return record
    return None


def _of_ours(file: FileRecord) -> bool:
    """Tell whether something of ours may stand in a file; an older installer's entries only went from some."""
    return any(file.before is None or digest != file.before.sha256 for digest in file.written)


def is_done(receipt: Receipt | None, plan: Plan) -> bool:
    """Tell whether nothing is to be changed, and all of it is recorded."""
    return receipt is not None and receipt.state is State.INSTALLED and plan.empty and known(receipt, plan)


def known(receipt: Receipt, plan: Plan) -> bool:
    """Tell whether all engines and specifications of the plan are recorded: one may be right, and nobody know of it.

    A distribution may have copied a file with our handlers in it to a new place.
    """
    paths = {work.path for work in plan.specifications if work.target not in (None, work.base)}
    return {engine.name for engine in plan.engines} <= {record.name for record in receipt.engines} and paths <= {
        record.path for record in receipt.specifications
    }


def superseded(recorded: Sequence[EngineRecord], engines: Sequence[EngineWork]) -> tuple[EngineRecord, ...]:
    """Return the records of engines that are not to have handlers any more, because others have them now.

    Without any engine to configure, what is configured stays as it is.
    """
    now = {engine.name for engine in engines}
    return tuple(record for record in recorded if engines and record.name not in now)


def toolkit_work(
    folder: str,
    files: Sequence[ToolkitFile],
    wanted: Mapping[str, Installed],
    present: Mapping[str, Installed],
    recorded: Sequence[str],
) -> ToolkitWork:
    """Return which of `files` differ on the node, and which recorded ones no longer belong."""
    write = tuple(file for file in files if present.get(file.name) != wanted[file.name])
    remove = tuple(name for name in recorded if name not in wanted and name in present)
    return ToolkitWork(folder, tuple(files), write, remove, frozenset(present))


def engine_work(name: EngineName, survey: Survey, goals: Goals, reload: Reload, *, reload_due: bool) -> EngineWork:
    """Return an engine's part of the plan."""
    changed = any(goal.target != survey.file(goal.role).content for goal in goals.files)
    why = ""
    if reload.mode is not ReloadMode.NONE:
        if changed:
            why = "its configuration changes"
        elif reload_due:
            why = "it was not reloaded after the last change"
        elif survey.live is not None:
            why = "; ".join(mismatches(survey.live, goals.served, goals.default))
            why = why or (goals.restart_why if reload.restarts else "")
    return EngineWork(name, survey, goals, reload, why)


def mismatches(live: Live, served: Mapping[str, str], default: str | None) -> list[str]:
    """Return in words how the live engine differs from what it should serve; nothing if it serves all."""
    wrong = []
    for name, path in served.items():
        if name not in live.handlers:
            wrong.append(f"it does not list the handler {name}")
        elif live.handlers[name] not in (None, path):
            wrong.append(f"its handler {name} runs {live.handlers[name]}, not {path}")
    if default is not None and live.default not in (None, default):
        wrong.append(f"its default runtime is {live.default}, not {default}")
    return wrong


def leftovers(now: Live, work: EngineWork) -> list[str]:
    """Return in words what the engine still serves of a change that was taken back; nothing once it has forgotten."""
    before = work.survey.live
    known = before.handlers if before is not None else {}
    wrong = [
        f"it still lists the handler {name}"
        for name, path in work.goals.served.items()
        if name in now.handlers and name not in {*known, *now.own} and now.handlers[name] in (None, path)
    ]
    if before is not None and now.default != before.default and now.default == work.goals.default:
        wrong.append(f"its default runtime is still {now.default}")
    return wrong
