"""What the regular expressions may not use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer import lazy

_PACKAGE = Path(toolkit_installer.__file__).parent
_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")


@pytest.mark.parametrize("path", sorted(_PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(_PACKAGE)))
def test_no_group_is_possessive_since_python_before_3_11_5_matches_those_wrongly(path: Path) -> None:
    """Debian 12 has 3.11.2. There `(?:a|bc)*+d` finds other texts than later ones do (Python's gh-106052)."""
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if _POSSESSIVE_GROUP.search(line)]
    assert not found


def test_the_rule_knows_such_a_group() -> None:
    for pattern in (r"(?:a|bc)*+", "(a){1,2}+", "(?>a)", "(a)?+"):
        assert _POSSESSIVE_GROUP.search(pattern), pattern
    for pattern in (r"[^a]*+", r"\)*+", "(?:[^a]++)*"):
        assert not _POSSESSIVE_GROUP.search(pattern), pattern


COMPILE_ALL = """
import importlib, sys
from toolkit_installer import lazy
found = []
class Noted(lazy.LazyPattern):
    def __init__(self, text, flags):
        super().__init__(text, flags)
        found.append(self)
lazy.LazyPattern = Noted
for name in sys.argv[1:]:
    importlib.import_module(name)
for pattern in found:
    pattern.compiled()
print(len(found))
"""


def test_every_pattern_that_is_compiled_when_it_is_used_first_can_be() -> None:
    files = [path.relative_to(_PACKAGE.parent).with_suffix("") for path in _PACKAGE.rglob("*.py")]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_ALL, *sorted(modules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_no_module_compiles_a_pattern_when_it_is_imported() -> None:
    """A start would pay for each, and most commands use few. What a function compiles is made for what it is given."""
    compiled = {
        f"{path.relative_to(_PACKAGE)}:{node.lineno}"
        for path in _PACKAGE.rglob("*.py")
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
    }
    assert not compiled


def test_a_pattern_that_is_compiled_when_it_is_used_first_does_what_the_pattern_does() -> None:
    pattern, plain = lazy.pattern("a(b+)", re.IGNORECASE), re.compile("a(b+)", re.IGNORECASE)
    for text in ("xABBy", "", "ab"):
        assert bool(pattern.match(text)) == bool(plain.match(text))
        assert pattern.sub("-", text) == plain.sub("-", text)
        assert pattern.findall(text) == plain.findall(text)
    assert pattern.pattern == plain.pattern
    with pytest.raises(AttributeError):
        pattern.nothing_of_that_name  # type: ignore[attr-defined]  # noqa: B018


def test_a_pattern_that_is_compiled_when_it_is_used_first_can_be_given_to_what_takes_patterns() -> None:
    pattern = lazy.pattern("a+")
    assert isinstance(pattern, re.Pattern)
    assert re.sub(pattern, "-", "baac") == "b-c"
    assert re.compile(pattern) is pattern


PUT_OFF = """
import re, sys
import re._compiler
from toolkit_installer import lazy
count = 0
compiled = re._compiler.compile
def counting(*given):
    global count
    count += 1
    return compiled(*given)
re._compiler.compile = counting
with lazy.deferred_patterns():
    import tomlkit, tomllib, psutil, click, logging, traceback, gettext
usual = re.compile
assert re.compile.__module__ == "re", re.compile
print(count)
assert tomlkit.parse("a = 1979-05-27T07:32:00Z # b")["a"].year == 1979
assert tomllib.loads("a = 0x10") == {"a": 16}
assert psutil.Process().num_threads() == 1
assert click.unstyle("\\033[1ma") == "a"
"""


def test_what_is_imported_meanwhile_compiles_its_patterns_when_it_uses_them() -> None:
    done = subprocess.run([sys.executable, "-c", PUT_OFF], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3, "of what a module uses itself while it is imported, there is little"
