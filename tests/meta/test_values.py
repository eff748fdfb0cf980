"""Values are of the types that they say: also those that nobody gives, which are found out by who comes upon them."""

from __future__ import annotations

import ast
import collections.abc
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import toolkit_installer

PACKAGE = Path(toolkit_installer.__file__).parent
CUT_SHORT = {
    "node/queries.py: zip(self.parameters, arguments, strict=False)",
}
"""Pairs that end with the shorter of two: each word with the one before it, and arguments given by place."""


def structs() -> Iterator[type[msgspec.Struct]]:
    """Yield each kind of value of the program."""
    for each in pkgutil.walk_packages(toolkit_installer.__path__, f"{toolkit_installer.__name__}."):
        if each.name.rpartition(".")[2] != "__main__":
            for kind in vars(importlib.import_module(each.name)).values():
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == each.name:
                    yield kind


def is_of(value: object, kind: Any) -> bool:
    """Tell whether a value is of this type, which may be a union; what is in a collection is not looked at."""
    of = typing.get_origin(kind) or kind
    if of in (typing.Union, types.UnionType):
        return any(is_of(value, each) for each in typing.get_args(kind))
    if of is Any or of is collections.abc.Callable:
        return of is Any or callable(value)
    return isinstance(value, of) and (of is bool or not isinstance(value, bool))


KINDS = sorted(structs(), key=lambda kind: (kind.__module__, kind.__qualname__))


def test_all_kinds_of_values_are_looked_at() -> None:
    classes = {
        each.name
        for path in PACKAGE.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in each.bases)
    }
    assert classes <= {kind.__name__ for kind in KINDS}
    assert len(classes) > 100


WITH_DEFAULTS = [kind for kind in KINDS if kind.__struct_defaults__]


@pytest.mark.parametrize("kind", WITH_DEFAULTS, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_what_nobody_says_of_a_value_is_of_the_type_that_it_has_when_somebody_does(kind: type[msgspec.Struct]) -> None:
    wrong = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if default is not msgspec.NODEFAULT and not is_of(default, field.type):
            wrong.append(f"{field.name}: {default!r} is no {field.type}")
    assert wrong == []


def test_of_two_lists_that_belong_together_none_is_cut_short_in_silence() -> None:
    """Of what came second too rarely, the last would be left out, be it files, engines or nodes."""
    cut = {
        f"{path.relative_to(PACKAGE)}: {ast.unparse(call)}"
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "zip"
        and not any(each.arg == "strict" and ast.unparse(each.value) == "True" for each in call.keywords)
    }
    assert cut == CUT_SHORT
