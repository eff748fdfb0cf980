"""Hides the values of other people's files, command lines and variables, but for those on one list (shown.py). Pure.

A stand-in replaces all else, so that a text parses as before. Takes linear time and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from toolkit_installer import patterns
from toolkit_installer.documents import shown, walk
from toolkit_installer.documents.hidden_values import LINES, LITERALS, HiddenValues

_NUMBER: Final = patterns.lazy(r"[+-]?(?:[0-9][0-9A-Za-z_.:+-]*(?: [0-9][0-9A-Za-z_.:+-]*)?|inf|nan)")
"""A number, a date or a time of TOML: without quotes, nothing but a number may stand there."""

_PIECE: Final = patterns.lazy(r"""\s+|\\|"[^"\n]*"?|'[^'\n]*'?|[^\s"'\\]+""")
_ASSIGNED: Final = patterns.lazy(r"(-{0,2})([A-Za-z_][A-Za-z0-9_.\[\]-]{0,63})=(.*)", re.DOTALL)
_FLAG: Final = patterns.lazy(r"-{1,2}([A-Za-z][A-Za-z0-9_.-]{0,63})")
_VARIABLE: Final = patterns.lazy(r"\$(?:[A-Z_][A-Z0-9_]{0,63}|\{[A-Z_][A-Z0-9_]{0,63}\})")
"""What stands for a variable's value in a unit's command line."""
_ACTION: Final = patterns.lazy(r"\{\{[^{}]*\}\}")
_PUBLIC: Final = (b"\x7fELF", b"TZif")
"""How programs begin, and time zones (tzfile(5)): what is no text, and no secret."""
_BLANKS: Final = patterns.lazy(r"(\s+)")


class Hiding(HiddenValues):
    """Of one set of texts: what one of them hides is hidden in all."""

    def document(self, text: str) -> str:
        """Return a file's text, or what a program prints of one."""
        return walk.document(text, self)

    def fragment(self, text: str, path: tuple[str, ...]) -> str:
        """Return a value that was torn from a document, where it stood below these keys."""
        return walk.fragment(text, path, self)

    def content(self, content: bytes) -> bytes:
        """Return a file's content. Of one that is no text nothing is shown, unless it is public."""
        if b"\0" in content:
            return content if content.startswith(_PUBLIC) else self.stand_in(content.hex()).encode()
        text = content.decode(errors="surrogateescape")
        hidden = self.document(text)
        return content if hidden == text else hidden.encode(errors="surrogateescape")

    def arguments(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command line, the program first."""
        reader = _Words(self)
        return [reader.word(word) for word in words]

    def command(self, text: str, *, program: bool = True) -> str:
        """Return a command line as a file has it, in one text. `program`: it begins with one."""
        reader = _Words(self, program=program)
        return _PIECE.sub(
            lambda piece: piece[0] if piece[0].isspace() or piece[0] == "\\" else walk.requoted(piece[0], reader.word),
            text,
        )

    def flags(self, text: str) -> str:
        """Return words of a command line that stand in quotes together."""
        if not set("\"'\\\n").isdisjoint(text):
            return self.hidden(text)
        reader = _Words(self, program=False)
        return "".join(piece if piece.isspace() else reader.word(piece) for piece in _BLANKS.split(text))

    def value(self, value: Any, path: tuple[str, ...] = ()) -> Any:  # noqa: PLR0911  # one for each kind of value
        """Return a value of JSON: numbers, texts, lists, objects. A text that is JSON itself is read, too."""
        if isinstance(value, dict):
            return {self.key(name): self.value(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, path) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            made = str(value) if shown.shows(path, str(value)) else self.numbered(str(value))
            return value if made == str(value) else int(made) if made.isdecimal() else made
        if isinstance(value, bytes):
            return self.content(value)
        if value[:1] in ("{", "[") and (inner := _parsed(value)) is not None:
            hidden = self.value(inner, path)
            return value if hidden == inner else json.dumps(hidden)
        return self.scalar(str(value), path)

    def output(self, text: str) -> str:
        """Return what a program prints of itself, such as its version: plain lines are shown."""
        return "".join(
            line if shown.is_plain_output(line.rstrip("\r\n")) else self.prose(line)
            for line in text.splitlines(keepends=True)
        )

    # --- single values ---

    def key(self, name: str) -> str:
        """Return the name of a key."""
        if shown.is_plain_key(name) or (_ACTION.fullmatch(name) and shown.is_plain_action(name)):
            return self.show(name)
        return self.hidden(name)

    def scalar(self, value: str, path: Sequence[str]) -> str:  # noqa: PLR0911  # one for each kind of text
        """Return a text below a key."""
        if value.lower() in LITERALS:
            return value
        if shown.shows(path, value):
            return self.show(value)
        given = _ASSIGNED.fullmatch(value) if _BLANKS.search(value) is None or shown.ARGUMENTS.match(value) else None
        if given is not None and _is_shown_variable(given[2], given[3]):
            return value
        if path and shown.ARGUMENTS.fullmatch(path[-1]):
            return self.flags(value)
        if given is not None and not given[1] and shown.ARGUMENTS.fullmatch(given[2]):
            return f"{given[2]}={self.flags(given[3])}"
        if "{{" in value and "}}" in value:  # whoever reads a template sees that there is an action
            if _ACTION.fullmatch(value) and shown.is_plain_action(value):
                return value
            return f"{{{{ {self.hidden(value)} }}}}"
        return self.hidden(value)

    def bare(self, value: str, path: Sequence[str]) -> str:
        """Return a value without quotes below a key."""
        if _NUMBER.fullmatch(value):
            return value if shown.shows(path, value) else self.numbered(value)
        # a path without quotes has no blanks: what comes after one is something else
        return self.scalar(value, path if _BLANKS.search(value) is None or shown.has_blanks(path) else ())

    def prose(self, text: str) -> str:
        """Return a text that belongs to no key: nothing of it, but its line ends."""
        return LINES.sub(lambda line: line[0] if not line[0].strip() else self.hidden(line[0]), text)


def mask(text: str) -> str:
    """Return a document's text as people may see it: MASK stands for each hidden value."""
    return Hiding().document(text)


class _Words:
    """Reads the words of one command line, one after the other."""

    def __init__(self, hiding: Hiding, *, program: bool = True) -> None:
        self.hiding = hiding
        self.flag: str | None = None
        """The flag whose value may come next."""
        self.first = program
        """The next word is the program's name."""

    def word(self, word: str) -> str:  # noqa: PLR0911  # one for each kind of word
        flag, self.flag = self.flag, None
        first, self.first = self.first, False
        if word in shown.WORDS or _VARIABLE.fullmatch(word) or (first and shown.is_harmless(word)):
            return word
        if flag is not None and not word.startswith("-") and shown.is_shown_flag(flag, word):
            return word
        given = _ASSIGNED.fullmatch(word)
        if given is not None and not given[1] and (flag is not None or not given[3].strip("=")):
            # another flag's value, or base64
            return word if _is_shown_variable(given[2], given[3]) else self.hiding.hidden(word)
        if given is not None:
            is_shown = shown.is_shown_flag if given[1] else _is_shown_variable
            shows = is_shown(given[2], given[3]) or (given[2] in shown.WORDS and shown.is_place(given[3]))
            if not shows and not given[1] and shown.ARGUMENTS.fullmatch(given[2]):
                return f"{given[2]}={self.hiding.flags(given[3])}"
            return word if shows else f"{given[1]}{given[2]}={self.hiding.hidden(given[3])}"
        if (named := _FLAG.fullmatch(word)) is not None:
            self.flag = named[1]
            if word.startswith("--") or len(word) == 2 or shown.is_flag(named[1]):  # noqa: PLR2004
                return word
            return word[:2] + self.hiding.hidden(word[2:])  # `-pSECRET` is a flag of one letter with its value
        return word if not word or set(word) <= {"-"} else self.hiding.hidden(word)


def _is_shown_variable(name: str, value: str) -> bool:
    """Tell whether the value of a name without dashes is shown. Names of keys and flags have other meanings there."""
    return (name.isupper() and shown.shows((name,), value)) or (shown.is_flag(name) and shown.is_place(value))


def _parsed(text: str) -> Any:
    """Return what a text of JSON says, None for any other."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
