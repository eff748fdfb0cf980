"""What the engines say of CDI, as the choice of the method needs it. Asks the node where its paths lead."""

from __future__ import annotations

import posixpath

import msgspec

from toolkit_installer.engines.api import Inspection, Live
from toolkit_installer.engines.target import Request
from toolkit_installer.lifecycle.method import Way, obstacle, unreadable
from toolkit_installer.lifecycle.plan import mismatches
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.settings import EngineName, Method


def way(node: Node, request: Request, inspection: Inspection, receipt: Receipt | None, folder: str) -> Way:
    """Return what was found of an engine; `folder` is where our specification is to be. Raises NodeError."""
    live = inspection.live
    listed = live.handlers.keys() - live.own if live is not None else set()
    base = recorded(Way(request.target.name, folder=folder), receipt)
    handlers = tuple(sorted({*base.handlers, *(listed & request.served.keys())}))
    return with_answer(node, msgspec.structs.replace(base, handlers=handlers), live, inspection.silence)


def recorded(base: Way, receipt: Receipt | None) -> Way:
    """Return a way with what a receipt says of its engine."""
    if receipt is None:
        return base
    record = receipt.engine(base.engine)
    return msgspec.structs.replace(
        base,
        recorded=receipt.reads_cdi(base.engine),
        ours=receipt.has_switched_cdi(base.engine),
        handlers=tuple(name for name, _ in record.handlers) if record is not None else (),
    )


def installed(receipt: Receipt) -> Method | None:
    """Return which method a node was left with, None where no engine was configured or found to read CDI."""
    if not receipt.asked():
        return None
    return Method.CDI if receipt.cdi else Method.HANDLERS


def with_answer(node: Node, base: Way, live: Live | None, silence: str) -> Way:
    """Return a way with what its engine says now. Raises NodeError."""
    if base.engine is EngineName.DOCKER:
        from toolkit_installer.engines.detect import kubelet  # noqa: PLC0415  # the others need none of it

        base = msgspec.structs.replace(base, by_shim=kubelet.reaches_docker_by_shim(node))
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
