"""What an installer left that kept no receipt, or lost it: recognised by what its entries run."""

from __future__ import annotations

import posixpath

from toolkit_installer import __version__, detection, log, memory, specifications
from toolkit_installer.engines.base import Engine, Memory
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.engines.rooms import ROOMS
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import EngineRecord, Receipt, State
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import layout, wrappers
from toolkit_installer.toolkit.payload import RUNTIMES


def leftovers(node: Node, settings: Settings) -> Receipt | None:
    """Return a receipt for what is found, or None if nothing is: entries and files in the toolkit folder are ours.

    Looks at the engines that are named, else at all of them. Raises ConfigurationError for files it cannot read.
    """
    folder = settings.toolkit.folder
    rooms = [room for name, room in ROOMS.items() if not settings.runtimes or name in settings.runtimes]
    records = [_engine(node, _settings(node, settings, room), room) for room in rooms]
    engines = tuple(record for record in records if record is not None)
    names = layout.known(node.files.list(folder))
    inner = [name for name in (wrappers.CONFIG_NAME,) if node.files.is_file(posixpath.join(folder, name))]
    specification = specifications.recognised(node, settings.toolkit.cdi.path, folder)
    if specification is not None and not engines and _left_by_us(node, folder):
        specification = None
    if not engines and not names and not inner and specification is None:
        return None
    made = node.files.folders_of_ours(posixpath.dirname(folder))
    folders = (*made, folder, *(posixpath.join(folder, place) for place in layout.FOLDERS))
    own = () if specification is None else (specification,)
    present = tuple(place for place in folders if node.files.status(place) is not None)
    return Receipt(State.REVERTING, __version__, folder, (*inner, *names), present, settings.pid_file, (), engines, own)


def _left_by_us(node: Node, folder: str) -> bool:
    """Tell whether the toolkit in `folder` is this installer's own.

    No engine names it, and there is no receipt: then a cleanup has come to its end and left it on purpose. Ours had
    taken its own CDI specification back by then; one that names the toolkit still is somebody's edit, or made since.
    A cleanup of NVIDIA's own installer leaves toolkit and specification alike.
    """
    path = posixpath.join(folder, RUNTIMES[0])
    found = node.files.find(path) if node.files.is_file(path) else None
    return found is not None and f"\n{wrappers.SIGNATURE}".encode() in found.content


def _settings(node: Node, settings: Settings, room: Engine) -> Settings:
    """Return where this engine's files are: a distribution may have them elsewhere than usual."""
    own = settings.for_engine(room.name)
    try:
        return detection.detect(node, own)[0].settings
    except ConfigurationError as error:
        log.get().debug("Looking in the usual places", engine=room.name, reason=error.reason)
        return own


def _engine(node: Node, settings: Settings, room: Engine) -> EngineRecord | None:
    """Return a record of the engine's files that name something of ours, or None."""
    survey = room.survey(node, settings.engine)
    folder = settings.toolkit.folder
    if not any(folder.encode() in (file.content or b"") for file in survey.files):
        return None  # they may be any engine's, and of any kind: they are not read for nothing
    recognised = room.recognised(survey, settings.engine, folder)
    files = []
    for file in reversed(survey.files):  # given back in the opposite order: first who imports, then what is imported
        ownership = recognised.get(file.path, Ownership())
        if room.without_us(file, Memory(ownership=ownership), folder).base != file.content:
            files.append(memory.adopted(room, file, ownership))
    if not files:
        return None
    return EngineRecord(room.name, survey.socket, settings.engine.reload_mode, (), None, tuple(files))
