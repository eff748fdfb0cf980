"""A control group for a test's containers, which goes at the end, and with it what a failed test left running."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOP = Path("/sys/fs/cgroup")
_POLL = 0.02


class GroupError(Exception):
    """A group could not be emptied."""


@contextlib.contextmanager
def group(*, within: float = 60.0) -> Iterator[str]:
    """Yield a name such as `/containers-1a2b3c4d`, for engines to make it. Raises GroupError where it stays in use."""
    name = f"containers-{uuid.uuid4().hex[:8]}"
    yield f"/{name}"
    deadline = time.monotonic() + within
    for found in [*_TOP.glob(name), *_TOP.glob(f"*/{name}")]:  # one hierarchy, or one for each controller
        while members := _kill_all(found):
            if time.monotonic() > deadline:
                raise GroupError(f"{found} still has {members}")
            time.sleep(_POLL)
        for folder, _, _ in os.walk(found, topdown=False):
            with contextlib.suppress(FileNotFoundError):  # the runtime removes it as well
                Path(folder).rmdir()


def _kill_all(found: Path) -> list[int]:
    """Send SIGKILL to all that is in a control group; return which they were."""
    members: list[int] = []
    for folder, _, _ in os.walk(found):  # which passes over what is gone: the runtime removes its groups as well
        try:
            members += map(int, (Path(folder) / "cgroup.procs").read_text().split())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return members
