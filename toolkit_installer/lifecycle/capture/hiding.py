"""Hides in one capture what may be secret, and leaves texts that are as good: stand-ins made with a key.

Equal values have equal stand-ins, so that texts can still be compared, and a text has as many lines and parses as
before: what is planned for it is what would have been planned for the text itself. The same holds for digests
of contents, by which the receipt knows files: whoever has no key cannot try out passwords. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from toolkit_installer import patterns
from toolkit_installer.documents.hiding import Hiding as Texts

_LENGTH: Final = 20
"""Hexadecimal digits of a stand-in: as many bits as nobody's files have values."""
_DIGITS: Final = 12
_SHA256: Final = patterns.lazy(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TORN: Final = (("value = ", ""), ('{"value": ', "}"))
"""What the receipt writes before and after a value that it tore from TOML, or from JSON."""
_RECORDED: Final = frozenset({"before", "first", "written"})
"""Fields of a file's record that hold digests."""
_IDENTITY: Final = patterns.lazy(r'((?:(?<=")|\A)[0-9]+ [0-9]+ )([0-9]+)( [0-9]+ [0-9]+(?=\Z|"))')
"""A watched file's device, inode, size, time and mode (idling.identity), alone or as a text of JSON."""


class Hiding:
    """Of one capture, or of a set of captures that are made with the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.texts = Texts(self._word, self._number)
        self._digests: set[str] = set()
        """SHA-256 of contents that may hold a secret."""
        self.folders: set[str] = set()
        """Folders of the toolkit, by receipts: its programs are no secret, and known by their sizes."""

        self.made: set[str] = set()
        """SHA-256 of files that this program generated, by receipts: they are its own words."""

    @property
    def name(self) -> str:
        """What the key is called: captures with the same name have the same stand-ins."""
        return self._made("the key's name")[:_LENGTH]

    def receipt(self, content: bytes) -> bytes:
        """Return a receipt without what it remembers of the engines' files. Their digests are to be hidden, too."""
        try:
            return self._receipt(json.loads(content))
        except (ValueError, RecursionError):
            return self.texts.content(content)

    def _receipt(self, said: Any) -> bytes:
        if isinstance(said, dict) and isinstance(folder := said.get("toolkit_folder"), str):
            self.folders.add(folder)
            contents = said.get("contents")
            entries = contents if isinstance(contents, list) else ()
            self.made.update(str(each.get("sha256")) for each in entries if isinstance(each, dict))
        return json.dumps(self._owned(said), indent=2).encode() + b"\n"

    def note(self, digest: str) -> None:
        """Note the SHA-256 of a content that may hold a secret."""
        self._digests.add(digest)

    def digest(self, found: str) -> str:
        """Return what stands for a SHA-256."""
        return self._made(found) if found in self._digests else found

    def digests(self, text: str) -> str:
        """Return a text in which the digests of contents that may hold a secret are hidden."""
        return _SHA256.sub(lambda match: self.digest(match[0]), text)

    def identity(self, text: str) -> str:
        """Return a text in which the sizes of watched files are hidden."""
        return _IDENTITY.sub(lambda match: match[1] + self._number(match[2]) + match[3], text)

    def _owned(self, value: Any) -> Any:
        """Return a part of a receipt. Of values of ours, those that stood there before are parts of a file."""
        if isinstance(value, list):
            return [self._owned(item) for item in value]
        if not isinstance(value, dict):
            return value
        for name in _RECORDED & value.keys():
            said = value[name]
            found = said if isinstance(said, list) else [said.get("sha256")] if isinstance(said, dict) else ()
            self._digests.update(each for each in found if isinstance(each, str))
        path = value.get("path")
        if not isinstance(path, list):
            return {key: self._owned(item) for key, item in value.items()}
        keys = tuple(name for name in path if isinstance(name, str))
        return {
            key: self._torn(item, keys) if key in {"ours", "prior"} and isinstance(item, str) else item
            for key, item in value.items()
        }

    def _torn(self, text: str, path: tuple[str, ...]) -> str:
        """Return a value that was torn from a file, where it stood below these keys."""
        for head, tail in _TORN:
            if text.startswith(head) and text.endswith(tail):
                return head + self.texts.fragment(text[len(head) : len(text) - len(tail)], path) + tail
        return self.texts.fragment(text, path)

    def _word(self, value: str) -> str:
        return f"hidden!{self._made(value)[:_LENGTH]}"

    def _number(self, value: str) -> str:
        return f"9{int(self._made(value), 16)}"[:_DIGITS]

    def _made(self, value: str) -> str:
        return hmac.new(self._key, value.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def in_all(value: Any, change: Callable[[str], str], in_bytes: Callable[[str], str]) -> Any:
    """Return a value in which each text is what `change` makes of it, and each text in bytes what `in_bytes` does."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bytes):
        return in_bytes(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {change(key): in_all(item, change, in_bytes) for key, item in value.items()}
    return [in_all(item, change, in_bytes) for item in value] if isinstance(value, (list, tuple)) else value
