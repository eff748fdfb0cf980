"""Each line of the log has a name that stays, one wording, and a row in docs/logs.md: alerts are made of it."""

from __future__ import annotations

import ast
import difflib
import functools
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit_installer import log
from toolkit_installer.cli import commands
from toolkit_installer.cli.options import help as help_pages
from toolkit_installer.errors import ExitCode
from toolkit_installer.events import EventKind
from toolkit_installer.settings import LogFormat, Program

_PROJECT = Path(__file__).parents[2]
_FIELDS = _PROJECT / "tests/data/log-fields.txt"
_LEVELS = frozenset({"info", "warning", "error"})
_LOGGERS = ("log.get()", "get_log()")
"""The program's log, and that of the plugin's process, which does without structlog."""
_ROW = re.compile(
    r"^\| `(?P<event>[a-z-]+)` \| (?P<fence>``?)(?P<words>.+?)(?P=fence) \| (?P<meaning>.+) \|$", re.MULTILINE
)
_ANY = "…"
_VARYING = frozenset({"engine-note", "engine-fault", "engine-danger", "security"})
"""Events whose words a module of the engine, or of the toolkit's configuration, gives."""


def _words(node: ast.expr) -> str:
    """Return a message's words as they stand in the code, with … for what varies."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else _ANY for part in node.values)
    return _ANY


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((_PROJECT / "toolkit_installer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            place = f"{path.relative_to(_PROJECT)}:{node.lineno}"
            if ast.unparse(node.func) in {f"{logger}.{level}" for logger in _LOGGERS for level in _LEVELS}:
                yield place, node
            elif ast.unparse(node.func) == "publish":
                yield place, _line_of_event(node)


def _line_of_event(call: ast.Call) -> ast.Call:
    """Return the call that logs the line of an event, given the call that publishes the event."""
    kind, message = call.args
    key = ast.Constant(EventKind[ast.unparse(kind).removeprefix("EventKind.")].value)
    fields = [each for each in call.keywords if each.arg != "level"]
    return ast.Call(call.func, [message], [ast.keyword("key", key), *fields])


@functools.cache
def calls() -> dict[str, ast.Call]:
    """Return each call that logs a line, by where it stands."""
    return dict(_calls())


def _key(call: ast.Call) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == "key"), None)


def _said() -> set[tuple[str, str]]:
    """Return event and words of each line, but for those that end a failed run."""
    return {
        (str(key.value), _words(call.args[0]))
        for call in calls().values()
        if isinstance(key := _key(call), ast.Constant) and key.value != ExitCode.BUG.event
    }


def test_each_line_has_a_name() -> None:
    for place, call in calls().items():
        key = _key(call)
        if ast.unparse(call.args[0]) in ("error.reason", "failure.reason"):  # of a run that fails: the exit code's
            assert key is not None, place
            assert ast.unparse(key) == "code.event", place
        else:
            assert isinstance(key, ast.Constant), f"{place}: a line without `key` cannot be alerted on"
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*", str(key.value)), place


def test_every_line_is_found_by_this_test() -> None:
    sources = "".join(path.read_text() for path in (_PROJECT / "toolkit_installer").rglob("*.py"))
    written = len(re.findall(r"\b(?:log\.get|get_log)\(\)\.(?:info|warning|error)\(|(?<!def )\bpublish\(", sources))
    assert written == len(calls()) > 100
    assert not re.findall(r"\b(?:log\.get|get_log)\(\)\.(?!info|warning|error|debug)\w+", sources)


def test_no_name_has_two_wordings_and_no_wording_two_names() -> None:
    said = {(event, words) for event, words in _said() if event not in _VARYING}
    assert len({event for event, _ in said}) == len(said)
    assert len({words for _, words in said}) == len(said)


def test_a_search_for_one_line_finds_no_other() -> None:
    said = {words.rstrip(_ANY): event for event, words in _said() if event not in _VARYING}
    inside = [(one, other) for one in said for other in said if one != other and one in other]
    assert inside == []


def test_the_page_lists_each_line_as_it_is_said() -> None:
    text = (_PROJECT / "docs/logs.md").read_text()
    rows = {(found["event"], found["words"]) for found in _ROW.finditer(text)}
    assert rows == _said()
    assert len(rows) == len(_ROW.findall(text)), "a row stands there twice"


def test_each_line_has_the_fields_that_the_page_tells_of() -> None:
    given = [
        (str(key.value), frozenset(each.arg for each in call.keywords))
        for call in calls().values()
        if isinstance(key := _key(call), ast.Constant)
    ]
    fields = frozenset[str | None]().union(*(names for _, names in given)) - {None, *help_pages.COMMANDS}
    rows = _ROW.finditer((_PROJECT / "docs/logs.md").read_text())
    told = {found["event"]: fields.intersection(re.findall(r"`([a-z_]+)`", found["meaning"])) for found in rows}
    without = [
        (event, missing)
        for event, names in given
        if None not in names and (missing := told.get(event, frozenset()) - names)
    ]
    assert without == []
    assert sum(map(len, told.values())) > 50


def _fields() -> list[str]:
    """Return a line for each that the program logs: its event and its fields."""
    return sorted(
        " ".join([ast.unparse(key).strip("'"), *sorted(each.arg or "…" for each in call.keywords if each.arg != "key")])
        for call in calls().values()
        if (key := _key(call)) is not None
    )


def test_no_line_loses_a_field_unseen() -> None:
    """Whoever filters by `file` or `engine`, or alerts with `reason`, would be told nothing, and only when it happens.

    `LOG_FILES=write pytest …` writes the list anew; read what has gone.
    """
    now = "".join(f"{line}\n" for line in _fields())
    if os.environ.get("LOG_FILES") == "write":
        _FIELDS.write_text(now)
    kept = _FIELDS.read_text()
    difference = difflib.unified_diff(kept.splitlines(), now.splitlines(), str(_FIELDS), "now", lineterm="", n=0)
    assert kept == now, "\n".join(difference)


def test_no_field_is_empty_whatever_happens() -> None:
    empty = [
        f"{path.relative_to(_PROJECT)}:{call.lineno}: {each.arg}"
        for path in (_PROJECT / "toolkit_installer").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith((*_LOGGERS, "publish"))
        for each in call.keywords
        if isinstance(each.value, ast.Constant) and each.value.value in (None, "")
    ]
    assert empty == []


def test_the_page_lists_the_event_of_each_exit_code() -> None:
    text = (_PROJECT / "docs/logs.md").read_text()
    for code in ExitCode:
        assert code is ExitCode.DONE or f"`{code.event}` ({int(code)})" in text


def _line(log_format: LogFormat) -> str:
    stream = io.StringIO()
    log.configure(log_format, debug=False, stream=stream)
    log.get().info("The node is configured", key="configured", folder="/f")
    return stream.getvalue()


def test_the_name_follows_the_words_for_machines() -> None:
    assert ' level=info msg="The node is configured" event=configured folder=/f\n' in _line(LogFormat.LOGFMT)
    assert '"msg": "The node is configured", "event": "configured", "folder": "/f"}' in _line(LogFormat.JSON)


def test_people_are_spared_the_name() -> None:
    assert _line(LogFormat.CONSOLE).endswith(" The node is configured folder=/f\n")


def test_a_run_that_fails_is_named_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(Program.TOOLKIT_INSTALLER, ["run", "--no-such-option"], {}) == ExitCode.USAGE
    assert " event=usage code=2 " in capsys.readouterr().err
