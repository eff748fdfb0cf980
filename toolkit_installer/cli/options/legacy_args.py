"""RUNTIME_ARGS and TOOLKIT_ARGS, older manifests' strings of flags: split by shlex rules, never given to a shell."""

from __future__ import annotations

import shlex
import types
from collections.abc import Mapping

from toolkit_installer.cli.options import argv
from toolkit_installer.cli.options.argv import Given, Grammar
from toolkit_installer.cli.options.model import Step
from toolkit_installer.cli.options.table import BY_NAME, OPTIONS
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName

_DOCKER_LETTERS = types.MappingProxyType({"c": "config", "s": "socket", "r": "runtime_name", "d": "set_as_default"})
_CRIO_LETTERS = types.MappingProxyType({"d": "hooks_dir", "f": "hook_filename"})


def runtime_flags(engine: EngineName | None) -> Grammar:
    """Return the flags that RUNTIME_ARGS may hold: the engine step's, with the letters that this engine's tool had."""
    return _grammar(Step.RUNTIME, _CRIO_LETTERS if engine is EngineName.CRIO else _DOCKER_LETTERS)


def toolkit_flags() -> Grammar:
    """Return the flags that TOOLKIT_ARGS may hold: the install step's."""
    return _grammar(Step.INSTALL, {})


def parse(text: str, *, label: str, grammar: Grammar) -> dict[str, tuple[str, ...]]:
    """Return the texts given for each option, by its name; `label` is the variable or flag that held the string.

    Raises UsageError for bad quoting, for what is no flag of this step, and for anything left over.
    """
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{label}: {text!r} is not quoted as a shell would read it: {error}") from error
    found: dict[str, tuple[str, ...]] = {}
    for token in argv.read(tokens, grammar):
        if not isinstance(token, Given):
            flags = sorted({option.flags[0] for option in grammar.long_names.values() if not option.hidden})
            raise UsageError(f"{label}: {_complaint(token, grammar)}", hint=f"allowed: {', '.join(flags)}")
        found[token.option.name] = (*found.get(token.option.name, ()), token.text)
    return found


def _grammar(step: Step, letters: Mapping[str, str]) -> Grammar:
    return argv.grammar_of(
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
