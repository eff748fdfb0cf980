"""What tests of the node's own modules share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from toolkit_installer.node import signals


@pytest.fixture
def blocked() -> Iterator[None]:
    """Hold the signals back that the program handles, as it does by itself; none is left pending."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    yield
    while signals.take_signal() is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, old)
