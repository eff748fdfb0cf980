"""What is run in place of a script: its bytecode, where that can be run."""

from __future__ import annotations

import py_compile
import subprocess
from pathlib import Path

import pytest

from toolkit_installer.node import interpreter
from toolkit_installer.waiting import wait


@pytest.fixture
def script(tmp_path: Path) -> Path:
    written = tmp_path / "script.py"
    written.write_text("import sys\nprint(__name__, *sys.argv[1:])\n")
    return written


def test_a_script_without_bytecode_is_run_itself(script: Path) -> None:
    assert interpreter.find_bytecode(str(script)) == str(script)


def test_the_bytecode_of_a_script_does_what_the_script_does(script: Path) -> None:
    bytecode = py_compile.compile(str(script), doraise=True)
    assert interpreter.find_bytecode(str(script)) == bytecode
    for program in (str(script), str(bytecode)):
        done = subprocess.run(
            interpreter.build_isolated_command(program, "a", "b"), capture_output=True, text=True, check=True
        )
        assert done.stdout == "__main__ a b\n"


@pytest.mark.parametrize("content", [b"", b"\r\n", b"\x00\x00\r\n" + bytes(12)])
def test_bytecode_of_another_python_or_half_of_it_is_not_run(script: Path, content: bytes) -> None:
    """Python would end at once with "Bad magic number", in place of waiting."""
    bytecode = Path(py_compile.compile(str(script), doraise=True) or "")
    bytecode.write_bytes(content)
    assert interpreter.find_bytecode(str(script)) == str(script)


def test_the_idle_process_finds_its_own_module_from_its_bytecode(tmp_path: Path) -> None:
    """It lies one folder further in."""
    bytecode = tmp_path / "__pycache__" / "program.pyc"
    py_compile.compile(wait._WAITER, str(bytecode), doraise=True)
    (tmp_path / "idling.py").write_text("def main():\n    print('found')\n")
    done = subprocess.run(interpreter.build_isolated_command(str(bytecode)), capture_output=True, text=True, check=True)
    assert done.stdout == "found\n"


@pytest.mark.parametrize(
    "command, script",
    [
        (["/usr/bin/python3", "/opt/bin/toolkit-installer", "run"], "/opt/bin/toolkit-installer"),
        (["/usr/bin/python3", "-I", "-S", "bin/toolkit-installer", "/opt/payload"], "bin/toolkit-installer"),
        (["/usr/bin/python3", "toolkit-installer", "/opt/payload"], ""),
        (["/usr/bin/python3", "-I"], ""),
        (["/usr/bin/python3"], ""),
    ],
    ids=["at once", "after flags", "by no path", "flags alone", "nothing"],
)
def test_the_script_without_which_a_run_cannot_be_started_again_is_known(command: list[str], script: str) -> None:
    assert interpreter.find_script(command) == script
