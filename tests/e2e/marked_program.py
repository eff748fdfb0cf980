"""The program with a mark before and after each call of its seam: a system call that a tracer sees and nobody minds.

    python marked_program.py ARGUMENTS...

With SEAM_BYPASS in the environment it also changes that path past the seam, which whoever traces it must find.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit_installer import __main__
from toolkit_installer.node import calls

BEGIN = "/seam-begins"
END = "/seam-ends"


def marked(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*arguments: Any) -> Any:
        os.access(f"{BEGIN}/{name}", os.F_OK)
        try:
            return real(*arguments)
        finally:
            os.access(f"{END}/{name}", os.F_OK)

    return call


def main() -> None:
    for name, real in list(vars(calls.SystemCalls).items()):
        if not name.startswith("_"):
            setattr(calls.SystemCalls, name, marked(name, real))
    if bypass := os.environ.get("SEAM_BYPASS"):
        Path(bypass).write_bytes(b"")
    sys.exit(__main__.toolkit_installer())


if __name__ == "__main__":
    main()
