"""Masks secrets in configuration text that is shown to people.

The text may be TOML, JSON, a part of either, or broken. It is read once, token by token, and only so far as to know
which key a value belongs to. A value is masked because of its key, because of the text around it, or because it looks
like a secret; in doubt it is masked. Line ends are kept, so that line numbers still agree.
"""

from __future__ import annotations

import re

from toolkit_installer import patterns
from toolkit_installer.documents import log_places
from toolkit_installer.documents.secret_names import Kind, is_secret_name, kind_of
from toolkit_installer.documents.secret_shapes import MASK
from toolkit_installer.documents.secret_texts import (
    blank,
    by_kind,
    without_credentials,
    without_private_keys,
    without_secrets,
)

__all__ = ["MASK", "is_secret_name", "mask"]

# Not possessive where a group repeats: Python before 3.11.5, Debian 12's among them, matches such groups wrongly.
# The parts of each exclude one another, so that a long string is tried once all the same.
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+')"""
_HEADER = patterns.lazy(
    rf"[ \t]*+\[\[?[ \t]*+({_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*)[ \t]*+\]\]?[ \t\r]*+(?=#|$)", re.MULTILINE
)
_TOKEN = patterns.lazy(
    r"""
      (?P<line>\n)
    | (?P<space>[ \t\r\f\v]+)
    | (?P<comment>\#+)
    | (?P<block>"{3}(?:[^"\\]++|\\.|"(?!""))*"{3,5} | '{3}(?:[^']++|'(?!''))*'{3,5})
    | (?P<string>"(?:[^"\\\n]++|\\[^\n])*"? | '[^'\n]*+'?)
    | (?P<mark>[=:,\[\]{}])
    | (?P<word>[^\s"'\#=:,\[\]{}]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_TOKEN_OF_LINE = patterns.lazy(_TOKEN.pattern.replace("(?P<block>", "(?P<block>(?!)"), _TOKEN.flags)
"""The same without strings in three quotes, which a comment does not have."""

_OPENING = patterns.lazy(r"""[ \t]*+["'\[{]""")
_LINE = patterns.lazy(r"[^\r\n]+")


def mask(text: str) -> str:
    """Return `text` with every secret replaced by `****`, and as many lines. Never raises; takes linear time.

    An engine's log line keeps the file, the row and the column that it names.
    """
    return log_places.kept(text, _masked(text), lambda value: _masked(value) == value)


def _masked(text: str) -> str:
    return _Walk(without_credentials(without_private_keys(text))).run()


_Brackets = list[tuple[str, Kind, Kind]]
_State = tuple[_Brackets, Kind, Kind, bool]


class _Walk:
    """Reads a text once and masks its values.

    An entry is `key = value` or `key: value`. It ends at a comma, at a closing bracket, or, where no bracket is open,
    at the end of the line. Once an entry is secret, all of it is masked.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: list[str] = []
        self.brackets: _Brackets = []
        """Of each open bracket: which one it is, the kind of its entry, and the kind of all that is around it."""
        self.words: list[str] = []
        """The tokens since the last mark. They are the key if `=` or `:` follows."""
        self.in_value = False
        self.kind = Kind.ORDINARY
        """How much is shown of this entry's values."""
        self.around = Kind.ORDINARY
        """The lowest kind that an entry can have here, because of its table or of a bracket around it."""
        self.table = Kind.ORDINARY
        """The kind of the TOML table that the last header opened."""
        self.commented_table = Kind.ORDINARY
        """The same for a header in a comment."""
        self.comment = False
        self.outside: _State | None = None
        """In a comment: the state before it."""
        self.unfinished: _State | None = None
        """The state at the end of the last comment, while only comments follow: whole documents are commented out."""
        self.code = False
        """Whether this line has something that is not a comment."""
        self.flag = Kind.ORDINARY
        """The kind of the next element of this array, as the last one is a flag such as `--password`."""
        self.torn = False
        """Whether a secret string was not closed on its line: what follows may belong to it."""
        self.last_login = (-1, -1)
        """Of the line that was last searched for an `@`: where it ends, and where its last `@` is."""

    def run(self) -> str:
        position = self.header(0)
        while position < len(self.text):
            position = self.step(position)
        return "".join(self.parts)

    def step(self, position: int) -> int:
        """Read one token; return where the next begins."""
        match = (_TOKEN_OF_LINE if self.comment else _TOKEN).match(self.text, position)
        if match is None:  # white space that the expression does not know
            self.parts.append(self.text[position])
            return position + 1
        kind, token = match.lastgroup, match[0]
        if kind == "line":
            self.line()
            return self.header(match.end())
        if kind == "comment":
            return self.hash(match)
        if kind == "space":
            self.parts.append(token)
            return match.end()
        self.code = self.code or not self.comment
        if kind == "mark":
            self.mark(token, match.end())
        elif kind == "block":
            self.block(token)
        else:
            self.value(token)
        return match.end()

    def header(self, position: int) -> int:
        """Read a TOML header if there is one at `position` and can be; return where the text after it begins."""
        match = _HEADER.match(self.text, position)
        if match is None:
            return position
        parts = re.findall(_KEY_PART, match[1])
        if self.brackets and (len(parts) == 1 or not match[1][0].isalpha()):
            return position  # an element of an array; with dots it is a header, and the array was never closed
        secret = any(
            is_secret_name(part)
            for part in parts
            if not re.search(r"[./:]", part)  # registries' and plugins' names, not keys
        )
        self.brackets = []
        self.code = self.code or not self.comment
        table = Kind.SECRET if secret else Kind.ORDINARY
        if self.comment:
            self.commented_table = table
        else:
            self.table, self.commented_table, self.torn = table, Kind.ORDINARY, False
        self.around = max(self.table, self.commented_table)
        self.end_entry()
        self.parts.append(match[0])
        return match.end()

    def line(self) -> None:
        self.parts.append("\n")
        if self.code:
            self.unfinished = None
        elif self.outside is not None:
            self.unfinished = (self.brackets, self.kind, self.around, self.in_value) if self.brackets else None
        self.code = False
        if self.outside is not None:
            self.brackets, self.kind, self.around, self.in_value = self.outside
            self.outside, self.comment, self.words = None, False, []
        if not self.brackets and not self.torn:
            self.end_entry()
            self.around = self.table

    def hash(self, match: re.Match[str]) -> int:
        self.parts.append(match[0])
        if self.comment:
            return match.end()
        if self.kind is Kind.SECRET and self.in_value:  # it may be the rest of a password that nobody quoted
            end = self.text.find("\n", match.end())
            end = len(self.text) if end < 0 else end
            self.parts.append(_LINE.sub(" " + MASK, self.text[match.end() : end]))
            return end
        self.outside = (self.brackets, self.kind, self.around, self.in_value)
        self.comment, self.words = True, []
        if self.unfinished is not None and not self.code:
            self.brackets, self.kind, self.around, self.in_value = self.unfinished
        else:
            around = max(self.around, self.commented_table)
            self.brackets, self.kind, self.around, self.in_value = [], Kind.ORDINARY, around, False
        return self.header(match.end())

    def end_entry(self) -> None:
        self.words = []
        self.kind = self.flag = Kind.ORDINARY
        self.in_value = False

    def mark(self, mark: str, position: int) -> None:
        """Read a mark that ends at `position`."""
        self.parts.append(mark)
        if mark in "=:":
            named = self.words if mark == "=" else self.words[-1:]
            self.kind = max((self.kind, self.around, *map(kind_of, named)))
            self.in_value = True
            if self.kind is Kind.PROXY and self.bare_login(position):
                self.kind = Kind.SECRET
        elif mark == ",":
            if self.brackets:
                self.in_value = self.brackets[-1][0] == "["
                self.kind = self.around if self.in_value else Kind.ORDINARY
        elif mark in "[{":
            self.brackets.append((mark, self.kind, self.around))
            self.around = max(self.kind, self.around)
            if mark == "{" and self.around is not Kind.SECRET:
                self.around = Kind.ORDINARY  # its entries have names of their own
            self.kind, self.in_value = (self.around, True) if mark == "[" else (Kind.ORDINARY, False)
        elif self.brackets:
            _, self.kind, self.around = self.brackets.pop()
            self.in_value, self.flag = True, Kind.ORDINARY
        self.words = []

    def bare_login(self, position: int) -> bool:
        """Tell whether the rest of the line has an `@` and is not quoted: quotes would tell where the value ends."""
        if _OPENING.match(self.text, position):
            return False
        if self.last_login[0] < position:
            end = self.text.find("\n", position)
            end = len(self.text) if end < 0 else end
            self.last_login = (end, self.text.rfind("@", position, end))
        return self.last_login[1] >= position

    def value(self, token: str) -> None:
        """Read a string or a bare word: a value, or part of a key."""
        quoted = token[0] in "\"'"
        forgotten = (  # an "=" or ":" that should be there, or a template's literal
            quoted
            and not self.in_value
            and bool(self.words)
            and (self.named_secret() or (self.around is Kind.SECRET and bool(self.brackets)))
        )
        kind = Kind.SECRET if forgotten else max(self.kind if self.in_value else Kind.ORDINARY, self.flag)
        closed = quoted and len(token) > 1 and token[-1] == token[0]
        start, end = (1 if quoted else 0), (len(token) - 1 if closed else len(token))
        inner = token[start:end]
        shown = by_kind(inner, kind)
        if kind is Kind.SECRET and quoted and not closed and not self.comment:
            self.torn = True
        if shown == inner:
            shown = without_secrets(inner, kind)
        self.parts.append(token[:start] + shown + token[end:])
        self.words.append(token)
        bare = token.lstrip("\"'")
        self.flag = kind_of(token) if bare.startswith("-") and "=" not in token else Kind.ORDINARY

    def named_secret(self) -> bool:
        """Tell whether the last word names a secret. In a sentence such as `no such key "x"` it does not."""
        last = self.words[-1]
        return is_secret_name(last) and not (len(self.words) > 1 and last.lower() in {"key", "keys"})

    def block(self, token: str) -> None:
        """Read a TOML string in three quotes, which may have several lines."""
        inner, kind = token[3:-3], max(self.kind, self.flag)
        inner = blank(inner) if by_kind(inner, kind) != inner else without_secrets(inner, kind)
        self.parts.append(token[:3] + inner + token[-3:])
        self.words, self.in_value, self.flag = [], True, Kind.ORDINARY
