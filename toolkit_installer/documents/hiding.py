"""Hides the values of other people's files, command lines and variables, but for those on one list (shown.py). Pure.

A text is read once, token by token, and only so far as to know which key each value belongs to: TOML, JSON, YAML, files
of variables, units of systemd, templates of k3s, and what is broken. A stand-in replaces all but keys, marks and listed
values. Lines and marks stay, so that the text parses as before and its line numbers agree. Takes linear time and never
raises.

What was hidden once is also hidden in the words of programs (`words`): an engine's message quotes its configuration.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from toolkit_installer import patterns
from toolkit_installer.documents import shown

MASK: Final = "****"
"""What people see in the place of a hidden value."""

_LITERALS: Final = frozenset({"true", "false", "null", "nil", "none", "yes", "no", "on", "off", "~", ""})
"""Values that hold nothing to hide, in whatever case."""
_NUMBER: Final = patterns.lazy(r"[+-]?(?:[0-9][0-9A-Za-z_.:+-]*(?: [0-9][0-9A-Za-z_.:+-]*)?|inf|nan)")
"""A number, a date or a time of TOML: without quotes, nothing but a number may stand there."""

# No group repeats what another can match as well: one pass, whatever the text.
_TOKEN: Final = patterns.lazy(
    r"""
      (?P<line>\n)
    | (?P<space>[ \t\f\v\r]+)
    | (?P<action>\{\{[^{}]*\}\})
    | (?P<block>"{3}(?:[^"\\]|\\.|"(?!""))*"{3,5} | '{3}(?:[^']|'(?!''))*'{3,5})
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*\\?"? | '[^'\n]*'?)
    | (?P<mark>[,\[\]{}])
    | (?P<comment>\#[^\n]*)
    | (?P<word>[^\s"'\#,\[\]{}][^\s"',\[\]{}]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_KEY_PART: Final = r"""(?:[A-Za-z0-9_$/-]+|"(?:[^"\\\n]|\\[^\n])*"|'[^'\n]*')"""
_KEYS: Final = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"
_ENTRY: Final = patterns.lazy(rf"""((?:-[ \t]+)*)({_KEYS})([ \t]*=|\+?[ \t]*:(?=[\s"'\[{{]|\Z))""")
_INNER: Final = patterns.lazy(rf"()({_KEYS})([ \t]*[=:])")
"""An entry in braces."""
_PART: Final = patterns.lazy(_KEY_PART)
_HEADER: Final = patterns.lazy(
    rf"""(\[\[?[ \t]*)(?=[A-Za-z]|"[^"\n]*"[ \t]*\.|'[^'\n]*'[ \t]*\.)({_KEYS})([ \t]*\]\]?[ \t\r]*(?=\#|\n|\Z))"""
)
_LINE_COMMENT: Final = patterns.lazy(r"(?:\#|;|//)[^\n]*")
_ITEM: Final = patterns.lazy(r"(?:-[ \t]+)+|---(?=\s|\Z)")
_REST: Final = patterns.lazy(r"(?:[^\\\n]|\\\r?\n|\\(?!\r?\n))*")
"""The rest of a line, with the lines that a backslash at its end joins to it."""
_OPENS: Final = patterns.lazy(r"""[ \t]*["'\[{]""")
_PIECE: Final = patterns.lazy(r"""\s+|\\|"[^"\n]*"?|'[^'\n]*'?|[^\s"'\\]+""")
_EMPTY: Final = patterns.lazy(r"[ \t]*(?:[&!][^\s&!]*[ \t]*)*(?:#[^\n]*|\r?)(?=\n|\Z)")
"""Nothing stands on the rest of a line of YAML, or nothing but marks of what stands below it."""
_BLOCK_MARK: Final = patterns.lazy(r"[|>][-+0-9]{0,2}")
"""What stands in YAML before a text of several lines."""
_PADDED: Final = patterns.lazy(r"={0,5}[\"']?[ \t\r]*(?=\n|\Z)")
_HASH: Final = patterns.lazy("#")
_SPACED_HASH: Final = patterns.lazy(r"(?:^|\s)#")
"""Begins a comment: in YAML only after white space."""
_ASSIGNED: Final = patterns.lazy(r"(-{0,2})([A-Za-z_][A-Za-z0-9_.\[\]-]{0,63})=(.*)", re.DOTALL)
_FLAG: Final = patterns.lazy(r"-{1,2}([A-Za-z][A-Za-z0-9_.-]{0,63})")
_VARIABLE: Final = patterns.lazy(r"\$(?:[A-Z_][A-Z0-9_]{0,63}|\{[A-Z_][A-Z0-9_]{0,63}\})")
"""What stands for a variable's value in a unit's command line."""
_ARGUMENTS: Final = patterns.lazy(r"(?i)\w{0,64}(?:args|arguments|opts|options|flags)")
"""Names of variables that hold words of a command line."""
_ENVIRONMENT: Final = "Environment"
"""A unit's key whose value is variables with their values."""
_ACTION: Final = patterns.lazy(r"\{\{[^{}]*\}\}")
_ACTION_COMMENT: Final = patterns.lazy(r"(\{\{(?:-\s)?\s*/\*)[^{}]*(\*/\s*(?:\s-)?\}\})")
_BLANKS: Final = patterns.lazy(r"(\s+)")
_LINES: Final = patterns.lazy(r"[^\r\n]+")
_MARKED: Final = patterns.lazy(r"[#;/ \t]*")

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
_LONGEST_PATH: Final = 8
"""Keys that are remembered of those around another: twice as many as a listed path has."""
_MOST: Final = 20_000
"""Hidden values that are remembered."""
_PLAIN: Final = patterns.lazy(r"[A-Za-z0-9_.~/:-]*")
"""A value that all programs write in the same way."""
_IN_ADDRESSES: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~/:-")
_WORD_PARTS: Final = patterns.lazy(r"[^\W_]{4,}")

StandIn = Callable[[str], str]
"""Makes what stands for a hidden value."""


class Hiding:
    """Of one set of texts: equal values have equal stand-ins, and what one text hides is hidden in all."""

    def __init__(self, stand_in: StandIn = lambda _: MASK, number: StandIn | None = None) -> None:
        self._stand_in = stand_in
        self._number = number or stand_in
        self._values: dict[str, str] = {}
        """The hidden values, and what stands for each."""
        self._parts: dict[str, str] = {}
        """The parts of hidden values that are told from ordinary words, and what stands for each."""
        self._vocabulary: set[str] = set()
        """Words that were shown: no value that is one of them is looked for elsewhere."""

    def document(self, text: str) -> str:
        """Return a file's text, or what a program prints of one."""
        return _Walk(text, self).run()

    def fragment(self, text: str, path: tuple[str, ...]) -> str:
        """Return a value that was torn from a document, where it stood below these keys."""
        walk = _Walk(text, self)
        walk.path, walk.fresh = path, False
        return walk.run()

    def content(self, content: bytes) -> bytes:
        """Return a file's content. Of one that is no text nothing is shown, unless it is public."""
        if b"\0" in content:
            return content if content.startswith(_PUBLIC) else self._stand_in(content.hex()).encode()
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
            lambda piece: piece[0] if piece[0].isspace() or piece[0] == "\\" else _requoted(piece[0], reader.word), text
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
            made = str(value) if shown.shows(path, str(value)) else self._numbered(str(value))
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

    def words(self, text: str) -> str:
        """Return a program's words without values that were hidden anywhere, and without secrets by form."""
        text = _without_forms(text)
        for pair in _PAIRS:
            text = pair.sub(lambda found: found[0] if _is_of_logs(found[1]) else f"{found[1]}={MASK}", text)
        for value in sorted(self._values, key=len, reverse=True):
            if value in text:
                text = text.replace(value, self._values[value])
        return _WORD_PARTS.sub(lambda match: self._parts.get(match[0], match[0]), text)

    def odd(self, text: str) -> str:
        """Return a question, or an answer, without hidden values in a form that no path and no name has."""
        for value in sorted(self._values, key=len, reverse=True):
            if value in text and not shown.is_harmless(value):
                text = text.replace(value, self._values[value])
        return text

    def known(self, text: str) -> str:
        """Return a sentence of our own without hidden values that it quotes as a whole, and without secrets by form."""
        text = _without_forms(text)
        for value in sorted(self._values, key=len, reverse=True):
            if len(value) > _SHORTEST and value in text and not (value.startswith("/") and shown.is_place(value)):
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: self._values[value], text)  # noqa: B023
        return text

    # --- single values ---

    def key(self, name: str) -> str:
        """Return the name of a key."""
        if shown.is_plain_key(name) or (_ACTION.fullmatch(name) and shown.is_plain_action(name)):
            self._vocabulary.update(_WORD_PARTS.findall(name))
            return name
        return self.hidden(name)

    def scalar(self, value: str, path: Sequence[str]) -> str:  # noqa: PLR0911  # one for each kind of text
        """Return a text below a key."""
        if value.lower() in _LITERALS:
            return value
        if shown.shows(path, value):
            self._vocabulary.update(_WORD_PARTS.findall(value))
            return value
        given = _ASSIGNED.fullmatch(value) if _BLANKS.search(value) is None or _ARGUMENTS.match(value) else None
        if given is not None and _is_shown_variable(given[2], given[3]):
            return value
        if path and _ARGUMENTS.fullmatch(path[-1]):
            return self.flags(value)
        if given is not None and not given[1] and _ARGUMENTS.fullmatch(given[2]):
            return f"{given[2]}={self.flags(given[3])}"
        if "{{" in value and "}}" in value:  # whoever reads a template sees that there is an action
            if _ACTION.fullmatch(value) and shown.is_plain_action(value):
                return value
            return f"{{{{ {self.hidden(value)} }}}}"
        return self.hidden(value)

    def bare(self, value: str, path: Sequence[str]) -> str:
        """Return a value without quotes below a key."""
        if _NUMBER.fullmatch(value):
            return value if shown.shows(path, value) else self._numbered(value)
        # a path without quotes has no blanks: what comes after one is something else
        return self.scalar(value, path) if _BLANKS.search(value) is None else self.scalar(value, ())

    def prose(self, text: str) -> str:
        """Return a text that belongs to no key: nothing of it, but its line ends."""
        return _LINES.sub(lambda line: line[0] if not line[0].strip() else self.hidden(line[0]), text)

    def hidden(self, value: str) -> str:
        """Return what stands for a value."""
        made = self._stand_in(value)
        self._remember(value, made)
        return made

    def comment(self, text: str) -> str:
        """Return what stands for a comment. Words of letters alone are taken for ordinary ones."""
        made = self._stand_in(text)
        for word in text.split():
            if not word.strip("\"'()[]{},.;:!?").isalpha():
                self._remember(word, made)
        return made

    def _numbered(self, value: str) -> str:
        made = self._number(value)
        self._remember(value, made)
        return made

    def _remember(self, value: str, made: str) -> None:
        if len(self._values) < _MOST and len(value) >= _SHORTEST and value not in self._values:
            self._values[value] = made
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


def mask(text: str) -> str:
    """Return a document's text as people may see it: MASK stands for each hidden value."""
    return Hiding().document(text)


class _Walk:
    """Reads a document once."""

    def __init__(self, text: str, hiding: Hiding) -> None:
        self.text = text
        self.hiding = hiding
        self.parts: list[str] = []
        self.table: tuple[str, ...] = ()
        """The keys of the last header."""
        self.outline: list[tuple[int, tuple[str, ...]]] = []
        """Of YAML: the keys that this line may stand below, and how far each is indented."""
        self.brackets: list[tuple[str, tuple[str, ...]]] = []
        """Each open bracket, and the keys that lead to it."""
        self.path: tuple[str, ...] = ()
        """The keys of the next value, none where it has none: each value is given up once it is read."""
        self.fresh = True
        """A key may stand here."""
        self.line_start = 0
        self.text_below: tuple[int, tuple[str, ...]] | None = None
        """Of YAML: how far the key is indented that a text of several lines belongs to; and its keys, if known."""

    def run(self) -> str:
        at = 1 if self.text.startswith(_BYTE_ORDER_MARK) else 0
        self.parts.append(self.text[:at])
        while at < len(self.text):
            at = self.step(at)
        return "".join(self.parts)

    def step(self, at: int) -> int:
        """Read one token, or one statement's key; return where the next begins."""
        match = _TOKEN.match(self.text, at)
        if match is None:  # white space that the expression does not know
            self.parts.append(self.text[at])
            return at + 1
        kind, token = match.lastgroup, match[0]
        if kind == "line":
            self.line(match.end())
        elif kind == "space":
            pass
        elif self.fresh and (end := self.statement(at)) > at:
            return end
        elif kind == "comment":
            token = self.comment(token)
        elif kind == "action":
            token = self.action(token)
        elif kind == "mark":
            self.mark(token)
        elif kind == "block":
            self.path = ()
            token = token[:3] + self.hiding.prose(token[3:-3]) + token[-3:]
        else:
            token = self.value(token, quoted=kind == "string")
        self.parts.append(token)
        return match.end()

    def line(self, end: int) -> None:
        self.line_start, self.fresh = end, not self.brackets or self.brackets[-1][0] == "{"
        if not self.brackets:
            self.path = ()

    def statement(self, at: int) -> int:  # noqa: PLR0911  # one for each kind of statement
        """Read the begin of a statement, or the key of an entry in braces; return its end, `at` where there is none."""
        self.fresh = False
        entry = (_INNER if self.brackets else _ENTRY).match(self.text, at)
        if self.brackets:
            if entry is None:
                return at
            self.path = (*self.brackets[-1][1][-_LONGEST_PATH:], *self.key(entry))
            return entry.end()
        if self.continues(at - self.line_start):
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            self.parts.append(self.below(self.text[at:end]))
            return end
        if (header := _HEADER.match(self.text, at)) is not None:
            self.table, self.outline = _names(header[2]), []
            self.parts += [header[1], self.keys(header[2]), header[3]]
            return header.end()
        if (comment := _LINE_COMMENT.match(self.text, at)) is not None:
            self.parts.append(self.comment(comment[0]))
            return comment.end()
        if entry is not None and not self.is_end_of_base64(entry):
            return self.entry(entry, at - self.line_start)
        self.path = self.around(at - self.line_start, item=self.text[at] == "-")
        if (item := _ITEM.match(self.text, at)) is not None:
            self.parts.append(item[0])
            if _EMPTY.match(self.text, item.end()) is None and _OPENS.match(self.text, item.end()) is None:
                self.text_below = (at - self.line_start + item[0].rindex("-"), ())
            return self.rest(item.end(), item.end(), self.path, joined=False)
        return self.rest(at, at, self.path, joined=False)

    def continues(self, indent: int) -> bool:
        """Tell whether a line of YAML belongs to the text of an earlier one, whatever it looks like."""
        if self.text_below is not None and indent <= self.text_below[0]:
            self.text_below = None
        return self.text_below is not None

    def below(self, line: str) -> str:
        """Return a line of a text of several lines."""
        path = self.text_below[1] if self.text_below is not None else ()
        core = line.rstrip()
        return self.hiding.bare(core, path) + line[len(core) :] if shown.is_shown(path) else self.hiding.prose(line)

    def entry(self, entry: re.Match[str], indent: int) -> int:
        """Read a key outside of brackets, and its value where that is not in quotes or brackets."""
        is_yaml = entry[3].endswith(":")
        around = self.around(indent, item=bool(entry[1])) if is_yaml else self.table
        self.path = path = (*around[-_LONGEST_PATH:], *self.key(entry))
        end = entry.end()
        opens = _OPENS.match(self.text, end) is not None
        if is_yaml:
            # a list's dash stands where its key does, and what is in it stands deeper
            self.outline.append((indent + len(entry[1]), path))
            has_text = _EMPTY.match(self.text, end) is None
            self.text_below = (indent + len(entry[1]), path if self.is_block(end) else ()) if has_text else None
        else:
            self.outline = []
        is_command = path[-1] in shown.COMMANDS
        return end if opens and not is_command else self.rest(end, end, path, joined=not is_yaml)

    def is_block(self, at: int) -> bool:
        """Tell whether a text of several lines stands below a key of YAML."""
        end = self.text.find("\n", at)
        return _BLOCK_MARK.fullmatch(self.text[at : len(self.text) if end < 0 else end].strip()) is not None

    def is_end_of_base64(self, entry: re.Match[str]) -> bool:
        """Tell whether an entry may be none: the last line of a text in base64 looks like a name without a value."""
        if entry[3] != "=" or _PADDED.match(self.text, entry.end()) is None:
            return False
        name = entry[2]
        return self.text.startswith(("=", '"', "'"), entry.end()) or not (name.isupper() or shown.is_name(name))

    def around(self, indent: int, *, item: bool) -> tuple[str, ...]:
        """Return the keys that a line of YAML stands below."""
        while self.outline and (self.outline[-1][0] > indent or (self.outline[-1][0] == indent and not item)):
            self.outline.pop()
        return self.outline[-1][1] if self.outline else self.table

    def rest(self, at: int, start: int, path: tuple[str, ...], *, joined: bool) -> int:
        """Read a value without quotes, to the end of its line; `at` where it is in quotes or brackets."""
        is_command = path[-1:] and path[-1] in shown.COMMANDS
        if not is_command and (_OPENS.match(self.text, start) is not None):
            return start
        if joined or is_command:
            found = _REST.match(self.text, start)
            end = found.end() if found is not None else start
        else:
            end = self.text.find("\n", start)
            end = len(self.text) if end < 0 else end
        value, comment = self.text[start:end], ""
        if not is_command and (hash_ := (_HASH if joined else _SPACED_HASH).search(value)) is not None:
            value, comment = value[: hash_.end() - 1], value[hash_.end() - 1 :]
        core = value.strip()
        before = value[: len(value) - len(value.lstrip())]
        after = value[len(before) + len(core) :]
        said = self.comment(comment) if comment else ""
        if comment[1:].strip() and core and not after:  # of a file of variables, it belongs to the value
            said = f"#{self.hiding.prose(comment[1:])}"
        self.parts += [before, self.rested(core, path), after, said]
        self.path = ()
        return max(at, end)

    def rested(self, value: str, path: tuple[str, ...]) -> str:
        """Return a value that takes the rest of its line."""
        if not value or _BLOCK_MARK.fullmatch(value):
            return value
        if path and path[-1] in shown.COMMANDS:
            return self.hiding.command(value)
        if path and (path[-1] == _ENVIRONMENT or _ARGUMENTS.fullmatch(path[-1])):
            return self.hiding.command(value, program=False)
        if "\n" in value:
            return self.hiding.prose(value)
        return self.hiding.bare(value, path)

    def key(self, entry: re.Match[str]) -> tuple[str, ...]:
        self.parts += [entry[1], self.keys(entry[2]), entry[3]]
        return _names(entry[2])

    def keys(self, text: str) -> str:
        """Return the names of keys as they may be shown, between their dots and quotes."""
        return _PART.sub(lambda part: _requoted(part[0], self.hiding.key), text)

    def mark(self, mark: str) -> None:
        if mark in "[{":
            self.brackets.append((mark, self.path))
            self.fresh = mark == "{"
        elif mark == ",":
            if self.brackets:
                self.fresh, self.path = self.brackets[-1][0] == "{", self.brackets[-1][1]
                self.path = () if self.fresh else self.path
        elif self.brackets:
            self.brackets.pop()
            self.path, self.fresh = (), False

    def value(self, token: str, *, quoted: bool) -> str:
        """Read a string or a bare word."""
        # a bare word in a list is a number or the like; another one belongs to a list that was never closed
        path = () if not quoted and self.brackets and self.brackets[-1][0] == "[" else self.path
        self.path = ()
        if quoted:
            return _requoted(token, lambda inner: self.hiding.scalar(inner, path))
        return self.hiding.bare(token, path)

    def comment(self, token: str) -> str:
        body = token.rstrip("\r")
        if shown.COMMENTS.fullmatch(body):
            return token
        found = _MARKED.match(body)
        start = found.end() if found is not None else 0
        return token if start == len(body) else token[:start] + self.hiding.comment(body[start:]) + token[len(body) :]

    def action(self, token: str) -> str:
        self.path = ()
        if shown.is_plain_action(token):
            return token
        lines, said = "\n" * token.count("\n"), self.hiding.comment(token)
        if (comment := _ACTION_COMMENT.fullmatch(token)) is not None:
            return f"{comment[1]} {said} {lines}{comment[2]}"
        return f"{{{{ {said} {lines}}}}}"


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
            if not shows and not given[1] and _ARGUMENTS.fullmatch(given[2]):
                return f"{given[2]}={self.hiding.flags(given[3])}"
            return word if shows else f"{given[1]}{given[2]}={self.hiding.hidden(given[3])}"
        if (named := _FLAG.fullmatch(word)) is not None:
            self.flag = named[1]
            if word.startswith("--") or len(word) == 2 or shown.is_flag(named[1]):  # noqa: PLR2004
                return word
            return word[:2] + self.hiding.hidden(word[2:])  # `-pSECRET` is a flag of one letter with its value
        return word if not word or set(word) <= {"-"} else self.hiding.hidden(word)


_ESCAPE: Final = patterns.lazy(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([^uUx]))", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_PUBLIC: Final = (b"\x7fELF", b"TZif")
"""How programs begin, and time zones (tzfile(5)): what is no text, and no secret."""
_BYTE_ORDER_MARK: Final = "\ufeff"


def _is_shown_variable(name: str, value: str) -> bool:
    """Tell whether the value of a name without dashes is shown. Names of flags have other meanings there."""
    return shown.shows((name,), value) or (shown.is_flag(name) and shown.is_place(value))


def _without_forms(text: str) -> str:
    """Return words without what has the form of a secret: no file may have told of it."""
    text = _PRIVATE_KEY.sub(lambda found: f"{found[1]}{_LINES.sub(MASK, found[2])}", text)
    text = _URL.sub(lambda found: f"{found[1]}{MASK}@" if found[2] else found[0], text)
    text = _QUERY.sub(lambda found: f"{found[1]}?{MASK}", text)
    text = _LOGIN.sub(f"{MASK}@", text)
    text = _GIVEN.sub(lambda found: f"{found[1]}{MASK}", text)
    return _SAID.sub(lambda found: f"{found[1]}{MASK}", text)


def _is_of_logs(name: str) -> bool:
    return name in _NAMES_IN_LOGS or shown.is_flag(name) or shown.is_shown((name,))


def _names(keys: str) -> tuple[str, ...]:
    """Return the names of keys without their quotes."""
    return tuple(_plain(part[1:-1]) if part[0] in "\"'" else part for part in _PART.findall(keys))


def _plain(text: str) -> str:
    """Return a string with its escapes resolved; an escape that stands for no character is left out."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return _ESCAPES.get(match[4], match[4])
        return chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else ""

    return _ESCAPE.sub(character, text) if "\\" in text else text


def _requoted(token: str, change: Callable[[str], str]) -> str:
    """Return a name or a string, in quotes or not, with its text changed."""
    if token[0] not in "\"'":
        made = change(token)
        return made if made == token or re.fullmatch(r"[A-Za-z0-9_-]+", made) else f'"{made}"'
    end = len(token) - 1 if len(token) > 1 and token[-1] == token[0] else len(token)
    plain = _plain(token[1:end])
    made = change(plain)
    return token if made == plain else token[0] + made + token[end:]


def _spellings(value: str) -> tuple[str, ...]:
    """Return a value as programs write it: as it is, in quotes, in quotes within quotes, and in an address."""
    if _PLAIN.fullmatch(value):
        return (value,)
    in_quotes = json.dumps(value, ensure_ascii=False)[1:-1]
    in_address = "".join(
        chr(byte) if chr(byte) in _IN_ADDRESSES else f"%{byte:02X}" for byte in value.encode(errors="replace")
    )
    return (value, in_quotes, json.dumps(in_quotes, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1], in_address)


def _parsed(text: str) -> Any:
    """Return what a text of JSON says, None for any other."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@functools.cache
def _table_words() -> frozenset[str]:
    """Return the words that the table is made of: they stand in every sentence about a configuration."""
    table = ("http", "https", *(name for path in shown.KEYS for name in path))
    table = (*table, *shown.FLAGS, *shown.PLACE_FLAGS, *shown.WORDS, *_LITERALS)
    return frozenset(part for name in table for part in _WORD_PARTS.findall(name))
