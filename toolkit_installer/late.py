"""Modules that a start names and most commands never use: each is imported when something of it is used.

Python 3.15 has a statement for that (PEP 810). Until then a stand-in is put where the import system looks first. A
module of importlib.util.LazyLoader does not do: the statement that imports it looks at its __spec__, which loads it.

Who is about to change the node calls `load_all` before: what is imported half-way through may be gone by then.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class StandIn(types.ModuleType):
    """Stands for a module until something of it is used; whoever imported it then has all that the module has."""

    def __getattr__(self, name: str) -> Any:
        _make_room(self)
        return getattr(importlib.import_module(self.__name__), name)


def put_off(*names: str) -> None:
    """Have these modules stood in for, unless they are there already."""
    for name in names:
        sys.modules.setdefault(name, StandIn(name))


def load_all() -> None:
    """Import every module that is still stood in for."""
    for module in [each for each in sys.modules.values() if isinstance(each, StandIn)]:
        _make_room(module)
        importlib.import_module(module.__name__)


@contextlib.contextmanager
def unused(name: str) -> Iterator[None]:
    """Have a module stood in for while another is imported that names it; later imports get the real one."""
    stand_in = StandIn(name)
    sys.modules.setdefault(name, stand_in)
    try:
        yield
    finally:
        _make_room(stand_in)


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Have a module missing, unless it is there already, while another is imported that can do without it."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # that is how Python is told so
    try:
        yield
    finally:
        del sys.modules[name]


def _make_room(module: StandIn) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
