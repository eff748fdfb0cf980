"""The program, started so that it tells what it did how often: `python counting_start.py FILE ARGUMENT...`.

FILE gets a line `proc` each time that the program lists all processes.
"""

from __future__ import annotations

import atexit
import os
import sys

_FOUND: list[str] = []
_LISTDIR = os.listdir


def _listdir(path: str = ".") -> list[str]:
    """List a folder, but no processes: engines of this machine are none of the made node's."""
    if path != "/proc":
        return _LISTDIR(path)
    _FOUND.append("proc")
    return []


def _tell(file: str) -> None:
    with open(file, "w", encoding="utf-8") as stream:
        stream.writelines(f"{line}\n" for line in _FOUND)


def main() -> int:
    """Start."""
    file, *arguments = sys.argv[1:]
    os.listdir = _listdir  # type: ignore[assignment]  # it takes no more than what the program gives it
    atexit.register(_tell, file)
    sys.argv[:] = ["toolkit-installer", *arguments]
    from toolkit_installer import __main__ as program  # noqa: PLC0415  # it is told of

    return program.toolkit_installer()


if __name__ == "__main__":
    sys.exit(main())
