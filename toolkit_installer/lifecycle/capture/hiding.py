"""Takes the secrets out of what was captured, and leaves texts that are as good: digests with a key stand for them.

Equal secrets have equal digests within one capture, so that what is compared with one another still is, and a text is
as long in lines, parses as before and has its secrets where it had them: what is planned for it is what would have been
planned for the text itself. The key is made up for each capture and kept nowhere, so that nobody can try out passwords.
Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolkit_installer import patterns
from toolkit_installer.documents.secret_names import is_secret_name, kind_of
from toolkit_installer.documents.secret_shapes import MASK, without_tokens
from toolkit_installer.documents.secret_texts import by_kind, without_credentials
from toolkit_installer.documents.secrets import mask

_LENGTH: Final = 30
"""Hexadecimal digits of a digest, which looks like a secret itself, and so is masked wherever the secret was."""
_NUMBER: Final = patterns.lazy(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_WORDS: Final = frozenset({"true", "false", "null", "nil", "none", ""})
"""What is no secret, whatever its name is, and what no document could do without."""
_PLAIN: Final = "value"
_TELLING: Final = "secret"
_SHORTEST: Final = 8
"""Characters of a secret that is looked for everywhere: a shorter one may stand somewhere by chance."""


class Hiding:
    """Of one capture."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._everywhere: dict[str, str] = {}
        """Secrets that are known by their look, and so can be found in any text; and what stands for each."""
        self._pattern: re.Pattern[str] | None = None

    def text(self, text: str) -> str:
        """Return a text of a configuration, or of a program, without its secrets."""
        masked = mask(text)
        return text if masked == text else self._replaced(text, masked)

    def content(self, content: bytes) -> bytes:
        """Return a file's content without its secrets; what is no text has none."""
        if b"\0" in content:
            return content
        text = content.decode(errors="surrogateescape")
        hidden = self.text(text)
        return content if hidden == text else hidden.encode(errors="surrogateescape")

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the words of a command line without the secrets that their flags name."""
        found: list[str] = []
        for before, word in zip(["", *words], words, strict=False):
            name, equals, value = word.partition("=")
            if word.startswith("-") and equals:
                masked = f"{name}={by_kind(without_credentials(value), kind_of(name))}"
            elif before.startswith("-") and "=" not in before and not word.startswith("-"):
                masked = by_kind(without_credentials(word), kind_of(before))
            else:
                masked = without_credentials(word)
            found.append(word if masked == word else self._line(word, masked))
        return found

    def object(self, value: Any) -> Any:
        """Return a JSON value without its secrets, as its names and its texts tell them."""
        text = json.dumps(value, indent=1)
        hidden = self.text(text)
        try:
            return value if hidden == text else json.loads(hidden)
        except ValueError:
            return json.loads(json.dumps(self._by_names(value, "")))

    def receipt(self, content: bytes) -> bytes:
        """Return a receipt without the secrets of the engines' files that it remembers parts of.

        Its digests look like secrets, and are none.
        """
        try:
            text = json.loads(content)
        except ValueError:
            return self.content(content)
        hidden = self._owned(text)
        return content if hidden == text else json.dumps(hidden, indent=2).encode()

    def everywhere(self, text: str) -> str:
        """Return a text without the secrets that were found in others, for texts that are looked through last."""
        if self._pattern is None:
            longest = sorted(self._everywhere, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest)) or r"(?!)")
        return self._pattern.sub(lambda match: self._everywhere[match[0]], text)

    @property
    def found(self) -> bool:
        """Whether there is any secret to be looked for everywhere."""
        return bool(self._everywhere)

    def _replaced(self, text: str, masked: str) -> str:
        """Return a text with digests where `masked` has masks; the masks themselves where that cannot be told."""
        lines, others = text.split("\n"), masked.split("\n")
        if len(lines) != len(others):
            return masked
        hidden = "\n".join(
            line if line == other else self._line(line, other) for line, other in zip(lines, others, strict=True)
        )
        return hidden if mask(hidden) == masked else masked

    def _line(self, line: str, masked: str) -> str:
        """Return a line with digests where `masked` has masks; the masks where the two do not go together."""
        first, *between, last = masked.split(MASK)
        end = len(line) - len(last)
        if not line.startswith(first) or not line.endswith(last) or end < len(first):
            return masked
        parts, position = [first], len(first)
        for part in between:
            found = line.find(part, position, end)
            if found < 0:
                return masked
            parts += [self._digest(line[position:found]), part]
            position = found + len(part)
        return "".join((*parts, self._digest(line[position:end]), last))

    def _digest(self, secret: str) -> str:
        """Return what stands for a secret, where a document had it."""
        if secret.strip().lower() in _WORDS:
            return secret
        made = hmac.new(self._key, secret.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
        if _NUMBER.fullmatch(secret):  # without quotes, nothing else could stand there
            return f"9{int(made, 16)}"[: max(len(secret), 2)]
        token = f"a0{made[:_LENGTH]}"
        if len(secret) >= _SHORTEST and without_tokens(secret) != secret:
            self._everywhere[secret] = token
        return token

    def _by_names(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {key: self._by_names(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._by_names(item, name) for item in value]
        if not isinstance(value, str):
            return value
        masked = by_kind(value, kind_of(name))
        return self.text(value) if masked == value else self._line(value, masked)

    def _owned(self, value: Any) -> Any:
        """Return a part of a receipt: of what is ours, the values that stood there before are parts of the file."""
        if isinstance(value, list):
            return [self._owned(item) for item in value]
        if not isinstance(value, dict):
            return value
        path = value.get("path")
        if not isinstance(path, list):
            return {key: self._owned(item) for key, item in value.items()}
        names = [name for name in path if isinstance(name, str)]
        return {key: self._torn(names, item) if key in {"ours", "prior"} else item for key, item in value.items()}

    def _torn(self, names: Sequence[str], value: Any) -> Any:
        """Return a text that was torn from a file, where it stood below these names."""
        if not isinstance(value, str):
            return value
        if not any(map(is_secret_name, names)):
            return self.text(value)
        # it is written as that of a name which says nothing (`value`): of one that does, it is read as it was
        return self.text(value.replace(_PLAIN, _TELLING, 1)).replace(_TELLING, _PLAIN, 1)


def in_all(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value in which each text, and each text in bytes, is what `change` makes of it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, bytes):
        return change(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    if isinstance(value, Mapping):
        return {in_all(key, change): in_all(item, change) for key, item in value.items()}
    return [in_all(item, change) for item in value] if isinstance(value, (list, tuple)) else value
