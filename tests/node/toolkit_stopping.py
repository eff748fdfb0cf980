"""The program, stopping itself before a call: `toolkit_stopping.py start|woken CALL ARGUMENT…`.

`start`: in the process as it was started; `woken`: once it has waited and was woken. It looks around often, so
that a test need not wait.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from toolkit_installer import waiter
from toolkit_installer.node import signals

LOOK_SECONDS = 0.1


def main() -> int:
    phase, call, *arguments = sys.argv[1:]
    woken = waiter.RESUME in os.environ
    signals.block()
    from tests.node.faults import faulty  # noqa: PLC0415  # nothing may start a thread before the signals are blocked
    from tests.node.instants import Halt  # noqa: PLC0415  # see above
    from toolkit_installer import cli  # noqa: PLC0415  # see above
    from toolkit_installer.settings import Program  # noqa: PLC0415  # see above

    plan = Halt(call=call if woken == (phase == "woken") else "never")
    with (
        mock.patch("toolkit_installer.node.node.SystemCalls", faulty(plan)),
        mock.patch("toolkit_installer.waiting._LOOK_SECONDS", LOOK_SECONDS),
        mock.patch("toolkit_installer.waiting._LATER_SECONDS", LOOK_SECONDS),
    ):
        return cli.main(Program.TOOLKIT_INSTALLER, arguments)


if __name__ == "__main__":
    sys.exit(main())
