"""Parses flags in every spelling that callers use, on the command line and in strings of flags.

The field's scripts were written for two generations of Go parsers, which read `-flag value`, `--flag=value`, bare
booleans and `--flag=false` alike. Here all become `--flag=value`: a boolean never swallows the argument after it.

RUNTIME_ARGS and TOOLKIT_ARGS, older manifests' strings of flags, are split by shlex rules, never passed to a shell.
"""

from __future__ import annotations

import collections
import shlex
import types
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from toolkit_installer.cli.options.model import Kind, Option, Step
from toolkit_installer.cli.options.table import BY_NAME, OPTIONS
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName

_OF_EVERY_COMMAND = frozenset({"-help", "-help-all", "-version"})


class Grammar(msgspec.Struct, frozen=True):
    """The known flags, keyed by their spelling without dashes."""

    long_names: Mapping[str, Option]
    letters: Mapping[str, Option]


class Given(msgspec.Struct, frozen=True):
    """An option that was given, with its text."""

    option: Option
    text: str

    def __str__(self) -> str:
        return f"{self.option.flags[0]}={self.text}"


def grammar_of(options: Iterable[Option], letters: Mapping[str, Option] | None = None) -> Grammar:
    """Return the grammar of these options, with their own letters unless `letters` is given."""
    rows = tuple(options)
    own = {letter: option for option in rows for letter in option.letters}
    return Grammar({name: option for option in rows for name in option.long_names}, own if letters is None else letters)


def read(arguments: Iterable[str], grammar: Grammar) -> Iterator[Given | str]:
    """Yield the options in an argument list; other arguments, and options that lack their value, stay as they are."""
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


def normalize_arguments(arguments: Iterable[str], grammar: Grammar) -> list[str]:
    """Return the arguments with each option as `--flag=value` under its first name."""
    return [str(token) for token in read(arguments, grammar)]


def _read_long(token: str, rest: collections.deque[str], grammar: Grammar) -> list[Given]:
    """Parse a long flag, with one dash or two as in Go; return nothing for an unknown flag, or without its value."""
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
    """Parse flags of one letter: `-n`, `-r docker`, `-rdocker`, `-r=docker`, `-nr docker`."""
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


_DOCKER_LETTERS = types.MappingProxyType({"c": "config", "s": "socket", "r": "runtime_name", "d": "set_as_default"})
_CRIO_LETTERS = types.MappingProxyType({"d": "hooks_dir", "f": "hook_filename"})


def runtime_flags(engine: EngineName | None) -> Grammar:
    """Return the flags that RUNTIME_ARGS may hold: the engine step's, with the letters of this engine's former tool."""
    return _grammar(Step.RUNTIME, _CRIO_LETTERS if engine is EngineName.CRIO else _DOCKER_LETTERS)


def toolkit_flags() -> Grammar:
    """Return the flags that TOOLKIT_ARGS may hold: the install step's."""
    return _grammar(Step.INSTALL, {})


def parse(text: str, *, label: str, grammar: Grammar) -> dict[str, tuple[str, ...]]:
    """Return the texts given for each option, by its name; `label` is the variable or flag that held the string.

    Raises UsageError for bad quoting, for a flag of another step, and for anything left over.
    """
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{label}: {text!r} is not quoted as a shell would read it: {error}") from error
    found: dict[str, tuple[str, ...]] = {}
    for token in read(tokens, grammar):
        if not isinstance(token, Given):
            flags = sorted({option.flags[0] for option in grammar.long_names.values() if not option.hidden})
            raise UsageError(f"{label}: {_complaint(token, grammar)}", hint=f"allowed: {', '.join(flags)}")
        found[token.option.name] = (*found.get(token.option.name, ()), token.text)
    return found


def _grammar(step: Step, letters: Mapping[str, str]) -> Grammar:
    return grammar_of(
        (option for option in OPTIONS if option.step is step),
        {letter: BY_NAME[name] for letter, name in letters.items()},
    )


def _complaint(token: str, grammar: Grammar) -> str:
    name = token.lstrip("-")
    if token.startswith("-") and (name in grammar.long_names or name in grammar.letters):
        return f"{token!r} needs a value"
    if token.startswith("-"):
        return f"unknown flag {token!r}"
    return f"{token!r} is left over: only flags are allowed"
