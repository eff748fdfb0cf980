"""Where the program starts, under each of its names."""

from __future__ import annotations

import sys

from toolkit_installer.node import signals


def _start(name: str) -> int:
    # before any import that could start a thread: a thread without the mask would take the signals away
    signals.block()
    from toolkit_installer import cli  # noqa: PLC0415  # see above
    from toolkit_installer.settings import Program  # noqa: PLC0415  # see above

    return cli.main(Program(name), sys.argv[1:])


def toolkit_installer() -> int:
    """Start as `toolkit-installer`."""
    return _start("toolkit-installer")


def nvidia_toolkit() -> int:
    """Start as `nvidia-toolkit`, the name of 2019 to today."""
    return _start("nvidia-toolkit")


def nvidia_ctk_installer() -> int:
    """Start as `nvidia-ctk-installer`, today's name."""
    return _start("nvidia-ctk-installer")


if __name__ == "__main__":
    sys.exit(toolkit_installer())
