"""Masks secrets that the text around them gives away: in addresses, assignments, flags, PEM. Pure; linear time."""

from __future__ import annotations

import re

from toolkit_installer import patterns
from toolkit_installer.documents.secret_names import Kind, kind_of, plain
from toolkit_installer.documents.secret_shapes import MASK, is_path, without_tokens

_PEM_BEGIN = patterns.lazy(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z0-9 ]{0,40}-----")
_PEM_END = patterns.lazy(r"-----END ")
_URL_START = r"(?::|\\u003[aA])(?:\\?/|\\u002[fF]){2}"
_URL = patterns.lazy(_URL_START + r"""[^\s"'<>]*""")
_URL_IN_STRING = patterns.lazy(_URL_START + r"[^\s<>]*")
_HOOK = patterns.lazy(r"(?:[^/@]*@)?hooks\.[^/]*/|[^/]*/(?:[^/]*/){0,3}(?:incoming)?webhooks?\\?/", re.IGNORECASE)
"""The begin of an address to which everybody who knows it can post (Slack, Discord, Teams): the rest is the secret."""
_SLASHES = patterns.lazy(r"(:(?:\\?/){2})")
_WORD = patterns.lazy(r"""[^\s"'<>\[\]{},=]+""")
"""For documents, whose brackets and commas must stay visible."""
_WORD_IN_STRING = patterns.lazy(r"\S+")
_ASSIGNED = patterns.lazy(r"[A-Za-z_][A-Za-z0-9_.-]*=")
_DIGEST = patterns.lazy(r"@sha(?:256|384|512):(?![0-9]{1,5}(?:\Z|[^0-9a-zA-Z]))[0-9a-fA-F][^@]*+\Z")
_SCHEME = patterns.lazy(r"\b(bearer|basic)([ \t]+)([A-Za-z0-9._~+/=-]{4,})", re.IGNORECASE)
_SETTING = patterns.lazy(r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)[ \t]*+(?:[=:]|%3[dD])[ \t]*+")
_WHOLE_SETTING = patterns.lazy(r"\s*+([A-Za-z0-9_.-]++)[ \t]*+=")
_QUOTED_OR_WORD = patterns.lazy(r"""\\?["'][^\n]*|\S*""")
_REST_OF_LINE = patterns.lazy(r"[^\n]*")
_FLAG = patterns.lazy(r"""(?<![^\s"'])(--?[A-Za-z0-9_.-]++)([ \t]++)(\\?["'][^\n]*|[^\s-]\S*)""")
_LINE = patterns.lazy(r"[^\r\n]+")


def blank(text: str) -> str:
    """Mask each line of `text`, keeping the line ends."""
    return _LINE.sub(MASK, text)


def by_kind(text: str, kind: Kind) -> str:
    """Return a value of one line as the kind of its name allows it to be shown; its own text is not searched."""
    if kind is Kind.SECRET or (kind is Kind.PLACE and text and not is_path(plain(text))):
        return MASK
    if kind is Kind.PROXY and "@" in plain(text):
        return MASK + text[text.rfind("@") :] if "@" in text else MASK
    return text


def without_private_keys(text: str) -> str:
    """Mask the text between the BEGIN and END lines of PEM private keys; without END, to the end of the text."""
    parts: list[str] = []
    position = 0
    while begin := _PEM_BEGIN.search(text, position):
        end = _PEM_END.search(text, begin.end())
        stop = end.start() if end else len(text)
        parts += (text[position : begin.end()], blank(text[begin.end() : stop]))
        position = stop
    parts.append(text[position:])
    return "".join(parts)


def without_credentials(text: str) -> str:
    """Mask credentials that are known by their form, wherever they are: `user:password@`, Bearer and Basic."""
    text = _URL.sub(lambda match: _url(match[0]), text)
    if "@" in text:
        text = _WORD.sub(lambda match: _login(match[0]), text)
    return _SCHEME.sub(lambda match: match[0] if _is_prose(match) else match[1] + match[2] + MASK, text)


def without_secrets(text: str, kind: Kind) -> str:
    """Mask parts of a string that is not secret as a whole: `API_TOKEN=…`, `X-Auth: …`, `--password …`, tokens."""
    if "@" in text or "\\" in text:
        text = _URL_IN_STRING.sub(lambda match: _url(match[0]), text)
        text = _WORD_IN_STRING.sub(lambda match: _login(match[0]), text)
    if "=" in text or ":" in text or "%3" in text:
        text = _without_named(text)
    if "-" in text:
        text = _FLAG.sub(lambda match: match[1] + match[2] + by_kind(match[3], kind_of(match[1])), text)
    if kind is Kind.KNOWN:
        return text
    if "\\" in text and without_tokens(said := plain(text)) != said:  # escapes hide a token
        shown = without_tokens(text)
        return shown if without_tokens(plain(shown)) == plain(shown) else blank(text)
    return without_tokens(text)


def _without_named(text: str) -> str:
    """Mask the text after the `NAME=` of a secret, up to white space, and after `Name:`, up to the end of the line.

    A text that begins with `NAME=`, as in a list of variables, is one assignment: all of the rest is the value.
    """
    whole = _WHOLE_SETTING.match(text)
    if whole and (kind := kind_of(whole[1])) > Kind.KNOWN:
        return whole[0] + _LINE.sub(lambda line: by_kind(line[0], kind), text[whole.end() :])
    parts: list[str] = []
    position = 0
    while name := _SETTING.search(text, position):
        parts.append(text[position : name.end()])
        position = name.end()
        if (kind := kind_of(name[1])) > Kind.KNOWN:
            value = (_REST_OF_LINE if ":" in name[0] else _QUOTED_OR_WORD).match(text, position)
            if value and value[0]:
                parts.append(by_kind(value[0], kind))
                position = value.end()
    parts.append(text[position:])
    return "".join(parts)


def _is_prose(match: re.Match[str]) -> bool:
    """Tell `basic configuration` from `Basic dXNlcjpwYXNz`."""
    return match[1].lower() == "basic" and match[3].islower() and match[3].isalpha()


def _login(word: str) -> str:
    """Mask `user:password` before the last `@` of a word, as in the address of a proxy without a scheme."""
    said = plain(word)
    if "@" not in said:
        return word
    if "://" in said:  # URLs are masked already, but not what is listed beside them
        return "".join(part if "://" in plain(part) else _login(part) for part in re.split("([,;])", word))
    if said.count("@") != word.count("@"):  # an escape hides one
        return MASK if ":" in said.rpartition("@")[0] else word
    digest = _DIGEST.search(word)  # of an image
    end = word.rfind("@", 0, digest.start() if digest else len(word))
    name = _ASSIGNED.match(word)
    start = name.end() if name else 0
    return word[:start] + MASK + word[end:] if ":" in plain(word[start : max(end, start)]) else word


def _url(tail: str) -> str:
    """Mask the user information in URLs, given the text from the first `://` on; several may follow one another."""
    if "\\u" in tail.lower():  # escapes hide what it says
        return "://" + MASK if "@" in plain(tail) else tail
    pieces = _SLASHES.split(tail)
    for index in range(2, len(pieces), 2):
        piece = pieces[index]
        authority = piece.split("/", 1)[0]
        at = authority.rfind("@")
        if at < 0 and re.search(r":[^0-9\\]", authority):
            at = piece.rfind("@")  # no port comes after that colon: a password with a slash in it
        if at >= 0:
            pieces[index] = piece = MASK + piece[at:]
        if hook := _HOOK.match(piece):
            # a last backslash stays: it tells whether the quote behind it ends the string
            rest = piece[hook.end() :]
            escaping = "\\" * ((len(rest) - len(rest.rstrip("\\"))) % 2)
            pieces[index] = hook[0] + MASK + escaping
    return "".join(pieces)
