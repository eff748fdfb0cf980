"""One spelling for the many ways in which callers write flags.

The field's scripts were written for two generations of Go parsers, which read `-flag value`, `--flag=value`, bare
booleans and `--flag=false` alike. Here all of them become `--flag=value`, so that a boolean never swallows the
argument after it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.cli.options.model import Kind, Option

_OF_EVERY_COMMAND = frozenset({"-help", "-help-all", "-version"})


class Grammar(msgspec.Struct, frozen=True):
    """Which flags there are, keyed by their spelling without dashes."""

    long_names: Mapping[str, Option]
    letters: Mapping[str, Option]


class Given(msgspec.Struct, frozen=True):
    """An option that was given, with its text."""

    option: Option
    text: str

    def __str__(self) -> str:
        return f"{self.option.flags[0]}={self.text}"


def grammar_of(options: Iterable[Option], letters: Mapping[str, Option] | None = None) -> Grammar:
    """Return the grammar of these options, with their own letters unless others are named."""
    rows = tuple(options)
    own = {letter: option for option in rows for letter in option.letters}
    return Grammar({name: option for option in rows for name in option.long_names}, own if letters is None else letters)


def read(arguments: Iterable[str], grammar: Grammar) -> Iterator[Given | str]:
    """Find the options in an argument list; what is none, or lacks its value, comes through as it is."""
    rest = collections.deque(arguments)
    while rest:
        token = rest.popleft()
        if token == "--":  # noqa: S105  # the end of options, no password
            yield token
            yield from rest
            return
        if token in _OF_EVERY_COMMAND:
            yield f"-{token}"
            continue
        if len(token) < 2 or not token.startswith("-"):  # noqa: PLR2004  # a dash and at least one more
            yield token
            continue
        yield from _read_long(token, rest, grammar) or _read_letters(token, rest, grammar)


def canonical(arguments: Iterable[str], grammar: Grammar) -> list[str]:
    """Return the same arguments, each option as `--flag=value` under its first name."""
    return [str(token) for token in read(arguments, grammar)]


def _read_long(token: str, rest: collections.deque[str], grammar: Grammar) -> list[Given]:
    """Go's parsers take one dash for two."""
    name, equals, text = token.removeprefix("-").removeprefix("-").partition("=")
    option = grammar.long_names.get(name)
    if option is None:
        return []
    if equals:
        return [Given(option, text)]
    if option.kind is Kind.FLAG:
        return [Given(option, "true")]
    return [Given(option, rest.popleft())] if rest else []


def _read_letters(token: str, rest: collections.deque[str], grammar: Grammar) -> list[Given | str]:
    """`-n`, `-r docker`, `-rdocker`, `-r=docker`, `-nr docker`."""
    found: list[Given | str] = []
    letters = token[1:]
    while letters:
        option = grammar.letters.get(letters[0])
        if option is None or token.startswith("--"):
            return [token]
        letters = letters[1:]
        if letters.startswith("="):
            return [*found, Given(option, letters[1:])]
        if option.kind is Kind.FLAG:
            found.append(Given(option, "true"))
        elif letters:
            return [*found, Given(option, letters)]
        else:
            return [*found, Given(option, rest.popleft())] if rest else [token]
    return found
