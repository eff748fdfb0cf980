"""What says that it is pure is held to that by the import contract, and what the contract lists says so."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import toolkit_installer

PACKAGE = Path(toolkit_installer.__file__).parent
CONTRACTS = ("Pure code reaches no effect", "Pure code that works with values of impure modules")


def listed() -> set[str]:
    """Return the modules and packages that the contracts on pure code name."""
    table = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    chosen = [each for each in table if each["name"].startswith(CONTRACTS)]
    assert len(chosen) == len(CONTRACTS)
    return {module for each in chosen for module in each["source_modules"]}


def claiming() -> set[str]:
    """Return the modules and packages whose docstring says that they are pure."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if re.search(r"\bpure\b", ast.get_docstring(ast.parse(path.read_text())) or "", re.IGNORECASE):
            found.add(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
    return found


def test_what_says_that_it_is_pure_is_in_the_contract() -> None:
    within = listed()
    assert {name for name in claiming() if not any(f"{name}.".startswith(f"{each}.") for each in within)} == set()


def test_what_is_in_the_contract_says_that_it_is_pure() -> None:
    assert listed() - claiming() == set()


def test_what_is_declared_as_a_value_does_not_change_after_it_was_made() -> None:
    melted = [
        f"{path.relative_to(PACKAGE)}: {each.name}"
        for path in PACKAGE.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.ClassDef)
        for keyword in each.keywords
        if keyword.arg == "frozen" and ast.unparse(keyword.value) != "True"
    ]
    assert melted == []
