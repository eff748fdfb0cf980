"""Hides secrets in messages of other programs, and in this program's own, before people see them.

Whatever this process has read and hides (documents/masking.py) is also hidden where a program or an error quotes it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any, ClassVar

from toolkit_installer.documents import masking
from toolkit_installer.node import reading
from toolkit_installer.settings import Program

_OWN = ("/.toolkit-installer/receipt.json", "/.config/nvidia-container-runtime/config.toml")
"""Path suffixes of files that this program wrote: its own messages contain words of them, such as file names."""

_PROGRAMS = frozenset(map(str, Program))
_FIRST_WORDS = 6
"""The number of first words of a Python command line that may name the program that Python runs."""


class _HiddenValues:
    """The hidden values, and the texts that they came from: a text is read once, not again for each log line."""

    people: ClassVar[masking.DocumentMasker]
    settled: ClassVar[masking.DocumentMasker]
    read: ClassVar[dict[tuple[str, str | int], Any] | None] = None


def mask_program_text(text: str) -> str:
    """Return another program's message without hidden values and without parts of them."""
    return _update_hidden_values().words(text)


def mask_own_text(text: str) -> str:
    """Return one of this program's messages without hidden values that it quotes as a whole."""
    return _update_hidden_values().known(text)


def _runs_this_program(words: Sequence[str]) -> bool:
    """Return whether a command line runs this program: its words and variables occur in our own messages."""
    program = posixpath.basename(words[0]) if words else ""
    if program in _PROGRAMS:
        return True
    named = (word for word in words[1:_FIRST_WORDS] if "/" in word)
    return program.startswith("python") and (
        any("/toolkit_installer/" in word or posixpath.basename(word) in _PROGRAMS for word in named)
    )


def _update_hidden_values() -> masking.DocumentMasker:
    """Return the hidden values, updated with all texts that were read by now."""
    heard_now: dict[tuple[str, str | int], Any] = {
        ("file", path): content for path, content in tuple(reading.cached_files.items()) if not path.endswith(_OWN)
    }
    commands = {pid: words for pid, words in tuple(reading.cached_commands.items()) if not _runs_this_program(words)}
    own = reading.cached_commands.keys() - commands.keys()
    heard_now |= {("command", pid): words for pid, words in commands.items()}
    heard_now |= {
        ("variables", pid): each for pid, each in tuple(reading.cached_environments.items()) if pid not in own
    }
    before = _HiddenValues.read
    if before is None or any(heard_now.get(key) != value for key, value in before.items()):
        before, _HiddenValues.people = {}, masking.DocumentMasker()
    elif len(before) == len(heard_now):
        return _HiddenValues.settled
    for key in heard_now.keys() - before.keys():
        value = heard_now[key]
        if key[0] == "file":
            _HiddenValues.people.content(value)
        elif key[0] == "command":
            _HiddenValues.people.arguments(value)
        else:
            _HiddenValues.people.value(dict(value))
    _HiddenValues.settled, _HiddenValues.read = _HiddenValues.people.settled(), heard_now
    return _HiddenValues.settled
