"""What was found on the node before anything is decided about it. Pure: values that `observe` fills in.

A fact that is dear, and seldom needed, is a function: the node is looked at when the plan asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from toolkit_installer.engines.api import Inspection, Recorded, Reload
from toolkit_installer.engines.target import Request
from toolkit_installer.lifecycle.files.cdi import Generated, SpecificationFacts
from toolkit_installer.lifecycle.files.toolkit import Installed
from toolkit_installer.lifecycle.method import Choice, Way
from toolkit_installer.receipt.schema import Copy, EngineRecord, Receipt


class EngineFacts(msgspec.Struct, frozen=True):
    """An engine that is to be configured, as it was found."""

    request: Request
    inspection: Inspection
    recorded: EngineRecord | None
    records: Mapping[str, Recorded]
    """What the receipt remembers of its files, by path."""
    reload: Reload
    """How it is made to read its files."""
    dangers: tuple[str, ...]
    """What may go wrong when it is reloaded, in words."""
    read_since: bool
    """It was started after the last change of its files, and so has read them. Unknown counts as not read: a needless
    reload is cheaper than an engine that never learned its handlers."""
    base_runtimes: Callable[[Sequence[str]], tuple[str, ...]]
    """Returns the paths of the low-level runtimes that its files name, as its process finds them."""

    @property
    def reload_due(self) -> bool:
        """Whether its files were changed by a run that did not come to see it with the change."""
        return self.recorded is not None and self.recorded.reload_due and not self.read_since


class ToolkitFacts(msgspec.Struct, frozen=True):
    """The toolkit's folder as it was found, and what it is filled from."""

    folder: str
    recorded: tuple[str, ...]
    """Names of files that this installer, or one of another time, put there."""
    present: Mapping[str, Installed]
    """What stands there, of those names and of those that are to come."""
    digests: Mapping[str, str | None]
    """SHA-256 of the payload's files for which something stands there, by their path in it; None for one that went.

    Those are left out of which what stands there is known to be a copy.
    """
    copies: tuple[Copy, ...]
    """What the files for which something stands there looked like before they were read."""
    made: Mapping[str, bytes]
    """What is known of contents that would have to be made: by what they are made of."""
    in_use: Callable[[], bool]
    """Tells whether a container, or somebody else's CDI specification, needs a file of the folder."""
    named: Callable[[Collection[str]], frozenset[str]]
    """Returns the paths below the folder that engines' files name, but for files that are about to change."""


class Facts(msgspec.Struct, frozen=True):
    """The node as it was found."""

    receipt: Receipt | None
    originals: Mapping[str, bytes]
    """The kept copies of the engines' files that the receipt names, by SHA-256."""
    engines: tuple[EngineFacts, ...]
    toolkit: ToolkitFacts
    specifications: SpecificationFacts
    generated: Generated | None
    """None where no specification was asked for."""
    ways: tuple[Way, ...] = ()
    """What the engines say of CDI, in their order."""
    choice: Choice = Choice()
