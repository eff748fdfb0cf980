"""What the engines say of CDI, as the choice of the method needs it. Asks the node where its paths lead."""

from __future__ import annotations

import posixpath

import msgspec

from toolkit_installer.engines import cdi
from toolkit_installer.engines.api import Inspection, Live
from toolkit_installer.engines.cdi import SWITCHES
from toolkit_installer.engines.target import Request
from toolkit_installer.lifecycle.facts import EngineFacts
from toolkit_installer.lifecycle.method import Way, obstacle, unreadable
from toolkit_installer.lifecycle.plan import mismatches
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord, Receipt


def way(node: Node, seen: EngineFacts, receipt: Receipt | None, folder: str) -> Way:
    """Return what was found of an engine; `folder` is where our specification is to be. Raises NodeError."""
    name = seen.request.target.name
    base = found(node, seen.request, seen.inspection, folder)
    registered = dict(seen.recorded.handlers) if seen.recorded is not None else {}
    readers = receipt.cdi if receipt is not None else ()
    return msgspec.structs.replace(
        base,
        recorded=any(record.name == name for record in readers),
        ours=switched_on_by_us(seen),
        handlers=tuple(sorted({*registered, *base.handlers})),
    )


def found(node: Node, request: Request, inspection: Inspection, folder: str) -> Way:
    """Return what was found of an engine of which nothing is recorded. Raises NodeError."""
    live = inspection.live
    listed = live.handlers.keys() - live.own if live is not None else set()
    base = Way(request.target.name, folder=folder, handlers=tuple(sorted(listed & request.served.keys())))
    return with_answer(node, base, live, inspection.silence)


def with_answer(node: Node, base: Way, live: Live | None, silence: str) -> Way:
    """Return a way with what its engine says now. Raises NodeError."""
    if live is None:
        return msgspec.structs.replace(base, silence=silence)
    looked_into = live.cdi_folders or live.cdi_folders_if_on
    reads = any(node.files.canonical(each) == node.files.canonical(base.folder) for each in looked_into)
    return msgspec.structs.replace(
        base,
        version=live.version or "of an unknown release",
        folders=live.cdi_folders,
        if_on=live.cdi_folders_if_on,
        reads_it=reads,
    )


def switched_on_by_us(seen: EngineFacts) -> bool:
    """Tell whether CDI is on in an engine by an edit of ours: one that is recorded, or stands in a file of its.

    A run that was killed on the way to handlers may have recorded what it was about to write, and not written it.
    """
    files = seen.recorded.files if seen.recorded is not None else ()
    if any(key.path[-1:] and key.path[-1] in SWITCHES for file in files for key in file.keys):
        return True
    kept = {path: remembered.before or b"" for path, remembered in seen.records.items()}
    return any(
        cdi.switched_on(file.content or b"") > cdi.switched_on(kept[file.path])
        for file in seen.inspection.files
        if file.path in kept
    )


def unserved(node: Node, receipt: Receipt | None, engine: EngineRecord, live: Live) -> list[str]:
    """Return in words what a live engine does not serve of what was recorded: handlers, or CDI. Raises NodeError."""
    wrong = mismatches(live, dict(engine.handlers), engine.default)
    if receipt is None or not receipt.reads_cdi(engine.name):
        return wrong
    for file in receipt.specifications:
        base = Way(engine.name, folder=posixpath.dirname(file.path))
        way = with_answer(node, base, live, "")
        content = node.files.content(file.path)
        said = "CDI is off in it" if way.off else obstacle(way)
        if not said and content is None:
            said = f"there is no specification in {file.path}"
        elif not said and content is not None and (why := unreadable(way, content)):
            said = f"{file.path} {why}"
        wrong += [said] if said else []
    return wrong if receipt.specifications else [*wrong, "there is no CDI specification for it"]
