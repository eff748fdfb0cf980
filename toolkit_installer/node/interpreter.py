"""Runs the program's own Python again by real paths, even if the symlinks that led to it are gone.

    python -I -S interpreter.py MODULE:FUNCTION NAME COUNT PATH... ARGUMENT...

calls the function with `NAME ARGUMENT...` as its command line and the COUNT paths as the module search path. A virtual
environment's own interpreter and scripts are no longer needed: they may be gone by then.
"""

from __future__ import annotations

import importlib
import os
import sys

_BAD_CONFIGURATION = 3
"""ExitCode.BAD_CONFIGURATION, not imported: this script has to work when no import does."""
_PACKAGE_AT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
_THIS = os.path.realpath(__file__)
_PATH = tuple(dict.fromkeys(os.path.realpath(entry) for entry in (*sys.path, _PACKAGE_AT)))
"""All paths are resolved when the program starts: a symlink may be switched while it runs."""
_BASE = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
_PYTHON = _BASE if os.access(_BASE, os.X_OK) else sys.executable
"""The interpreter behind a virtual environment's, by its real path."""


def build_isolated_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script in isolation: without packages, environment variables and the user's files.

    `script` is a path, or `-c`, followed by the script's text. The encoding of file names stays what it is here,
    because they are passed as text.
    """
    flags = [f"-Xutf8={sys.flags.utf8_mode}", *(["-B"] if sys.dont_write_bytecode else [])]
    return [_PYTHON, "-I", "-S", *flags, script, *arguments]


def find_bytecode(script: str) -> str:
    """Return the path of a script's bytecode, or the script itself if it has no bytecode for this Python.

    Running a script compiles it, and the compiler then stays in the memory of a process that does next to nothing.
    """
    import importlib.util  # noqa: PLC0415  # only a process that becomes idle needs it

    bytecode = importlib.util.cache_from_source(script)
    try:
        with open(bytecode, "rb") as file:
            runs = file.read(len(importlib.util.MAGIC_NUMBER)) == importlib.util.MAGIC_NUMBER
    except OSError:
        return script
    return bytecode if runs else script


def calling(function: str, name: str, *arguments: str) -> list[str]:
    """Return the command that calls a function (`module:function`) of this package in a process of its own."""
    return build_isolated_command(_THIS, function, name, str(len(_PATH)), *_PATH, *arguments)


def find_script(command: list[str]) -> str:
    """Return the script that a Python command runs, empty if it names none by a path."""
    word = next((word for word in command[1:] if not word.startswith("-")), "")
    return word if "/" in word else ""


def _main() -> int:
    function, name, count, *rest = sys.argv[1:]
    sys.path[:] = rest[: int(count)]
    sys.argv = [name, *rest[int(count) :]]
    module, _, attribute = function.partition(":")
    try:
        return int(getattr(importlib.import_module(module), attribute)())
    except (ImportError, AttributeError) as error:  # of the package's modules: the called function lets neither out
        print(  # noqa: T201  # there is no log yet
            f"{name} cannot be started again, as it is not whole any more: {error}; install it again, then run "
            "`toolkit-installer uninstall`, if the node is to be given back",
            file=sys.stderr,
        )
        return _BAD_CONFIGURATION


if __name__ == "__main__":
    sys.exit(_main())
