"""Resolves each option: from the command line, else from *_ARGS strings, else from variables, else by default.

The field's scripts were written for two generations of Go parsers, which read `-flag value`, `--flag=value`, bare
booleans and `--flag=false` alike. Here all become `--flag=value`: a boolean never swallows the argument after it.

RUNTIME_ARGS and TOOLKIT_ARGS, older manifests' strings of flags, are split by shlex rules, never passed to a shell.
"""

from __future__ import annotations

import collections
import shlex
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from toolkit_installer.cli.options import model
from toolkit_installer.cli.options.model import Kind, Option, Step, Value
from toolkit_installer.cli.options.table import BY_NAME, OPTIONS
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import (
    ClusterSettings,
    DeletionSettings,
    EngineName,
    EngineSettings,
    Program,
    ReportSettings,
    Settings,
    ToolkitSettings,
)

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


def read_arguments(arguments: Iterable[str], grammar: Grammar) -> Iterator[Given | str]:
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
    return [str(token) for token in read_arguments(arguments, grammar)]


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


def runtime_grammar(engine: EngineName | None) -> Grammar:
    """Return the flags that RUNTIME_ARGS may hold: the engine step's, with the letters of this engine's former tool."""
    return _step_grammar(Step.RUNTIME, _CRIO_LETTERS if engine is EngineName.CRIO else _DOCKER_LETTERS)


def toolkit_grammar() -> Grammar:
    """Return the flags that TOOLKIT_ARGS may hold: the install step's."""
    return _step_grammar(Step.INSTALL, {})


def parse_string(text: str, *, label: str, grammar: Grammar) -> dict[str, tuple[str, ...]]:
    """Return the texts given for each option, by its name; `label` is the variable or flag that held the string.

    Raises UsageError for bad quoting, for a flag of another step, and for anything left over.
    """
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{label}: {text!r} is not quoted as a shell would read it: {error}") from error
    found: dict[str, tuple[str, ...]] = {}
    for token in read_arguments(tokens, grammar):
        if not isinstance(token, Given):
            flags = sorted({option.flags[0] for option in grammar.long_names.values() if not option.hidden})
            raise UsageError(f"{label}: {_complaint(token, grammar)}", hint=f"allowed: {', '.join(flags)}")
        found[token.option.name] = (*found.get(token.option.name, ()), token.text)
    return found


def _step_grammar(step: Step, letters: Mapping[str, str]) -> Grammar:
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


_LONGEST_SHOWN = 120
_T = typing.TypeVar("_T")
_Settings = typing.TypeVar(
    "_Settings", ClusterSettings, DeletionSettings, ReportSettings, ToolkitSettings, EngineSettings, Settings
)


class OptionValue(msgspec.Struct, frozen=True):
    """An option's value (None: not given, and no default) and its source (`label`; None: the default)."""

    value: Value | None
    text: str = ""
    label: str | None = None


class OptionSources(msgspec.Struct, frozen=True):
    """The caller's input: texts by option name from the command line, the environment, and the program's name."""

    values: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    program: Program

    def resolve(self, option: Option, engine: EngineName | None = None) -> OptionValue:
        """Return the value of one option, without the *_ARGS strings.

        Raises UsageError, which names the flag or the variable, its text, and what is allowed.
        """
        if texts := self.values.get(option.name):
            return parse_texts(option, tuple(texts), option.flags[0])
        for variable in option.variables_for(engine):
            text = self.environment.get(variable)
            if text or (text is not None and option.empty_variable_counts):
                return parse_texts(option, (text,), variable)
        default = option.default_under(self.program)
        if default is None:
            return OptionValue(None)
        return OptionValue(model.parse_value(option, (default,)), default)

    def _resolve_strings(self, engine: EngineName | None) -> dict[str, OptionValue]:
        """Return the values in the two *_ARGS strings, by option name."""
        found: dict[str, OptionValue] = {}
        toolkit, runtime = toolkit_grammar(), runtime_grammar(engine)
        for name, grammar in (("toolkit_args", toolkit), ("runtime_args", runtime)):
            whole = self.resolve(BY_NAME[name])
            if whole.label is None:
                continue
            for option_name, texts in parse_string(whole.text, label=whole.label, grammar=grammar).items():
                option = BY_NAME[option_name]
                found[option_name] = parse_texts(option, texts, f"{option.flags[0]} in {whole.label}")
        return found

    def resolve_all(self, engine: EngineName | None, strings_of: EngineName | None) -> OptionValues:
        """Return the value of every option, when this engine is configured (None: not known yet).

        `strings_of` is the engine whose letters the *_ARGS strings use: the one that the caller named.
        """
        strings = {name: found for name, found in self._resolve_strings(strings_of).items() if name not in self.values}
        return OptionValues({each.name: strings.get(each.name) or self.resolve(each, engine) for each in OPTIONS})


class OptionValues(msgspec.Struct, frozen=True):
    """The value of every option, by its name. Reading a value as another type is a bug: TypeError."""

    by_name: Mapping[str, OptionValue]

    def is_given(self, name: str) -> bool:
        """Return whether an option was given."""
        return self.by_name[name].label is not None

    def flag(self, name: str) -> bool:
        """Return a boolean's value."""
        return _typed(self.by_name[name].value, bool, name)

    def text(self, name: str) -> str:
        """Return the text of an option that has a default."""
        return _typed(self.by_name[name].value, str, name)

    def text_or_none(self, name: str) -> str | None:
        """Return the text of an option that need not be given."""
        return None if self.by_name[name].value is None else self.text(name)

    def make_settings(self, kind: type[_Settings], **own: typing.Any) -> _Settings:
        """Return settings whose fields are taken from `own`, or else from the options of the same name."""
        found = ((name, self.by_name.get(name)) for name in kind.__struct_fields__)
        given = {name: option.value for name, option in found if option is not None and option.value is not None}
        return kind(**{**given, **own})

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list's value; empty if it was not given."""
        value = self.by_name[name].value
        return () if value is None else _typed(value, tuple, name)


def parse_texts(option: Option, texts: tuple[str, ...], label: str) -> OptionValue:
    """Parse these texts. Raises UsageError, which names `label`, the texts and what is allowed."""
    text = ",".join(texts) if option.kind.is_list else texts[-1]
    try:
        return OptionValue(model.parse_value(option, texts), text, label)
    except model.NotAllowedError as error:
        shown = repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}..."
        meant = find_nearest(text, option.choices)
        suggestion = f"did you mean {meant!r}? " if meant is not None else ""
        raise UsageError(f"{label}: {shown} is not allowed", hint=f"{suggestion}allowed: {error.allowed}") from error


def find_nearest(text: str, words: Sequence[str]) -> str | None:
    """Return the word that was probably meant, None if none is similar. Pure."""
    import difflib  # noqa: PLC0415  # for mistakes only

    # as plain strings: a member of an enumeration would be printed as such
    found = difflib.get_close_matches(text[:_LONGEST_SHOWN], [str(word) for word in words], n=1)
    return found[0] if found else None


def find_near_misses(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that no option has, each with the variable that was probably meant. Pure.

    The former is spelled like an option's flag, or differs from an option's variable by one character.
    """
    known = {variable: option for option in OPTIONS for variable in option.variables}
    by_flag = {
        flag.lstrip("-").replace("-", "_").replace(".", "_").upper(): option.variables[0]
        for option in OPTIONS
        if option.variables
        for flag in option.flags
        if len(flag) > _SHORTEST
    }
    found = []
    for name in environment:
        if name in known or name.startswith("_") or len(name) < _SHORTEST:
            continue
        # one edit leaves the first or the last character as it is; a pod has hundreds of variables
        similar = (each for each in known if each[0] == name[0] or each[-1] == name[-1])
        meant = by_flag.get(name) or next((each for each in similar if _is_one_edit_away(name, each)), None)
        if meant is not None:
            found.append((name, meant))
    return found


_SHORTEST = 6
"""The fewest characters of a name that is compared: shorter names are similar by chance."""


def _is_one_edit_away(one: str, other: str) -> bool:
    """Return whether two names differ by one character: missing, added, replaced, or swapped with the next."""
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((place for place, letter in enumerate(one) if other[place : place + 1] != letter), len(one))
    one, other = one[start:], other[start:]
    return (
        one[1:] == other[1:] or one[1:] == other or one == other[1:] or (one[1::-1], one[2:]) == (other[:2], other[2:])
    )


def _typed(value: Value | None, kind: type[_T], name: str) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}, no {kind.__name__}")
    return value
