"""A lazy module is imported when something of it is used, and is the real one for everybody then."""

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
UNUSED = "assert not any(name.startswith('asyncio.') for name in sys.modules)"
DEFERRED = "import sys\nfrom toolkit_installer import lazy\nlazy.defer('asyncio')\n"
THERE = "'asyncio.events' in sys.modules"


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


@pytest.mark.parametrize(
    "then",
    [
        f"import asyncio\nassert not {THERE}",
        (
            f"import asyncio\nassert asyncio.Lock.__name__ == 'Lock' and {THERE}\nimport asyncio\n"
            "assert type(asyncio) is type(sys)"
        ),
        f"import asyncio.locks\nassert asyncio.locks.Lock and asyncio.run and {THERE}",
        f"from asyncio import Lock\nassert {THERE}",
        (
            f"import asyncio as first\nimport asyncio.events\nassert {THERE}\nimport asyncio as second\n"
            "assert type(first) is lazy.LazyModule is not type(second) and first.Lock is second.Lock"
        ),
        "import asyncio\nassert not hasattr(asyncio, 'nothing of that name')",
        (
            "lazy.defer('no_such_module')\nimport no_such_module\n"
            "try:\n    no_such_module.anything\nexcept ModuleNotFoundError:\n    pass\nelse:\n    raise SystemExit(1)"
        ),
    ],
    ids=["only-named", "used", "its-module", "from-it", "one-asyncio", "not-of-it", "none-such"],
)
def test_a_lazy_module_is_imported_by_its_first_use(then: str) -> None:
    assert python(DEFERRED + then) == ""


def test_queries_of_psutil_import_no_lazy_module() -> None:
    """It would be imported amid a change otherwise."""
    asked = (
        "import os, sys\nfrom toolkit_installer import lazy\nlazy.defer('psutil._ntuples')\nimport psutil\n"
        "own = psutil.Process()\nassert own.create_time() > 0 and own.ppid() == os.getppid() and own.environ()\n"
        "assert all(each.pid for each in own.parents())\n"
        "assert type(sys.modules['psutil._ntuples']) is lazy.LazyModule\n"
    )
    assert python(asked) == ""
