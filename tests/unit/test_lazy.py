"""A module that is stood in for is not there until something of it is used, and is the real one for everybody then.

What the regular expressions may not use.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit_installer
from toolkit_installer import lazy

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
def test_a_deferred_module_is_loaded_at_its_first_use_or_before_the_node_is_changed(then: str) -> None:
    assert python(STOOD_IN + then) == ""


@pytest.mark.parametrize(
    "given, then",
    [
        ("", "try:\n        import json\n        raise SystemExit(1)\n    except ImportError:\n        pass"),
        ("import json\nthere = json\n", "import json; assert json is there"),
    ],
    ids=["missing", "there-before"],
)
def test_a_blocked_module_is_missing_for_that_long_unless_it_was_loaded_before(given: str, then: str) -> None:
    blocked = f"with lazy.block_import('json'):\n    {then}\n"
    text = f"from toolkit_installer import lazy\n{given}{blocked}import json; json.loads"
    assert python(text) == ""


def test_placeholders_stand_for_names_until_the_real_ones_replace_them() -> None:
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


_PACKAGE = Path(toolkit_installer.__file__).parent
_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")


@pytest.mark.parametrize("path", sorted(_PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(_PACKAGE)))
def test_no_group_is_possessive_since_python_before_3_11_5_matches_those_wrongly(path: Path) -> None:
    """Debian 12 has 3.11.2. There `(?:a|bc)*+d` finds other texts than later ones do (Python's gh-106052)."""
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if _POSSESSIVE_GROUP.search(line)]
    assert not found


def test_the_rule_knows_such_a_group() -> None:
    for pattern in (r"(?:a|bc)*+", "(a){1,2}+", "(?>a)", "(a)?+"):
        assert _POSSESSIVE_GROUP.search(pattern), pattern
    for pattern in (r"[^a]*+", r"\)*+", "(?:[^a]++)*"):
        assert not _POSSESSIVE_GROUP.search(pattern), pattern


COMPILE_ALL = """
import importlib, sys
from toolkit_installer import lazy
found = []
class Noted(lazy.LazyPattern):
    def __init__(self, text, flags):
        super().__init__(text, flags)
        found.append(self)
lazy.LazyPattern = Noted
for name in sys.argv[1:]:
    importlib.import_module(name)
for pattern in found:
    pattern.compiled()
print(len(found))
"""


def test_every_pattern_that_is_compiled_when_it_is_used_first_can_be() -> None:
    files = [path.relative_to(_PACKAGE.parent).with_suffix("") for path in _PACKAGE.rglob("*.py")]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_ALL, *sorted(modules)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_no_module_compiles_a_pattern_when_it_is_imported() -> None:
    """A start would pay for each, and most commands use few. What a function compiles is made for what it is given."""
    compiled = {
        f"{path.relative_to(_PACKAGE)}:{node.lineno}"
        for path in _PACKAGE.rglob("*.py")
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
    }
    assert not compiled


def test_a_pattern_that_is_compiled_when_it_is_used_first_does_what_the_pattern_does() -> None:
    pattern, plain = lazy.pattern("a(b+)", re.IGNORECASE), re.compile("a(b+)", re.IGNORECASE)
    for text in ("xABBy", "", "ab"):
        assert bool(pattern.match(text)) == bool(plain.match(text))
        assert pattern.sub("-", text) == plain.sub("-", text)
        assert pattern.findall(text) == plain.findall(text)
    assert pattern.pattern == plain.pattern
    with pytest.raises(AttributeError):
        pattern.nothing_of_that_name  # type: ignore[attr-defined]  # noqa: B018


def test_a_pattern_that_is_compiled_at_its_first_use_is_accepted_where_patterns_are() -> None:
    pattern = lazy.pattern("a+")
    assert isinstance(pattern, re.Pattern)
    assert re.sub(pattern, "-", "baac") == "b-c"
    assert re.compile(pattern) is pattern


PUT_OFF = """
import re, sys
import re._compiler
from toolkit_installer import lazy
count = 0
compiled = re._compiler.compile
def counting(*given):
    global count
    count += 1
    return compiled(*given)
re._compiler.compile = counting
with lazy.deferred_patterns():
    import tomlkit, tomllib, psutil, click, logging, traceback, gettext
usual = re.compile
assert re.compile.__module__ == "re", re.compile
print(count)
assert tomlkit.parse("a = 1979-05-27T07:32:00Z # b")["a"].year == 1979
assert tomllib.loads("a = 0x10") == {"a": 16}
assert psutil.Process().num_threads() == 1
assert click.unstyle("\\033[1ma") == "a"
"""


def test_what_is_imported_meanwhile_compiles_its_patterns_when_it_uses_them() -> None:
    done = subprocess.run([sys.executable, "-c", PUT_OFF], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 3, "of what a module uses itself while it is imported, there is little"
