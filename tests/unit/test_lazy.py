"""A module that is stood in for is not there until something of it is used, and is the real one for everybody then."""

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
STOOD_IN = "import sys\nfrom toolkit_installer import lazy\nlazy.defer('asyncio')\n"
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
            f"import asyncio as first\nlazy.load_all()\nassert {THERE}\nimport asyncio as second\n"
            "assert type(first) is lazy.LazyModule is not type(second) and first.Lock is second.Lock"
        ),
        "import asyncio\nassert not hasattr(asyncio, 'nothing of that name')",
        (
            "lazy.defer('no_such_module')\nimport no_such_module\n"
            "try:\n    no_such_module.anything\nexcept ModuleNotFoundError:\n    pass\nelse:\n    raise SystemExit(1)"
        ),
    ],
    ids=["only-named", "used", "its-module", "from-it", "all-loaded", "not-of-it", "none-such"],
)
def test_a_module_that_is_put_off_comes_with_its_first_use_or_before_the_node_is_changed(then: str) -> None:
    assert python(STOOD_IN + then) == ""


@pytest.mark.parametrize(
    "given, then",
    [
        ("", "try:\n        import json\n        raise SystemExit(1)\n    except ImportError:\n        pass"),
        ("import json\nthere = json\n", "import json; assert json is there"),
    ],
    ids=["missing", "there-before"],
)
def test_a_module_that_is_kept_away_is_missing_for_that_long_unless_it_was_there_before(given: str, then: str) -> None:
    blocked = f"with lazy.block_import('json'):\n    {then}\n"
    text = f"from toolkit_installer import lazy\n{given}{blocked}import json; json.loads"
    assert python(text) == ""


def test_what_is_only_named_has_placeholders_meanwhile_and_is_the_real_one_afterwards() -> None:
    assert (
        python(
            "import sys\nfrom toolkit_installer import lazy\n"
            "with lazy.defer_during_import(decimal='Decimal', email__errors='MessageError'):\n"
            "    from decimal import Decimal\n    from email.errors import MessageError\n    import decimal as first\n"
            "    assert Decimal is MessageError is lazy.Placeholder\n"
            "    assert lazy.Placeholder.one.two is lazy.Placeholder and isinstance(Decimal(1, a=2), Decimal)\n"
            "    assert not hasattr(Decimal, '__fspath__')\n"
            "    assert '_decimal' not in sys.modules\n"
            "import decimal\nassert decimal.Decimal('1.5') * 2 == 3\n"
            "assert first.Decimal is decimal.Decimal\n"
            "import email.errors\nassert issubclass(email.errors.MessageError, Exception)\n"
        )
        == ""
    )


def test_after_a_line_nothing_of_structlog_is_there_that_only_names_things() -> None:
    names = "'pickle', 'structlog.dev', 'structlog.tracebacks', 'structlog.stdlib'"
    python(f"{LOGGED}\nassert not {{{names}}} & set(sys.modules), set(sys.modules)")


def test_what_the_program_puts_off_can_be_imported() -> None:
    """A release of click or msgspec without one of these modules would have a first install fail."""
    names = (
        "from toolkit_installer import __main__, lazy\n"
        "lazy.defer(*__main__._LATE, *(set(__main__._UNUSED) - {'psutil._ntuples'}))\n"  # psutil before 7.2 has none
        "lazy.load_all()\n"
    )
    assert python(names) == ""


def test_what_is_asked_of_psutil_needs_nothing_of_what_is_put_off() -> None:
    """It would be imported amid a change otherwise."""
    asked = (
        "import os, sys\nfrom toolkit_installer import lazy\nlazy.defer('psutil._ntuples')\nimport psutil\n"
        "own = psutil.Process()\nassert own.create_time() > 0 and own.ppid() == os.getppid() and own.environ()\n"
        "assert all(each.pid for each in own.parents())\n"
        "assert type(sys.modules['psutil._ntuples']) is lazy.LazyModule\n"
    )
    assert python(asked) == ""
