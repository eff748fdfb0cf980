"""What another installer had left on the node before this one came, and what cleanup does not restore. Pure.

Its handlers run executables in the toolkit's folder: they are replaced, and go with that folder. So the node is not as
it was afterwards, which is to be said.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from toolkit_installer.documents import toml_document
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.receipt.schema import Receipt

if TYPE_CHECKING:
    from toolkit_installer.planning.plan import Plan

_RUNTIMES = "runtimes"
"""The table of handlers in every engine's files."""


def by_plan(previous: Receipt | None, plan: Plan) -> tuple[str, ...]:
    """Return in words what a plan takes over that stood there before this installer, with what it took over before."""
    known = set(previous.file_paths()) if previous is not None else set()
    folder = plan.toolkit.folder
    new = []
    for wanted in (wanted for engine in plan.engines for wanted in engine.desired.files):
        if wanted.path not in known:
            kept = handlers(wanted.base, folder)
            new += _in_file(wanted.path, [name for name in handlers(wanted.file.content, folder) if name not in kept])
    if previous is None:
        new += in_folder(folder, sorted(plan.toolkit.present))
    return tuple(dict.fromkeys([*(previous.taken_over if previous is not None else ()), *new]))


def in_files(files: Sequence[tuple[str, bytes | None]], folder: str) -> tuple[str, ...]:
    """Return in words the handlers of another installer in files, given as paths and contents."""
    return tuple(words for path, content in files for words in _in_file(path, handlers(content, folder)))


def in_folder(folder: str, names: Sequence[str]) -> list[str]:
    """Return in words which files of another installer stood in the toolkit's folder; nothing for none."""
    return [f"{folder}: {len(names)} {'file' if len(names) == 1 else 'files'}"] if names else []


def gone(receipt: Receipt, *, toolkit_stays: bool) -> list[str]:
    """Return of what was taken over that which is gone after a cleanup."""
    files = f"{receipt.toolkit_folder}: "
    return [words for words in receipt.taken_over if not (toolkit_stays and words.startswith(files))]


def handlers(content: bytes | None, folder: str) -> list[str]:
    """Return the handlers in an engine's file whose executable lies in `folder`; none of a file that is broken."""
    if content is None or folder.encode() not in content:
        return []
    try:
        if b"{{" in content:
            from toolkit_installer.engines.containerd import templates  # noqa: PLC0415  # few nodes have one

            document = templates.document(content) or {}
        else:
            document = json.loads(content) if content.lstrip().startswith(b"{") else toml_document.parse(content)
    except (ValueError, RecursionError, ConfigurationError):
        return []
    return list(dict.fromkeys(_handlers(document, folder, ())))


def _in_file(path: str, names: Sequence[str]) -> list[str]:
    return [f"{path}: {'handler' if len(names) == 1 else 'handlers'} {', '.join(names)}"] if names else []


def _handlers(value: Any, folder: str, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _handlers(each, folder, (*path, key))
    elif isinstance(value, str) and beneath(posixpath.normpath(value), folder) and _RUNTIMES in path[:-1]:
        yield path[path.index(_RUNTIMES) + 1]
