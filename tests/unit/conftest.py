"""What several tests of modules share."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator

import pytest
import structlog

from toolkit_installer import log
from toolkit_installer.node import signals
from toolkit_installer.settings import LogFormat


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return what is logged in this test, wherever an earlier one had it written to."""
    stream = io.StringIO()
    log.configure(LogFormat.LOGFMT, debug=False, stream=stream)
    yield stream
    structlog.reset_defaults()


@pytest.fixture
def blocked() -> Iterator[None]:
    """Hold the signals back that the program handles, as it does by itself; none is left pending."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signals.HANDLED)
    yield
    while signals.take_signal() is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, old)
