"""The end of a process: nothing is lost that Python's own end would have done, but for taking the memory apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
class Told:
    def __del__(self):
        sys.__stderr__.write("taken apart\\n")
kept = Told()
kept.itself = kept
atexit.register(print, "at the end")
sys.argv[1:] = {arguments}
from toolkit_installer import __main__
{before}
sys.exit(__main__.toolkit_installer())
"""


def program(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(arguments=list(arguments), before=before)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_the_memory_is_not_taken_apart_object_by_object() -> None:
    done = program("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("toolkit-installer ")
    assert "taken apart" not in done.stderr


def test_what_a_library_wants_done_at_the_end_is_done_and_its_output_written() -> None:
    assert program("--version").stdout.endswith("\nat the end\n")


@pytest.mark.parametrize("arguments, code", [(["--version"], 0), (["run", "--no-such-option"], 2)])
def test_the_exit_code_is_that_of_the_command(arguments: list[str], code: int) -> None:
    assert program(*arguments).returncode == code


def test_a_stream_that_cannot_be_flushed_is_left_to_python() -> None:
    """It tells of that by an exit code of its own."""
    full = "full = open('/dev/full', 'w')\natexit.register(lambda: (full.write('lost'), setattr(sys, 'stdout', full)))"
    done = program("--version", before=full)
    assert done.returncode == 120
    assert "taken apart" in done.stderr
