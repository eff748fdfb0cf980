"""Compares two captures of each node with a rollout between them, and summarizes the findings of many nodes. Pure.

Placeholders and digests are made with a key. Two texts with masked values can be compared if both captures were made
with the same key; otherwise they are reported as unknown, never as equal.
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
from toolkit_installer.fleet.forecast import Refusal, RefusalGroup
from toolkit_installer.fleet.values import NotReadableError
from toolkit_installer.node.reading import Found
from toolkit_installer.receipt.schema import Receipt, State

AS_WRITTEN: Final = "as written"
"""The state of an unchanged managed file, in the words of `status`."""
_VOLATILE_FOLDERS: Final = ("/dev", "/proc", "/run", "/sys", "/var/run")
"""Folders whose files the kernel provides, or that are created anew at each boot."""


class CapturedText(msgspec.Struct, frozen=True):
    """A file's content as captured or as planned; None: no file."""

    content: bytes | None
    digest: str | None = None
    """The substitute for its SHA-256 on the node, None if unknown."""
    key: str = ""
    """The name of the key that its placeholders and its digest were made with."""
    whole: bool = False
    """Whether it contains no placeholders."""


class ManagedState(msgspec.Struct, frozen=True):
    """A file in the later receipt. `state` is its drift, None if the capture lacks the file."""

    path: str
    state: str | None
    written: tuple[str, ...]
    """SHA-256 of the contents that were written there."""


class EarlierNode(msgspec.Struct, frozen=True):
    """The earlier capture, and the planned result of a run with the later settings."""

    files: Mapping[str, CapturedText]
    targets: Mapping[str, CapturedText] = {}
    """The planned contents of the engines' files."""
    restored: Mapping[str, str | None] = {}
    """Files to be restored, with the SHA-256 of their originals, None for no file."""
    unplanned_reason: str | None = None
    """Why there is no plan, None if there is one."""
    programs: frozenset[str] = frozenset()
    """The toolkit's programs, some of which engines' files name."""
    facts: Mapping[str, str] = {}


class LaterNode(msgspec.Struct, frozen=True):
    """The later capture. `aside`: files, and folders, that are not compared with the earlier one."""

    files: Mapping[str, CapturedText]
    managed: tuple[ManagedState, ...] = ()
    own: Mapping[str, CapturedText] = {}
    """The contents that a run would give to the engines' files now."""
    ignored: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    facts: Mapping[str, str] = {}


class Difference(msgspec.Struct, frozen=True):
    """A changed file that differs from the plan, or that no plan includes."""

    path: str
    against: str
    """The text that it is compared with: PLAN or BEFORE."""
    since: str
    """When it was changed, by the receipt."""
    diff: str
    """Empty if the difference is not shown: secrets, or binary content."""


PLAN: Final = "the plan"
BEFORE: Final = "the capture before"


class FactChange(msgspec.Struct, frozen=True):
    """Another changed fact: an engine's version, the driver's, the GPUs."""

    what: str
    before: str
    after: str


class DriftFinding(msgspec.Struct, frozen=True):
    """A managed file that was changed since it was written. `against` is the diff's first text, empty without one."""

    path: str
    state: str
    against: str
    diff: str


WRITTEN: Final = "what was written"
FORETOLD: Final = "what was planned to be written"
REPAIR: Final = "what a run would write now"


class UnknownFact(msgspec.Struct, frozen=True):
    """Something that the captures do not contain, in words."""

    what: str


class Findings(msgspec.Struct, frozen=True):
    """The findings for one node."""

    differences: tuple[Difference, ...] = ()
    facts: tuple[FactChange, ...] = ()
    drifted: tuple[DriftFinding, ...] = ()
    lags: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    installer: str | None = None
    release: str | None = None


class RolloutStatus(msgspec.Struct, frozen=True):
    """The status of a node by itself, from a replay of its later capture with its own settings."""

    receipt: Receipt | None = None
    left_alone: bool = False
    """Whether it has no GPU, and a run would install nothing."""
    refused: str | None = None
    """Why a run would refuse."""
    pending: str | None = None
    """The changes of a run, None if there are none, or if they are unknown."""
    untold: str | None = None
    """Why the capture cannot be replayed."""


def find_changes(before: EarlierNode | None, after: LaterNode, status: RolloutStatus) -> Findings:
    """Return the changes of a node, and its status; `before` is None if it has no earlier capture."""
    found = [*(_find_differences(before, after) if before is not None else ()), *_find_drift(before, after)]
    receipt = status.receipt
    untold = [each.what for each in found if isinstance(each, UnknownFact)]
    if status.untold is not None:
        untold.append(f"whether a run would change anything: {status.untold}")
    if receipt is not None and receipt.release is None:
        untold.append("which release of the toolkit is installed: its receipt does not say")
    return Findings(
        differences=tuple(each for each in found if isinstance(each, Difference)),
        facts=tuple(_find_fact_changes(before, after)) if before is not None else (),
        drifted=tuple(each for each in found if isinstance(each, DriftFinding)),
        lags=tuple(_explain_lag(status)),
        untold=tuple(dict.fromkeys(untold)),
        installer=receipt.installer if receipt is not None else None,
        release=receipt.release if receipt is not None else None,
    )


def compare_texts(one: CapturedText, other: CapturedText) -> bool | None:
    """Return whether two texts are the same on the node, None if only their secrets may differ."""
    if one.content is None or other.content is None:
        return one.content is other.content
    if (one.whole and other.whole) or (one.key and one.key == other.key):
        return one.content == other.content
    return None if _mask_text(one) == _mask_text(other) else False


def format_difference(path: str, one: CapturedText, other: CapturedText) -> str:
    """Return the diff of two texts with masked secrets; empty if the difference is not shown."""
    if any(each.content is not None and b"\0" in each.content for each in (one, other)):
        return ""
    return diff.format_diff(path, _mask_text(one), _mask_text(other))


def _mask_text(text: CapturedText) -> bytes | None:
    """Return a text with secrets, and their placeholders of one capture, masked."""
    if text.content is None:
        return None
    return mask(text.content.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _find_differences(before: EarlierNode, after: LaterNode) -> Iterator[Difference | UnknownFact]:
    """Yield the files whose changes differ from the plan."""
    managed = {each.path: each for each in after.managed}
    for path, wanted in sorted(before.targets.items()):
        yield from _compare_with_plan(before, after, path, wanted, managed.get(path))
    for path, digest in sorted(before.restored.items()):
        found = after.files.get(path)
        if found is None or found.digest != digest:
            yield UnknownFact(f"{path} was to be given back, and whether it is as a run left it")
    planned = {*before.targets, *before.restored}
    for path in sorted(before.files.keys() & after.files.keys() - planned):
        if _is_ignored(path, after.ignored) or compare_texts(old := before.files[path], new := after.files[path]):
            continue
        if before.unplanned_reason is not None and path in after.own:
            yield UnknownFact(f"what a run was to make of {path}: {before.unplanned_reason}")
        else:  # both texts are captured: differing placeholders mean differing secrets
            yield Difference(path, BEFORE, _describe_time(managed.get(path)), format_difference(path, old, new))


def _compare_with_plan(
    before: EarlierNode, after: LaterNode, path: str, wanted: CapturedText, record: ManagedState | None
) -> Iterator[Difference | UnknownFact]:
    found = after.files.get(path)
    if found is None:
        yield UnknownFact(f"what {path} is now: it is not in the later capture")
        return
    alike = compare_texts(wanted, found)
    if alike or (path in before.files and compare_texts(before.files[path], found)):
        return  # a file without any change is reported as a pending change
    if alike is None:
        yield UnknownFact(f"whether a hidden value in {path} was changed")
    elif before.programs != after.programs:
        yield UnknownFact(f"what a run was to make of {path}: the toolkit of the later capture has other programs")
    else:
        left = path in before.files and compare_texts(before.files[path], wanted) is True
        yield Difference(path, BEFORE if left else PLAN, _describe_time(record), format_difference(path, wanted, found))


def _describe_time(record: ManagedState | None) -> str:
    if record is None:
        return "no receipt names it"
    if record.state == AS_WRITTEN:
        return "a run wrote it so: it was changed before that"
    return "changed since a run wrote it"


def _is_ignored(path: str, ignored: frozenset[str]) -> bool:
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in (*ignored, *_VOLATILE_FOLDERS))


def _find_fact_changes(before: EarlierNode, after: LaterNode) -> Iterator[FactChange]:
    for what in sorted(before.facts.keys() & after.facts.keys()):
        if before.facts[what] != after.facts[what]:
            yield FactChange(what, before.facts[what], after.facts[what])


def _find_drift(before: EarlierNode | None, after: LaterNode) -> Iterator[DriftFinding | UnknownFact]:
    """Yield the managed files that were changed since they were written."""
    for record in after.managed:
        if record.state is None:
            yield UnknownFact(f"whether {record.path} is as it was written: it is not in the later capture")
        elif record.state != AS_WRITTEN:
            yield DriftFinding(record.path, record.state, *_describe_written(before, after, record))


def _describe_written(before: EarlierNode | None, after: LaterNode, record: ManagedState) -> tuple[str, str]:
    """Return which text is known to have been written, or planned, and the diff from it to the present content."""
    path, now = record.path, after.files.get(record.path)
    if now is None:
        return "", ""
    earlier = [] if before is None else [each[path] for each in (before.files, before.targets) if path in each]
    for text in earlier:
        if text.digest in record.written:
            return WRITTEN, format_difference(path, text, now)
    if before is not None and path in before.targets:
        return FORETOLD, format_difference(path, before.targets[path], now)
    if path in after.own and compare_texts(after.own[path], now) is not True:
        return REPAIR, format_difference(path, after.own[path], now)
    return "", ""


def _explain_lag(status: RolloutStatus) -> Iterator[str]:
    receipt = status.receipt
    if status.refused is not None:
        yield f"a run would refuse: {status.refused}"
    if receipt is None:
        if not status.left_alone and status.refused is None:
            yield "nothing is installed"
        return
    if receipt.state is not State.INSTALLED:
        yield f"a run was at work there, or was killed: its receipt says {receipt.state}"
    for engine in receipt.engines:
        if engine.reload_due:
            yield f"{engine.name} has not taken its files over yet"
    if status.pending is not None:
        yield f"a run would still change it: {status.pending}"


_SCHEMA: Final = 1
_Key = TypeVar("_Key")


class ChangeGroup(msgspec.Struct, frozen=True):
    """Nodes with the same unplanned change of a file."""

    path: str
    against: str
    since: str
    diff: str
    nodes: tuple[str, ...]


class FactGroup(msgspec.Struct, frozen=True):
    """Nodes with the same changed fact."""

    what: str
    before: str
    after: str
    nodes: tuple[str, ...]


class DriftGroup(msgspec.Struct, frozen=True):
    """Nodes with the same drift of a managed file."""

    state: str
    against: str
    diff: str
    nodes: tuple[str, ...]


class DriftedFile(msgspec.Struct, frozen=True):
    """A managed file, the number of nodes on which it has drifted, and how."""

    path: str
    nodes: int
    groups: tuple[DriftGroup, ...]


class ReasonGroup(msgspec.Struct, frozen=True):
    """Nodes with the same reason."""

    reason: str
    nodes: tuple[str, ...]


class CompareTotals(msgspec.Struct, frozen=True):
    """Numbers of captures and nodes."""

    before: int
    after: int
    compared: int
    unplanned: int
    drifted: int
    lagging: int
    untold: int
    unusable: int


class CompareSummary(msgspec.Struct, frozen=True):
    """The output of `compare --json`. Its format is numbered, as that of `replay --json`."""

    schema: int
    version: str
    nodes: CompareTotals
    unplanned: tuple[ChangeGroup, ...]
    facts: tuple[FactGroup, ...]
    drift: tuple[DriftedFile, ...]
    lagging: tuple[ReasonGroup, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    untold: tuple[ReasonGroup, ...]
    unusable: tuple[RefusalGroup, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is unplanned, drifted, lagging or unknown, and all captures are usable."""
        nodes = self.nodes
        return not (nodes.unplanned or nodes.drifted or nodes.lagging or nodes.untold or nodes.unusable)


class Comparison:
    """Collects the findings of nodes, and stores equal ones once."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._after: list[str] = []
        self._differences: dict[Difference, list[str]] = {}
        self._facts: dict[FactChange, list[str]] = {}
        self._drifted: dict[DriftFinding, list[str]] = {}
        self._lags: dict[str, list[str]] = {}
        self._untold: dict[str, list[str]] = {}
        self._installers: dict[str, str] = {}
        self._releases: dict[str, str] = {}
        self._unusable: dict[str, RefusalGroup] = {}

    def add(self, node: str, findings: Findings) -> None:
        """Add the findings of a node that has a later capture."""
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
        """Set the names of the nodes with an earlier and a later capture."""
        self._before = sorted(before)
        self._after = sorted(after)

    def refuse(self, file: str, refusal: Refusal) -> None:
        """Add a capture that cannot be used."""
        known = self._unusable.setdefault(refusal.reason, RefusalGroup(refusal.reason, refusal.hint, refusal.code, []))
        known.nodes.append(file)

    def summary(self, version: str) -> CompareSummary:
        """Return the summary of all findings."""
        lags = {reason: list(nodes) for reason, nodes in self._lags.items()}
        for what, versions in (("toolkit-installer", self._installers), ("the toolkit", self._releases)):
            for node, reason in find_outdated(what, versions).items():
                lags.setdefault(reason, []).append(node)
        before, after = set(self._before), set(self._after)
        unplanned = _count_nodes([*self._differences.values(), *self._facts.values()])
        return CompareSummary(
            schema=_SCHEMA,
            version=version,
            nodes=CompareTotals(
                before=len(before),
                after=len(after),
                compared=len(before & after),
                unplanned=unplanned,
                drifted=_count_nodes(self._drifted.values()),
                lagging=_count_nodes(lags.values()),
                untold=_count_nodes(self._untold.values()),
                unusable=sum(len(each.nodes) for each in self._unusable.values()),
            ),
            unplanned=tuple(
                ChangeGroup(each.path, each.against, each.since, each.diff, nodes)
                for each, nodes in _sort_groups(self._differences)
            ),
            facts=tuple(
                FactGroup(each.what, each.before, each.after, nodes) for each, nodes in _sort_groups(self._facts)
            ),
            drift=tuple(self._drift()),
            lagging=tuple(ReasonGroup(reason, nodes) for reason, nodes in _sort_groups(lags)),
            only_before=tuple(sorted(before - after)),
            only_after=tuple(sorted(after - before)),
            untold=tuple(ReasonGroup(what, nodes) for what, nodes in _sort_groups(self._untold)),
            unusable=tuple(sorted(self._unusable.values(), key=lambda each: (-len(each.nodes), each.reason))),
        )

    def _drift(self) -> list[DriftedFile]:
        by_path: dict[str, list[DriftGroup]] = {}
        for each, nodes in _sort_groups(self._drifted):
            by_path.setdefault(each.path, []).append(DriftGroup(each.state, each.against, each.diff, nodes))
        found = [
            DriftedFile(path, _count_nodes(group.nodes for group in groups), tuple(groups))
            for path, groups in by_path.items()
        ]
        return sorted(found, key=lambda file: (-file.nodes, file.path))


def find_outdated(what: str, versions: dict[str, str]) -> dict[str, str]:
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
    """Return the leading numbers of a version; a pre-release counts as its release."""
    begun = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    return [int(part) for part in begun[1].split(".")] if begun is not None else []


def _count_nodes(groups: Iterable[Sequence[str]]) -> int:
    return len({node for nodes in groups for node in nodes})


def _sort_groups(groups: dict[_Key, list[str]]) -> list[tuple[_Key, tuple[str, ...]]]:
    """Return groups of nodes, the largest first."""
    found = [(key, tuple(nodes)) for key, nodes in groups.items()]
    return sorted(found, key=lambda group: (-len(group[1]), str(group[0])))


READ: Final = "node.reading.Reader.read_file"
"""The query that reads a file of the node."""


def list_files(archive: Archive, path: str) -> dict[str, CapturedText]:
    """Return the files of the node that were read for the capture at `path`, absent ones included.

    Unreadable files are left out. Raises ConfigurationError for a damaged capture.
    """
    found: dict[str, CapturedText] = {}
    for line, raw in archive.answers.get(READ, {}).items():
        folder, *arguments = archive_of.split_line(values.unescape(line))
        if folder != archive.root or len(arguments) != 1:
            continue
        try:
            file = values.decode(raw, Found | None)
        except NotReadableError as error:
            raise ConfigurationError(f"is damaged: {READ}: {error}", path=path) from error
        except (InstallerError, OSError):
            continue
        found[arguments[0] if file is None else file.path] = make_captured_text(
            archive, None if file is None else file.content
        )
    return found


def make_captured_text(archive: Archive, content: bytes | None) -> CapturedText:
    """Return a content of a capture, None for no file; its digest identifies the content on the node."""
    if content is None:
        return CapturedText(None)
    found = _sha256(content)
    return CapturedText(content, archive.digests.get(found, found), archive.key, whole=_is_whole(archive, content))


def make_planned_text(archive: Archive, content: bytes | None, now: bytes | None) -> CapturedText:
    """Return a content planned for the node of a capture, to replace `now`.

    Its digest on the node is unknown if it contains a placeholder.
    """
    if content is None or content == now or _sha256(content) in archive.digests:
        return make_captured_text(archive, content)
    whole = _is_whole(archive, content)
    return CapturedText(content, _sha256(content) if whole else None, archive.key, whole=whole)


def _is_whole(archive: Archive, content: bytes) -> bool:
    """Return whether a content of a capture, or planned for it, contains no placeholders."""
    return archive.secrets_kept or DocumentMasker().content(content) == content


def _sha256(content: bytes) -> str:
    """Return the SHA-256 of a content as it is here, also inside a replay."""
    return hashlib.sha256(content).hexdigest()
