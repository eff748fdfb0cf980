"""Puts a recorder, or a player, in the place of every seam for as long as a node is looked at.

A function is known in each module that imported it by name: it is replaced in all of them, so that none is left through
which the node could be reached. That takes all modules to be there before.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from toolkit_installer.engines.api import Live
from toolkit_installer.lifecycle import beforehand
from toolkit_installer.lifecycle.capture import seams
from toolkit_installer.lifecycle.capture.recording import Recorder
from toolkit_installer.lifecycle.capture.replaying import NotCapturedError, Player
from toolkit_installer.lifecycle.capture.seams import Question, Seam
from toolkit_installer.settings import EngineName

_PACKAGE = "toolkit_installer."


class _Asked(Protocol):
    """A recorder, or a player."""

    def asked(self, question: Question, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Answer what is asked at a seam."""


def prepare() -> None:
    """Import all that has a seam, before anything is forked."""
    _questions()


@contextlib.contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Have a recorder hear all that is asked of the node."""
    with _replaced(_at_all_seams(recorder)):
        yield


@contextlib.contextmanager
def played_by(player: Player) -> Iterator[None]:
    """Have a player answer all that is asked of a node."""
    replaced = _at_all_seams(player)
    digest = _at(seams.DIGEST)
    replaced |= {
        seams.DIGEST: functools.wraps(digest)(lambda content: player.digest(digest(content))),
        seams.REST: player.rest,
        seams.MONOTONIC: player.monotonic,
    }
    for engine, seam in seams.trials():
        replaced[seam] = _tried(player, _at(seam), engine)
    for engine, seam in seams.talks():
        if engine in player.versions:
            replaced[seam] = _supposed(player, _at(seam), engine)
    with _replaced(replaced):
        yield


def _at_all_seams(asked: _Asked) -> dict[Seam, Callable[..., Any]]:
    return {question.seam: _tapped(asked, question) for question in _questions()}


@functools.cache
def _questions() -> tuple[Question, ...]:
    beforehand.everything()
    return tuple(seams.questions())


def _tapped(asked: _Asked, question: Question) -> Callable[..., Any]:
    @functools.wraps(question.function)
    def ask(*given: Any, **named: Any) -> Any:
        return asked.asked(question, given, named)

    return ask


def _tried(player: Player, function: Callable[..., Any], engine: EngineName) -> Callable[..., Any]:
    """Return what lets an engine's own binary say nothing about a text that it was not asked about."""

    @functools.wraps(function)
    def try_out(*given: Any, **named: Any) -> None:
        try:
            with player.trying(engine):
                function(*given, **named)
        except NotCapturedError:
            player.untried[str(engine)] = None

    # as a method that has no need of its object was written
    return staticmethod(try_out) if isinstance(function, staticmethod) else try_out


def _supposed(player: Player, function: Callable[..., Any], engine: EngineName) -> Callable[..., Any]:
    """Return what lets an engine be of another version than the one that it says."""

    @functools.wraps(function)
    def ask(*given: Any, **named: Any) -> Live:
        live: Live = function(*given, **named)
        player.captured[str(engine)] = live.version
        return msgspec.structs.replace(live, version=player.versions[engine])

    return ask


def _at(seam: Seam) -> Callable[..., Any]:
    place, name = seam.owner()
    found: Callable[..., Any] = vars(place)[name]
    return found


@contextlib.contextmanager
def _replaced(replacements: dict[Seam, Callable[..., Any]]) -> Iterator[None]:
    undone = []
    known: dict[int, Callable[..., Any]] = {}
    for seam, function in replacements.items():
        place, name = seam.owner()
        original = vars(place)[name]
        known[id(original)] = function
        undone.append((place, name, original))
    # methods have one place; functions one in each module that names them
    for module in [each for name, each in sys.modules.items() if name.startswith(_PACKAGE)]:
        undone += [(module, name, value) for name, value in list(vars(module).items()) if id(value) in known]
    try:
        for place, name, original in undone:
            setattr(place, name, known[id(original)])
        yield
    finally:
        for place, name, original in undone:
            setattr(place, name, original)
