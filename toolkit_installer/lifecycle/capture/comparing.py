"""What became of one node between two captures, beside what was planned; and how it stands since. Pure.

Stand-ins and digests are made with a key. Two texts with hidden values are known to be the same where both captures
were made with one key; otherwise that is said to be untold, and never taken for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from toolkit_installer.documents import diff
from toolkit_installer.documents.hiding import mask
from toolkit_installer.receipt.schema import Receipt, State

AS_WRITTEN: Final = "as written"
"""How a managed file stands that nobody changed, in the words of `status`."""
_ANEW: Final = ("/dev", "/proc", "/run", "/sys", "/var/run")
"""Folders whose files are made anew at each boot, and by the kernel."""


class Text(msgspec.Struct, frozen=True):
    """A file, as a capture tells it, or as it was planned; None: there is none."""

    content: bytes | None
    digest: str | None = None
    """What stands for its SHA-256 on the node, None where that is not known."""
    key: str = ""
    """What the key is called that its stand-ins and its digest were made with."""
    whole: bool = False
    """Nothing is hidden in it."""


class Managed(msgspec.Struct, frozen=True):
    """A file that the later receipt names. `state`: how it stands, None where the capture does not tell."""

    path: str
    state: str | None
    written: tuple[str, ...]
    """SHA-256 of what was written there."""


class Before(msgspec.Struct, frozen=True):
    """The earlier capture, and what a run with the later one's settings was to make of it."""

    files: Mapping[str, Text]
    targets: Mapping[str, Text] = {}
    """What the engines' files were to be."""
    returned: Mapping[str, str | None] = {}
    """Files that were to be given back: SHA-256 of what they were before, None for no file."""
    unforeseen: str | None = None
    """Why nothing was planned, None where it was."""
    programs: frozenset[str] = frozenset()
    """The toolkit's programs, of which engines' files name some."""
    facts: Mapping[str, str] = {}


class After(msgspec.Struct, frozen=True):
    """The later capture. `aside`: files, and folders, that are not compared with the earlier one."""

    files: Mapping[str, Text]
    managed: tuple[Managed, ...] = ()
    own: Mapping[str, Text] = {}
    """What a run would make of the engines' files now."""
    aside: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    facts: Mapping[str, str] = {}


class Difference(msgspec.Struct, frozen=True):
    """A file that is not what was planned, or of which nobody planned anything."""

    path: str
    against: str
    """What it is compared with: PLAN, or BEFORE."""
    since: str
    """What the receipt says of when it was changed."""
    diff: str
    """Empty where only what is not shown is another: secrets, or no text."""


PLAN: Final = "the plan"
BEFORE: Final = "the capture before"


class Fact(msgspec.Struct, frozen=True):
    """What else is another than before: an engine's version, the driver's, the GPUs."""

    what: str
    before: str
    after: str


class Drifted(msgspec.Struct, frozen=True):
    """A managed file that is not what was written. `against`: what the diff begins with, empty where there is none."""

    path: str
    state: str
    against: str
    diff: str


WRITTEN: Final = "what was written"
FORETOLD: Final = "what was planned to be written"
REPAIR: Final = "what a run would write now"


class Untold(msgspec.Struct, frozen=True):
    """What captures do not tell, in words."""

    what: str


class Findings(msgspec.Struct, frozen=True):
    """All that is to be said of one node."""

    differences: tuple[Difference, ...] = ()
    facts: tuple[Fact, ...] = ()
    drifted: tuple[Drifted, ...] = ()
    lags: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    installer: str | None = None
    release: str | None = None


class Standing(msgspec.Struct, frozen=True):
    """How a node stands by itself: what the replay of its later capture says, with its own settings."""

    receipt: Receipt | None = None
    left_alone: bool = False
    """It shows no GPU, and is to have nothing."""
    refused: str | None = None
    """Why a run would do nothing."""
    pending: str | None = None
    """What a run would change, None where that is nothing, or not known."""
    untold: str | None = None
    """Why the capture cannot be replayed."""


def findings(before: Before | None, after: After, standing: Standing) -> Findings:
    """Return what became of a node, and how it stands; `before` is None for one that has no earlier capture."""
    found = [*(_changed(before, after) if before is not None else ()), *_drifted(before, after)]
    receipt = standing.receipt
    untold = [each.what for each in found if isinstance(each, Untold)]
    if standing.untold is not None:
        untold.append(f"whether a run would change anything: {standing.untold}")
    if receipt is not None and receipt.release is None:
        untold.append("which release of the toolkit is installed: its receipt does not say")
    return Findings(
        differences=tuple(each for each in found if isinstance(each, Difference)),
        facts=tuple(_facts(before, after)) if before is not None else (),
        drifted=tuple(each for each in found if isinstance(each, Drifted)),
        lags=tuple(_lags(standing)),
        untold=tuple(dict.fromkeys(untold)),
        installer=receipt.installer if receipt is not None else None,
        release=receipt.release if receipt is not None else None,
    )


def same(one: Text, other: Text) -> bool | None:
    """Tell whether two texts are the same on the node, None where only their secrets may be others."""
    if one.content is None or other.content is None:
        return one.content is other.content
    if (one.whole and other.whole) or (one.key and one.key == other.key):
        return one.content == other.content
    return None if _shown(one) == _shown(other) else False


def difference(path: str, one: Text, other: Text) -> str:
    """Return the diff of two texts, in which secrets are masked; empty where only what is not shown is another."""
    if any(each.content is not None and b"\0" in each.content for each in (one, other)):
        return ""
    return diff.unified(path, _shown(one), _shown(other))


def _shown(text: Text) -> bytes | None:
    """Return a text without secrets, and without what stands for them in one capture alone."""
    if text.content is None:
        return None
    return mask(text.content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _changed(before: Before, after: After) -> Iterator[Difference | Untold]:
    """Yield the files that became something else than was planned."""
    managed = {each.path: each for each in after.managed}
    for path, wanted in sorted(before.targets.items()):
        yield from _against_plan(before, after, path, wanted, managed.get(path))
    for path, digest in sorted(before.returned.items()):
        found = after.files.get(path)
        if found is None or found.digest != digest:
            yield Untold(f"{path} was to be given back, and whether it is as a run left it")
    planned = {*before.targets, *before.returned}
    for path in sorted(before.files.keys() & after.files.keys() - planned):
        if _is_aside(path, after.aside) or same(old := before.files[path], new := after.files[path]):
            continue
        if before.unforeseen is not None and path in after.own:
            yield Untold(f"what a run was to make of {path}: {before.unforeseen}")
        else:  # two captures know what stood on the node: there is no doubt about secrets
            yield Difference(path, BEFORE, _since(managed.get(path)), difference(path, old, new))


def _against_plan(
    before: Before, after: After, path: str, wanted: Text, record: Managed | None
) -> Iterator[Difference | Untold]:
    found = after.files.get(path)
    if found is None:
        yield Untold(f"what {path} is now: it is not in the later capture")
        return
    alike = same(wanted, found)
    if alike or (path in before.files and same(before.files[path], found)):
        return  # what did not change at all is told as what a run would still change
    if alike is None:
        yield Untold(f"whether a hidden value in {path} was changed")
    elif before.programs != after.programs:
        yield Untold(f"what a run was to make of {path}: the toolkit of the later capture has other programs")
    else:
        left = path in before.files and same(before.files[path], wanted) is True
        yield Difference(path, BEFORE if left else PLAN, _since(record), difference(path, wanted, found))


def _since(record: Managed | None) -> str:
    if record is None:
        return "no receipt names it"
    if record.state == AS_WRITTEN:
        return "a run wrote it so: it was changed before that"
    return "changed since a run wrote it"


def _is_aside(path: str, aside: frozenset[str]) -> bool:
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in (*aside, *_ANEW))


def _facts(before: Before, after: After) -> Iterator[Fact]:
    for what in sorted(before.facts.keys() & after.facts.keys()):
        if before.facts[what] != after.facts[what]:
            yield Fact(what, before.facts[what], after.facts[what])


def _drifted(before: Before | None, after: After) -> Iterator[Drifted | Untold]:
    """Yield the managed files that are not what was written."""
    for record in after.managed:
        if record.state is None:
            yield Untold(f"whether {record.path} is as it was written: it is not in the later capture")
        elif record.state != AS_WRITTEN:
            yield Drifted(record.path, record.state, *_written(before, after, record))


def _written(before: Before | None, after: After, record: Managed) -> tuple[str, str]:
    """Return what is known of what was written, and the diff from that to what stands there now."""
    path, now = record.path, after.files.get(record.path)
    if now is None:
        return "", ""
    earlier = [] if before is None else [each[path] for each in (before.files, before.targets) if path in each]
    for text in earlier:
        if text.digest in record.written:
            return WRITTEN, difference(path, text, now)
    if before is not None and path in before.targets:
        return FORETOLD, difference(path, before.targets[path], now)
    if path in after.own and same(after.own[path], now) is not True:
        return REPAIR, difference(path, after.own[path], now)
    return "", ""


def _lags(standing: Standing) -> Iterator[str]:
    receipt = standing.receipt
    if standing.refused is not None:
        yield f"a run would refuse: {standing.refused}"
    if receipt is None:
        if not standing.left_alone and standing.refused is None:
            yield "nothing is installed"
        return
    if receipt.state is not State.INSTALLED:
        yield f"a run was at work there, or was killed: its receipt says {receipt.state}"
    for engine in receipt.engines:
        if engine.reload_due:
            yield f"{engine.name} has not taken its files over yet"
    if standing.pending is not None:
        yield f"a run would still change it: {standing.pending}"
