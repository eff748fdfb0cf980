"""Whom of the node we believe: by what only root can have, and never by a name."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import logging
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.started import wait_until_it_shows
from toolkit_installer.node import processes, trust
from toolkit_installer.node.root import Root
from toolkit_installer.node.trust import TrustLevel

STRANGER = 65534
NEW_USER = 0x10000000
"""CLONE_NEWUSER of linux/sched.h."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

WAITS = """
import os, sys
real, effective, saved = map(int, sys.argv[1:4])
os.setresuid(real, effective, saved)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def started(*command: str | Path) -> Iterator[int]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.stdin.close()


@contextlib.contextmanager
def of_users(real: int, effective: int, saved: int) -> Iterator[int]:
    with started(sys.executable, "-I", "-S", "-c", WAITS, str(real), str(effective), str(saved)) as pid:
        yield pid


def test_we_believe_ourselves() -> None:
    assert trust.find_trust_level(os.getpid()) is TrustLevel.BELIEVED
    seen = processes.inspect_process(os.getpid())
    assert seen is not None
    assert seen.pid == os.getpid()


@as_root
@pytest.mark.parametrize(
    "users", [(STRANGER, 0, 0), (0, STRANGER, 0), (0, 0, STRANGER), (STRANGER, STRANGER, STRANGER), (1000, 0, 0)]
)
def test_a_process_with_any_user_of_somebody_elses_is_a_strangers(users: tuple[int, int, int]) -> None:
    with of_users(*users) as pid:
        assert trust.find_trust_level(pid) is TrustLevel.STRANGER
        assert processes.inspect_process(pid) is None
        assert trust.users_of(pid) >= set(users)


@as_root
def test_a_process_of_roots_is_believed() -> None:
    with of_users(0, 0, 0) as pid:
        assert trust.find_trust_level(pid) is TrustLevel.BELIEVED


@as_root
def test_whoever_calls_a_set_user_id_program_chooses_what_it_is_called(tmp_path: Path) -> None:
    program = shutil.copy("/bin/sh", tmp_path / "kubelet")
    Path(program).chmod(0o4755)
    with started(program, "-p", "-c", "echo ready; read x") as pid:
        assert trust.users_of(pid) == {0}
        assert trust.find_trust_level(pid) is TrustLevel.STRANGER


IN_A_NAMESPACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDONLY)
assert libc.setns(fd, 0x10000000) == 0, os.strerror(ctypes.get_errno())
print("ready", flush=True)
sys.stdin.read()
"""


@as_root
def test_who_made_a_processs_user_namespace_could_be_it() -> None:
    ours, theirs = os.pipe()
    maker = os.fork()
    if maker == 0:
        os.close(ours)
        os.setresuid(STRANGER, STRANGER, STRANGER)
        made = ctypes.CDLL(None).unshare(NEW_USER) == 0
        os.write(theirs, b"made" if made else b"none")
        signal.pause()
        os._exit(0)
    try:
        os.close(theirs)
        if os.read(ours, 4) != b"made":
            pytest.skip("this kernel lets nobody make user namespaces")
        with open(f"/proc/{maker}/uid_map", "w", encoding="ascii") as uids:
            uids.write("0 0 4294967295")  # as a careless helper of root's might
        with started(sys.executable, "-I", "-S", "-c", IN_A_NAMESPACE, f"/proc/{maker}/ns/user") as pid:
            assert trust.users_of(pid) == {0}
            assert trust.find_trust_level(pid) is TrustLevel.STRANGER
            assert processes.inspect_process(pid) is None
    finally:
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        os.close(ours)


def test_a_process_that_is_gone_says_nothing() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert trust.find_trust_level(child.pid) is TrustLevel.GONE
    assert processes.inspect_process(child.pid) is None


def test_a_process_that_ends_while_it_is_looked_at_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    # another one may have its PID by then, and have said the rest
    child = subprocess.Popen(["/bin/sleep", "60"])
    real = processes._unit

    def end_meanwhile(cgroups: str) -> str | None:
        child.kill()
        child.wait()
        return real(cgroups)

    monkeypatch.setattr(processes, "_unit", end_meanwhile)
    assert processes.inspect_process(child.pid) is None


@as_root
def test_a_strangers_words_are_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # it chooses how many they are, of what kind, and in which folder of cgroups it is
    def read(_folder: int, name: str, _limit: int) -> bytes | None:
        raise AssertionError(name)

    with of_users(STRANGER, STRANGER, STRANGER) as pid:
        monkeypatch.setattr(processes, "_read_bounded", read)
        assert processes.inspect_process(pid) is None


def test_a_process_that_says_more_than_programs_do_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LONGEST_COMMAND", 1000)
    with subprocess.Popen(["/bin/sh", "-c", "read x", *["x" * 100] * 20], stdin=subprocess.PIPE) as child:
        wait_until_it_shows(child.pid, "sh")
        assert processes.inspect_process(child.pid) is None
        child.kill()


def test_a_name_that_is_no_utf_8_is_a_name(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/\xff\xfe"
    shutil.copy(sys.executable if sys.executable.startswith("/usr") else "/bin/sleep", os.fsdecode(program))
    with subprocess.Popen([b"\xff", "60"], executable=os.fsdecode(program)) as child:
        deadline = time.monotonic() + 20
        # the kernel gives a new process its executable an instant before its arguments
        while (
            (seen := processes.inspect_process(child.pid)) is None
            or not seen.executable.endswith("\udcfe")
            or not any(seen.arguments)
        ):
            assert time.monotonic() < deadline
        child.kill()
    # a message with a surrogate in it would end the whole run: it cannot be sent from one process to another
    assert ascii(seen.arguments[0]) == ascii("\udcff")


def test_a_sockets_name_that_looks_like_lines_of_the_list_is_no_line() -> None:
    with socket.socket(socket.AF_UNIX) as spoilt:
        spoilt.bind(f"\0x{os.getpid()}\nspoilt line of strangers\n0: 0 0 0 0 0")
        names = processes.list_bound_sockets(os.getpid())
    assert names is not None
    assert all(name.startswith("/") for name in names)


@as_root
def test_a_stranger_is_named_once_at_the_level_of_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), of_users(STRANGER, STRANGER, STRANGER) as pid:
        for _ in range(3):
            trust.find_trust_level(pid)
    said = [record for record in caplog.records if f"PID {pid}," in record.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.DEBUG
    assert f"user {STRANGER}" in said[0].getMessage()


def test_a_look_at_a_process_leaves_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for pid in (os.getpid(), 1, 2**22 + 1):
        trust.find_trust_level(pid)
        processes.inspect_process(pid)
    with contextlib.suppress(Exception), trust.program(Root("/"), "/no/such/program"):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


# --- what a process writes into the kernel's own words by its name ---

NAMED = """
import ctypes, os, sys
user = int(sys.argv[1])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(15, os.fsencode(sys.argv[2]), 0, 0, 0)  # PR_SET_NAME
print("ready", flush=True)
sys.stdin.read()
"""
LINE_ENDS = ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
"""All that str.splitlines takes for the end of a line."""


@as_root
@pytest.mark.parametrize("line_end", LINE_ENDS, ids=ascii)
def test_a_name_that_reads_like_a_field_of_the_kernel_makes_nobody_root(line_end: str) -> None:
    name = f"a{line_end}Uid:\t0\t0"
    with started(sys.executable, "-I", "-S", "-c", NAMED, str(STRANGER), name) as pid:
        with open(f"/proc/{pid}/status", "rb") as status:
            assert b"Uid:\t0\t0" in status.readline(), "the kernel says it as the name"
        assert trust.users_of(pid) == {STRANGER}
        assert trust.find_trust_level(pid) is TrustLevel.STRANGER
        assert processes.inspect_process(pid) is None


@as_root
def test_a_name_that_reads_like_a_field_of_the_kernel_ends_no_process() -> None:
    for field in ("Uid:\t0\t0\t0\t0", "a\rState:\tZ"):
        with started(sys.executable, "-I", "-S", "-c", NAMED, "0", field) as pid, trust.pin_process(pid) as folder:
            assert not trust.is_dead(folder)
            assert trust.users_of(pid) == {0}
            assert not trust.is_ending(pid)


def test_the_kernels_lines_end_with_a_line_feed_alone_wherever_they_are_read() -> None:
    """A file that is read as text without `newline` ends its lines at a carriage return, splitlines at more still."""
    found = []
    for place in PACKAGE.rglob("*.py"):
        name = str(place.relative_to(PACKAGE))
        for call in (each for each in ast.walk(ast.parse(place.read_text())) if isinstance(each, ast.Call)):
            words = {word.arg: word.value for word in call.keywords}
            if isinstance(call.func, ast.Name) and call.func.id == "open" and "encoding" in words:
                newline = words.get("newline")
                if not isinstance(newline, ast.Constant) or newline.value != "\n":
                    found.append(f"{name}:{call.lineno}: open")
            if name.startswith("node/") and isinstance(call.func, ast.Attribute) and call.func.attr == "splitlines":
                found.append(f"{name}:{call.lineno}: splitlines")
    assert found == []


MOUNTS = """
from toolkit_installer.engines.detect import own_container
print(ascii(own_container._mounts()))
"""


@as_root
def test_a_mount_on_a_folder_whose_name_has_a_line_end_is_one_mount(tmp_path: Path) -> None:
    place = tmp_path / "a\rb"
    place.mkdir()
    script = 'mount -t tmpfs -o ro theirs "$1" && exec "$2" -c "$3"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(place), sys.executable, MOUNTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(place) in ast.literal_eval(done.stdout)


PACKAGE = Path(trust.__file__).parents[1]
MAY_NAME_PROC = frozenset(
    {
        "cli/capture_workers.py",  # our own memory
        "engines/detect/own_container.py",  # the root of init
        "fleet/masking.py",  # the paths of answers, which are not read here
        "node/idling.py",  # our own descriptors
        "waiting/wait.py",  # likewise, and the kernel's name for a memory file
        "reporting/engine_faults.py",  # engines that were believed
        "waiting/readiness.py",  # a process that was believed, watched for its end
        "waiting/child_process.py",  # our own children
        "waiting/plugin_process.py",  # our own descriptors
        "applying/impact.py",  # processes that `matching` yielded
        "applying/gpu_containers.py",  # likewise
        "planning/toolkit_users.py",  # likewise
        "engines/common/command_line.py",  # a process that was believed
        "engines/common/reload_method.py",  # the descriptors that a program is given
        "engines/crio/engine.py",
        "toolkit/wrappers.py",  # the text of a script
        "engines/detect/unit_files.py",
        "fleet/compare.py",  # a folder whose files are not compared
    }
)


def test_nothing_but_the_node_looks_into_proc_by_itself() -> None:
    named = {
        str(place.relative_to(PACKAGE))
        for place in PACKAGE.rglob("*.py")
        if "node" not in place.relative_to(PACKAGE).parts[:1] and re.search(r"""["']/proc""", place.read_text())
    }
    assert named <= MAY_NAME_PROC


# --- folders ---


@as_root
@pytest.mark.parametrize(
    "mode, group, refused", [(0o775, 4321, True), (0o775, 0, False), (0o1775, 4321, True), (0o1777, 0, True)]
)
def test_a_folder_that_a_group_can_write_to_counts_as_that_groups(
    tmp_path: Path, mode: int, group: int, *, refused: bool
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "prog"
    shutil.copy("/bin/true", program)
    os.chown(tmp_path / "bin", 0, group)
    (tmp_path / "bin").chmod(mode)
    assert trust.is_program(Root("/"), str(program)) is not refused


@as_root
def test_a_folder_whose_access_list_lets_somebody_write_is_that_ones(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "prog"
    shutil.copy("/bin/true", program)
    none = 2**32 - 1
    # user, a named user, group, mask, others: acl(5), linux/posix_acl_xattr.h
    entries = ((0x01, 7, none), (0x02, 7, STRANGER), (0x04, 5, none), (0x10, 7, none), (0x20, 5, none))
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(tmp_path / "bin", "system.posix_acl_access", listed)
    assert not trust.is_program(Root("/"), str(program))


@as_root
def test_debians_staff_may_write_below_usr_local_and_nowhere_else(tmp_path: Path) -> None:
    debian = tmp_path / "etc" / "debian_version"
    debian.parent.mkdir()
    for folder, made, expected in (
        ("usr/local/bin", True, True),
        ("opt/bin", True, False),
        ("usr/local/nvidia", True, False),
        ("usr/local/sbin", False, False),
    ):
        debian.touch() if made else debian.unlink()
        place = tmp_path / folder
        place.mkdir(parents=True)
        shutil.copy("/bin/true", place / "prog")
        os.chown(place, 0, 50)
        place.chmod(0o2775)
        assert trust.is_program(Root(str(tmp_path)), f"/{folder}/prog") is expected
