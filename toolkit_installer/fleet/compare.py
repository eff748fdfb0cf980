"""What became of one node between two captures, beside what was planned; and how it stands since. Pure.

Stand-ins and digests are made with a key. Two texts with hidden values are known to be the same where both captures
were made with one key; otherwise that is said to be untold, and never taken for the same.

What became of many nodes, put together from what became of each: alike ones are told together. Pure.

The files whose contents a capture tells, and what can be said of a content that may have had secrets.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from toolkit_installer.documents import diff
from toolkit_installer.documents.masking import DocumentMasker, mask
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.fleet import archive as archive_of
from toolkit_installer.fleet import values
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.forecast import Refusal, Refused
from toolkit_installer.fleet.values import NotReadableError
from toolkit_installer.node.reading import Found
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
    return diff.format_diff(path, _shown(one), _shown(other))


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


_SCHEMA: Final = 1
_Key = TypeVar("_Key")


class Changed(msgspec.Struct, frozen=True):
    """Nodes on which a file became the same that nobody planned."""

    path: str
    against: str
    since: str
    diff: str
    nodes: tuple[str, ...]


class ChangedFact(msgspec.Struct, frozen=True):
    """Nodes of which the same is another than before."""

    what: str
    before: str
    after: str
    nodes: tuple[str, ...]


class Drift(msgspec.Struct, frozen=True):
    """Nodes on which somebody made the same of a managed file."""

    state: str
    against: str
    diff: str
    nodes: tuple[str, ...]


class DriftedFile(msgspec.Struct, frozen=True):
    """A managed file, on how many nodes it is not what was written, and what it is there."""

    path: str
    nodes: int
    groups: tuple[Drift, ...]


class Said(msgspec.Struct, frozen=True):
    """Nodes of which the same is said."""

    reason: str
    nodes: tuple[str, ...]


class Totals(msgspec.Struct, frozen=True):
    """How many captures could be used, and how many nodes there are of each kind."""

    before: int
    after: int
    compared: int
    unplanned: int
    drifted: int
    lagging: int
    untold: int
    unusable: int


class Summary(msgspec.Struct, frozen=True):
    """The answer of `compare --json`. Its form has a number, as that of `replay --json`."""

    schema: int
    version: str
    nodes: Totals
    unplanned: tuple[Changed, ...]
    facts: tuple[ChangedFact, ...]
    drift: tuple[DriftedFile, ...]
    lagging: tuple[Said, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    untold: tuple[Said, ...]
    unusable: tuple[Refused, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is unplanned, drifted, lagging or untold, and all captures could be used."""
        nodes = self.nodes
        return not (nodes.unplanned or nodes.drifted or nodes.lagging or nodes.untold or nodes.unusable)


class Comparison:
    """Takes up one node after another; of each, only its name is kept once somebody had the same."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._after: list[str] = []
        self._differences: dict[Difference, list[str]] = {}
        self._facts: dict[Fact, list[str]] = {}
        self._drifted: dict[Drifted, list[str]] = {}
        self._lags: dict[str, list[str]] = {}
        self._untold: dict[str, list[str]] = {}
        self._installers: dict[str, str] = {}
        self._releases: dict[str, str] = {}
        self._unusable: dict[str, Refused] = {}

    def add(self, node: str, findings: Findings) -> None:
        """Take up a node that has a later capture."""
        for each in findings.differences:
            self._differences.setdefault(each, []).append(node)
        for fact in findings.facts:
            self._facts.setdefault(fact, []).append(node)
        for drifted in findings.drifted:
            self._drifted.setdefault(drifted, []).append(node)
        for reason in findings.lags:
            self._lags.setdefault(reason, []).append(node)
        for what in findings.untold:
            self._untold.setdefault(what, []).append(node)
        if findings.installer is not None:
            self._installers[node] = findings.installer
        if findings.release is not None:
            self._releases[node] = findings.release

    def name(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Take up the names of the nodes that there is a capture of, before and after."""
        self._before = sorted(before)
        self._after = sorted(after)

    def refuse(self, file: str, refusal: Refusal) -> None:
        """Take up a capture that cannot be used."""
        known = self._unusable.setdefault(refusal.reason, Refused(refusal.reason, refusal.hint, refusal.code, []))
        known.nodes.append(file)

    def summary(self, version: str) -> Summary:
        """Return what all of them come to."""
        lags = {reason: list(nodes) for reason, nodes in self._lags.items()}
        for what, versions in (("toolkit-installer", self._installers), ("the toolkit", self._releases)):
            for node, reason in older_than_most(what, versions).items():
                lags.setdefault(reason, []).append(node)
        before, after = set(self._before), set(self._after)
        unplanned = _nodes([*self._differences.values(), *self._facts.values()])
        return Summary(
            schema=_SCHEMA,
            version=version,
            nodes=Totals(
                before=len(before),
                after=len(after),
                compared=len(before & after),
                unplanned=unplanned,
                drifted=_nodes(self._drifted.values()),
                lagging=_nodes(lags.values()),
                untold=_nodes(self._untold.values()),
                unusable=sum(len(each.nodes) for each in self._unusable.values()),
            ),
            unplanned=tuple(
                Changed(each.path, each.against, each.since, each.diff, nodes)
                for each, nodes in _sorted(self._differences)
            ),
            facts=tuple(ChangedFact(each.what, each.before, each.after, nodes) for each, nodes in _sorted(self._facts)),
            drift=tuple(self._drift()),
            lagging=tuple(Said(reason, nodes) for reason, nodes in _sorted(lags)),
            only_before=tuple(sorted(before - after)),
            only_after=tuple(sorted(after - before)),
            untold=tuple(Said(what, nodes) for what, nodes in _sorted(self._untold)),
            unusable=tuple(sorted(self._unusable.values(), key=lambda each: (-len(each.nodes), each.reason))),
        )

    def _drift(self) -> list[DriftedFile]:
        by_path: dict[str, list[Drift]] = {}
        for each, nodes in _sorted(self._drifted):
            by_path.setdefault(each.path, []).append(Drift(each.state, each.against, each.diff, nodes))
        found = [
            DriftedFile(path, _nodes(group.nodes for group in groups), tuple(groups))
            for path, groups in by_path.items()
        ]
        return sorted(found, key=lambda file: (-file.nodes, file.path))


def older_than_most(what: str, versions: dict[str, str]) -> dict[str, str]:
    """Return why nodes lag whose version is older than the one that most have, the newest of those that as many have.

    `versions` are those of the nodes, by their names.
    """
    counted = Counter(versions.values())
    if not counted:
        return {}
    usual = max(counted, key=lambda version: (counted[version], _numbers(version), version))
    return {
        node: f"{what} is {version} there, and {usual} on most nodes"
        for node, version in versions.items()
        if _numbers(version) < _numbers(usual)
    }


def _numbers(version: str) -> list[int]:
    """Return the numbers with which a version begins; a pre-release counts as its release."""
    begun = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    return [int(part) for part in begun[1].split(".")] if begun is not None else []


def _nodes(groups: Iterable[Sequence[str]]) -> int:
    return len({node for nodes in groups for node in nodes})


def _sorted(groups: dict[_Key, list[str]]) -> list[tuple[_Key, tuple[str, ...]]]:
    """Return groups of nodes, the largest first."""
    found = [(key, tuple(nodes)) for key, nodes in groups.items()]
    return sorted(found, key=lambda group: (-len(group[1]), str(group[0])))


READ: Final = "node.reading.Reader.read_file"
"""The query that reads a file of the node."""


def files_of(archive: Archive, path: str) -> dict[str, Text]:
    """Return the files of the node that were read for the capture at `path`, those that were not there as well.

    What could not be read is left out. Raises ConfigurationError for a damaged capture.
    """
    found: dict[str, Text] = {}
    for line, raw in archive.answers.get(READ, {}).items():
        folder, *asked = archive_of.split_line(values.unescape(line))
        if folder != archive.root or len(asked) != 1:
            continue
        try:
            file = values.decode(raw, Found | None)
        except NotReadableError as error:
            raise ConfigurationError(f"is damaged: {READ}: {error}", path=path) from error
        except (InstallerError, OSError):
            continue
        found[asked[0] if file is None else file.path] = captured(archive, None if file is None else file.content)
    return found


def captured(archive: Archive, content: bytes | None) -> Text:
    """Return a content as it is in a capture, None for no file. What it was on the node is known by its digest."""
    if content is None:
        return Text(None)
    found = _sha256(content)
    return Text(content, archive.digests.get(found, found), archive.key, whole=_is_whole(archive, content))


def planned(archive: Archive, content: bytes | None, now: bytes | None) -> Text:
    """Return a content that was planned for the node of a capture, where `now` stands.

    What it would be on the node is not known where a stand-in is in it.
    """
    if content is None or content == now or _sha256(content) in archive.digests:
        return captured(archive, content)
    whole = _is_whole(archive, content)
    return Text(content, _sha256(content) if whole else None, archive.key, whole=whole)


def _is_whole(archive: Archive, content: bytes) -> bool:
    """Tell whether nothing is hidden in a content, as it is in a capture or was planned for it."""
    return archive.secrets_kept or DocumentMasker().content(content) == content


def _sha256(content: bytes) -> str:
    """Return the SHA-256 of a content as it is here, also while a player says what it is on the node."""
    return hashlib.sha256(content).hexdigest()
