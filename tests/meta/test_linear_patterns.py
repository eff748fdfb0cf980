"""Every regular expression of the package takes time in proportion to its text, whatever the text is.

The engine's steps cannot be counted from outside, so it is timed: a text that takes less than FLOOR_SECONDS is quick
enough at any rate, and every other may take six times as long where it is four times as long.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import signal
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toolkit_installer
from tests.meta import adversarial_texts
from toolkit_installer.engines.containerd import config_files
from toolkit_installer.engines.detect import kubelet

_PACKAGE = Path(toolkit_installer.__file__).parent
_METHODS = frozenset({"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
_ANCHORED = frozenset({"match", "fullmatch"})
_MATCHING = frozenset({"take", "_after", "_matched"})
"""Functions that match the pattern that they are given at one place."""
_LENGTH = 1500
_FLOOR_SECONDS = 0.003
_MOST_SECONDS = 1
_MOST_TIMES = 6
_ATTEMPTS = 5

_MADE_AT_RUN_TIME = {
    "cli.options.model:pattern": "the patterns of options, whose texts are short",
    "documents.toml_edit:f'(?m)^# {re.escape(marker)}\\\\r?\\\\n'": "a line that is given",
    "documents.toml_edit:f'(?m)^# {re.escape(marker)}(?:\\\\r?\\\\n|\\\\Z)'": "a line that is given",
    "engines.containerd.layouts:rule[0]": "the rows' own patterns, of which each matches at the start",
    "engines.containerd.config_files:text": "characters and sets: test_a_glob_takes_time_in_proportion_to_the_name",
    "engines.containerd.templates:alone": "a prefix that the text has nowhere else, and six digits",
    "engines.containerd.templates:b'(?m)^([ \\\\t]*)# (?=(?:%s[ \\\\t]*)+\\\\r?$)' % number": "likewise",
    "engines.containerd.templates:number": "likewise",
    "waiting.refresh_command:pattern": "hexadecimal digits of one length after a name; the kernel's path is short",
    "engines.detect.kubelet:pattern": "test_a_kubelets_option_is_found_in_linear_time",
}
"""Patterns that only a running program knows, and why they are linear."""


@dataclasses.dataclass(frozen=True)
class Used:
    """A pattern, where it stands, and how it is used."""

    place: str
    text: str
    flags: int
    anchored: str
    """The method, where it is only matched at one place; else it is searched for."""


class _SlowError(Exception):
    pass


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(_PACKAGE.rglob("*.py")):
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _ends_with(node: ast.expr) -> str:
    """Return the last name of `a`, `a.b` and the like."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _methods_of(trees: dict[str, ast.Module]) -> dict[tuple[str, str], set[str]]:
    """Return which methods are called of each name, by the module; of public names in any module, under ""."""
    found: dict[tuple[str, str], set[str]] = {}

    def note(module: str, name: str, method: str) -> None:
        found.setdefault((module if name.startswith("_") else "", name), set()).add(method)

    for module, tree in trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            function = ast.unparse(call.func)
            if function.startswith("re.") and function[3:] in _METHODS:
                note(module, _ends_with(call.args[0]), function[3:])
            elif isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
                for node in ast.walk(call.func.value):
                    if isinstance(node, (ast.Name, ast.Attribute)):
                        note(module, _ends_with(node), call.func.attr)
            elif _ends_with(call.func) in _MATCHING:
                note(module, _ends_with(call.args[0]), "match")
    return found


def _names_of(tree: ast.Module) -> dict[int, str]:
    """Return the name that each call's result is given, by its line."""
    return {
        node.value.lineno: ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call)
    }


def _found() -> tuple[list[Used], list[str]]:
    """Return all patterns of the package, and the places of those that only a running program knows."""
    trees = dict(_modules())
    methods = _methods_of(trees)
    found, unknown = [], []
    for module, tree in trees.items():
        short, names = module.removeprefix("toolkit_installer."), _names_of(tree)
        known = vars(importlib.import_module(module))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            function = ast.unparse(call.func)
            makes = function == "re.compile"
            if not makes and not (function.startswith("re.") and function[3:] in _METHODS):
                continue
            source = ast.unparse(call.args[0])
            try:
                pattern: Any = eval(source, dict(known))  # noqa: S307  # the package's own text
                flags = eval(ast.unparse(call.args[1]), dict(known)) if makes and call.args[1:] else 0  # noqa: S307
            except NameError:
                unknown.append(f"{short}:{source}")
                continue
            if isinstance(pattern, re.Pattern):
                continue  # it is found where it is made
            if makes:
                name = names.get(call.lineno, "")
                used = methods.get((module if name.startswith("_") else "", name), set())
            else:
                used = {function[3:]}
            anchored = min(used) if used and used <= _ANCHORED else ""
            text = adversarial_texts.as_text(pattern)
            found.append(Used(f"{short}:{call.lineno}", text, int(flags), anchored))
    return found, unknown


FOUND, UNKNOWN = _found()


def _seconds(pattern: re.Pattern[str], method: str, text: str) -> float:
    """Return the processor time that a pattern takes for a text. Raises _SlowError."""

    def end(_number: int, _frame: object) -> None:
        raise _SlowError

    handler = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 10 * _MOST_SECONDS)
        begun = time.thread_time()
        getattr(pattern, method)(text) if method else deque(pattern.finditer(text), 0)
        return time.thread_time() - begun
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def slow_text(pattern: re.Pattern[str], method: str) -> str:
    """Return how a text begins for which a pattern takes more than linear time, "" where none was found."""
    for text in adversarial_texts.texts(pattern.pattern, pattern.flags & ~re.UNICODE, 4 * _LENGTH):
        try:
            if not _is_linear(pattern, method, text):
                return text[:40]
        except _SlowError:
            return text[:40]
    return ""


def _is_linear(pattern: re.Pattern[str], method: str, text: str) -> bool:
    quarter = text[: len(text) // 4] + text[-1:]
    short = long = float("inf")
    for _ in range(_ATTEMPTS):  # the least of several: the machine has other work
        long = min(long, _seconds(pattern, method, text))
        if long < _FLOOR_SECONDS:
            return True
        short = min(short, _seconds(pattern, method, quarter))
        if long <= _MOST_TIMES * short:
            return True
    return False


@pytest.mark.parametrize("used", FOUND, ids=lambda used: used.place)
def test_a_pattern_takes_linear_time(used: Used) -> None:
    slow = slow_text(re.compile(used.text, used.flags), used.anchored)
    assert not slow, f"{used.text!r} on {slow!r}…"


def test_each_pattern_of_the_package_is_tried_or_its_reason_is_here() -> None:
    assert len(FOUND) > 100
    assert set(UNKNOWN) == _MADE_AT_RUN_TIME.keys()


@pytest.mark.parametrize(
    "pattern, method",
    [(r"(/[^\"'\s]*)/toolkit\b", ""), (r"a+a+b", "match"), (r"(?:a|aa)+b", "match"), (r"@[0-9a-f]+[^@]*\Z", "")],
)
def test_a_slow_pattern_is_found(pattern: str, method: str) -> None:
    assert slow_text(re.compile(pattern), method)


@pytest.mark.parametrize("text", ["{", "containerRuntimeEndpoint ", "containerRuntimeEndpoint", "{ ,", '"', " ", "a{"])
def test_a_kubelets_option_is_found_in_linear_time(text: str) -> None:
    def seconds(times: int) -> float:
        begun = time.thread_time()
        kubelet.parse_plain_value(text * times, "containerRuntimeEndpoint")
        return time.thread_time() - begun

    assert any(seconds(8000) < max(_FLOOR_SECONDS, _MOST_TIMES * seconds(2000)) for _ in range(_ATTEMPTS))


def test_a_glob_takes_time_in_proportion_to_the_name() -> None:
    begun = time.thread_time()
    assert not config_files.matches("*a" * 100 + "b", "a" * 255)
    assert config_files.matches("*a" * 100 + "*", "a" * 255)
    assert time.thread_time() - begun < _MOST_SECONDS
