"""The program, stopping itself before a call: `stopping_run.py start|woken CALL ARGUMENT…`.

`start`: in the process as it was started; `woken`: once it has waited and was woken. It looks around often, and the
pauses between two questions to the API server take no time, so that a test need not wait.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from toolkit_installer.node import idling, signals

LOOK_SECONDS = 0.1
CLOCK_SECONDS = 0.5


class Clock:
    """Stands for the clock and the pauses of the questions to the API server: the one goes on by the others alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.time = time.time

    def monotonic(self) -> float:
        """Return how long all pauses so far would have taken."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pause, and heed a signal as ever."""
        self.now += seconds
        signals.sleep(0.001)


def main() -> int:
    phase, call, *arguments = sys.argv[1:]
    woken = idling.RESUME in os.environ
    signals.block()
    from tests.node.faults import faulty  # noqa: PLC0415  # nothing may start a thread before the signals are blocked
    from tests.node.instants import Halt  # noqa: PLC0415  # see above
    from toolkit_installer.cli import commands  # noqa: PLC0415  # see above
    from toolkit_installer.settings import Program  # noqa: PLC0415  # see above

    clock = Clock()
    plan = Halt(call=call if woken == (phase == "woken") else "never")
    with (
        mock.patch("toolkit_installer.node.node.SystemCalls", faulty(plan)),
        mock.patch("toolkit_installer.waiting.wait._LOOK_SECONDS", LOOK_SECONDS),
        mock.patch("toolkit_installer.waiting.wait._LATER_SECONDS", LOOK_SECONDS),
        mock.patch("toolkit_installer.waiting.wait._SOON_SECONDS", LOOK_SECONDS),
        mock.patch("toolkit_installer.waiting.wait._CLOCK_SECONDS", CLOCK_SECONDS),
        mock.patch("toolkit_installer.kubernetes.wanted.time", clock),
        mock.patch("toolkit_installer.kubernetes.wanted.signals", clock),
    ):
        return commands.main(Program.TOOLKIT_INSTALLER, arguments)


if __name__ == "__main__":
    sys.exit(main())
