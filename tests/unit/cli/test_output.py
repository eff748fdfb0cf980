"""What is printed comes through one place, which makes it safe and says when it cannot be written."""

from __future__ import annotations

import ast
import io
import json
import os
import pathlib
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli import commands, output
from toolkit_installer.cli.output import DiffLine, OutputError
from toolkit_installer.documents import diff
from toolkit_installer.errors import ExitCode
from toolkit_installer.settings import Program

PACKAGE = pathlib.Path(output.__file__).parents[1]
HOSTILE = "a\x1b[2J\n\x9b31m\r\u202eb\t\udcff\ud800\x7f"
SHOWN = r"a\x1b[2J\n\x9b31m\r\u202eb\t\xff\ud800\x7f"
OTHER_PROGRAMS = {PACKAGE / "engines/common/cri_child.py", PACKAGE / "node/interpreter.py"}
"""One whose answer the installer reads, and one that speaks only where nothing of the package can be imported."""
PRINTING = {"print", "echo", "secho", "print_exception", "print_exc", "writelines", "pprint"}


def printing_calls(path: pathlib.Path) -> list[str]:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [ast.unparse(call) for call in calls]
    return [
        f"{path.name}: {name}"
        for name in names
        if name.rpartition(".")[2] in PRINTING or name in {"sys.stdout.write", "sys.stderr.write"}
    ]


def test_nothing_is_printed_but_through_the_one_place() -> None:
    assert [call for path in PACKAGE.rglob("*.py") if path not in OTHER_PROGRAMS for call in printing_calls(path)] == []
    assert all(printing_calls(path) for path in OTHER_PROGRAMS)


# --- what is shown ---


def test_a_name_is_shown_as_one_line_that_no_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    output.show([f"File: {HOSTILE}", DiffLine(f"+{HOSTILE}", diff.colorize)])
    assert capsys.readouterr().out == f"File: {SHOWN}\n+{SHOWN}\n".replace(r"b\t\xff", "b\t\\xff").replace(
        "b\t", r"b\t", 1
    )


@given(st.lists(st.text(st.characters(codec=None, exclude_categories=[]))))
def test_there_are_as_many_lines_as_were_given(lines: list[str]) -> None:
    stream = io.StringIO()
    before, sys.stdout = sys.stdout, stream
    try:
        output.show(lines)
    finally:
        sys.stdout = before
    assert len(stream.getvalue().splitlines()) == len(lines)
    assert stream.getvalue().replace("\n", "").isprintable()


def test_json_needs_no_escapes_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps({HOSTILE: [HOSTILE]}, indent=2)
    output.show(text.split("\n"))
    assert capsys.readouterr().out == f"{text}\n"


def seen_on_a_terminal(script: str, **environment: str) -> bytes:
    main, side = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=side, stderr=side, env={**os.environ, "NO_COLOR": "", **environment}
    ) as process:
        os.close(side)
        seen = b""
        try:
            while piece := os.read(main, 4096):
                seen += piece
        except OSError:  # the terminal's other end is closed
            pass
        process.wait()
    os.close(main)
    return seen


DIFF = """
from toolkit_installer.cli import output
from toolkit_installer.documents import diff
output.show(["+no diff", output.DiffLine("+a\\x1b[2Jb", diff.colorize)])
output.show_own("\\x1b[1mbold\\x1b[0m")
"""


def test_a_terminal_gets_our_colours_and_nobody_elses() -> None:
    assert seen_on_a_terminal(DIFF) == b"+no diff\r\n\x1b[32m+a\\x1b[2Jb\x1b[0m\r\n\x1b[1mbold\x1b[0m\r\n"
    assert b"\x1b[32m" not in seen_on_a_terminal(DIFF, NO_COLOR="1")
    done = subprocess.run([sys.executable, "-c", DIFF], capture_output=True, check=True)
    assert done.stdout == b"+no diff\n+a\\x1b[2Jb\nbold\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]], ids=" ".join)
def test_help_has_bold_titles_on_a_terminal_and_for_nobody_who_declines_them(arguments: list[str]) -> None:
    script = f"""
import os
from toolkit_installer.cli import commands
from toolkit_installer.settings import Program
commands.main(Program.TOOLKIT_INSTALLER, {arguments!r}, dict(os.environ))
"""
    assert b"\x1b[1mUsage:\x1b[0m" in seen_on_a_terminal(script, TERM="xterm")
    assert b"\x1b" not in seen_on_a_terminal(script, TERM="xterm", NO_COLOR="1")
    assert b"\x1b" not in seen_on_a_terminal(script, TERM="dumb")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env={**os.environ, "TERM": "xterm"}
    )
    assert b"\x1b" not in done.stdout


def test_a_stream_that_cannot_write_a_letter_gets_it_escaped() -> None:
    script = "from toolkit_installer.cli import output; output.show(['K\\u00f6ln'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.stdout == b"K\\xf6ln\n"


# --- where it cannot be written ---


def test_an_answer_that_finds_no_room_says_so_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pathlib.Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputError) as raised:
            output.show(["a"])
    assert raised.value.exit_code is ExitCode.BAD_CONFIGURATION
    assert "No space left on device" in raised.value.reason
    assert raised.value.hint


def test_what_a_library_left_in_the_buffer_does_not_fail_once_more_at_the_end() -> None:
    script = (
        "import sys, types\n"
        "from toolkit_installer.cli import commands\n"
        "from toolkit_installer.settings import Program\n"
        "actions = types.ModuleType('toolkit_installer.cli.actions')\n"
        "actions.plan = lambda settings, **_: print('x') or 0\n"
        "sys.modules['toolkit_installer.cli.actions'] = actions\n"
        "sys.exit(commands.main(Program.TOOLKIT_INSTALLER, ['plan'], {}))\n"
    )
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == ExitCode.BAD_CONFIGURATION
    (line,) = done.stderr.splitlines()
    assert "No space left on device" in line


def test_a_traceback_that_cannot_be_written_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with pathlib.Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        monkeypatch.setattr(commands, "_invoke", lambda *_: 1 // 0)
        assert commands.main(Program.TOOLKIT_INSTALLER, ["run", "--debug"], {}) == ExitCode.BUG
        full.flush()  # nothing is left in its buffer


def test_a_traceback_gives_a_terminal_no_orders(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ValueError(f"{HOSTILE} password=hunter2")

    monkeypatch.setattr(commands, "_invoke", fail)
    assert commands.main(Program.TOOLKIT_INSTALLER, ["run", "--debug"], {}) == ExitCode.BUG
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert error.replace("\n", "").replace("\t", "").isprintable()
    assert "=hunter2" not in error


def test_lines_are_broken_below_their_first_word_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["  Why:    " + "word " * 30, "", "short"]
    monkeypatch.setattr(output, "width", lambda: None)
    assert output.wrap_lines(lines) == lines
    monkeypatch.setattr(output, "width", lambda: 80)
    *broken, empty, short = output.wrap_lines(lines)
    assert max(map(len, broken)) <= 80
    assert len(broken) > 1
    assert all(line.startswith("      word") for line in broken[1:])
    assert (empty, short) == ("", "short")
