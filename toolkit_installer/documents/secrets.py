"""Masking secrets in configuration text that is shown to people.

The text may be TOML, JSON, a piece of either, or broken: it is walked over once, token by token, with just enough
understanding to know under which key a value stands. When in doubt, a value is masked. Lines stay where they are, so
that line numbers still agree.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "****"

_SECRET_NAME = re.compile(
    "auth|passw|passphrase|pwd|token|secret|credential|apikey|accesskey|privatekey|keydata|keypem|header|bearer|cookie"
)
_READABLE_NAMES: Final = frozenset(
    {
        "authorizationplugins",  # docker: names of plugins
        "globalauthfile",  # CRI-O: a path
        "pauseimageauthfile",  # CRI-O: a path
        "unauthorized",  # what registries answer
    }
)

# Not possessive where a group repeats: Python before 3.11.5, Debian 12's among them, matches such groups wrongly.
# The parts of each exclude one another, so that a long string is tried once all the same.
_KEY_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+')"""
_HEADER = re.compile(
    rf"[ \t]*+\[\[?[ \t]*+({_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*)[ \t]*+\]\]?[ \t\r]*+(?=#|$)", re.MULTILINE
)
_TOKEN = re.compile(
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
_TOKEN_OF_LINE = re.compile(_TOKEN.pattern.replace("(?P<block>", "(?P<block>(?!)"), _TOKEN.flags)
"""The same without strings in three quotes: in a comment there are none."""

_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z0-9 ]{0,40}-----")
_PEM_END = re.compile(r"-----END ")
_URL_START = r"(?::|\\u003[aA])(?:\\?/|\\u002[fF]){2}"
_URL = re.compile(_URL_START + r"""[^\s"'<>]*""")
_URL_IN_STRING = re.compile(_URL_START + r"[^\s<>]*")
_SLASHES = re.compile(r"(:(?:\\?/){2})")
_SCHEME = re.compile(r"\b(bearer|basic)([ \t]+)([A-Za-z0-9._~+/=-]{4,})", re.IGNORECASE)
_SETTING = re.compile(r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)[ \t]*+[=:][ \t]*+")
_QUOTED_OR_WORD = re.compile(r"""\\?["'][^\n]*|\S*""")
_REST_OF_LINE = re.compile(r"[^\n]*")
_FLAG = re.compile(r"""(?<![^\s"'])(--?[A-Za-z0-9_.-]++)([ \t]++)(\\?["'][^\n]*|[^\s-]\S*)""")
_LINE = re.compile(r"[^\r\n]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([^uUx]))", re.DOTALL)
_LAST_CODE_POINT: Final = 0x10FFFF


def mask(text: str) -> str:
    """Return `text` with every secret replaced by `****`, line for line. Never raises; takes linear time."""
    return _Walk(_without_credentials(_without_private_keys(text))).run()


def is_secret_name(name: str) -> bool:
    """Tell whether a key, variable or flag of that name holds a secret."""
    plain = re.sub(r"[^a-z0-9]", "", _plain(name).lower())
    return plain not in _READABLE_NAMES and _SECRET_NAME.search(plain) is not None


def _plain(token: str) -> str:
    """Return what a string with escapes says; an escape that says nothing is left out."""

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return match[4]
        return chr(int(code, 16)) if int(code, 16) <= _LAST_CODE_POINT else ""

    return _ESCAPE.sub(character, token) if "\\" in token else token


def _blank(text: str) -> str:
    """Mask each line of `text`, keeping the line ends."""
    return _LINE.sub(MASK, text)


def _without_private_keys(text: str) -> str:
    """Mask what stands between the BEGIN and END lines of PEM private keys, up to the end if there is no END."""
    parts: list[str] = []
    position = 0
    while begin := _PEM_BEGIN.search(text, position):
        end = _PEM_END.search(text, begin.end())
        stop = end.start() if end else len(text)
        parts += (text[position : begin.end()], _blank(text[begin.end() : stop]))
        position = stop
    parts.append(text[position:])
    return "".join(parts)


def _without_credentials(text: str) -> str:
    """Mask what shows by itself to be a secret, wherever it stands: `user:password@` in URLs, Bearer and Basic."""
    text = _URL.sub(lambda match: _url(match[0]), text)
    return _SCHEME.sub(lambda match: match[0] if _is_prose(match) else match[1] + match[2] + MASK, text)


def _without_settings(text: str) -> str:
    """Mask the secrets in a string that is no secret as a whole: `API_TOKEN=…`, `X-Auth: …`, `--password …`."""
    if "@" in text or "\\" in text:
        text = _URL_IN_STRING.sub(lambda match: _url(match[0]), text)
    if "=" in text or ":" in text:
        text = _without_named(text)
    if "-" in text:
        text = _FLAG.sub(lambda match: match[1] + match[2] + MASK if is_secret_name(match[1]) else match[0], text)
    return text


def _without_named(text: str) -> str:
    """Mask what follows `NAME=`, up to white space, and `Name:`, up to the end of the line."""
    parts: list[str] = []
    position = 0
    while name := _SETTING.search(text, position):
        parts.append(text[position : name.end()])
        position = name.end()
        if is_secret_name(name[1]):
            value = (_QUOTED_OR_WORD if "=" in name[0] else _REST_OF_LINE).match(text, position)
            if value and value[0]:
                parts.append(MASK)
                position = value.end()
    parts.append(text[position:])
    return "".join(parts)


def _is_prose(match: re.Match[str]) -> bool:
    """Tell `basic configuration` from `Basic dXNlcjpwYXNz`."""
    return match[1].lower() == "basic" and match[3].islower() and match[3].isalpha()


def _url(tail: str) -> str:
    """Mask the user information in the rest of a URL, from its `://` on; there may be several in a row."""
    if "\\u" in tail.lower():  # written so as not to be read
        return "://" + MASK if "@" in _plain(tail) else tail
    pieces = _SLASHES.split(tail)
    for index in range(2, len(pieces), 2):
        piece = pieces[index]
        authority = piece.split("/", 1)[0]
        at = authority.rfind("@")
        if at < 0 and re.search(r":[^0-9\\]", authority):
            at = piece.rfind("@")  # no port comes after that colon: a password with a slash in it
        if at >= 0:
            pieces[index] = MASK + piece[at:]
    return "".join(pieces)


class _Walk:
    """One pass over a text.

    An entry is `key = value` or `key: value`; it ends with a comma, a closing bracket, or, outside of all brackets,
    the line. What is secret stays so until its entry ends, whatever else comes.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.parts: list[str] = []
        self.brackets: list[tuple[str, bool, bool]] = []
        """For each open bracket: itself, and whether its entry and its surroundings are secret."""
        self.words: list[str] = []
        """The tokens since the last mark: a key, if `=` or `:` follows."""
        self.in_value = False
        self.secret = False
        """Values of this entry are secret."""
        self.around = False
        """Values of all entries here are secret: of a table, or of a bracket."""
        self.table = False
        """The same for the TOML table that the last header opened."""
        self.commented_table = False
        self.comment = False
        self.outside: tuple[list[tuple[str, bool, bool]], bool, bool, bool] | None = None
        """What was so before the comment that we are in."""
        self.after_flag = False
        """The last element of this array was a flag such as `--password`."""
        self.torn = False
        """A secret string was not closed on its line: what follows may be more of it."""

    def run(self) -> str:
        position = self.header(0)
        while position < len(self.text):
            position = self.step(position)
        return "".join(self.parts)

    def step(self, position: int) -> int:
        """Deal with one token; return where the next begins."""
        match = (_TOKEN_OF_LINE if self.comment else _TOKEN).match(self.text, position)
        if match is None:  # white space that is none of ours
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
        elif kind == "mark":
            self.mark(token)
        elif kind == "block":
            self.block(token)
        else:
            self.value(token)
        return match.end()

    def header(self, position: int) -> int:
        """Take over a TOML header, if one stands here and may; return where what follows begins."""
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
        if self.comment:
            self.commented_table = secret
        else:
            self.table, self.commented_table, self.torn = secret, False, False
        self.around = self.table or self.commented_table
        self.end_entry()
        self.parts.append(match[0])
        return match.end()

    def line(self) -> None:
        self.parts.append("\n")
        if self.outside is not None:
            self.brackets, self.secret, self.around, self.in_value = self.outside
            self.outside, self.comment, self.words = None, False, []
        if not self.brackets and not self.torn:
            self.end_entry()
            self.around = self.table

    def hash(self, match: re.Match[str]) -> int:
        self.parts.append(match[0])
        if self.comment:
            return match.end()
        if self.secret and self.in_value:  # it may be the rest of a password that nobody quoted
            end = self.text.find("\n", match.end())
            end = len(self.text) if end < 0 else end
            self.parts.append(_LINE.sub(" " + MASK, self.text[match.end() : end]))
            return end
        self.outside = (self.brackets, self.secret, self.around, self.in_value)
        self.comment, self.brackets, self.words = True, [], []
        self.around = self.around or self.commented_table
        self.secret = self.in_value = False
        return self.header(match.end())

    def end_entry(self) -> None:
        self.words = []
        self.secret = self.in_value = self.after_flag = False

    def mark(self, mark: str) -> None:
        self.parts.append(mark)
        if mark in "=:":
            named = self.words if mark == "=" else self.words[-1:]
            self.secret = self.secret or self.around or any(map(is_secret_name, named))
            self.in_value = True
        elif mark == ",":
            if self.brackets:
                self.in_value = self.brackets[-1][0] == "["
                self.secret = self.around and self.in_value
        elif mark in "[{":
            self.brackets.append((mark, self.secret, self.around))
            self.around = self.secret or self.around
            self.secret, self.in_value = self.around and mark == "[", mark == "["
        elif self.brackets:
            _, self.secret, self.around = self.brackets.pop()
            self.in_value, self.after_flag = True, False
        self.words = []

    def value(self, token: str) -> None:
        """Deal with a string or a bare word: a value, or part of a key."""
        quoted = token[0] in "\"'"
        forgotten = (  # an "=" or ":" that should be there, or a template's literal
            quoted
            and not self.in_value
            and bool(self.words)
            and (is_secret_name(self.words[-1]) or (self.around and bool(self.brackets)))
        )
        if (self.secret and self.in_value) or self.after_flag or forgotten:
            self.parts.append(self.hide(token))
        else:
            self.parts.append(token[0] + _without_settings(token[1:-1]) + token[-1] if len(token) > 1 else token)
        self.words.append(token)
        self.after_flag = token.lstrip("\"'").startswith("-") and "=" not in token and is_secret_name(token)

    def hide(self, token: str) -> str:
        quote = token[0] if token[0] in "\"'" else ""
        closed = len(token) > 1 and token[-1] == quote
        if quote and not closed and not self.comment:
            self.torn = True
        return quote + MASK + (quote if closed else "")

    def block(self, token: str) -> None:
        """Deal with a TOML string in three quotes, which may have several lines."""
        inner = token[3:-3]
        inner = _blank(inner) if self.secret or self.after_flag else _without_settings(inner)
        self.parts.append(token[:3] + inner + token[-3:])
        self.words, self.in_value, self.after_flag = [], True, False
