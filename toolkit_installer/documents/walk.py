"""Tokenizer that replaces the values of a configuration document, key by key, for masking. Pure.

The document may be TOML, JSON, YAML, an environment file, a systemd unit, a k3s template, or broken: it is parsed only
as far as needed to assign each value to its keys. A `ValueReplacements` object returns the replacement of each value.
Punctuation and line ends stay, so that the result parses as before and line numbers agree. Takes linear time and never
raises.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from toolkit_installer.documents import shown

# No two groups can match the same text, so that matching never backtracks.
_TOKEN: Final = re.compile(
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
_ENTRY: Final = re.compile(rf"""((?:-[ \t]+)*)({_KEYS})([ \t]*=|\+?[ \t]*:(?=[\s"'\[{{]|\Z))""")
_INNER: Final = re.compile(rf"()({_KEYS})([ \t]*[=:])")
"""A key and its separator inside braces."""
_PART: Final = re.compile(_KEY_PART)
_HEADER: Final = re.compile(
    rf"""(\[\[?[ \t]*)(?=[A-Za-z]|"[^"\n]*"[ \t]*\.|'[^'\n]*'[ \t]*\.)({_KEYS})([ \t]*\]\]?[ \t\r]*(?=\#|\n|\Z))"""
)
_LINE_COMMENT: Final = re.compile(r"(?:\#|;|//)[^\n]*")
_ITEM: Final = re.compile(r"(?:-[ \t]+)+|---(?=\s|\Z)")
_REST: Final = re.compile(r"(?:[^\\\n]|\\\r?\n|\\(?!\r?\n))*")
"""The rest of a line, with the lines that a trailing backslash joins to it."""
_OPENS: Final = re.compile(r"""[ \t]*["'\[{]""")
_EMPTY: Final = re.compile(r"[ \t]*(?:[&!][^\s&!]*[ \t]*)*(?:#[^\n]*|\r?)(?=\n|\Z)")
"""The rest of a YAML line without a value: blank, a comment, or the anchors and tags of the value below it."""
_BLOCK_MARK: Final = re.compile(r"[|>][-+0-9]{0,2}")
"""The header of a YAML block scalar, such as `|-`."""
_PADDED: Final = re.compile(r"={0,5}[\"']?[ \t\r]*(?=\n|\Z)")
_HASH: Final = re.compile("#")
_SPACED_HASH: Final = re.compile(r"(?:^|\s)#")
"""The begin of a comment in YAML, where it needs white space before it."""
_ENVIRONMENT: Final = "Environment"
"""A systemd unit's key whose value is assignments of variables."""
_ACTION_COMMENT: Final = re.compile(r"(\{\{(?:-\s)?\s*/\*)[^{}]*(\*/\s*(?:\s-)?\}\})")
_MARKED: Final = re.compile(r"[#;/ \t]*")
_LONGEST_PATH: Final = 8
"""Number of enclosing keys that are kept for a value: twice as many as a listed path has."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([^uUx]))", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_BYTE_ORDER_MARK: Final = "\ufeff"


class ValueReplacements(Protocol):
    """The replacements of single values."""

    def key(self, name: str) -> str:
        """Return the replacement of a key's name."""

    def scalar(self, value: str, path: Sequence[str]) -> str:
        """Return the replacement of a quoted text below the keys `path`."""

    def bare(self, value: str, path: Sequence[str]) -> str:
        """Return the replacement of an unquoted value below the keys `path`."""

    def prose(self, text: str) -> str:
        """Return the replacement of a text that belongs to no key."""

    def comment(self, text: str) -> str:
        """Return the replacement of a comment."""

    def command(self, text: str, *, program: bool = True) -> str:
        """Return the replacement of a command line. `program`: its first word is a program."""


def mask_document(text: str, values: ValueReplacements) -> str:
    """Return a document with its values replaced by those of `values`."""
    return _Walk(text, values).run()


def mask_fragment(text: str, path: tuple[str, ...], values: ValueReplacements) -> str:
    """Return the replacement of a part of a document that was below the keys `path`."""
    walk = _Walk(text, values)
    walk.path, walk.fresh = path, False
    return walk.run()


class _Walk:
    """A single pass over a document."""

    def __init__(self, text: str, values: ValueReplacements) -> None:
        self.text = text
        self.values = values
        self.parts: list[str] = []
        self.table: tuple[str, ...] = ()
        """The keys of the last table header."""
        self.outline: list[tuple[int, tuple[str, ...]]] = []
        """YAML: the possible parent keys of the current line, each with its indentation."""
        self.brackets: list[tuple[str, tuple[str, ...]]] = []
        """Each open bracket, and the keys that lead to it."""
        self.path: tuple[str, ...] = ()
        """The keys of the next value, empty if it has none; cleared once a value is read."""
        self.fresh = True
        """Whether a key is allowed at the current position."""
        self.line_start = 0
        self.text_below: tuple[int, tuple[str, ...]] | None = None
        """YAML: the indentation of the key that owns a multi-line text, and its keys if known."""

    def run(self) -> str:
        at = 1 if self.text.startswith(_BYTE_ORDER_MARK) else 0
        self.parts.append(self.text[:at])
        while at < len(self.text):
            at = self.step(at)
        return "".join(self.parts)

    def step(self, at: int) -> int:
        """Read one token, or one statement's key; return the start of the next."""
        match = _TOKEN.match(self.text, at)
        if match is None:  # white space that _TOKEN does not match
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
            token = token[:3] + self.values.prose(token[3:-3]) + token[-3:]
        else:
            token = self.value(token, quoted=kind == "string")
        self.parts.append(token)
        return match.end()

    def line(self, end: int) -> None:
        self.line_start, self.fresh = end, not self.brackets or self.brackets[-1][0] == "{"
        if not self.brackets:
            self.path = ()

    def statement(self, at: int) -> int:  # noqa: PLR0911  # one for each kind of statement
        """Read the begin of a statement, or a key in braces; return its end, or `at` if there is none."""
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
        """Return whether a YAML line continues the multi-line text of an earlier line, whatever it looks like."""
        if self.text_below is not None and indent <= self.text_below[0]:
            self.text_below = None
        return self.text_below is not None

    def below(self, line: str) -> str:
        """Return the replacement of one line of a multi-line text."""
        path = self.text_below[1] if self.text_below is not None else ()
        core = line.rstrip()
        return self.values.bare(core, path) + line[len(core) :] if shown.is_shown_key(path) else self.values.prose(line)

    def entry(self, entry: re.Match[str], indent: int) -> int:
        """Read a key outside of brackets, and its value if it has neither quotes nor brackets; return the end."""
        is_yaml = entry[3].endswith(":")
        around = self.around(indent, item=bool(entry[1])) if is_yaml or entry[1] else self.table
        self.path = path = (*around[-_LONGEST_PATH:], *self.key(entry))
        end = entry.end()
        opens = _OPENS.match(self.text, end) is not None
        if is_yaml:
            # a list's dash may be indented like the list's key; the item's own keys are deeper
            self.outline.append((indent + len(entry[1]), path))
            has_text = _EMPTY.match(self.text, end) is None
            self.text_below = (indent + len(entry[1]), path if self.is_block(end) else ()) if has_text else None
        elif not entry[1]:
            self.outline = []
        is_command = path[-1] in shown.COMMANDS
        return end if opens and not is_command else self.rest(end, end, path, joined=not is_yaml)

    def is_block(self, at: int) -> bool:
        """Return whether a YAML key's value is a block scalar."""
        end = self.text.find("\n", at)
        return _BLOCK_MARK.fullmatch(self.text[at : len(self.text) if end < 0 else end].strip()) is not None

    def is_end_of_base64(self, entry: re.Match[str]) -> bool:
        """Return whether an entry may be the last line of a base64 text, which looks like a name without a value."""
        if entry[3] != "=" or _PADDED.match(self.text, entry.end()) is None:
            return False
        name = entry[2]
        return self.text.startswith(("=", '"', "'"), entry.end()) or not (name.isupper() or shown.is_listed_name(name))

    def around(self, indent: int, *, item: bool) -> tuple[str, ...]:
        """Return the parent keys of a YAML line."""
        while self.outline and (self.outline[-1][0] > indent or (self.outline[-1][0] == indent and not item)):
            self.outline.pop()
        return self.outline[-1][1] if self.outline else self.table

    def rest(self, at: int, start: int, path: tuple[str, ...], *, joined: bool) -> int:
        """Read an unquoted value up to the end of its line; return its end, `start` if it has quotes or brackets."""
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
        if comment[1:].strip() and core and not after:  # in an environment file, it is part of the value
            said = f"#{self.values.prose(comment[1:])}"
        self.parts += [before, self.rested(core, path), after, said]
        self.path = ()
        return max(at, end)

    def rested(self, value: str, path: tuple[str, ...]) -> str:
        """Return the replacement of a value that fills the rest of its line."""
        if not value or _BLOCK_MARK.fullmatch(value):
            return value
        if path and path[-1] in shown.COMMANDS:
            return self.values.command(value)
        if path and (path[-1] == _ENVIRONMENT or shown.ARGUMENTS.fullmatch(path[-1])):
            return self.values.command(value, program=False)
        if "\n" in value:
            return self.values.prose(value)
        return self.values.bare(value, path)

    def key(self, entry: re.Match[str]) -> tuple[str, ...]:
        self.parts += [entry[1], self.keys(entry[2]), entry[3]]
        return _names(entry[2])

    def keys(self, text: str) -> str:
        """Return dotted keys with each name replaced; dots and quotes stay."""
        return _PART.sub(lambda part: replace_text(part[0], self.values.key), text)

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
        # an unquoted word in a list is a number or the like; any other belongs to a list that was never closed
        path = () if not quoted and self.brackets and self.brackets[-1][0] == "[" else self.path
        self.path = ()
        if quoted:
            return replace_text(token, lambda inner: self.values.scalar(inner, path))
        return self.values.bare(token, path)

    def comment(self, token: str) -> str:
        body = token.rstrip("\r")
        if shown.COMMENTS.fullmatch(body):
            return token
        found = _MARKED.match(body)
        start = found.end() if found is not None else 0
        return token if start == len(body) else token[:start] + self.values.comment(body[start:]) + token[len(body) :]

    def action(self, token: str) -> str:
        self.path = ()
        if shown.is_plain_action(token):
            return token
        lines, said = "\n" * token.count("\n"), self.values.comment(token)
        if (comment := _ACTION_COMMENT.fullmatch(token)) is not None:
            return f"{comment[1]} {said} {lines}{comment[2]}"
        return f"{{{{ {said} {lines}}}}}"


def _names(keys: str) -> tuple[str, ...]:
    """Return the parts of a dotted key, unquoted."""
    return tuple(_plain(part[1:-1]) if part[0] in "\"'" else part for part in _PART.findall(keys))


def _plain(text: str) -> str:
    """Return a string with its escapes decoded; escapes of invalid code points are dropped."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return _ESCAPES.get(match[4], match[4])
        return chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else ""

    return _ESCAPE.sub(character, text) if "\\" in text else text


def replace_text(token: str, change: Callable[[str], str]) -> str:
    """Return a quoted or unquoted token with `change` applied to its text."""
    if token[0] not in "\"'":
        made = change(token)
        return made if made == token or re.fullmatch(r"[A-Za-z0-9_-]+", made) else f'"{made}"'
    end = len(token) - 1 if len(token) > 1 and token[-1] == token[0] else len(token)
    plain = _plain(token[1:end])
    made = change(plain)
    return token if made == plain else token[0] + made + token[end:]
