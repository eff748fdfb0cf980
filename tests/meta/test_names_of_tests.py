"""Names of tests are short sentences, and a unit test's file is named after the module that it tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
TESTS, PACKAGE = PROJECT / "tests", PROJECT / "toolkit_installer"
LONGEST = 80


def sources() -> Iterator[Path]:
    """Yield the files of all tests, and of what they share."""
    for path in sorted(TESTS.rglob("*.py")):
        if not path.is_relative_to(TESTS / "data"):
            yield path


def functions(source: str) -> Iterator[str]:
    """Yield the names of a text's test functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name


def has_module(test: Path, package: Path) -> bool:
    """Tell whether `test_reload_gate_budget.py` has a `reload_gate_budget.py`, or the same without its last words."""
    words = test.stem.removeprefix("test_").split("_")
    stems = ("_".join(words[:length]) for length in range(len(words), 0, -1))
    return any((package / f"{name}.py").exists() for stem in stems for name in (stem, f"__{stem}__"))


def test_a_name_has_at_most_80_characters() -> None:
    long = [f"{path.name}: {name}" for path in sources() for name in functions(path.read_text()) if len(name) > LONGEST]
    assert long == []


def test_a_unit_test_file_is_named_after_a_module_of_its_folder() -> None:
    unit = TESTS / "unit"
    files = [path.relative_to(unit) for path in sorted(unit.rglob("test_*.py"))]
    assert len(files) > 100
    assert [str(path) for path in files if not has_module(path, PACKAGE / path.parent)] == []


def test_the_module_may_have_several_files_of_tests(tmp_path: Path) -> None:
    (tmp_path / "reload_gate.py").touch()
    (tmp_path / "__main__.py").touch()
    assert has_module(Path("test_reload_gate.py"), tmp_path)
    assert has_module(Path("test_reload_gate_budget.py"), tmp_path)
    assert has_module(Path("test_main.py"), tmp_path)
    assert not has_module(Path("test_reload.py"), tmp_path)
    assert not has_module(Path("test_gate.py"), tmp_path)
