"""Whether the files that the receipt records are still as they were written."""

from __future__ import annotations

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import FileRecord, Receipt


def drifted(node: Node, receipt: Receipt | None) -> list[str]:
    """Return the paths of the managed files that somebody else changed."""
    files = receipt.files() if receipt is not None else []
    return [file.path for file in files if state_of(node, file) != "as written"]


def state_of(node: Node, file: FileRecord) -> str:
    """Return in words how a managed file stands: as written, missing, or what else became of it."""
    try:
        found = node.files.read_file(file.path)
    except ConfigurationError as error:
        return f"unreadable: {error.reason}"
    if found is None:
        return "missing" if file.written else "as written"
    digest = memory.digest(found.content)
    if digest in file.written:
        return "as written"
    if file.before is not None and digest == file.before.sha256:
        return "as it was before"
    return "changed by somebody else"
