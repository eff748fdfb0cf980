"""Regular expressions that are compiled, and modules that are imported, when they are first used.

The program defines a hundred patterns, and most commands use ten. The libraries that it imports add three dozen.

Python 3.15 has a statement for lazy imports (PEP 810). Until then a lazy module is put into sys.modules, for modules
that most commands never use. importlib.util.LazyLoader does not do: the import statement itself reads the module's
__spec__, which loads the module.

A command that changes the node calls `load_all` first: half-way through, the program's own files may be gone.
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
    """A pattern that its first use compiles; methods that were used once become attributes of this object."""

    def __init__(self, text: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = text
        self.flags = flags

    @property  # type: ignore[misc]  # it is never set
    def __class__(self) -> type[re.Pattern[AnyStr]]:  # type: ignore[override]  # see the docstring
        """Is re.Pattern, so that isinstance, `re.sub` and the like accept this object."""
        return re.Pattern

    def compiled(self) -> re.Pattern[AnyStr]:
        """Return the compiled pattern.

        Raises re.error if its text is no regular expression.
        """
        return _compile(self.pattern, self.flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.compiled(), name)
        setattr(self, name, value)
        return value


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object that can be used like `re.compile(text, flags)`."""
    return cast("re.Pattern[AnyStr]", LazyPattern(text, flags))


@contextlib.contextmanager
def deferred_patterns() -> Iterator[None]:
    """Make `re.compile` lazy inside the block, for the modules that are imported there."""
    before, re.compile = re.compile, cast("Any", _compile_lazily)
    try:
        yield
    finally:
        re.compile = before


def _compile_lazily(text: Any, flags: int = 0) -> Any:
    return pattern(text, flags) if isinstance(text, (str, bytes)) else _compile(text, flags)


class LazyModule(types.ModuleType):
    """A module that is imported when one of its attributes is first used, and then has all attributes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_import_module(self), name)


_DEFERRED: Final[dict[str, None]] = {}
"""Modules that `load_all` imports, in this order."""


def defer(*names: str, by_a_change: bool = True) -> None:
    """Put lazy modules in place of these modules, unless they are imported already.

    With `by_a_change` false, no change of the node uses them, and `load_all` leaves them lazy.
    """
    for name in names:
        sys.modules.setdefault(name, LazyModule(name))
    if by_a_change:
        _DEFERRED.update(dict.fromkeys(names))


def load_all() -> None:
    """Import every module that is still lazy and that a change of the node may use."""
    for module in [each for name in _DEFERRED if isinstance(each := sys.modules.get(name), LazyModule)]:
        _import_module(module)


class _PlaceholderType(type):
    """Metaclass of `Placeholder`: every class attribute is the class itself, except what Python itself looks up."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Placeholder(metaclass=_PlaceholderType):
    """Replaces a class of a lazy module, for code that only refers to it or never uses the instances that it makes."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept any arguments."""


@contextlib.contextmanager
def defer_during_import(**modules: str) -> Iterator[None]:
    """Make modules lazy while another module that refers to them is imported; later imports get the real ones.

    `modules` has the attributes of each, separated by spaces and possibly none, that are to be a `Placeholder`; a
    module that has some must be no package. `__` in a module's name stands for a dot. Use of another attribute imports
    the module at once.
    """
    stand_ins = [(LazyModule(name.replace("__", ".")), words.split()) for name, words in modules.items()]
    for stand_in, words in stand_ins:
        # a `from` import reads the package's __path__ first, which would import the module
        vars(stand_in).update(dict.fromkeys(words, Placeholder) | ({"__path__": []} if words else {}))
        sys.modules.setdefault(stand_in.__name__, stand_in)
    try:
        yield
    finally:
        for stand_in, words in stand_ins:
            _remove_lazy_module(stand_in)
            for word in (*words, *(["__path__"] if words else [])):
                delattr(stand_in, word)


@contextlib.contextmanager
def block_import(name: str) -> Iterator[None]:
    """Make a module unimportable inside the block, unless it is imported already, for an import with a fallback."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # None makes the import fail
    try:
        yield
    finally:
        del sys.modules[name]


def _import_module(module: LazyModule) -> types.ModuleType:
    """Return the real module of a lazy one, imported now."""
    _remove_lazy_module(module)
    with deferred_patterns():
        return importlib.import_module(module.__name__)


def _remove_lazy_module(module: LazyModule) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
