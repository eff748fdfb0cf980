"""Detect whether a managed file has lost content that it had when the handlers were added. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from toolkit_installer.documents import changes
from toolkit_installer.documents.changes import ABSENT, Change, DocumentError, Path, Set, Table, lookup
from toolkit_installer.engines.api import DesiredFile, EngineFile, RecordedFile
from toolkit_installer.engines.ownership import Ownership, had_own_content, is_blank
from toolkit_installer.errors import ConfigurationError, InstallerError

CUT_OFF = "it ends early: what stood there before is restored"
"""The log text for a file that `is_cut_off`."""
_GROUPS = ("plugins", "crio")
"""The tables whose subtables are a file's sections."""
_NOT_COUNTED = ("version", "imports")
Edit = Callable[[bytes, Sequence[Change]], bytes]


def is_cut_off(
    content: bytes,
    recorded: RecordedFile,
    edit: Edit | None,
    chosen: Sequence[Change] = (),
    aliases: Collection[str] = (),
) -> bool:
    """Tell whether a file is only the beginning of its content with us, or before us.

    Such a file holds nothing that others added. One that ends with a whole line and has all sections may be an
    administrator's edit. `edit` adds our values to the text before us; None: the file is not TOML, and cannot be edited
    so. `chosen` is an administrator's change: another default. `aliases`: see `lost_sections`.
    """
    before = recorded.before
    if before is None or not had_own_content(before, recorded.written) or changes.sha256(content) in recorded.written:
        return False
    from toolkit_installer.documents import toml_document  # noqa: PLC0415  # docker has no TOML

    texts = [before]
    if edit is not None:
        with contextlib.suppress(InstallerError):  # written by other rules: no comparison is possible
            texts.append(edit(before, [*_edits(recorded.ownership), *chosen]))
    if not any(len(content) < len(text) and text.startswith(content) for text in texts):
        return False
    if not content.endswith(b"\n"):
        return True
    return edit is not None and bool(lost_sections(toml_document.parse(before), toml_document.parse(content), aliases))


def _edits(ownership: Ownership) -> list[Change]:
    """Return the changes that put our values into the file."""
    return [
        Set(key.path, [*([] if key.prior is ABSENT else key.prior), key.ours] if key.item else key.ours)
        for key in ownership.keys
    ]


def refuse_replaced(
    wanted: DesiredFile,
    recorded: RecordedFile,
    parse: Callable[[bytes], Table],
    toolkit_folder: str,
    aliases: Collection[str] = (),
) -> None:
    """Raise ConfigurationError for a file without any of our values that has lost sections which it had before us.

    It may be a new version or a damaged one; adding the handlers would make the engine read it. `aliases`: see
    `lost_sections`. Raises DocumentError.
    """
    content, before = wanted.file.content, recorded.before
    if (
        content is None
        or before is None
        or not had_own_content(before, recorded.written)
        or wanted.base in (before, None)
    ):
        return
    imports = [str(key.ours).encode() for key in recorded.ownership.keys if key.item]
    if any(trace in content for trace in (toolkit_folder.encode(), *imports)):
        return
    lost = lost_sections(parse(before), parse(wanted.base or b""), aliases)
    if lost:
        raise ConfigurationError(
            f"somebody replaced it since the handlers were put into it, and it has no {', '.join(lost)} any more: it "
            "may be damaged, and the engine is not made to read it",
            path=wanted.path,
            hint=f"put the missing part back (what stood there before is kept in {recorded.kept}); or, if it is meant "
            "to be so, run `toolkit-installer uninstall`, which leaves it as it is, and start this run again",
        )


def refuse_lost_link(file: EngineFile, records: Mapping[str, RecordedFile]) -> None:
    """Raise ConfigurationError if an engine's file is missing or blank, and the engine read another file before.

    A symlink to that file was removed. A file with the handlers alone would lose the rest of the engine's settings.
    """
    if not is_blank(file.content) or file.path in records:
        return
    earlier = [
        path for path, each in records.items() if each.role == file.role and had_own_content(each.before, each.written)
    ]
    if earlier:
        raise ConfigurationError(
            f"is {'missing' if file.content is None else 'empty'}, and {earlier[0]} was read in its place when the "
            "handlers were put there: with them alone the engine would lose all that it had",
            path=file.path,
            hint=f"make it a symlink to {earlier[0]}, as it may have been, or put a whole file there; or, if it is "
            "meant so, run `toolkit-installer uninstall` and start this run again",
        )


@contextlib.contextmanager
def name_backups_in_errors(records: Mapping[str, RecordedFile]) -> Iterator[None]:
    """Add the backup of a recorded file to the hint of an error about reading the file."""
    try:
        yield
    except DocumentError as error:
        recorded = records.get(error.path or "")
        if recorded is not None and recorded.kept:
            error.hint = f"{error.hint or 'correct the file'}; what stood there before is kept in {recorded.kept}"
        raise


def lost_sections(before: Table, now: Table, aliases: Collection[str] = ()) -> tuple[str, ...]:
    """Return the tables that lost all their values since `before`; if none did, all its keys, if none of them is left.

    A changed version or imports list is no loss. `aliases` are the names of one section in different versions.
    """
    lost = tuple(
        ".".join(path)
        for path in _sections(before)
        if not any(
            _has_values(lookup(now, (*path[:-1], name))) for name in (aliases if path[-1] in aliases else path[-1:])
        )
    )
    keys = [key for key, value in before.items() if key not in _NOT_COUNTED and _has_values(value)]
    return lost or (tuple(keys) if keys and now.keys().isdisjoint(keys) else ())


def _sections(document: Table) -> list[Path]:
    tables = [key for key, value in document.items() if isinstance(value, dict)]
    paths: list[Path] = [(key, inner) for key in tables if key in _GROUPS for inner in document[key]]
    paths += [(key,) for key in tables if key not in _GROUPS]
    return [path for path in paths if isinstance(lookup(document, path), dict) and _has_values(lookup(document, path))]


def _has_values(value: Any) -> bool:
    """Tell whether a value is anything but ABSENT, or tables without values."""
    return any(map(_has_values, value.values())) if isinstance(value, dict) else value is not ABSENT
