"""A line is logged without asyncio, which structlog names; whoever needs it gets the real one."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOGGED = """
import sys
from toolkit_installer import log
from toolkit_installer.settings import LogFormat
log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
log.get().info("a line")
"""
UNUSED = "assert 'asyncio' not in sys.modules and not any(name.startswith('asyncio.') for name in sys.modules)"


def python(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "then",
    [
        UNUSED,
        "import asyncio; asyncio.run(asyncio.sleep(0))",
        "import asyncio.events; asyncio.events.new_event_loop().close()",
        "import structlog, asyncio; asyncio.run(structlog.get_logger().ainfo('another'))",
        "import structlog; structlog._native.asyncio.run(structlog.get_logger().ainfo('another'))",
        "import asyncio, structlog; assert structlog._native.asyncio.sleep is asyncio.sleep",
    ],
    ids=["unused", "asyncio", "its-module", "structlog-and-asyncio", "structlog-alone", "one-asyncio"],
)
def test_after_a_line_asyncio_is_not_there_and_works_once_it_is_wanted(then: str) -> None:
    said = python(f"{LOGGED}\n{then}")
    assert 'msg="a line"' in said
    assert ("another" in then) == ('msg="another"' in said or "msg=another" in said)


def test_an_asyncio_that_is_there_already_stays() -> None:
    assert python(f"import asyncio\nthere = asyncio{LOGGED}\nimport asyncio; assert asyncio is there")


def test_a_structlog_that_wants_asyncio_at_once_gets_it() -> None:
    """Of a later release, maybe: the stand-in makes room for the real one."""
    wanting = "import importlib\nfound = importlib.import_module('structlog._native')\nimport asyncio\n"
    stand_in = (
        "import sys\nfrom toolkit_installer import log\n"
        "sys.modules['asyncio'] = log._Unused('asyncio')\n"
        "import asyncio\nassert asyncio.Lock.__name__ == 'Lock'\n"
        "import asyncio\nassert type(asyncio) is type(sys)\nimport asyncio.events\n"
    )
    assert python(stand_in + wanting) == ""


def test_with_a_module_of_it_imported_by_the_stand_in_the_real_one_is_there() -> None:
    stand_in = "import sys\nfrom toolkit_installer import log\nsys.modules['asyncio'] = log._Unused('asyncio')\n"
    assert python(f"{stand_in}import asyncio.locks\nassert asyncio.locks.Lock and asyncio.run") == ""
