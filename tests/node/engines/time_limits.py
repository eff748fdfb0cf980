"""The program's time limits for an engine's answer, on a machine that may be busy with anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from tests.node.faults import PRELOADED

_LIMIT = "_QUERY_SECONDS"
_SECONDS = 120.0
LIMITED = tuple(module for module in PRELOADED if hasattr(module, _LIMIT))
"""Every module of the program that gives an engine a time of its own to answer one question."""
assert {module.__name__.rpartition(".")[2] for module in LIMITED} == {
    *("crio.engine", "decide", "engine", "reload", "serving", "status", "toolkit_users")
} - {"crio.engine"}, LIMITED


@contextlib.contextmanager
def with_engines() -> Iterator[None]:
    """Have the program wait for an engine that answers, however busy the machine is.

    By itself it takes one that is late for one that is down, or that may still offer the handlers: both are right on a
    node, and neither is what a test means that has an engine answer.
    """
    with contextlib.ExitStack() as stack:
        for module in LIMITED:
            stack.enter_context(mock.patch.object(module, _LIMIT, _SECONDS))
        yield
