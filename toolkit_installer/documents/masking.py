"""Values that are hidden in one set of texts: what stands for each, and where else they are quoted. Pure.

A program's message quotes its configuration. So what one text hides is also hidden in words; and there, where no key
tells what a value is, so is what has the form of a secret.

Hides the values of other people's files, command lines and variables, but for those on one list (shown.py). Pure.

A stand-in replaces all else, so that a text parses as before. Takes linear time and never raises.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from toolkit_installer import lazy
from toolkit_installer.documents import shown, walk

MASK: Final = shown.HIDDEN
LITERALS: Final = frozenset({"true", "false", "null", "nil", "none", "yes", "no", "on", "off", "~", ""})
"""Values that hold nothing to hide, in whatever case."""
LINES: Final = lazy.pattern(r"[^\r\n]+")

_PRIVATE_KEY: Final = lazy.pattern(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(.*?)(?=-----END|\Z)", re.DOTALL)
_URL: Final = lazy.pattern(r"(://)([^\s/@\"']{0,512}@)?")
_QUERY: Final = lazy.pattern(r"(://[^\s?\"']{0,1024})\?[^\s\"']+")
_TELLING: Final = (
    r"(?:authorization|registry-auth|pass(?:word|wd|phrase)?|pwd|token|secret|(?:api|access|private)[-_]?key|cookie|"
    r"credentials?)"
)
_SAID: Final = lazy.pattern(
    rf"""(?i)((?<![\w-])[\w-]{{0,32}}?{_TELLING}"""
    r"""(?:[\\"']{0,2}[ ]?[:=][ ]?)"""
    r"""(?:(?:bearer|basic) )?[\\"']{0,2}|\b(?:bearer|basic) )[^\s"',;\\]+"""
)
_GIVEN: Final = lazy.pattern(
    rf"""(?i)((?<![\w-])--?[\w-]{{0,32}}?{_TELLING}[\\"']{{0,2}}(?:,[ ]?|[ =])[\\"']{{0,2}})[^\s"',\\\]]+"""
)
_LOGIN: Final = lazy.pattern(r"""(?<![^\s"'(=])[^\s"'(=:/@]{1,128}:[^\s"':/@]{1,128}@(?=[A-Za-z0-9])""")
"""A user and a password before a host, without a scheme."""
_PAIRS: Final = (
    lazy.pattern(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=(?:"[^"\n]*"|'[^'\n]*')"""),
    lazy.pattern(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=[^\s"',;)]+"""),
)
_LOG_NAMES = """
time level msg error err reason row line column file key source module type name plugin address code exit signal pid
unit container pod image status event engine hint command duration size count attempt retry method uri ts
"""
_NAMES_IN_LOGS: Final = frozenset(_LOG_NAMES.split())
"""Names of pairs in lines of logs whose values are shown, but for what is hidden in them."""

_SHORTEST: Final = 4
"""Characters of a hidden value that is looked for in words: a shorter one may stand there by chance."""
_MOST: Final = 200_000
"""Hidden values that are remembered: about as many as the largest file has that is read."""
_PLAIN: Final = lazy.pattern(r"[A-Za-z0-9_.~/:-]*")
"""A value that all programs write in the same way."""
_IN_ADDRESSES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~/:-")
_WORD_PARTS: Final = lazy.pattern(r"[^\W_]{4,}")

StandIn = Callable[[str], str]
"""Makes what stands for a hidden value."""


class HiddenValues:
    """Of one set of texts: equal values have equal stand-ins."""

    def __init__(self, stand_in: StandIn = lambda _: MASK, number: StandIn | None = None) -> None:
        self.stand_in = stand_in
        self._number = number or stand_in
        self._values: dict[str, str] = {}
        """The hidden values, and what stands for each."""
        self._lengths: dict[str, set[int]] = {}
        """How long the hidden values are that begin with these `_SHORTEST` characters: one pass finds all of them."""
        self._parts: dict[str, str] = {}
        """The parts of hidden values that are told from ordinary words, and what stands for each."""
        self._vocabulary: set[str] = set()
        """Words that were shown: no value that is one of them is looked for elsewhere."""

    def show(self, text: str) -> str:
        """Return a text that is shown: its words are no secrets."""
        self._vocabulary.update(_WORD_PARTS.findall(text))
        return text

    def hidden(self, value: str) -> str:
        """Return what stands for a value."""
        made = self.stand_in(value)
        self._remember(value, made)
        self._remember(value.partition("=")[2], made)  # of a name and its value, a sentence quotes the value alone
        return made

    def comment(self, text: str) -> str:
        """Return what stands for a comment. Words of letters alone are taken for ordinary ones."""
        made = self.stand_in(text)
        for word in text.split():
            if not word.strip("\"'()[]{},.;:!?").isalpha():
                self._remember(word, made)
        return made

    def numbered(self, value: str) -> str:
        """Return what stands for a number."""
        made = self._number(value)
        self._remember(value, made)
        return made

    def _remember(self, value: str, made: str) -> None:
        if len(self._values) < _MOST and len(value) >= _SHORTEST and value not in self._values:
            self._values[value] = made
            self._index(value)
            for part in _WORD_PARTS.findall(value):
                self._parts.setdefault(part, made)

    def settle(self) -> None:
        """Forget hidden values that are made of shown words alone, as each sentence has them; spell the others out."""
        words = self._vocabulary | _table_words()
        self._parts = {part: made for part, made in self._parts.items() if part not in words}
        self._values = {
            spelled: made
            for value, made in self._values.items()
            if any(part in self._parts for part in _WORD_PARTS.findall(value)) or not _WORD_PARTS.search(value)
            for spelled in _spellings(value)
        }
        self._lengths = {}
        for value in self._values:
            self._index(value)

    def settled(self) -> Self:
        """Return what is hidden in this set of texts by now, settled; more texts may be read here."""
        made = copy.copy(self)
        vars(made).update(_values=dict(self._values), _parts=dict(self._parts))
        made.settle()
        return made

    def _index(self, value: str) -> None:
        self._lengths.setdefault(value[:_SHORTEST], set()).add(len(value))

    def words(self, text: str) -> str:
        """Return a program's words without values that were hidden anywhere, and without secrets by form."""
        text = _without_forms(text)
        for pair in _PAIRS:
            text = pair.sub(lambda found: found[0] if _is_of_logs(found[1]) else f"{found[1]}={MASK}", text)
        text = self._replaced(text, lambda _start, _end: True)
        return _WORD_PARTS.sub(lambda match: self._parts.get(match[0], match[0]), text)

    def odd(self, text: str) -> str:
        """Return a question, or an answer, without hidden values in a form that no path and no name has."""
        return self._replaced(text, lambda start, end: not shown.is_harmless(text[start:end]))

    def known(self, text: str) -> str:
        """Return a sentence of our own without hidden values that it quotes as a whole, and without secrets by form."""
        text = _without_forms(text)

        def is_quoted(start: int, end: int) -> bool:
            value = text[start:end]
            is_whole = not _is_of_word(text[start - 1 : start]) and not _is_of_word(text[end : end + 1])
            return is_whole and len(value) > _SHORTEST and not (value.startswith("/") and shown.is_place(value))

        return self._replaced(text, is_quoted)

    def _replaced(self, text: str, is_hidden: Callable[[int, int], bool]) -> str:
        """Return a text with stand-ins for hidden values, the longest at each place; one hides all that overlap.

        `is_hidden`: whether the value between two places of the text is hidden there.
        """
        parts: list[str] = []
        shown_to = hidden_to = 0
        for start in range(len(text) - _SHORTEST + 1):
            lengths = self._lengths.get(text[start : start + _SHORTEST])
            for length in sorted(lengths, reverse=True) if lengths is not None else ():
                end = start + length
                made = self._values.get(text[start:end])
                if made is None or end > len(text) or not is_hidden(start, end):
                    continue
                if start >= hidden_to:
                    parts += [text[shown_to:start], made]
                shown_to = hidden_to = max(end, hidden_to)
                break
        return "".join([*parts, text[shown_to:]])


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _without_forms(text: str) -> str:
    """Return words without what has the form of a secret: no file may have told of it."""
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{LINES.sub(MASK, found[2])}", text)
    text = _URL.sub(lambda found: f"{found[1]}{MASK}@" if found[2] else found[0], text)
    text = _QUERY.sub(lambda found: f"{found[1]}?{MASK}", text)
    text = _LOGIN.sub(f"{MASK}@", text)
    text = _GIVEN.sub(lambda found: f"{found[1]}{MASK}", text)
    return _SAID.sub(lambda found: f"{found[1]}{MASK}", text)


def _is_of_logs(name: str) -> bool:
    return name in _NAMES_IN_LOGS or shown.is_flag(name) or shown.is_shown((name,))


def _spellings(value: str) -> tuple[str, ...]:
    """Return a value as programs write it: as it is, in quotes, in quotes within quotes, and in an address."""
    if _PLAIN.fullmatch(value):
        return (value,)
    in_quotes = json.dumps(value, ensure_ascii=False)[1:-1]
    in_address = "".join(
        chr(byte) if chr(byte) in _IN_ADDRESSES else f"%{byte:02X}" for byte in value.encode(errors="replace")
    )
    return (value, in_quotes, json.dumps(in_quotes, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1], in_address)


@functools.cache
def _table_words() -> frozenset[str]:
    """Return the words that the table is made of: they stand in every sentence about a configuration."""
    table = ("http", "https", *(name for path in shown.KEYS for name in path))
    table = (*table, *shown.FLAGS, *shown.PLACE_FLAGS, *shown.WORDS, *LITERALS)
    return frozenset(part for name in table for part in _WORD_PARTS.findall(name))


_NUMBER: Final = lazy.pattern(r"[+-]?(?:[0-9][0-9A-Za-z_.:+-]*(?: [0-9][0-9A-Za-z_.:+-]*)?|inf|nan)")
"""A number, a date or a time of TOML: without quotes, nothing but a number may stand there."""

_PIECE: Final = lazy.pattern(r"""\s+|\\|"[^"\n]*"?|'[^'\n]*'?|[^\s"'\\]+""")
_ASSIGNED: Final = lazy.pattern(r"(-{0,2})([A-Za-z_][A-Za-z0-9_.\[\]-]{0,63})=(.*)", re.DOTALL)
_FLAG: Final = lazy.pattern(r"-{1,2}([A-Za-z][A-Za-z0-9_.-]{0,63})")
_VARIABLE: Final = lazy.pattern(r"\$(?:[A-Z_][A-Z0-9_]{0,63}|\{[A-Z_][A-Z0-9_]{0,63}\})")
"""What stands for a variable's value in a unit's command line."""
_ACTION: Final = lazy.pattern(r"\{\{[^{}]*\}\}")
_PUBLIC: Final = (b"\x7fELF", b"TZif")
"""How programs begin, and time zones (tzfile(5)): what is no text, and no secret."""
_BLANKS: Final = lazy.pattern(r"(\s+)")


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
