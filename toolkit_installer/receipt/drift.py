"""Whether the files that the receipt records are still as they were written."""

from __future__ import annotations

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import AS_BEFORE, AS_WRITTEN, FileRecord, Receipt


def drifted(node: Node, receipt: Receipt | None) -> list[str]:
    """Return the paths of the managed files that somebody else changed."""
    files = receipt.files() if receipt is not None else []
    return [file.path for file in files if state_of(node, file) != AS_WRITTEN]


def state_of(node: Node, file: FileRecord) -> str:
    """Return in words how a managed file stands: as written, missing, or what else became of it."""
    try:
        found = node.files.read_file(file.path)
    except ConfigurationError as error:
        return f"unreadable: {error.reason}"
    if found is None:
        return "missing" if file.written else AS_WRITTEN
    digest = memory.digest(found.content)
    if digest in file.written:
        return AS_WRITTEN
    if file.before is not None and digest == file.before.sha256:
        return AS_BEFORE
    return "changed by somebody else"
