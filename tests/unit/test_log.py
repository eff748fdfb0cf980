"""Log lines: one an event, for people and for machines, and never in the way."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer import log
from toolkit_installer.settings import LogFormat

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], root.level = before


def written(log_format: LogFormat | None, stream: io.StringIO | None = None, **values: Any) -> str:
    stream = stream or io.StringIO()
    log.configure(log_format, debug=False, stream=stream, environment={})
    log.get().info("Waiting for signal", **values)
    return stream.getvalue()


def test_logfmt_begins_with_time_level_and_msg() -> None:
    line = written(None, file="/etc/docker/daemon.json", engine="docker", handler="nvidia", n=3, ok=True, gone=None)
    assert re.fullmatch(
        r'time="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ" level=info msg="Waiting for signal" '
        r"file=/etc/docker/daemon.json engine=docker handler=nvidia n=3 ok=true\n",
        line,
    )


def test_json_has_the_same_keys() -> None:
    line = written(LogFormat.JSON, file="/x", handlers=("a", "b"), where=pathlib.Path("/y"), b=b"\xff")
    event = json.loads(line)
    assert list(event) == ["time", "level", "msg", "file", "handlers", "where", "b"]
    assert (event["msg"], event["handlers"], event["where"], event["b"]) == (
        "Waiting for signal",
        ["a", "b"],
        "/y",
        "\\xff",
    )


def test_a_terminal_gets_colours_and_a_pipe_does_not() -> None:
    assert "\x1b[" in written(None, Terminal())
    assert "\x1b[" not in written(LogFormat.CONSOLE)
    assert "msg=" not in written(LogFormat.CONSOLE)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_declined(environment: dict[str, str]) -> None:
    stream = Terminal()
    log.configure(None, debug=False, stream=stream, environment=environment)
    log.get().warning("Careful", file="/x")
    assert re.fullmatch(r"\S+Z warning Careful file=/x\n", stream.getvalue())


def test_the_environment_of_the_process_counts_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    log.configure(None, debug=False, stream=stream)
    log.get().error("x")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("log_format", list(LogFormat))
@settings(deadline=None)
@given(text=st.text(), key=st.text(min_size=1, max_size=4))
def test_one_event_is_one_line_whatever_it_says(log_format: LogFormat, text: str, key: str) -> None:
    stream = io.StringIO()
    log.configure(log_format, debug=False, stream=stream, environment={})
    field = "k" if key in ("self", "event") else key  # those two are parameters of structlog's own
    log.get().info(text, **{field: text, "other": [text, text.encode(errors="replace")]})
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_quotes_and_backslashes_cannot_forge_a_key() -> None:
    assert written(LogFormat.LOGFMT, file='a" level="error\\').endswith(' file="a\\" level=\\"error\\\\"\n')


def test_what_the_caller_gives_cannot_replace_the_message() -> None:
    assert json.loads(written(LogFormat.JSON, msg="other", time="never"))["msg"] == "Waiting for signal"


def test_an_exception_is_one_line_without_its_secrets() -> None:
    stream = io.StringIO()
    log.configure(LogFormat.LOGFMT, debug=False, stream=stream, environment={})
    error = ValueError('line 3: password = "hunter2"')
    log.get().error("Refused", error=error)
    log.get().error("Refused", exc_info=error)
    try:
        raise error
    except ValueError:
        log.get().exception("Refused")
        log.get().error("Refused", exc_info=sys.exc_info())
    log.get().error("Refused", exc_info=True)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "hunter2" not in stream.getvalue()
    assert all("password" in line for line in lines[:4])
    assert "Traceback" in lines[2]
    assert "exception" not in lines[4]


def test_debug_events_need_debug() -> None:
    stream = io.StringIO()
    log.configure(LogFormat.LOGFMT, debug=False, stream=stream, environment={})
    logger = log.get()
    logger.debug("detail")
    assert stream.getvalue() == ""
    log.configure(LogFormat.LOGFMT, debug=True, stream=stream, environment={})
    logger.debug("detail")
    assert "level=debug" in stream.getvalue()


def test_libraries_are_heard_with_debug_only(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    log.configure(LogFormat.LOGFMT, debug=False, stream=stream, environment={})
    logging.getLogger("urllib3").warning("Retrying")
    assert stream.getvalue() == ""
    for _ in range(2):
        log.configure(LogFormat.LOGFMT, debug=True, stream=stream, environment={})
    logging.getLogger("urllib3").warning("Retrying %s", "token=abc")
    assert stream.getvalue().count("\n") == 1
    assert 'msg="Retrying token=****" logger=urllib3' in stream.getvalue()
    assert capsys.readouterr().err == ""


LIBRARY = """
import logging, sys
from toolkit_installer import log
log.configure(None, debug=False, stream=sys.stderr)
logging.getLogger("docker").error("noise")
"""


def test_a_library_without_handlers_writes_nothing_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, check=True)
    assert done.stderr == b""


LONELY = """
import sys
from toolkit_installer import log
log.configure(None, debug=False, stream=sys.stderr)
for n in range(3):
    log.get().info("Nobody listens", n=n)
print("went on")
"""


def test_a_reader_that_went_away_does_not_stop_us() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", LONELY], stdout=subprocess.PIPE, stderr=writer, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"went on\n")


def test_a_full_disk_does_not_stop_us() -> None:
    with pathlib.Path("/dev/full").open("w") as stream:
        log.configure(None, debug=False, stream=stream, environment={})
        log.get().info("No room")


def test_a_closed_stream_does_not_stop_us() -> None:
    with pathlib.Path(os.devnull).open("w") as file, io.StringIO() as memory:
        pass
    for stream in (file, memory):
        log.configure(None, debug=False, stream=stream, environment={})
        log.get().info("No stream")


def test_lines_go_to_the_file_itself_in_order(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as stream:
        log.configure(LogFormat.LOGFMT, debug=False, stream=stream, environment={})
        log.get().info("x" * 200_000)
        log.get().info("\ud800")
        lines = path.read_text().splitlines()
    assert [len(lines), "x" * 200_000 in lines[0], r'msg="\ud800"' in lines[1]] == [2, True, True]


QUIET = """
import sys
from toolkit_installer import log
log.configure(None, debug=False, stream=sys.stderr)
log.get().debug("Nobody wants to know")
print({"structlog", "logging", "asyncio"} & set(sys.modules) or "none")
import logging
log.listen()
logging.getLogger("docker").error("noise")
log.get().warning("Now")
print({"structlog"} & set(sys.modules))
"""


def test_structlog_comes_with_the_first_line() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == ["none", "{'structlog'}"]
    assert re.fullmatch(r'time="[^"]+" level=warning msg="Now"\n', done.stderr)


BROKEN_OFF = """
import builtins, sys
from toolkit_installer import log
log.configure(None, debug=False, stream=sys.stderr)
usual = builtins.__import__
def stopped(name, *rest):
    if name == "structlog":
        raise KeyboardInterrupt
    return usual(name, *rest)
builtins.__import__ = stopped
try:
    log.get().info("Stopped")
except KeyboardInterrupt:
    builtins.__import__ = usual
log.get().info("Again")
"""


def test_a_signal_while_structlog_is_imported_costs_one_line_and_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", BROKEN_OFF], capture_output=True, check=True, text=True)
    assert done.stdout == ""
    assert re.fullmatch(r'time="[^"]+" level=info msg="Again"\n', done.stderr)
