"""Text that others chose (names, contents, messages), made safe for a terminal and for a line of its own. Pure."""

from __future__ import annotations

from typing import Final

_BYTES: Final = range(0xDC80, 0xDD00)
"""The lone surrogates by which Python hands over bytes that are no UTF-8 (PEP 383)."""
_TO_BYTE: Final = 0xDC00


def line(text: str, *, tabs: bool = False) -> str:
    r"""Return `text` with everything escaped that a terminal would obey or hide, or take for another line.

    That is whatever Python calls unprintable: control characters (`\x1b`, `\n`), format characters such as those that
    turn the writing direction (`\u202e`), spaces that look like others, lone surrogates; the latter, where they stand
    for bytes, as these (`\xff`). `tabs` stay if they are wanted.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or (tabs and character == "\t") else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    if ord(character) in _BYTES:
        return f"\\x{ord(character) - _TO_BYTE:02x}"
    return character.encode("unicode_escape").decode()
