"""Precedence for a process that somebody waits for: it runs as soon as it is wanted, whatever else is busy.

Where a hundred containers start at once, a process that is woken waits for a processor behind what starts them, for
tens of milliseconds. No nice value helps: it counts among the processes of one control group, and a pod has its own.
"""

from __future__ import annotations

import os
import resource

_PRIORITY = 1
"""The lowest of those that come before all ordinary work (sched(7)): the kernel's own threads have higher ones."""


def take(seconds: float) -> None:
    """Give this process precedence. The kernel kills it where it works for so long without a pause (setrlimit(2)).

    Raises OSError where it may not have that: without CAP_SYS_NICE, or in a control group that has no real-time share
    (CONFIG_RT_GROUP_SCHED). Then nothing is changed.
    """
    limit = int(seconds * 1_000_000)
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))  # it counts under such a policy alone
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))
