"""Modules that libraries import and this program does not use: they are imported if they are used after all.

Python 3.15 has a statement for lazy imports (PEP 810). Until then a lazy module is put into sys.modules.
importlib.util.LazyLoader does not do: the import statement itself reads the module's __spec__, which loads the module.

A change of the node must need none of them: half-way through, the program's own files may be gone.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class LazyModule(types.ModuleType):
    """A module that is imported when one of its attributes is first used, and then has all attributes."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def defer(*names: str) -> None:
    """Put lazy modules in place of these modules, unless they are imported already."""
    for name in names:
        sys.modules.setdefault(name, LazyModule(name))
