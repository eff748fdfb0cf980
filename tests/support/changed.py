"""Which tests are nearest to what was changed in the working tree: those of `make test-changed`.

    python -m tests.support.changed [REVISION]        prints their files; REVISION: what it was changed since, HEAD

Of a module of the program these are the unit tests that import it; where none does, those of the modules that import
it, and so on upwards. Of a module that tests share, the tests that import it. The whole program is tried as well, on a
made-up node: nothing that is changed may break that.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath

import grimp

PROJECT = Path(__file__).parents[2]
PACKAGE = "toolkit_installer"
WHOLE_PROGRAM = "tests/node/test_install_and_cleanup.py"
_MOST = 12
"""As many files of tests are taken at most for one module that tests share: `make test` tries all of them."""


def nearest(
    changed: Collection[str],
    imported: Mapping[str, Collection[str]],
    importers: Callable[[str], Iterable[str]],
) -> list[str]:
    """Return the files of tests to run, sorted: none where nothing of the program or its tests was changed. Pure.

    `changed`: paths in the project. `imported`: which modules each file of the tests imports. `importers` returns the
    modules of the program that import one.
    """
    modules = {path: module for path in changed if (module := module_of(path)) is not None}
    found = {WHOLE_PROGRAM} if modules else set()
    for path, module in modules.items():
        if is_test(path):
            found.add(path)
        elif path.startswith("tests/"):
            found |= set([test for test in sorted(imported) if is_test(test) and module in imported[test]][:_MOST])
        else:
            found |= _of_module(module, imported, importers)
    return sorted(found)


_OF_MODULES = ("tests/unit/", "tests/meta/")


def _of_module(
    module: str, imported: Mapping[str, Collection[str]], importers: Callable[[str], Iterable[str]]
) -> set[str]:
    """Return the unit tests that import a module, or else the nearest of those that do so indirectly."""
    level, seen = {module}, {module}
    while level:
        of_modules = (test for test in imported if test.startswith(_OF_MODULES))
        near = {test for test in of_modules if not level.isdisjoint(imported[test])}
        if tests := set(filter(is_test, near)):
            return tests
        level = {above for each in level for above in importers(each)} - seen
        seen |= level
    return set()


def is_test(path: str) -> bool:
    """Tell whether a file has tests that need no engine."""
    name = PurePosixPath(path)
    return path.startswith((*_OF_MODULES, "tests/node/")) and name.match("test_*.py")


def module_of(path: str) -> str | None:
    """Return the module in a file of the program or its tests, None for any other file."""
    if not path.endswith(".py") or not path.startswith((f"{PACKAGE}/", "tests/")):
        return None
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_in(source: str) -> set[str]:
    """Return the modules that a text imports, anywhere in it, and what may be modules among the names it takes."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def changed_since(revision: str) -> list[str]:
    """Return what differs from a revision of the project, and what is new. Raises CalledProcessError."""
    git = ["git", "-C", str(PROJECT)]
    commands = ([*git, "diff", "--name-only", revision], [*git, "ls-files", "--others", "--exclude-standard"])
    lines = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands)
    return [path for text in lines for path in text.splitlines() if (PROJECT / path).exists()]


def main(revision: str = "HEAD") -> None:
    """Print the files of the tests that are nearest to what was changed since a revision."""
    files = [path.relative_to(PROJECT) for path in sorted(PROJECT.glob("tests/**/*.py"))]
    imported = {str(path): imports_in((PROJECT / path).read_text(encoding="utf-8")) for path in files}
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    tests = nearest(changed_since(revision), imported, graph.find_modules_that_directly_import)
    sys.stdout.writelines(f"{test}\n" for test in tests)


if __name__ == "__main__":
    main(*sys.argv[1:])
