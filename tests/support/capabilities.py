"""What the tests' own user may, beyond what an ordinary one may; in a container root may less than on its machine."""

from __future__ import annotations

import re
from pathlib import Path

_SYS_NICE = 23


def may_set_priority() -> bool:
    """Tell whether this process has CAP_SYS_NICE, without which nothing gets a real-time priority (proc(5))."""
    found = re.search(r"^CapEff:\s+([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _SYS_NICE & 1)
