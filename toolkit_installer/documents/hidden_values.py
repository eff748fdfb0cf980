"""Values that are hidden in one set of texts: what stands for each, and where else they are quoted. Pure.

A program's message quotes its configuration. So what one text hides is also hidden in words; and there, where no key
tells what a value is, so is what has the form of a secret.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable
from typing import Final, Self

from toolkit_installer import patterns
from toolkit_installer.documents import shown

MASK: Final = shown.HIDDEN
LITERALS: Final = frozenset({"true", "false", "null", "nil", "none", "yes", "no", "on", "off", "~", ""})
"""Values that hold nothing to hide, in whatever case."""
LINES: Final = patterns.lazy(r"[^\r\n]+")

_PRIVATE_KEY: Final = patterns.lazy(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(.*?)(?=-----END|\Z)", re.DOTALL)
_URL: Final = patterns.lazy(r"(://)([^\s/@\"']{0,512}@)?")
_QUERY: Final = patterns.lazy(r"(://[^\s?\"']{0,1024})\?[^\s\"']+")
_TELLING: Final = (
    r"(?:authorization|registry-auth|pass(?:word|wd|phrase)?|pwd|token|secret|(?:api|access|private)[-_]?key|cookie|"
    r"credentials?)"
)
_SAID: Final = patterns.lazy(
    rf"""(?i)((?<![\w-])[\w-]{{0,32}}?{_TELLING}"""
    r"""(?:[\\"']{0,2}[ ]?[:=][ ]?)"""
    r"""(?:(?:bearer|basic) )?[\\"']{0,2}|\b(?:bearer|basic) )[^\s"',;\\]+"""
)
_GIVEN: Final = patterns.lazy(
    rf"""(?i)((?<![\w-])--?[\w-]{{0,32}}?{_TELLING}[\\"']{{0,2}}(?:,[ ]?|[ =])[\\"']{{0,2}})[^\s"',\\\]]+"""
)
_LOGIN: Final = patterns.lazy(r"""(?<![^\s"'(=])[^\s"'(=:/@]{1,128}:[^\s"':/@]{1,128}@(?=[A-Za-z0-9])""")
"""A user and a password before a host, without a scheme."""
_PAIRS: Final = (
    patterns.lazy(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=(?:"[^"\n]*"|'[^'\n]*')"""),
    patterns.lazy(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=[^\s"',;)]+"""),
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
_PLAIN: Final = patterns.lazy(r"[A-Za-z0-9_.~/:-]*")
"""A value that all programs write in the same way."""
_IN_ADDRESSES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~/:-")
_WORD_PARTS: Final = patterns.lazy(r"[^\W_]{4,}")

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
