"""Resolves each option: from the command line, else from *_ARGS strings, else from variables, else by default."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

import msgspec

from toolkit_installer.cli.options import argv, values
from toolkit_installer.cli.options.model import Option, Value
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

_LONGEST_SHOWN = 120
_T = typing.TypeVar("_T")
_Settings = typing.TypeVar(
    "_Settings", ClusterSettings, DeletionSettings, ReportSettings, ToolkitSettings, EngineSettings, Settings
)


class Answer(msgspec.Struct, frozen=True):
    """An option's value (None: not given, and no default) and its source (`label`; None: the default)."""

    value: Value | None
    text: str = ""
    label: str | None = None


class Sources(msgspec.Struct, frozen=True):
    """The caller's input: texts by option name from the command line, the environment, and the program's name."""

    values: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    program: Program

    def answer(self, option: Option, engine: EngineName | None = None) -> Answer:
        """Return the answer for one option, without the *_ARGS strings.

        Raises UsageError, which names the flag or the variable, its text, and what is allowed.
        """
        if texts := self.values.get(option.name):
            return answer_of(option, tuple(texts), option.flags[0])
        for variable in option.variables_for(engine):
            text = self.environment.get(variable)
            if text or (text is not None and option.empty_variable_counts):
                return answer_of(option, (text,), variable)
        default = option.default_under(self.program)
        if default is None:
            return Answer(None)
        return Answer(values.read(option, (default,)), default)

    def _strings(self, engine: EngineName | None) -> dict[str, Answer]:
        """Return the answers in the two *_ARGS strings, by option name."""
        answers: dict[str, Answer] = {}
        toolkit, runtime = argv.toolkit_flags(), argv.runtime_flags(engine)
        for name, grammar in (("toolkit_args", toolkit), ("runtime_args", runtime)):
            whole = self.answer(BY_NAME[name])
            if whole.label is None:
                continue
            for option_name, texts in argv.parse(whole.text, label=whole.label, grammar=grammar).items():
                option = BY_NAME[option_name]
                answers[option_name] = answer_of(option, texts, f"{option.flags[0]} in {whole.label}")
        return answers

    def answers(self, engine: EngineName | None, strings_of: EngineName | None) -> Answers:
        """Return the answer for every option, when this engine is configured (None: not known yet).

        `strings_of` is the engine whose letters the *_ARGS strings use: the one that the caller named.
        """
        strings = {name: found for name, found in self._strings(strings_of).items() if name not in self.values}
        return Answers({each.name: strings.get(each.name) or self.answer(each, engine) for each in OPTIONS})


class Answers(msgspec.Struct, frozen=True):
    """An answer for every option, by its name. Reading a value as another type is a bug: TypeError."""

    by_name: Mapping[str, Answer]

    def given(self, name: str) -> bool:
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

    def settings(self, kind: type[_Settings], **own: typing.Any) -> _Settings:
        """Return settings whose fields are taken from `own`, or else from the options of the same name."""
        found = ((name, self.by_name.get(name)) for name in kind.__struct_fields__)
        given = {name: answer.value for name, answer in found if answer is not None and answer.value is not None}
        return kind(**{**given, **own})

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list's value; empty if it was not given."""
        value = self.by_name[name].value
        return () if value is None else _typed(value, tuple, name)


def answer_of(option: Option, texts: tuple[str, ...], label: str) -> Answer:
    """Parse these texts. Raises UsageError, which names `label`, the texts and what is allowed."""
    text = ",".join(texts) if option.kind.is_list else texts[-1]
    try:
        return Answer(values.read(option, texts), text, label)
    except values.NotAllowedError as error:
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
