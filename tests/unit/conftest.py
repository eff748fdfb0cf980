"""What several tests of modules share."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from toolkit_installer import log
from toolkit_installer.settings import LogFormat


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return what is logged in this test, wherever an earlier one had it written to."""
    stream = io.StringIO()
    log.configure(LogFormat.LOGFMT, debug=False, stream=stream)
    yield stream
    structlog.reset_defaults()
