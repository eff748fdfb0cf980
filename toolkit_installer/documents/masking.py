"""Masking of the values in files, command lines and variables of others, except those that shown.py lists. Pure.

A placeholder replaces each hidden value, so that a text parses as before. Programs quote their configuration in
messages: a value that is hidden in one text is therefore hidden in messages as well, and so is text in the form of a
secret, as a message does not show which key a value belongs to. Takes linear time and never raises.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from toolkit_installer.documents import shown, walk

MASK: Final = shown.HIDDEN
LITERALS: Final = frozenset({"true", "false", "null", "nil", "none", "yes", "no", "on", "off", "~", ""})
"""Values that are never secret, compared in lower case."""
LINES: Final = re.compile(r"[^\r\n]+")

_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(.*?)(?=-----END|\Z)", re.DOTALL)
_URL: Final = re.compile(r"(://)([^\s/@\"']{0,512}@)?")
_QUERY: Final = re.compile(r"(://[^\s?\"']{0,1024})\?[^\s\"']+")
_TELLTALE_TERMS: Final = (
    r"(?:authorization|registry-auth|pass(?:word|wd|phrase)?|pwd|token|secret|(?:api|access|private)[-_]?key|cookie|"
    r"credentials?)"
)
_SECRET_ASSIGNMENT: Final = re.compile(
    rf"""(?i)((?<![\w-])[\w-]{{0,32}}?{_TELLTALE_TERMS}"""
    r"""(?:[\\"']{0,2}[ ]?[:=][ ]?)"""
    r"""(?:(?:bearer|basic) )?[\\"']{0,2}|\b(?:bearer|basic) )[^\s"',;\\]+"""
)
_SECRET_FLAG: Final = re.compile(
    rf"""(?i)((?<![\w-])--?[\w-]{{0,32}}?{_TELLTALE_TERMS}[\\"']{{0,2}}(?:,[ ]?|[ =])[\\"']{{0,2}})[^\s"',\\\]]+"""
)
_LOGIN: Final = re.compile(r"""(?<![^\s"'(=])[^\s"'(=:/@]{1,128}:[^\s"':/@]{1,128}@(?=[A-Za-z0-9])""")
"""A user and password before a host, without a scheme."""
_PAIRS: Final = (
    re.compile(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=(?:"[^"\n]*"|'[^'\n]*')"""),
    re.compile(r"""\b([A-Za-z_][A-Za-z0-9_.-]{0,63})=[^\s"',;)]+"""),
)
_LOG_NAMES = """
time level msg error err reason row line column file key source module type name plugin address code exit signal pid
unit container pod image status event engine hint command duration size count attempt retry method uri ts
"""
_NAMES_IN_LOGS: Final = frozenset(_LOG_NAMES.split())
"""Names in `name=value` pairs of log lines whose values are shown, except for hidden values in them."""

_SHORTEST: Final = 4
"""Minimum characters of a hidden value that is searched for in messages: a shorter one may occur by chance."""
_MOST: Final = 200_000
"""Maximum number of hidden values kept: about as many as the largest file that is read can hold."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/:-]*")
"""A value that all programs write in the same way, without quoting."""
_IN_ADDRESSES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~/:-")
_WORD_PARTS: Final = re.compile(r"[^\W_]{4,}")

PlaceholderMaker = Callable[[str], str]
"""A function that returns the placeholder of a hidden value."""


class HiddenValues:
    """The hidden values of one set of texts, each with its placeholder."""

    def __init__(self, stand_in: PlaceholderMaker = lambda _: MASK, number: PlaceholderMaker | None = None) -> None:
        self.stand_in = stand_in
        self._number = number or stand_in
        self._values: dict[str, str] = {}
        """The hidden values, each with its placeholder."""
        self._lengths: dict[str, set[int]] = {}
        """The lengths of the hidden values by their first `_SHORTEST` characters, so that one pass finds all values."""
        self._parts: dict[str, str] = {}
        """The parts of hidden values that are no ordinary words, each with its placeholder."""
        self._vocabulary: set[str] = set()
        """Words that were shown: a hidden value made of them alone is not searched for in messages."""

    def show(self, text: str) -> str:
        """Return a shown text unchanged, and add its words to those that are no secrets."""
        self._vocabulary.update(_WORD_PARTS.findall(text))
        return text

    def hidden(self, value: str) -> str:
        """Return the placeholder of a value, and hide the value in messages."""
        made = self.stand_in(value)
        self._remember(value, made)
        self._remember(value.partition("=")[2], made)  # of `name=value`, a message may quote the value alone
        return made

    def comment(self, text: str) -> str:
        """Return the placeholder of a comment, and hide its words in messages, except words of letters alone."""
        made = self.stand_in(text)
        for word in text.split():
            if not word.strip("\"'()[]{},.;:!?").isalpha():
                self._remember(word, made)
        return made

    def numbered(self, value: str) -> str:
        """Return the placeholder of a number, and hide the number in messages."""
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
        """Drop hidden values of shown words alone, which any message may have; add the spellings of the others."""
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
        """Return a settled copy of the hidden values so far; this object may read more texts."""
        made = copy.copy(self)
        vars(made).update(_values=dict(self._values), _parts=dict(self._parts))
        made.settle()
        return made

    def _index(self, value: str) -> None:
        self._lengths.setdefault(value[:_SHORTEST], set()).add(len(value))

    def words(self, text: str) -> str:
        """Return a program's message with all hidden values, and text in the form of a secret, masked."""
        text = _mask_secret_forms(text)
        for pair in _PAIRS:
            text = pair.sub(lambda found: found[0] if _is_log_name(found[1]) else f"{found[1]}={MASK}", text)
        text = self._replaced(text, lambda _start, _end: True)
        return _WORD_PARTS.sub(lambda match: self._parts.get(match[0], match[0]), text)

    def odd(self, text: str) -> str:
        """Return a request or response with hidden values masked, except those in the form of a path or name."""
        return self._replaced(text, lambda start, end: not shown.is_harmless(text[start:end]))

    def known(self, text: str) -> str:
        """Return a message of this program with hidden values that it quotes whole, and secrets by form, masked."""
        text = _mask_secret_forms(text)

        def is_quoted(start: int, end: int) -> bool:
            value = text[start:end]
            is_whole = not _is_of_word(text[start - 1 : start]) and not _is_of_word(text[end : end + 1])
            return is_whole and len(value) > _SHORTEST and not (value.startswith("/") and shown.is_place(value))

        return self._replaced(text, is_quoted)

    def _replaced(self, text: str, is_hidden: Callable[[int, int], bool]) -> str:
        """Return a text with placeholders for hidden values, the longest at each offset; one covers all that overlap.

        `is_hidden`: whether the value between two offsets of the text is hidden there.
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


def _mask_secret_forms(text: str) -> str:
    """Return a message with text in the form of a secret masked, which need not be in any file that was read."""
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{LINES.sub(MASK, found[2])}", text)
    text = _URL.sub(lambda found: f"{found[1]}{MASK}@" if found[2] else found[0], text)
    text = _QUERY.sub(lambda found: f"{found[1]}?{MASK}", text)
    text = _LOGIN.sub(f"{MASK}@", text)
    text = _SECRET_FLAG.sub(lambda found: f"{found[1]}{MASK}", text)
    return _SECRET_ASSIGNMENT.sub(lambda found: f"{found[1]}{MASK}", text)


def _is_log_name(name: str) -> bool:
    return name in _NAMES_IN_LOGS or shown.is_flag(name) or shown.is_shown_key((name,))


def _spellings(value: str) -> tuple[str, ...]:
    """Return the spellings of a value in messages: as it is, in quotes, in nested quotes, and in a URL."""
    if _PLAIN.fullmatch(value):
        return (value,)
    in_quotes = json.dumps(value, ensure_ascii=False)[1:-1]
    in_address = "".join(
        chr(byte) if chr(byte) in _IN_ADDRESSES else f"%{byte:02X}" for byte in value.encode(errors="replace")
    )
    return (value, in_quotes, json.dumps(in_quotes, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1], in_address)


@functools.cache
def _table_words() -> frozenset[str]:
    """Return the words of the tables in shown.py, which any message about a configuration may have."""
    table = ("http", "https", *(name for path in shown.KEYS for name in path))
    table = (*table, *shown.FLAGS, *shown.PLACE_FLAGS, *shown.WORDS, *LITERALS)
    return frozenset(part for name in table for part in _WORD_PARTS.findall(name))


_NUMBER: Final = re.compile(r"[+-]?(?:[0-9][0-9A-Za-z_.:+-]*(?: [0-9][0-9A-Za-z_.:+-]*)?|inf|nan)")
"""A number, or a date or time of TOML: unquoted, so that only another number can replace it in a text that parses."""

_PIECE: Final = re.compile(r"""\s+|\\|"[^"\n]*"?|'[^'\n]*'?|[^\s"'\\]+""")
_ASSIGNED: Final = re.compile(r"(-{0,2})([A-Za-z_][A-Za-z0-9_.\[\]-]{0,63})=(.*)", re.DOTALL)
_FLAG: Final = re.compile(r"-{1,2}([A-Za-z][A-Za-z0-9_.-]{0,63})")
_VARIABLE: Final = re.compile(r"\$(?:[A-Z_][A-Z0-9_]{0,63}|\{[A-Z_][A-Z0-9_]{0,63}\})")
"""A reference to a variable in the command line of a systemd unit."""
_ACTION: Final = re.compile(r"\{\{[^{}]*\}\}")
_PUBLIC: Final = (b"\x7fELF", b"TZif")
"""The begin of programs and time zone files (tzfile(5)): binary, and no secret."""
_BLANKS: Final = re.compile(r"(\s+)")


class DocumentMasker(HiddenValues):
    """The masking of one set of texts: a value that is hidden in one of them is hidden in messages."""

    def document(self, text: str) -> str:
        """Return the masked text of a file, or of a program's output in the form of a file."""
        return walk.mask_document(text, self)

    def fragment(self, text: str, path: tuple[str, ...]) -> str:
        """Return a masked part of a document that was below the keys `path`."""
        return walk.mask_fragment(text, path, self)

    def content(self, content: bytes) -> bytes:
        """Return a file's masked content; a binary file is masked as a whole, unless it is public."""
        if b"\0" in content:
            return content if content.startswith(_PUBLIC) else self.stand_in(content.hex()).encode()
        text = content.decode(errors="surrogateescape")
        hidden = self.document(text)
        return content if hidden == text else hidden.encode(errors="surrogateescape")

    def arguments(self, words: Sequence[str]) -> list[str]:
        """Return the masked words of a command line, the program first."""
        reader = _CommandLineMasker(self)
        return [reader.word(word) for word in words]

    def command(self, text: str, *, program: bool = True) -> str:
        """Return the masked command line of a file, as one text. `program`: its first word is a program."""
        reader = _CommandLineMasker(self, program=program)
        return _PIECE.sub(
            lambda piece: (
                piece[0] if piece[0].isspace() or piece[0] == "\\" else walk.replace_text(piece[0], reader.word)
            ),
            text,
        )

    def flags(self, text: str) -> str:
        """Return masked words of a command line that are in quotes together."""
        if not set("\"'\\\n").isdisjoint(text):
            return self.hidden(text)
        reader = _CommandLineMasker(self, program=False)
        return "".join(piece if piece.isspace() else reader.word(piece) for piece in _BLANKS.split(text))

    def value(self, value: Any, path: tuple[str, ...] = ()) -> Any:  # noqa: PLR0911  # one for each kind of value
        """Return a masked JSON value. A string that is a JSON document is parsed and masked, too."""
        if isinstance(value, dict):
            return {self.key(name): self.value(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item, path) for item in value]
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            made = str(value) if shown.is_shown_value(path, str(value)) else self.numbered(str(value))
            return value if made == str(value) else int(made) if made.isdecimal() else made
        if isinstance(value, bytes):
            return self.content(value)
        if value[:1] in ("{", "[") and (inner := _parsed(value)) is not None:
            hidden = self.value(inner, path)
            return value if hidden == inner else json.dumps(hidden)
        return self.scalar(str(value), path)

    def output(self, text: str) -> str:
        """Return the masked output of a program about itself, such as its version: plain lines are shown."""
        return "".join(
            line if shown.is_plain_output(line.rstrip("\r\n")) else self.prose(line)
            for line in text.splitlines(keepends=True)
        )

    # --- single values ---

    def key(self, name: str) -> str:
        """Return a key's name, masked unless it is plain."""
        if shown.is_plain_key(name) or (_ACTION.fullmatch(name) and shown.is_plain_action(name)):
            return self.show(name)
        return self.hidden(name)

    def scalar(self, value: str, path: Sequence[str]) -> str:  # noqa: PLR0911  # one for each kind of text
        """Return a masked text below the keys `path`."""
        if value.lower() in LITERALS:
            return value
        if shown.is_shown_value(path, value):
            return self.show(value)
        given = _ASSIGNED.fullmatch(value) if _BLANKS.search(value) is None or shown.ARGUMENTS.match(value) else None
        if given is not None and _is_shown_variable(given[2], given[3]):
            return value
        if path and shown.ARGUMENTS.fullmatch(path[-1]):
            return self.flags(value)
        if given is not None and not given[1] and shown.ARGUMENTS.fullmatch(given[2]):
            return f"{given[2]}={self.flags(given[3])}"
        if "{{" in value and "}}" in value:  # the braces stay: a reader of the template sees an action
            if _ACTION.fullmatch(value) and shown.is_plain_action(value):
                return value
            return f"{{{{ {self.hidden(value)} }}}}"
        return self.hidden(value)

    def bare(self, value: str, path: Sequence[str]) -> str:
        """Return a masked unquoted value below the keys `path`."""
        if _NUMBER.fullmatch(value):
            return value if shown.is_shown_value(path, value) else self.numbered(value)
        # an unquoted path has no blanks: text after a blank does not belong to the key
        return self.scalar(value, path if _BLANKS.search(value) is None or shown.has_blanks(path) else ())

    def prose(self, text: str) -> str:
        """Return a text that belongs to no key with every line masked; line ends stay."""
        return LINES.sub(lambda line: line[0] if not line[0].strip() else self.hidden(line[0]), text)


def mask(text: str) -> str:
    """Return a document's text with MASK for each hidden value."""
    return DocumentMasker().document(text)


class _CommandLineMasker:
    """A reader of the words of one command line, in order."""

    def __init__(self, hiding: DocumentMasker, *, program: bool = True) -> None:
        self.hiding = hiding
        self.flag: str | None = None
        """The flag whose value may be the next word."""
        self.first = program
        """Whether the next word is the program's name."""

    def word(self, word: str) -> str:  # noqa: PLR0911  # one for each kind of word
        flag, self.flag = self.flag, None
        first, self.first = self.first, False
        if word in shown.WORDS or _VARIABLE.fullmatch(word) or (first and shown.is_harmless(word)):
            return word
        if flag is not None and not word.startswith("-") and shown.is_shown_flag(flag, word):
            return word
        given = _ASSIGNED.fullmatch(word)
        if given is not None and not given[1] and (flag is not None or not given[3].strip("=")):
            # the value of another flag, or base64
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
    """Return whether the value of a name without dashes is shown; keys and flags have other meanings there."""
    return (name.isupper() and shown.is_shown_value((name,), value)) or (shown.is_flag(name) and shown.is_place(value))


def _parsed(text: str) -> Any:
    """Return the parsed JSON text, None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
