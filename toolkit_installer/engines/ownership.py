"""What the files of an engine list, and what is wrong with them, with file and line. Pure.

What is ours in an engine's file, and what stood there before: pure, and the same for every engine.

An engine's file has a table of runtimes and the name of a default one. We own the entries that we wrote, and every
entry whose executable lies in our toolkit folder, whoever wrote it. Taking ours out gives what the file would say
without us: prior values return, what others changed meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents import changes
from toolkit_installer.documents.changes import ABSENT, Change, Path, Remove, Set, Table, apply, lookup, same
from toolkit_installer.errors import ConfigurationError


class ListedRuntime(msgspec.Struct, frozen=True):
    """A runtime in an engine's files: what it runs (None: the engine decides), and the file and line that has it."""

    name: str
    executable: str | None
    path: str
    line: int | None
    systemd: bool | None = None
    """Whether it leaves cgroups to systemd; None where that is no setting of a single runtime."""
    default: bool = False


class CgroupSetting(msgspec.Struct, frozen=True):
    """A cgroup driver, `systemd` or `cgroupfs`, and the file and line, or the flag, that names it."""

    name: str
    path: str
    line: int | None = None


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an engine's file, in which file and on which line, and what to do."""

    path: str
    line: int | None
    reason: str
    hint: str
    stops: bool = False
    """The engine, or its CRI, does not start with it, whichever release of those in question it is."""
    mended: bool = False
    """Another default runtime mends it."""

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> ConfigurationError:
        """Return it as the error with which a run is refused."""
        return ConfigurationError(self.reason, path=self.path, line=self.line, hint=self.hint)

    @classmethod
    def of(cls, error: ConfigurationError, *, stops: bool) -> Fault:
        """Return what an error that names its file says."""
        return cls(error.path or "", error.line, error.reason, error.hint or "", stops=stops)


MARKER = "Added by toolkit-installer, which removes it when it stops."
"""The comment above what is ours in a TOML file."""
BUILT_IN = "runc"
"""What docker and containerd run where nothing says otherwise: a program that they look for, and a runtime's name."""
_USUAL = (BUILT_IN, "crun")
"""The low-level runtimes, by the names that engines know them by."""


class Owned(msgspec.Struct, frozen=True):
    """A value that we wrote at `path`, and the one that stood there before (ABSENT: none).

    With `item`, `ours` is one element of the list at `path`.
    """

    path: Path
    ours: Any
    prior: Any = ABSENT
    item: bool = False


class Ownership(msgspec.Struct, frozen=True):
    """All that we own in one file; `created` are the tables that are there only because of us, outermost first."""

    keys: tuple[Owned, ...] = ()
    created: tuple[Owned, ...] = ()

    def of(self, path: Path) -> Owned | None:
        """Return our record for `path`, if there is one."""
        return next((key for key in self.keys if key.path == path), None)


class Shape(msgspec.Struct, frozen=True):
    """Where an engine keeps its runtimes; `executable` reads the path out of a runtime's entry (None: it has none).

    `others` are single values that we may set beside them, and revert. `alike` tells whether a list's element says
    what ours says, in whatever spelling. `is_low_level` tells whether what a runtime's entry runs is an OCI runtime of
    runc's kind, which can stand in for runc; a virtual machine's (Kata) or a sandbox's (gVisor) cannot. `reset` is what
    NVIDIA's own installer leaves as the default runtime where its cleanup removed the handler that was it.
    """

    runtimes: Path
    default: Path
    executable: Callable[[Any], str | None]
    others: tuple[Path, ...] = ()
    alike: Callable[[Any, Any], bool] = same
    is_low_level: Callable[[Any], bool] = lambda entry: isinstance(entry, dict)
    reset: Any = ABSENT

    def entries(self, document: Table) -> dict[str, Table]:
        """Return the tables of all runtimes in a document, by name."""
        found = lookup(document, self.runtimes)
        return {name: each for name, each in found.items() if isinstance(each, dict)} if isinstance(found, dict) else {}


def beneath(path: str | None, folder: str) -> bool:
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
    """Return a file without us, None if nothing else is left, and what there is to say of it.

    If nobody touched what we wrote, that is `before`, the very bytes of the base that was kept; else what
    `without_ours` makes of it. `written`: the SHA-256 of our targets. Both come from the receipt.

    A file that is missing or empty has lost what it held, and holds nothing of anybody else: it becomes `before`, too.
    One that `may_be_absent` stays missing: an administrator removes or renames such a file to take it out of use.
    """
    if content == before or (content is not None and changes.sha256(content) in written):
        return before, ()
    if is_blank(content) and is_kept(before, written) and not (content is None and may_be_absent):
        return before, (f"it is {'missing' if content is None else 'empty'}: what stood there before is restored",)
    return (None, ()) if content is None else without_ours(content)


def is_blank(content: bytes | None) -> bool:
    """Tell whether a file is missing, or has nothing but white space in it."""
    return content is None or not content.strip()


def is_kept(before: bytes | None, written: Collection[str]) -> bool:
    """Tell whether a file had a content of its own before us, and something of ours was written into it."""
    if before is None or before.strip() in (b"", b"{}"):
        return False
    return any(digest != changes.sha256(before) for digest in written)


def ours(document: Table, shape: Shape, toolkit_folder: str) -> bool:
    """Tell whether any runtime of the document lies in our toolkit folder."""
    return any(beneath(shape.executable(entry), toolkit_folder) for entry in shape.entries(document).values())


def record(base: Table, changes: Sequence[Change]) -> Ownership:
    """Return what becomes ours when `changes` (all of them Set) are made to `base`."""
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
    """Return the tables that lead to `path` as created by us, to go when they are empty."""
    return tuple(Owned(path[:length], {}) for length in range(1, len(path)))


def strip(
    document: Table,
    shape: Shape,
    ownership: Ownership,
    toolkit_folder: str,
    before: Table | None = None,
    handlers: Collection[str] = (),
) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """Return the changes that make `document` what it would be without us, and what others did to ours, in words.

    `before` is what the file said before us, where that is known; `handlers` are ours, in whatever file of the engine.
    """
    changes: list[Change] = []
    left: list[str] = []
    for name, entry in shape.entries(document).items():
        path = (*shape.runtimes, name)
        owned = ownership.of(path)
        untouched = owned is not None and same(entry, owned.ours)
        if untouched or beneath(shape.executable(entry), toolkit_folder):
            changes.append(restored(path, owned))
            if not untouched and ownership.keys:
                left.append(f"runtime {name!r}: somebody else wrote it, but it runs our executable: it goes")
        elif owned is not None:
            left.append(f"runtime {name!r}: somebody changed it since; it is theirs now")
    left += _default(document, shape, ownership, changes, before or {}, handlers)
    for path in shape.others:
        owned, current = ownership.of(path), lookup(document, path)
        if owned is not None and same(current, owned.ours):
            changes.append(restored(path, owned))
        elif owned is not None and current is not ABSENT:
            left.append(f"{path[-1]}: somebody set it since; it is theirs now")
    _items(document, shape, ownership, changes)
    without = apply(document, tuple(changes))
    for table in reversed(ownership.created):  # what is there only because of us, the innermost first
        if lookup(without, table.path) == {}:
            changes.append(restored(table.path, table))
            without = apply(without, (changes[-1],))
    return tuple(changes), tuple(left)


def low_level(base: Table, shape: Shape, *, legacy: Any = None, built_in: str = BUILT_IN) -> tuple[str, ...]:
    """Return what can run containers in the end, best first, as a document without us has it.

    The first is what runs the engine's ordinary containers: the default runtime's executable, or `built_in` where the
    document does not say one. The executables of the runtimes that are called runc and crun follow: they stand in for
    the first where that is not installed, and nothing shows that they can run what the engine makes for it, as it may
    be newer than they are. Others (Kata, gVisor, sysbox) are for the containers that ask for them, and stand in for
    nothing. `legacy` is an entry that counts as the default runtime's whatever the document calls its default.
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
    """Return the change that brings the prior value of an owned key back."""
    if owned is None or owned.prior is ABSENT:
        return Remove(path)
    return Set(path, owned.prior)


def _default(
    document: Table,
    shape: Shape,
    ownership: Ownership,
    changes: list[Change],
    before: Table,
    handlers: Collection[str],
) -> list[str]:
    """Revert our default, and one that names a handler which goes; return what there is to say about it.

    The default from before us returns, whoever wrote the one that goes. `changes` take our runtimes out.
    """
    current, owned = lookup(document, shape.default), ownership.of(shape.default)
    prior = lookup(before, shape.default) if owned is None else owned.prior
    written = {key.path[-1] for key in ownership.keys if key.path[:-1] == shape.runtimes} - {BUILT_IN}
    runtimes = shape.entries(apply(document, tuple(changes)))
    # NVIDIA's cleanup removes its handlers, the default that names one of them, and nothing else; where a handler is
    # still there, or other things are gone as well, the default is somebody's choice
    spared = {shape.default, *((*shape.runtimes, name) for name in written)}
    gone_with_handlers = current is ABSENT or same(current, shape.reset)
    handlers_are_gone = bool(written) and shape.entries(document).keys().isdisjoint(written)
    if gone_with_handlers and handlers_are_gone and has_all(document, before, spared):
        if prior is ABSENT:
            changes += [] if current is ABSENT else [Remove(shape.default)]
        elif isinstance(prior, str) and same(runtimes.get(prior, ABSENT), shape.entries(before).get(prior)):
            changes.append(Set(shape.default, prior))
        return []
    if current is ABSENT:
        return []
    if owned is None and not before and current in runtimes:
        return []  # what stood there before is not known, and the default names an earlier handler that is back
    # a handler of that name from before us is another one, and the engine has its own runc, whether the file names it
    ours_here = {change.path[-1] for change in changes}
    gone = (ours_here | ({*written, *handlers} - runtimes.keys())) - {BUILT_IN}
    if current not in gone and (owned is None or not same(current, owned.ours)):
        theirs = f"default runtime {current!r}: somebody set it since; it is theirs now"
        return [theirs] if owned is not None else []
    if isinstance(prior, str) and prior in shape.entries(before) and prior not in runtimes:
        # an engine refuses to start with a default that it does not know
        changes.append(Remove(shape.default))
        return [f"default runtime {prior!r}: not given back, because somebody removed that runtime since"]
    changes.append(Remove(shape.default) if prior is ABSENT else Set(shape.default, prior))
    return []


def has_all(document: Any, before: Table, spared: Collection[Path], path: Path = ()) -> bool:
    """Tell whether a document has all keys of another one, whatever their values are, but those at and below `spared`.

    Empty tables do not count.
    """
    for key, value in before.items():
        inner = (*path, key)
        if inner not in spared:
            found = document.get(key, ABSENT) if isinstance(document, dict) else ABSENT
            if not (has_all(found, value, spared, inner) if isinstance(value, dict) else found is not ABSENT):
                return False
    return True


def default_in(document: Table, *shapes: Shape) -> str | None:
    """Return the default runtime that a document names, in the first of these places; None for none."""
    found = (lookup(document, shape.default) for shape in shapes)
    return next((name for name in found if isinstance(name, str)), None)


def chosen_default(present: Table, shape: Shape, ownership: Ownership, handlers: Collection[str]) -> str | None:
    """Return the handler of ours that somebody else made the default while we are installed; None if nobody did."""
    current, owned = lookup(present, shape.default), ownership.of(shape.default)
    ours = owned is not None and same(current, owned.ours)
    return current if isinstance(current, str) and current in handlers and not ours else None


def dangling_default(document: Table, shape: Shape, handlers: Collection[str], prior: str | None) -> Ownership:
    """Return the default that names one of `handlers`, which go, and no runtime of the document; as ours.

    `prior` is the one that the file named before us, and that the engine knows; None: nothing is known of it.
    """
    current = lookup(document, shape.default)
    dangles = isinstance(current, str) and current in handlers and current not in shape.entries(document)
    return Ownership((Owned(shape.default, current, ABSENT if prior is None else prior),) if dangles else ())


def _items(document: Table, shape: Shape, ownership: Ownership, changes: list[Change]) -> None:
    """Take our elements out of lists."""
    for key in ownership.keys:
        current = lookup(document, key.path)
        if not key.item or not isinstance(current, list):
            continue
        rest = [element for element in current if not shape.alike(element, key.ours)]
        if not rest and key.prior is ABSENT:
            changes.append(Remove(key.path))
        elif len(rest) != len(current):
            changes.append(Set(key.path, rest))
