"""A node as two captures show it: how a run was to leave it, how it was left, and how it stands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from toolkit_installer.cli import captures, show_plan
from toolkit_installer.cli.options import build
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.driver import gpus, roots
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import InstallerError
from toolkit_installer.fleet import compare, record
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.compare import After, Before, Managed, Standing, Text
from toolkit_installer.fleet.record import NotCapturedError, Player
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import moved, superseded
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import drift, trust
from toolkit_installer.receipt.schema import FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.run import dry_run
from toolkit_installer.settings import AUTO, Program, Settings, ToolkitSettings

_PLACES: Final = ("node_root", "host_root", "source_root", "driver_root_ctr_path", "dev_root_ctr_path")
"""Options that say where a capture was made from: each has its own."""
_GENERATED: Final = "generated"
"""The role of a file that a distribution makes anew when it starts."""
_DRIVER: Final = "the driver's version"
_GPUS: Final = "the GPUs"
_Value = TypeVar("_Value")


# --- the later capture ---


def after(found: Archive, path: str) -> tuple[After, Standing]:
    """Return a node as it was left, and how it stands. Raises InstallerError for what cannot be replayed at all."""
    files = compare.files_of(found, path)
    settings = captures.settings(found.given, found.environment, path)
    with record.played_by(Player(found)):
        node = Node(found.root, found.programs_root, whole=found.whole)
        try:
            receipt = _receipt(node, settings)
        except NotCapturedError as error:
            return After(files), Standing(untold=str(error), left_alone=True)
        except InstallerError as error:
            return After(files), Standing(refused=str(error))
        managed = tuple(_managed(node, file) for file in (receipt.files() if receipt is not None else ()))
        aside = _aside(node, settings, receipt)
        known = After(files, managed, aside=aside)
        try:
            seen, standing = _stands(node, settings, receipt)
            facts = _facts(node, seen)
        except NotCapturedError as error:
            return known, Standing(receipt, left_alone=True, untold=str(error))
        except InstallerError as error:
            return known, Standing(receipt, refused=str(error))
    if seen is None:
        return msgspec.structs.replace(known, facts=facts), standing
    after = msgspec.structs.replace(
        known,
        own=_targets(found, seen),
        aside=aside | _of_the_plan(seen),
        programs=seen.target.payload.executables,
        facts=facts,
    )
    return after, standing


def _receipt(node: Node, settings: Settings) -> Receipt | None:
    return trust.load(node, ReceiptStore(node, settings.toolkit.install_dir))


def _managed(node: Node, file: FileRecord) -> Managed:
    try:
        state: str | None = drift.state_of(node, file)
    except NotCapturedError:
        state = None
    return Managed(file.path, state, file.written)


def _stands(node: Node, settings: Settings, receipt: Receipt | None) -> tuple[Prepared | None, Standing]:
    """Return what a run would do with the node now, and how that says it stands. Raises InstallerError."""
    own_container.refuse(node, settings, own_container.asked_for(settings))
    fate = dry_run.foresee(settings, node)
    if fate.seen is None:
        return None, Standing(receipt, left_alone=True)
    if fate.stops is not None:
        return fate.seen, Standing(receipt, refused=str(fate.stops))
    planned = show_plan.as_value(node, settings, fate.seen, None)
    return fate.seen, Standing(receipt, pending=None if planned.nothing_to_do else planned.summary)


# --- the earlier one ---


def before(found: Archive, path: str, later: Archive) -> tuple[Before, frozenset[str]]:
    """Return a node as it was, and what a run with the settings of a later capture was to make of it.

    And the files that are not compared. Raises ConfigurationError for a damaged capture.
    """
    files = compare.files_of(found, path)
    aside: frozenset[str] = frozenset()
    try:
        settings = _settings(found, later)
        with record.played_by(Player(found)):
            node = Node(found.root, found.programs_root, whole=found.whole)
            aside = _aside(node, settings, _receipt(node, settings))
            seen = dry_run.foresee(settings, node).seen
            if seen is None:
                return Before(files, facts=_facts(node, None)), aside
            targets, facts = _targets(found, seen), _facts(node, seen)
            returned = {
                file.path: file.before.sha256 if file.before is not None else None
                for file in _returned(seen)
                if file.path not in targets
            }
    except NotCapturedError as error:
        return Before(files, unforeseen=str(error)), aside
    except InstallerError as error:
        return Before(files, unforeseen=f"a run would have refused: {error}"), aside
    programs = seen.target.payload.executables
    earlier = Before(files, targets, returned, programs=programs, facts=facts)
    return earlier, aside | _of_the_plan(seen)


def _settings(found: Archive, later: Archive) -> Settings:
    """Return the settings of a later capture, made where this one was made. Raises UsageError."""
    variables = {variable for name in _PLACES for variable in BY_NAME[name].variables}
    given = {
        **_without(later.given, _PLACES),
        **{name: texts for name, texts in found.given.items() if name in _PLACES},
    }
    environment = {
        **_without(later.environment, variables),
        **{name: value for name, value in found.environment.items() if name in variables},
    }
    return build.build(given, environment, Program.TOOLKIT_INSTALLER)


def _without(values: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    return {name: value for name, value in values.items() if name not in names}


def _returned(seen: Prepared) -> Iterator[FileRecord]:
    """Yield the files of engines that a run would give back."""
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    for engine in superseded(recorded, seen.plan):
        yield from engine.files
    if (elsewhere := moved(recorded, seen.plan.engines)) is not None:
        yield from elsewhere.files


# --- both ---


def _targets(found: Archive, seen: Prepared) -> dict[str, Text]:
    """Return what a run would make of the engines' files."""
    return {
        wanted.path: compare.planned(found, wanted.target, wanted.file.content)
        for work in seen.plan.engines
        for wanted in work.desired.files
        if wanted.role != _GENERATED
    }


def _aside(node: Node, settings: Settings, receipt: Receipt | None) -> frozenset[str]:
    """Return the files and folders of this program's own, which are judged by what a run would make of them."""
    own = [settings.toolkit.folder, ReceiptStore(node, settings.toolkit.install_dir).folder]
    own += [] if receipt is None else [receipt.toolkit_folder, *(each.path for each in receipt.specifications)]
    return frozenset({*own, os.path.dirname(settings.pid_file)})


def _of_the_plan(seen: Prepared) -> frozenset[str]:
    """Return the files that are generated: by a run from the driver, or by a distribution."""
    generated = {file.path for work in seen.plan.engines for file in work.inspection.files if file.role == _GENERATED}
    return frozenset({*generated, *(each.path for each in seen.plan.specifications)})


def _facts(node: Node, seen: Prepared | None) -> dict[str, str]:
    """Return what else may be another than before, as far as it is known. Raises NodeError."""
    shown = gpus.find_gpus(node)
    found = {_GPUS: ", ".join(shown.words)} if shown.known else {}
    # whatever root was named, a capture has the answer for all of them
    sought = ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO, dev_root=AUTO, dev_root_ctr_path=AUTO)
    with contextlib.suppress(NotCapturedError):  # it was not come to
        driver = roots.find_driver(node, sought).driver
        if driver is not None and driver.version:
            found[_DRIVER] = driver.version
    for work in seen.plan.engines if seen is not None else ():
        if work.inspection.live is not None:
            found[f"{work.name}'s version"] = work.inspection.live.version
    return found
