"""Our values in an engine's file, their prior values, and the reports about such files. Pure.

It is the same for every engine: a file has a table of runtimes and the name of a default runtime. We own the entries
that we wrote, and every entry whose executable lies in our toolkit folder, whoever wrote it. Removing ours leaves the
file as it would be without us: prior values return, and changes that others made meanwhile stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents import changes
from toolkit_installer.documents.changes import ABSENT, Change, Path, Remove, Set, Table, apply_changes, is_same, lookup
from toolkit_installer.errors import ConfigurationError


class ListedRuntime(msgspec.Struct, frozen=True):
    """A runtime in an engine's files: its executable (None: the engine decides), and its file and line."""

    name: str
    executable: str | None
    path: str
    line: int | None
    systemd: bool | None = None
    """Whether it leaves cgroups to systemd; None if single runtimes have no such setting."""
    default: bool = False


class CgroupSetting(msgspec.Struct, frozen=True):
    """A cgroup driver, `systemd` or `cgroupfs`, and the file and line, or the flag, that names it."""

    name: str
    path: str
    line: int | None = None


class Fault(msgspec.Struct, frozen=True):
    """A fault in an engine's file: the file, the line, the reason and the remedy."""

    path: str
    line: int | None
    reason: str
    hint: str
    stops: bool = False
    """The engine, or its CRI, does not start with the file, in every release that may be running."""
    mended: bool = False
    """Choosing another default runtime fixes it."""

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> ConfigurationError:
        """Return the fault as the error with which a run is refused."""
        return ConfigurationError(self.reason, path=self.path, line=self.line, hint=self.hint)

    @classmethod
    def of(cls, error: ConfigurationError, *, stops: bool) -> Fault:
        """Return the fault that an error with a file name reports."""
        return cls(error.path or "", error.line, error.reason, error.hint or "", stops=stops)


MARKER = "Added by toolkit-installer, which removes it when it stops."
"""The comment above our values in a TOML file."""
BUILT_IN = "runc"
"""The default of docker and containerd: the name of a runtime, and of the program that they search for."""
_USUAL = (BUILT_IN, "crun")
"""The low-level runtimes, by the names that engines use."""


class Owned(msgspec.Struct, frozen=True):
    """A value that we wrote at `path`, and the prior value (ABSENT: none).

    With `item`, `ours` is one element of the list at `path`.
    """

    path: Path
    ours: Any
    prior: Any = ABSENT
    item: bool = False


class Ownership(msgspec.Struct, frozen=True):
    """All values that we own in one file; `created` are the tables that exist only because of us, outermost first."""

    keys: tuple[Owned, ...] = ()
    created: tuple[Owned, ...] = ()

    def of(self, path: Path) -> Owned | None:
        """Return our record for `path`, None if there is none."""
        return next((key for key in self.keys if key.path == path), None)


class Shape(msgspec.Struct, frozen=True):
    """Where an engine keeps its runtimes; `executable` reads the path from a runtime's entry (None: it has none).

    `others` are further single values that we may set and revert. `alike` tells whether a list's element means the same
    as ours, in whatever spelling. `is_low_level` tells whether the entry's executable is an OCI runtime of runc's kind,
    which can replace runc; a virtual machine's (Kata) or a sandbox's (gVisor) cannot. `reset` is the default runtime
    that the cleanup of NVIDIA's own installer leaves after it removed the handler that was the default.
    """

    runtimes: Path
    default: Path
    executable: Callable[[Any], str | None]
    others: tuple[Path, ...] = ()
    alike: Callable[[Any, Any], bool] = is_same
    is_low_level: Callable[[Any], bool] = lambda entry: isinstance(entry, dict)
    reset: Any = ABSENT

    def entries(self, document: Table) -> dict[str, Table]:
        """Return the tables of all runtimes in a document, by name."""
        found = lookup(document, self.runtimes)
        return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def is_beneath(path: str | None, folder: str) -> bool:
    """Tell whether `path` lies in `folder`."""
    return path is not None and path.startswith(folder.rstrip("/") + "/")


def revert_content(
    content: bytes | None,
    before: bytes | None,
    written: Collection[str],
    without_ours: Callable[[bytes], tuple[bytes | None, tuple[str, ...]]],
    *,
    may_be_absent: bool = False,
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return a file without our values, None if nothing else is left, and messages about it.

    If nobody changed our content, the result is `before`, the exact bytes of the saved base; else the result of
    `without_ours`. `written`: the SHA-256 of our targets. Both come from the receipt.

    A missing or empty file has lost its content and holds nobody else's: it becomes `before`, too. A file that
    `may_be_absent` stays missing: an administrator disables such a file by removing or renaming it.
    """
    if content == before or (content is not None and changes.sha256(content) in written):
        return before, ()
    if is_blank(content) and had_own_content(before, written) and not (content is None and may_be_absent):
        return before, (f"it is {'missing' if content is None else 'empty'}: what stood there before is restored",)
    return (None, ()) if content is None else without_ours(content)


def is_blank(content: bytes | None) -> bool:
    """Tell whether a file is missing, or contains only white space."""
    return content is None or not content.strip()


def had_own_content(before: bytes | None, written: Collection[str]) -> bool:
    """Tell whether a file had content of its own before us, and we wrote other content into it."""
    if before is None or before.strip() in (b"", b"{}"):
        return False
    return any(digest != changes.sha256(before) for digest in written)


def ours(document: Table, shape: Shape, toolkit_folder: str) -> bool:
    """Tell whether any runtime of the document lies in our toolkit folder."""
    return any(is_beneath(shape.executable(entry), toolkit_folder) for entry in shape.entries(document).values())


def record_ownership(base: Table, changes: Sequence[Change]) -> Ownership:
    """Return the ownership that results from making `changes` (all of them Set) to `base`."""
    keys = tuple(
        Owned(change.path, change.value, lookup(base, change.path)) for change in changes if isinstance(change, Set)
    )
    created: dict[Path, Owned] = {}
    for key in keys:
        for length in range(1, len(key.path)):
            parent = key.path[:length]
            prior = lookup(base, parent)
            if not isinstance(prior, dict):
                created.setdefault(parent, Owned(parent, {}, prior))
    return Ownership(keys, tuple(created.values()))


def parents(path: Path) -> tuple[Owned, ...]:
    """Return the tables that lead to `path` as created by us, to be removed once they are empty."""
    return tuple(Owned(path[:length], {}) for length in range(1, len(path)))


def remove_ours(
    document: Table,
    shape: Shape,
    ownership: Ownership,
    toolkit_folder: str,
    before: Table | None = None,
    handlers: Collection[str] = (),
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that remove our values from `document`, and in words what others did to our values.

    `before` is the parsed file before us, if known; `handlers` are our handlers in all of the engine's files.
    """
    changes: list[Change] = []
    left: list[str] = []
    for name, entry in shape.entries(document).items():
        path = (*shape.runtimes, name)
        owned = ownership.of(path)
        untouched = owned is not None and is_same(entry, owned.ours)
        if untouched or is_beneath(shape.executable(entry), toolkit_folder):
            changes.append(restored(path, owned))
            if not untouched and ownership.keys:
                left.append(f"runtime {name!r}: somebody else wrote it, but it runs our executable: it goes")
        elif owned is not None:
            left.append(f"runtime {name!r}: somebody changed it since; it is theirs now")
    left += _revert_default(document, shape, ownership, changes, before or {}, handlers)
    for path in shape.others:
        owned, current = ownership.of(path), lookup(document, path)
        if owned is not None and is_same(current, owned.ours):
            changes.append(restored(path, owned))
        elif owned is not None and current is not ABSENT:
            left.append(f"{path[-1]}: somebody set it since; it is theirs now")
    _remove_list_items(document, shape, ownership, changes)
    without = apply_changes(document, tuple(changes))
    for table in reversed(ownership.created):  # innermost first
        if lookup(without, table.path) == {}:
            changes.append(restored(table.path, table))
            without = apply_changes(without, (changes[-1],))
    return tuple(changes), tuple(left)


def list_low_level_runtimes(
    base: Table, shape: Shape, *, legacy: Any = None, built_in: str = BUILT_IN
) -> tuple[str, ...]:
    """Return the low-level runtimes of a document without our values, best first.

    The first runs the engine's ordinary containers: the default runtime's executable, or `built_in` if the document
    names none. The executables of the runtimes called runc and crun follow: they replace the first if it is not
    installed. Nothing proves that they can run the containers that the engine creates, as the engine may be newer than
    they are. Others (Kata, gVisor, sysbox) are only for the containers that request them, and replace nothing. `legacy`
    is an entry that counts as the default runtime's, whatever default the document names.
    """
    entries = shape.entries(base)
    name = lookup(base, shape.default)
    default = entries.get(name) if isinstance(name, str) else None
    defaults = (legacy, default, entries.get(BUILT_IN))
    first = next((shape.executable(entry) for entry in defaults if shape.is_low_level(entry)), None) or built_in
    named = (default, *(entries.get(usual) for usual in _USUAL))
    others = (shape.executable(entry) for entry in named if shape.is_low_level(entry))
    return tuple(dict.fromkeys([first, *(path for path in others if path)]))


def restored(path: Path, owned: Owned | None) -> Change:
    """Return the change that restores the prior value of an owned key."""
    if owned is None or owned.prior is ABSENT:
        return Remove(path)
    return Set(path, owned.prior)


def _revert_default(
    document: Table,
    shape: Shape,
    ownership: Ownership,
    changes: list[Change],
    before: Table,
    handlers: Collection[str],
) -> list[str]:
    """Revert our default, or a default that names a removed handler; return messages about it.

    The default from before us returns, whoever wrote the one that is removed. `changes` remove our runtimes.
    """
    current, owned = lookup(document, shape.default), ownership.of(shape.default)
    prior = lookup(before, shape.default) if owned is None else owned.prior
    written = {key.path[-1] for key in ownership.keys if key.path[:-1] == shape.runtimes} - {BUILT_IN}
    runtimes = shape.entries(apply_changes(document, tuple(changes)))
    # NVIDIA's cleanup removes its handlers, the default that names one of them, and nothing else; if a handler is
    # left, or other values are missing as well, an administrator chose the default
    spared = {shape.default, *((*shape.runtimes, name) for name in written)}
    gone_with_handlers = current is ABSENT or is_same(current, shape.reset)
    handlers_are_gone = bool(written) and shape.entries(document).keys().isdisjoint(written)
    if gone_with_handlers and handlers_are_gone and has_all_keys(document, before, spared):
        if prior is ABSENT:
            changes += [] if current is ABSENT else [Remove(shape.default)]
        elif isinstance(prior, str) and is_same(runtimes.get(prior, ABSENT), shape.entries(before).get(prior)):
            changes.append(Set(shape.default, prior))
        return []
    if current is ABSENT:
        return []
    if owned is None and not before and current in runtimes:
        return []  # the original is unknown, and the default names an earlier handler that is back
    # a handler of that name from before us is a different one; the engine has a built-in runc, listed or not
    ours_here = {change.path[-1] for change in changes}
    gone = (ours_here | ({*written, *handlers} - runtimes.keys())) - {BUILT_IN}
    if current not in gone and (owned is None or not is_same(current, owned.ours)):
        theirs = f"default runtime {current!r}: somebody set it since; it is theirs now"
        return [theirs] if owned is not None else []
    if isinstance(prior, str) and prior in shape.entries(before) and prior not in runtimes:
        # an engine refuses to start with an unknown default
        changes.append(Remove(shape.default))
        return [f"default runtime {prior!r}: not given back, because somebody removed that runtime since"]
    changes.append(Remove(shape.default) if prior is ABSENT else Set(shape.default, prior))
    return []


def has_all_keys(document: Any, before: Table, spared: Collection[Path], path: Path = ()) -> bool:
    """Tell whether a document has all keys of `before`, whatever their values, except keys at and below `spared`.

    Empty tables do not count.
    """
    for key, value in before.items():
        inner = (*path, key)
        if inner not in spared:
            found = document.get(key, ABSENT) if isinstance(document, dict) else ABSENT
            if not (has_all_keys(found, value, spared, inner) if isinstance(value, dict) else found is not ABSENT):
                return False
    return True


def find_default(document: Table, *shapes: Shape) -> str | None:
    """Return the default runtime that a document names, in the first of these shapes; None if none."""
    found = (lookup(document, shape.default) for shape in shapes)
    return next((name for name in found if isinstance(name, str)), None)


def find_chosen_default(present: Table, shape: Shape, ownership: Ownership, handlers: Collection[str]) -> str | None:
    """Return our handler that another program or an administrator made the default since we installed; None if none."""
    current, owned = lookup(present, shape.default), ownership.of(shape.default)
    ours = owned is not None and is_same(current, owned.ours)
    return current if isinstance(current, str) and current in handlers and not ours else None


def find_dangling_default(document: Table, shape: Shape, handlers: Collection[str], prior: str | None) -> Ownership:
    """Return the default as ours if it names one of `handlers`, which are removed, and no runtime of the document.

    `prior` is the original default that the engine knows; None if unknown.
    """
    current = lookup(document, shape.default)
    dangles = isinstance(current, str) and current in handlers and current not in shape.entries(document)
    return Ownership((Owned(shape.default, current, ABSENT if prior is None else prior),) if dangles else ())


def _remove_list_items(document: Table, shape: Shape, ownership: Ownership, changes: list[Change]) -> None:
    """Remove our elements from lists."""
    for key in ownership.keys:
        current = lookup(document, key.path)
        if not key.item or not isinstance(current, list):
            continue
        rest = [element for element in current if not shape.alike(element, key.ours)]
        if not rest and key.prior is ABSENT:
            changes.append(Remove(key.path))
        elif len(rest) != len(current):
            changes.append(Set(key.path, rest))
