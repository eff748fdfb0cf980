"""Doing work again that somebody else disturbed by writing the same file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.files import ChangedMeanwhileError

_Result = TypeVar("_Result")
_ATTEMPTS = 3
"""How often a plan is made again because somebody else wrote the same file meanwhile."""


def undisturbed(work: Callable[[], _Result]) -> _Result:
    """Do the work, and do it again if somebody else wrote the same file meanwhile; return what it returns.

    Raises ConfigurationError if that happens over and over.
    """
    for _ in range(1, _ATTEMPTS):
        try:
            return work()
        except ChangedMeanwhileError as error:
            log.get().warning("Somebody changed the file meanwhile: planning again", file=error.path)
    try:
        return work()
    except ChangedMeanwhileError as error:
        raise ConfigurationError(
            f"somebody else changed it {_ATTEMPTS} times while it was edited",
            path=error.path,
            hint="find out who writes it; then start again",
        ) from error
