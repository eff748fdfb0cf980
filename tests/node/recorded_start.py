"""The program, started so that it tells what it imported: `python recorded_start.py FILE ARGUMENT...`.

FILE gets a line for each stretch of its life, from a start or an awakening to its end or the next sleep: the modules
that were there then, in the order of their import. A second line after each has those that were imported once the node
was being changed. It is a program of its own, and imports next to nothing itself.
"""

from __future__ import annotations

import atexit
import os
import sys

_BEGUN: list[str] = []
"""What was imported since the receipt's folder was made, or anything in it changed; its first entry is no module."""
_STORE = "/usr/local/nvidia/.toolkit-installer"
_LISTDIR = os.listdir


def _listdir(path: str = ".") -> list[str]:
    """List a folder, but no processes: engines of this machine are none of the made node's, and bring psutil along."""
    return [] if path == "/proc" else _LISTDIR(path)


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and _BEGUN:
        _BEGUN.append(str(arguments[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove") and not _BEGUN and f"{_STORE}/" in f"{_followed(arguments)}/":
        _BEGUN.append("begun")


def _followed(arguments: tuple[object, ...]) -> str:
    """Return the path of a call: beside a name there is the descriptor of its folder, and a mode that is none."""
    links = [f"/proc/self/fd/{each}" for each in arguments[1:] if isinstance(each, int)]
    folders = [os.readlink(link) for link in links if os.path.lexists(link)]
    return "/".join([*folders, *(str(each) for each in arguments if isinstance(each, str))])


def _tell(file: str) -> None:
    modules = [name for name, module in sys.modules.items() if type(module).__name__ != "LazyModule"]
    with open(file, "a", encoding="utf-8") as stream:  # pathlib would be one more module
        stream.write(f"{' '.join(modules)}\n{' '.join(_BEGUN[1:])}\n")


def _asleep(file: str) -> None:
    """See to it that the program tells before it falls asleep, and is started in this way when it wakes up."""
    from toolkit_installer.node import interpreter  # noqa: PLC0415  # it is told of

    asleep = os.execv

    def execv(path: str, words: list[str]) -> None:
        _tell(file)
        asleep(path, words)

    os.execv = execv  # type: ignore[assignment]  # it takes no more than what the program gives it
    called = interpreter.calling

    def calling(function: str, name: str, *arguments: str) -> list[str]:
        usual = called(function, name, *arguments)
        place = usual.index(interpreter.__file__)
        return [*usual[:place], os.path.abspath(__file__), file, "--woken", *usual[place + 1 :]]  # as above

    interpreter.calling = calling


def main() -> int:
    """Start, or go on after the idle process was woken."""
    file, *arguments = sys.argv[1:]
    os.listdir = _listdir  # type: ignore[assignment]  # it takes no more than what the program gives it
    sys.addaudithook(_hear)
    atexit.register(_tell, file)
    if arguments[:1] == ["--woken"]:
        sys.argv[1:] = arguments[1:]
        count = int(sys.argv[3])
        sys.path[:] = sys.argv[4 : 4 + count]
        _asleep(file)
        from toolkit_installer.node import interpreter  # noqa: PLC0415  # the paths come first

        return interpreter._main()
    sys.argv[:] = ["toolkit-installer", *arguments]
    _asleep(file)
    from toolkit_installer import __main__ as program  # noqa: PLC0415  # it is told of

    return program.toolkit_installer()


if __name__ == "__main__":
    sys.exit(main())
