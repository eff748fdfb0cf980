"""What is written to a terminal or a pipe: whole, past every buffer, and in a line that gives way to others."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.terminal import CLEARED, terminal
from toolkit_installer.node.terminal import StatusLine, is_started_by_person, write


def in_a_terminal(work: Callable[[], bool], *, below_a_shell: bool) -> bool:
    """Return what `work` says in a process of a new terminal, which leads its session or is a shell's child."""
    pid, ours = pty.fork()
    if pid == 0:
        code = 99
        try:
            if below_a_shell and (child := os.fork()):
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            else:
                code = 0 if work() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ours)
    assert code in (0, 1)
    return code == 0


def test_a_person_is_told_from_a_container_with_a_terminal() -> None:
    assert in_a_terminal(is_started_by_person, below_a_shell=True)
    assert not in_a_terminal(is_started_by_person, below_a_shell=False)


def test_without_a_terminal_nobody_is_taken_for_a_person() -> None:
    def redirected() -> bool:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        return is_started_by_person()

    assert not in_a_terminal(redirected, below_a_shell=True)


def test_a_pipe_that_does_not_block_gets_all_of_the_answer() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    got: list[bytes] = []

    def read() -> None:
        with os.fdopen(reader, "rb") as stream:
            got.append(stream.read())

    thread = threading.Thread(target=read)
    with os.fdopen(writer, "w") as stream:
        threading.Timer(0.1, thread.start).start()
        write(stream, "x" * 1_000_000, patient=True)
    thread.join(10)
    assert got == [b"x" * 1_000_000]


@pytest.mark.parametrize("patient", [True, False])
def test_a_full_pipe_is_an_error_unless_it_is_waited_for(*, patient: bool) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb") as other:
        text = "x" * (fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) + 1)
        if patient:
            threading.Timer(0.1, other.read, (10_000,)).start()
            write(stream, text, patient=True)
        else:
            with pytest.raises(BlockingIOError):
                write(stream, text)


def test_nothing_waits_in_a_buffer_and_a_letter_that_is_unknown_is_escaped(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w", encoding="ascii") as stream:
        write(stream, "K\u00f6ln \udcff\n")
        assert (tmp_path / "said").read_bytes() == rb"K\xf6ln \udcff" + b"\n"
    with pytest.raises(ValueError, match="closed"):
        write(stream, "more")
    memory = io.StringIO()
    write(memory, "K\u00f6ln")
    assert memory.getvalue() == "K\u00f6ln"


# --- the line that is kept up to date ---


@contextlib.contextmanager
def narrow_terminal(term: str = "xterm") -> Iterator[Callable[[], str]]:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": term, "COLUMNS": "12"}):
        yield seen
        StatusLine.make_room()  # for the next test


def test_a_line_takes_the_place_of_the_one_before_and_no_terminal_obeys_it() -> None:
    with narrow_terminal() as seen:
        line = StatusLine(on=True)
        line.show("short")
        line.show("\x1b[2Jtoo long for it")
        assert seen() == f"{CLEARED}short{CLEARED} [2Jtoo lon"


def test_a_line_gives_way_to_output_once() -> None:
    with narrow_terminal() as seen:
        StatusLine.make_room()
        line = StatusLine(on=True)
        line.clear()
        assert seen() == "", "nothing is shown that could be in the way"
        line.show("a")
        for _ in range(2):
            StatusLine.make_room()
            line.clear()
        assert seen() == f"{CLEARED}a{CLEARED}"
    assert StatusLine.shown_now is None


@pytest.mark.parametrize("on, term", [(False, "xterm"), (True, "dumb")])
def test_no_line_is_shown_where_none_is_wanted_or_none_can_be_drawn(*, on: bool, term: str) -> None:
    with narrow_terminal(term) as seen:
        StatusLine(on=on).show("a")
        assert seen() == ""


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        line = StatusLine(on=True)
        os.close(ours)
        line.show("a")
        line.clear()
