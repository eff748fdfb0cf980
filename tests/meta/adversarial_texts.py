"""Texts on which a regular expression may be slow: repetitions of its own parts, and near misses behind them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")
"""The parser of the engine itself: no other knows all of what a pattern may have."""
_CANDIDATES = "a0/ -A.\"'\n\\,=:_{[#@\t\r(é\0zf%"
"""What stands for a set of characters: the first few of these that are in it."""
_FEW = 3
_ENDS = ("", "\0", "\n")
"""What a text ends with: a repetition that goes on to the end is the best case of many patterns, and not the worst."""
_CATEGORIES: dict[Any, Any] = {
    codes.CATEGORY_DIGIT: str.isdigit,
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    codes.CATEGORY_NOT_DIGIT: lambda character: not character.isdigit(),
    codes.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    codes.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}
_Node = tuple[Any, Any]


def texts(pattern: str, flags: int, length: int) -> Iterator[str]:
    """Yield texts of about `length` characters, each a repetition of a part of the pattern behind the parts before."""
    tree = list(parser.parse(pattern, flags))
    ends = dict.fromkeys([*_ENDS, _samples(tree[:1])[0], _samples(tree)[0]])
    seen = set()
    for before, part in _parts(tree, ""):
        if part and (before, part) not in seen:
            seen.add((before, part))
            body = before + part * (length // len(part))
            yield from (body + end for end in ends)


def _parts(nodes: Sequence[_Node], before: str) -> Iterator[tuple[str, str]]:
    """Yield each run of neighbouring nodes as (a text for all that comes before, a text for the run).

    Letters in a row count as one.
    """
    runs = [list(run) for _, run in itertools.groupby(nodes, lambda node: node[0] is codes.LITERAL or id(node))]
    for start, end in itertools.combinations(range(len(runs) + 1), 2):
        ahead = before + _samples(itertools.chain(*runs[:start]))[0]
        for sample in _samples(itertools.chain(*runs[start:end])):
            yield ahead, sample
            yield "", sample
    for number, node in enumerate(nodes):
        ahead = before + _samples(nodes[:number])[0]
        for inner in _inside(node):
            yield from _parts(inner, ahead)


def _inside(node: _Node) -> Iterator[list[_Node]]:
    """Yield the sequences of nodes that a node is made of."""
    code, given = node
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        yield list(given[2])
    elif code is codes.SUBPATTERN:
        yield list(given[3])
    elif code is codes.BRANCH:
        yield from map(list, given[1])
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield list(given[1])


def _samples(nodes: Iterable[_Node]) -> list[str]:
    """Return a few texts that such a sequence matches, short ones; assertions are taken to hold."""
    columns = [_samples_of(node) for node in nodes]
    width = max(map(len, columns), default=1)
    # the n-th of each, not each with each: what matters is that neighbours can be the same characters, or others
    rows = ["".join(column[number % len(column)] for column in columns) for number in range(width)]
    return list(dict.fromkeys(rows)) or [""]


def _samples_of(node: _Node) -> list[str]:
    code, given = node
    if code is codes.LITERAL:
        return [chr(given)]
    if code in (codes.NOT_LITERAL, codes.ANY, codes.IN):
        return [each for each in _CANDIDATES if _is_in(each, node)][:_FEW] or [chr(_lowest(given))]
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most, inner = given
        times = max(int(least), min(1, int(most)))
        samples = [each * times for each in _samples(inner)]
        return samples if least else [*samples, ""]
    if code is codes.BRANCH:
        return [sample for branch in given[1] for sample in _samples(branch)[:2]]
    if code is codes.SUBPATTERN:
        return _samples(given[3])
    return [""]  # AT, ASSERT, ASSERT_NOT, GROUPREF


def _is_in(character: str, node: _Node) -> bool:
    code, given = node
    if code is codes.ANY:
        return character != "\n"
    if code is codes.NOT_LITERAL:
        return ord(character) != int(given)
    negated = any(each is codes.NEGATE for each, _ in given)
    return negated != any(_has(each, what, character) for each, what in given)


def _has(code: Any, given: Any, character: str) -> bool:
    if code is codes.LITERAL:
        return ord(character) == int(given)
    if code is codes.RANGE:
        return int(given[0]) <= ord(character) <= int(given[1])
    return code is codes.CATEGORY and bool(_CATEGORIES[given](character))


def _lowest(members: Any) -> int:
    return min(int(given if code is codes.LITERAL else given[0]) for code, given in members if code is not codes.NEGATE)


def as_text(pattern: str | bytes) -> str:
    """Return a pattern's text; one of bytes is taken for one of characters: the engine does the same with both."""
    return pattern if isinstance(pattern, str) else pattern.decode("latin-1")
