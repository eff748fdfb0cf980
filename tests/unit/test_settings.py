"""What was asked for is never changed: what is found out from it stands in values of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer.settings import CdiSettings, ClusterSettings, EngineSettings, Settings, ToolkitSettings

PACKAGE = Path(toolkit_installer.__file__).parent
REPLACE = ("msgspec.structs.replace", "structs.replace", "replace", "copy.replace")
KINDS = (CdiSettings, ClusterSettings, EngineSettings, Settings, ToolkitSettings)
LIMITS = {"answer_timeout", "reload_timeout"}
"""How long somebody waits: who only looks waits less."""
FIELDS = {name for kind in KINDS for name in kind.__struct_fields__}


def replaced(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `msgspec.structs.replace`, under whichever name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in REPLACE:
            yield node


def changes_settings(call: ast.Call) -> bool:
    """Tell whether a call is given settings, by their name, or one of their fields."""
    if {each.arg for each in call.keywords} <= LIMITS:
        return False
    of = ast.unparse(call.args[0]).rpartition(".")[2]
    if of == "state":  # a SavedState, one of whose fields has the name of a setting
        return False
    return of in ("settings", "asked", "engine", "toolkit") or any(each.arg in FIELDS for each in call.keywords)


def test_no_settings_are_made_of_settings() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{call.lineno}: {ast.unparse(call)}"
        for path in PACKAGE.rglob("*.py")
        for call in replaced(ast.parse(path.read_text()))
        if changes_settings(call)
    }
    assert found == set()


@pytest.mark.parametrize("text", ["replace(own, socket=found)", "msgspec.structs.replace(settings.toolkit, **places)"])
def test_one_that_did_would_be_found(text: str) -> None:
    assert [changes_settings(call) for call in replaced(ast.parse(text))] == [True]
