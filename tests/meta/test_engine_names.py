"""No module outside engines/ knows which engines there are: what differs between them is in their rows and adapters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer.engines import registry

PACKAGE = Path(toolkit_installer.__path__[0])
FOLDERS = tuple(f"toolkit_installer.engines.{name}" for name in registry.names())
OPTIONS = "its table of options has those of the programs that this one replaces"
CONTAINERD = "it reads containerd's imports and a distribution's templates, which no other engine has"
REASONS = {
    "settings.py": "the names themselves",
    "cli/options/model.py": OPTIONS,
    "cli/options/resolve.py": OPTIONS,
    "cli/options/table.py": OPTIONS,
    "nri/decision.py": "the names by which engines introduce themselves to a plugin; it knows nothing of engines/",
    "planning/files_naming.py": CONTAINERD,
    "planning/other_installer.py": CONTAINERD,
    "reporting/diagnosis.py": CONTAINERD,
    "reporting/findings.py": CONTAINERD,
    "waiting/refresh_command.py": "the command by which a person enters a container, whichever engine the node has",
}


def find_names(text: str) -> Iterator[str]:
    """Yield what names an engine in a module: its constant, its name as a value, or its folder."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id="EngineName"), attr=attribute) if attribute.isupper():
                yield f"EngineName.{attribute}"
            case ast.Constant(value=str(value)) if value in registry.names():
                yield repr(value)
            case ast.ImportFrom(module=str(module), names=names):
                imported = [f"{module}.{each.name}" for each in names]
                yield from (name for name in imported if name.startswith(FOLDERS))


@pytest.mark.parametrize(
    "text",
    [
        "if name is EngineName.CRIO: pass",
        "SOCKETS = {'docker': 1}",
        "from toolkit_installer.engines.containerd import tables",
        "from toolkit_installer.engines import docker",
    ],
)
def test_a_planted_name_of_an_engine_is_found(text: str) -> None:
    assert list(find_names(text))


def test_no_module_outside_of_engines_names_one() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    outside = {name: path.read_text() for name, path in modules.items() if not name.startswith("engines/")}
    found = {name: names for name, text in outside.items() if (names := list(find_names(text)))}
    assert {name: names for name, names in found.items() if name not in REASONS} == {}
    assert REASONS.keys() - found.keys() == set()  # no reason is left over
