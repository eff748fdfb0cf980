"""Functions in the place of others, for processes that run thousands of commands: they remember no call.

A mock keeps each call with all that it was given, and an exception that is raised again keeps each frame it was seen
in: the process grows with every command, and so does what each fork of it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def answering(answer: T) -> Callable[..., T]:
    """Return a function that answers so whatever it is given."""

    def call(*_: Any, **__: Any) -> T:
        return answer

    return call


def failing(kind: type[Exception], *arguments: object) -> Callable[..., NoReturn]:
    """Return a function that raises a new exception each time, whatever it is given."""

    def call(*_: Any, **__: Any) -> NoReturn:
        raise kind(*arguments)

    return call
