"""A name of a class stands for one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import toolkit_installer

PACKAGE = Path(toolkit_installer.__path__[0])


def test_a_class_name_is_unique_in_the_package() -> None:
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
