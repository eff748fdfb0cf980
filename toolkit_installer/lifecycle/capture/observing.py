"""Looks at all of a node that a plan may ask about, under whatever flags, while somebody records it. Writes nothing."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from toolkit_installer.engines import registry
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.lifecycle import foreseen, preflight
from toolkit_installer.lifecycle.diagnosis import look as diagnosis
from toolkit_installer.lifecycle.foreseen import Foreseen
from toolkit_installer.lifecycle.impact import look
from toolkit_installer.lifecycle.prepare import Prepared
from toolkit_installer.lifecycle.reload_budget import ReloadBudget
from toolkit_installer.lifecycle.reload_when import busy
from toolkit_installer.lifecycle.report import would_be_started
from toolkit_installer.node import owners, zone
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import AUTO, Settings, WithoutGpu

Show = Callable[[Node, Settings, Foreseen], object]
"""Makes what `plan` shows, which looks at the node as well."""


def observe(node: Node, settings: Settings, show: Show) -> None:
    """Look at all of it: what these settings ask about first, then what others would.

    Raises ConfigurationError where an engine would be started by being asked. What a plan would refuse is no error:
    the capture is to say the same.
    """
    _refuse_starting(node, settings)
    owners.ourselves()  # asked about symlinks alone, which another payload may have
    for each in _asked(settings):
        with contextlib.suppress(InstallerError):
            _look(node, each, show)
    with contextlib.suppress(InstallerError):
        own_container.refuse(node, settings, own_container.asked_for(settings))
        diagnosis.diagnose(node, settings)


def _refuse_starting(node: Node, settings: Settings) -> None:
    """Raise ConfigurationError where an engine that somebody stopped would be started by being asked."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    why = would_be_started(node, settings, trust.load_if_usable(node, store))
    if why is not None:
        raise ConfigurationError(f"{why}: nothing is captured", hint="start it, or mask its socket unit")


def _asked(settings: Settings) -> Iterator[Settings]:
    """Yield these settings, and those that ask about what these leave out."""
    yield settings
    replaced = msgspec.structs.replace
    yield replaced(settings, without_gpu=WithoutGpu.IDLE)
    # another payload is compared with the files themselves, and not with what the receipt knows of them
    yield replaced(settings, toolkit=replaced(settings.toolkit, verify_payload=True))
    sought = dict.fromkeys(("driver_root", "driver_root_ctr_path", "dev_root", "dev_root_ctr_path"), AUTO)
    yield replaced(settings, toolkit=replaced(settings.toolkit, **sought))
    for runtimes in ((), *((name,) for name in registry.names())):
        if runtimes != settings.runtimes:
            yield replaced(settings, runtimes=runtimes)


def _look(node: Node, settings: Settings, show: Show) -> None:
    """Look at what a plan with these settings asks about. Raises InstallerError where it would be refused."""
    own_container.refuse(node, settings, own_container.asked_for(settings))
    holds = foreseen.holder(settings, node)
    found = foreseen.foresee(settings, node)
    show(node, settings, msgspec.structs.replace(found, stops=holds or found.stops))
    if found.seen is None:
        return
    for look_at in _further(node, settings, found.seen):
        with contextlib.suppress(InstallerError):  # what would be refused is looked at all the same
            look_at()


def _further(node: Node, settings: Settings, seen: Prepared) -> Iterator[Callable[[], object]]:
    """Yield looks at what a plan asks about only where something is to be changed, a reload is due, or files go."""
    folder, store = seen.plan.toolkit.folder, ReceiptStore(node, settings.toolkit.install_dir)
    yield partial(preflight.require_places, node, seen.target, seen.plan, unchanged=True)
    yield partial(foreseen.require_recordable, settings, node, store, seen)
    yield ReloadBudget(node.files, settings.pid_file, settings.reload_budget).require_reload
    yield partial(zone.of_node, node)
    for work in seen.plan.engines:
        for file in (*work.inspection.files, *(wanted.file for wanted in work.desired.files)):
            # which of them is changed, and when it was last, may count for another version of the engine alone
            yield partial(node.files.status, file.path)
            yield partial(node.files.missing_folders, posixpath.dirname(file.path))
        yield partial(look.of_reload, node, work.name, work.inspection, work.reload, folder)
        if work.inspection.live is not None:
            adapter = adapter_of(work.name)
            yield partial(adapter.stranded, node, work.inspection, (), lambda live: set(live.handlers))
    for by_default in (False, True):
        yield partial(busy.look, node, folder, by_default=by_default)
    yield seen.facts.toolkit.in_use
    changing = {wanted.path for work in seen.plan.engines for wanted in work.desired.files}
    yield partial(seen.facts.toolkit.named, changing)
