"""All that comes before the first write: resolve, observe, plan, preflight."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolkit_installer.lifecycle.facts import Facts
from toolkit_installer.lifecycle.observe import observe
from toolkit_installer.lifecycle.plan import Plan, plan
from toolkit_installer.lifecycle.preflight import preflight, refuse_contradictions
from toolkit_installer.lifecycle.target import Target, resolve
from toolkit_installer.node import processes, signals
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Settings


class Prepared(msgspec.Struct, frozen=True):
    """What a run is about, what it found, and what it is to do."""

    target: Target
    facts: Facts
    plan: Plan

    @property
    def receipt(self) -> Receipt | None:
        """What was recorded before this run."""
        return self.facts.receipt

    @property
    def driver_away(self) -> bool:
        """No driver is usable: files generated for the previous driver are kept."""
        return self.target.driver_away or (
            self.facts.generated is not None and self.facts.generated.failure is not None
        )

    @property
    def originals(self) -> Mapping[str, bytes]:
        """What is to be kept beside the receipt: the contents to which cleanup goes back, by SHA-256."""
        bases = [wanted.base for work in self.plan.engines for wanted in work.desired.files]
        bases += [work.base for work in self.plan.specifications]
        return {**self.facts.originals, **{memory.digest(base): base for base in bases if base is not None}}


def prepare(receipt: Receipt | None, settings: Settings, node: Node, store: ReceiptStore) -> Prepared:
    """Find out what is to be done; `receipt` is what was recorded before. Nothing was changed when this raises.

    Raises PayloadError, ConfigurationError, UsageError, DriverNotReadyError, EngineDownError.
    """
    seen = planned(receipt, settings, node, store)
    preflight(node, seen.target, seen.facts, seen.plan)
    return seen


def planned(receipt: Receipt | None, settings: Settings, node: Node, store: ReceiptStore) -> Prepared:
    """Find out what is to be done, without a look at what stands in its way. Raises likewise."""
    with processes.one_look():
        target = resolve(settings, node, receipt)
        facts = observe(node, target, receipt, store)
    # not within: what is in use, and so must stay, is asked for once all else is known
    refuse_contradictions(node, facts)
    with signals.interruptible():  # nothing is written meanwhile, and large files take long
        return Prepared(target, facts, plan(target, facts))
