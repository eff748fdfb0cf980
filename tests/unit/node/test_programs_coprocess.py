"""A program that stays and is asked again and again: one answer for one question, whatever becomes of the program."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit_installer.node import programs
from toolkit_installer.node.programs import Coprocess, ProgramError, ProgramTimeoutError
from toolkit_installer.node.signals import Stopped

SECONDS = 60.0
ANSWERS = """
import os, sys
for line in sys.stdin.buffer:
    word = line.strip().decode()
    if word == "end": os._exit(1)
    if word == "words": sys.exit("no\\nmore memory")
    if word.startswith("/"): import time; os.fork(); held = os.open(word, os.O_WRONLY); time.sleep(600)
    if word == "half": os.write(1, b"hal"); os._exit(0)
    if word == "more": os.write(1, b"x" * (17 << 20))
    print(os.getpid(), word, flush=True)
    if word == "last": os._exit(0)
"""


@pytest.fixture
def asked() -> Iterator[Coprocess]:
    program = Coprocess([sys.executable, "-I", "-S", "-c", ANSWERS])
    yield program
    program.end()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[bytes, int]]:
    """A question that the program and a child of it open the pipe of, and hang; and the pipe's other end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    yield f"{pipe}\n".encode(), reader
    os.close(reader)


def pid_of(program: Coprocess, question: bytes = b"who\n") -> int:
    pid, word = program.ask(question, SECONDS).split()
    assert word == question.strip()
    return int(pid)


def has_ended(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_one_program_answers_one_question_after_the_other(asked: Coprocess) -> None:
    assert pid_of(asked, b"first\n") == pid_of(asked, b"second\n")


def test_a_question_of_any_length_arrives_whole(asked: Coprocess) -> None:
    assert asked.ask(b"x" * 1_000_000 + b"\n", SECONDS).split()[1] == b"x" * 1_000_000


def test_one_that_ended_after_an_answer_is_started_again(asked: Coprocess) -> None:
    first = pid_of(asked, b"last\n")
    assert pid_of(asked) != first


def test_one_that_somebody_killed_meanwhile_is_started_again(asked: Coprocess) -> None:
    first = pid_of(asked)
    os.kill(first, signal.SIGKILL)
    assert pid_of(asked) != first
    assert has_ended(first)


@pytest.mark.parametrize(
    "question, words",
    [(b"end\n", "it ended without an answer"), (b"words\n", "more memory"), (b"half\n", "it ended without an answer")],
)
def test_one_that_ends_at_each_question_is_no_answer_and_its_last_words_are_told(
    asked: Coprocess, question: bytes, words: str
) -> None:
    pid_of(asked)
    with pytest.raises(ProgramError, match=f"^{words}$"):
        asked.ask(question, SECONDS)
    pid_of(asked)


def test_a_silent_child_is_killed_with_its_children_and_the_next_query_has_another(
    asked: Coprocess, hanging: tuple[bytes, int]
) -> None:
    first = pid_of(asked)
    question, reader = hanging
    with pytest.raises(ProgramTimeoutError, match=r"did not end within 0\.5 s"):
        asked.ask(question, 0.5)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # whoever held the other end is gone
    assert has_ended(first)
    assert pid_of(asked) != first


def test_one_that_says_more_than_anybody_wants_to_hear_is_killed(asked: Coprocess) -> None:
    with pytest.raises(ProgramError, match="printed more than 16 MiB"):
        asked.ask(b"more\n", SECONDS)
    pid_of(asked)


def test_one_that_cannot_be_started_is_an_error_each_time() -> None:
    absent = Coprocess(["/absent/program"])
    for _ in range(2):
        with pytest.raises(ProgramError, match="cannot start /absent/program"):
            absent.ask(b"who\n", SECONDS)


@pytest.mark.usefixtures("blocked")
def test_an_answer_is_not_waited_for_once_a_signal_stops_us(asked: Coprocess, hanging: tuple[bytes, int]) -> None:
    first = pid_of(asked)
    threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
    with pytest.raises(Stopped, match="SIGTERM"):
        asked.ask(hanging[0], 600)
    assert has_ended(first)
    with pytest.raises(Stopped, match="SIGTERM"):  # nor is another one started
        asked.ask(b"who\n", SECONDS)
    assert asked._child is None


def test_none_is_left_once_all_are_ended_and_one_is_started_where_it_is_needed_again(asked: Coprocess) -> None:
    first = pid_of(asked)
    programs.end_coprocesses()
    assert has_ended(first)
    assert pid_of(asked) != first


def in_a_fork(work: Callable[[], int]) -> int:
    """Return the exit status of a fork of this process that did some work."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_has_one_of_its_own_and_leaves_its_parents_alone(asked: Coprocess) -> None:
    first = pid_of(asked)

    def work() -> int:
        programs.end_coprocesses()
        other = pid_of(asked)
        programs.end_coprocesses()
        return int(other == first or not has_ended(other))

    assert in_a_fork(work) == 0
    assert pid_of(asked) == first


def test_one_ends_with_who_started_it_although_nobody_ended_it(asked: Coprocess) -> None:
    reading, writing = os.pipe()

    def work() -> int:
        os.write(writing, b"%d" % pid_of(asked))
        return 0  # as a process that is killed: at once

    assert in_a_fork(work) == 0
    other = int(os.read(reading, 20))
    os.close(reading)
    os.close(writing)
    stat = Path(f"/proc/{other}/stat")
    deadline = time.monotonic() + SECONDS
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":  # whoever inherited it may not wait for it
            assert time.monotonic() < deadline
            time.sleep(0.01)
