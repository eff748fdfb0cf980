"""What a run with `--cleanup auto` has to remember while it is asleep."""

from __future__ import annotations

import msgspec


class Standing(msgspec.Struct, frozen=True):
    """What a run knows of itself and of the DaemonSet; kept while the run is asleep."""

    bare: bool = False
    """Nothing was installed on the node when the run started: whatever is installed now, this run installed."""
    held: bool = False
    """Nothing may be changed before the API server says that the DaemonSet wants the node."""
    wanted: bool = False
    """The API server has said so once, to this run."""
    namespace: bool = False
    """The API server has shown the namespace to this run: a 403 for it is a change."""
    accepted: tuple[str, ...] = ()
    """The identities (`Bearer.identity`) that the API server has accepted from this run."""
