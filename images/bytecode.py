"""Compiles what the program imports, its base's standard library included, to bytecode that is used unchecked.

    python -I -B bytecode.py library HOME BASE OUT
    python -I -B bytecode.py packages HOME             (HOME/bin/python, the image's own interpreter)

Slim bases come without bytecode, and a container that may not write to its root would compile everything at each start.
The environment's goes beside its sources; the standard library's into OUT, as the base's own folders. BASE is the root
of the base, which may be for another machine: its sources have to be those that are compiled.
"""

from __future__ import annotations

import ast
import compileall
import importlib
import importlib.util
import inspect
import pkgutil
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_MODE = py_compile.PycInvalidationMode.UNCHECKED_HASH


def compile_library(home: Path, base: Path, out: Path) -> None:
    """Compile what is imported of the standard library and has no bytecode in `base`; `out` stands for `/`."""
    for name in _program():
        importlib.import_module(name)
    _import_what_is_put_off()
    for name, module in sorted(sys.modules.items()):
        source, cached = getattr(module, "__file__", None), getattr(module, "__cached__", None)
        if not source or not cached or home in Path(source).parents or Path(source).suffix != ".py":
            continue
        if name != "__main__" and not (base / cached.lstrip("/")).exists() and _is_in(base, source):
            compiled = out / Path(cached).relative_to("/")
            compiled.parent.mkdir(parents=True, exist_ok=True)
            py_compile.compile(source, str(compiled), source, doraise=True, invalidation_mode=_MODE)


def _is_in(base: Path, source: str) -> bool:
    """Tell whether the base has this source. Ends the build where it has another one, of another Python."""
    try:
        there = (base / source.lstrip("/")).read_bytes()
    except FileNotFoundError:
        if source == ast.__file__:
            raise SystemExit(f"the base has no {source}: give a base with the same Python for both machines") from None
        return False  # what describes this machine, sysconfig's data
    if there != Path(source).read_bytes():
        raise SystemExit(f"the base has another {source}: give a base with the same Python for both machines")
    return True


def compile_packages(home: Path) -> None:
    """Compile the environment's packages, be they for this machine or another."""
    (packages,) = home.glob("lib/python3*/site-packages")
    for stale in packages.rglob("__pycache__"):
        shutil.rmtree(stale)
    if not compileall.compile_dir(packages, quiet=1, invalidation_mode=_MODE):
        raise SystemExit(f"{packages} was not compiled")


def _import_what_is_put_off() -> None:
    """Import what the program has stood in for until it is used (lazy.py), and what that imports."""
    known = 0
    while known != len(sys.modules):
        known = len(sys.modules)
        for module in list(sys.modules.values()):
            getattr(module, "__file__", None)  # a use


def _program() -> list[str]:
    """Return the program's modules, and all that they import, be it at their start or late, in a function."""
    import toolkit_installer  # noqa: PLC0415  # in the image's interpreter only

    found = pkgutil.walk_packages(toolkit_installer.__path__, "toolkit_installer.")
    own = [module.name for module in found if not module.name.endswith("__main__")]
    return [*own, *(name for module in own for name in _imported(importlib.import_module(module)))]


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the modules that a module's source names in import statements."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            spec = importlib.util.find_spec(node.module)
            if spec is None or spec.submodule_search_locations is None:
                continue
            inner = (f"{node.module}.{each.name}" for each in node.names)
            yield from (name for name in inner if importlib.util.find_spec(name) is not None)


if __name__ == "__main__":
    if sys.argv[1] == "library":
        compile_library(*map(Path, sys.argv[2:]))
    else:
        compile_packages(Path(sys.argv[2]))
