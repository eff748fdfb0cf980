"""Regular expressions that are compiled when they are first used.

The program names a hundred, and most commands use ten. The libraries that it imports name three dozen more.

Modules that a start names and most commands never use: each is imported when something of it is used.

Python 3.15 has a statement for that (PEP 810). Until then a stand-in is put where the import system looks first. A
module of importlib.util.LazyLoader does not do: the statement that imports it looks at its __spec__, which loads it.

Who is about to change the node calls `load_all` before: what is imported half-way through may be gone by then.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from typing import TYPE_CHECKING, Any, AnyStr, Final, Generic, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


_compile = re.compile


class LazyPattern(Generic[AnyStr]):
    """Stands for a pattern. The first use compiles it; from then on its own methods are found here without a detour."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = text
        self.flags = flags

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> type[re.Pattern[AnyStr]]:  # type: ignore[override]  # that is what it is for
        """Whoever asks what this is, `re.sub` and the like among them, takes it for what it stands for."""
        return re.Pattern

    def compiled(self) -> re.Pattern[AnyStr]:
        """Return the pattern itself.

        Raises re.error: its text is no regular expression.
        """
        return _compile(self.pattern, self.flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.compiled(), name)
        setattr(self, name, value)
        return value


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what can be used as `re.compile(text, flags)` can."""
    return cast("re.Pattern[AnyStr]", LazyPattern(text, flags))


@contextlib.contextmanager
def deferred_patterns() -> Iterator[None]:
    """Have the patterns of the modules that are imported meanwhile compiled when they are first used, too."""
    before, re.compile = re.compile, cast("Any", _deferred)
    try:
        yield
    finally:
        re.compile = before


def _deferred(text: Any, flags: int = 0) -> Any:
    return pattern(text, flags) if isinstance(text, (str, bytes)) else _compile(text, flags)


class LazyModule(types.ModuleType):
    """Stands for a module until something of it is used; whoever imported it then has all that the module has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_imported(self), name)


_DEFERRED: Final[dict[str, None]] = {}
"""Modules that `load_all` imports, in their order."""


def defer(*names: str, by_a_change: bool = True) -> None:
    """Have these modules stood in for, unless they are there already.

    Where a change of the node uses nothing of them, `load_all` leaves them as they are.
    """
    for name in names:
        sys.modules.setdefault(name, LazyModule(name))
    if by_a_change:
        _DEFERRED.update(dict.fromkeys(names))


def load_all() -> None:
    """Import every module that is still stood in for, and that a change of the node may use."""
    for module in [each for name in _DEFERRED if isinstance(each := sys.modules.get(name), LazyModule)]:
        _imported(module)


class _Named(type):
    """The kind of `Placeholder`: what is named of it is one as well, but for what Python itself asks for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Placeholder(metaclass=_Named):
    """Stands for a class of a module that is not there, for whoever only names it, or has one made and unused."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what the class takes."""


@contextlib.contextmanager
def unused(**modules: str) -> Iterator[None]:
    """Have modules stood in for while another is imported that names them; later imports get the real ones.

    Each has a placeholder for each of the words that are given for it, which may be none; those that have one are no
    packages. `__` in a module's name stands for a dot. What else of it is used has it imported at once.
    """
    stand_ins = [(LazyModule(name.replace("__", ".")), words.split()) for name, words in modules.items()]
    for stand_in, words in stand_ins:
        # `from` asks for a package's __path__ first, and would have the module imported by that
        vars(stand_in).update(dict.fromkeys(words, Placeholder) | ({"__path__": []} if words else {}))
        sys.modules.setdefault(stand_in.__name__, stand_in)
    try:
        yield
    finally:
        for stand_in, words in stand_ins:
            _make_room(stand_in)
            for word in (*words, *(["__path__"] if words else [])):
                delattr(stand_in, word)


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


def _imported(module: LazyModule) -> types.ModuleType:
    """Return the module that was stood in for."""
    _make_room(module)
    with deferred_patterns():
        return importlib.import_module(module.__name__)


def _make_room(module: LazyModule) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
