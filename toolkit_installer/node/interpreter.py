"""The program's own Python, started again by real paths, whatever has become of the links that led to it.

    python -I -S interpreter.py MODULE:FUNCTION NAME COUNT PATH... ARGUMENT...

calls the function with `NAME ARGUMENT...` as its command line, and the COUNT paths as where modules are looked for. A
virtual environment's own interpreter, and the scripts beside it, are needed no more: they may be gone by then.
"""

from __future__ import annotations

import importlib
import os
import sys

_UNUSABLE = 3
"""ExitCode.BAD_CONFIGURATION, which cannot be imported where nothing can."""
_PACKAGE_AT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
_THIS = os.path.realpath(__file__)
_PATH = tuple(dict.fromkeys(os.path.realpath(entry) for entry in (*sys.path, _PACKAGE_AT)))
"""All of these are looked at when the program starts: a link may be switched while it works."""
_BASE = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
_PYTHON = _BASE if os.access(_BASE, os.X_OK) else sys.executable
"""The interpreter behind a virtual environment's, by its real path."""


def isolated(script: str, *arguments: str) -> list[str]:
    """Return the words that run a script with the interpreter alone: no packages, no variables, no user's files.

    The encoding of file names stays what it is here, as they are handed over as text.
    """
    flags = [f"-Xutf8={sys.flags.utf8_mode}", *(["-B"] if sys.dont_write_bytecode else [])]
    return [_PYTHON, "-I", "-S", *flags, script, *arguments]


def compiled(script: str) -> str:
    """Return what is run in place of a script: its bytecode, or the script itself where there is none that can be run.

    Who runs the script has it compiled, and the compiler stays in the memory of a process that does next to nothing.
    """
    import importlib.util  # noqa: PLC0415  # of what falls asleep, and of nothing else

    bytecode = importlib.util.cache_from_source(script)
    try:
        with open(bytecode, "rb") as file:
            runs = file.read(len(importlib.util.MAGIC_NUMBER)) == importlib.util.MAGIC_NUMBER
    except OSError:
        return script
    return bytecode if runs else script


def calling(function: str, name: str, *arguments: str) -> list[str]:
    """Return the words that call a function (`module:function`) of this package in a program of its own."""
    return isolated(_THIS, function, name, str(len(_PATH)), *_PATH, *arguments)


def needed(command: list[str]) -> str:
    """Return the script that a Python is told to run, empty where its command names none by a path."""
    word = next((word for word in command[1:] if not word.startswith("-")), "")
    return word if "/" in word else ""


def _main() -> int:
    function, name, count, *rest = sys.argv[1:]
    sys.path[:] = rest[: int(count)]
    sys.argv = [name, *rest[int(count) :]]
    module, _, attribute = function.partition(":")
    try:
        return int(getattr(importlib.import_module(module), attribute)())
    except (ImportError, AttributeError) as error:  # of the package's modules: what is called lets none of these out
        print(  # noqa: T201  # there is no log yet
            f"{name} cannot be started again, as it is not whole any more: {error}; install it again, then run "
            "`toolkit-installer uninstall`, if the node is to be given back",
            file=sys.stderr,
        )
        return _UNUSABLE


if __name__ == "__main__":
    sys.exit(_main())
