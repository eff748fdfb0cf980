"""The program of docker's canary: it has to be one that a kernel runs, on machines where no test can run it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from toolkit_installer.engines.docker import canary

MACHINES = {"x86_64": 62, "aarch64": 183}
CALLS = {"x86_64": "34", "aarch64": "73"}
"""The system calls in which it waits, as /proc tells them: pause, ppoll (syscalls(2))."""


@pytest.mark.parametrize("machine", MACHINES)
def test_its_header_fits_the_machine_and_all_of_it_is_loaded(machine: str) -> None:
    content = canary.build_program(machine)
    assert content is not None
    assert content[:5] == b"\x7fELF\x02"
    kind, number = struct.unpack_from("<HH", content, 16)
    assert (kind, number) == (2, MACHINES[machine]), "an executable of that machine (elf(5))"
    entry, table = struct.unpack_from("<QQ", content, 24)
    _, flags, offset, address, _, in_file, in_memory = struct.unpack_from("<IIQQQQQ", content, table)
    assert flags == 5, "read and run, never written"
    assert (offset, in_file, in_memory) == (0, len(content), len(content))
    assert address < entry < address + len(content)


@pytest.mark.parametrize("machine, size", [("x86_64", 2), ("aarch64", 4)])
def test_its_last_instruction_leads_back_to_the_first(machine: str, size: int) -> None:
    content = canary.build_program(machine)
    assert content is not None
    first = struct.unpack_from("<Q", content, 24)[0] - 0x400000
    at = len(content) - size
    if machine == "x86_64":  # jmp rel8, from the next instruction on
        opcode, distance = struct.unpack_from("<Bb", content, at)
        assert (opcode, at + size + distance) == (0xEB, first)
    else:  # b imm26, in instructions of four bytes from this one on
        (word,) = struct.unpack_from("<I", content, at)
        back = (word & 0x3FFFFFF) - (1 << 26)
        assert (word >> 26, at + 4 * back) == (0b000101, first)


def test_on_this_machine_it_waits_until_it_is_killed(tmp_path: Path) -> None:
    content = canary.build_program(os.uname().machine)
    if content is None:
        pytest.skip(f"there is none for a {os.uname().machine}")
    path = tmp_path / "canary"
    path.write_bytes(content)
    path.chmod(0o755)
    started = subprocess.Popen([path])
    try:
        for _ in range(2):
            while Path(f"/proc/{started.pid}/syscall").read_text().split()[0] != CALLS[os.uname().machine]:
                assert started.poll() is None
            os.kill(started.pid, signal.SIGSTOP)
            os.kill(started.pid, signal.SIGCONT)  # and it waits again
    finally:
        started.kill()
    assert started.wait() == -signal.SIGKILL


def test_there_is_none_for_a_machine_that_nobody_has_written_one_for() -> None:
    assert canary.build_program("riscv64") is None
