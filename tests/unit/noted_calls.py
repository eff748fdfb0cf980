"""Real system calls that are noted, and of which one can fail or be preceded by somebody else's doing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from toolkit_installer.node.calls import SystemCalls

CHANGING = [name for name in vars(SystemCalls) if not name.startswith("_")]


class Calls(SystemCalls):
    """`errors`: what a call fails with, each time; `before`: what happens before its next time, once."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.errors: dict[str, int] = {}
        self.before: dict[str, Callable[[], object]] = {}

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        if name not in CHANGING:
            return real

        def call(*arguments: Any) -> Any:
            self.noted.append(name)
            if name in self.before:
                self.before.pop(name)()
            if name in self.errors:
                raise OSError(self.errors[name], os.strerror(self.errors[name]))
            return real(*arguments)

        return call
