"""What this process has read of files, command lines and variables of the node lately.

A program that fails quotes its configuration: whoever shows its words has to know which of them may be secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_MOST: Final = 4096
_LONGEST: Final = 1024 * 1024
"""Bytes of a file. To learn the values of a longer one takes seconds, in which no signal is heeded."""
_MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of all files."""

files: Final[dict[str, bytes]] = {}
"""Contents, by their paths."""
commands: Final[dict[int, tuple[str, ...]]] = {}
"""The words of command lines, by their processes."""
variables: Final[dict[int, Mapping[str, str]]] = {}
"""The environments of processes."""


def file(path: str, content: bytes) -> None:
    """Remember a file's content, in the place of those that were remembered longest if they are too many."""
    if len(content) <= _LONGEST and not path.startswith(("/proc/", "/sys/")):
        _keep(files, path, content)
        while sum(map(len, files.values())) > _MOST_BYTES:
            del files[next(iter(files))]


def command(pid: int, words: tuple[str, ...]) -> None:
    """Remember a command line."""
    _keep(commands, pid, words)


def environment(pid: int, values: Mapping[str, str]) -> None:
    """Remember an environment."""
    _keep(variables, pid, values)


def _keep(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    known.pop(key, None)
    while len(known) >= _MOST:
        del known[next(iter(known))]
    known[key] = value
