"""What a waiting run remembers, against other processes: who may read it, and that nobody can change it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_node import DAEMON_JSON, DEADLINE, FakeNode, Run
from toolkit_installer.waiting.wait import STATE_LINK

pytestmark = pytest.mark.real_start

SECRET = "hunter2-of-the-engine"  # noqa: S105  # made up
DOCKER = f'{{"debug": true, "log-opts": {{"splunk-token": "{SECRET}"}}}}\n'.encode()
NOBODY = 65534
_CAPABILITIES_3 = 0x20080522


@pytest.fixture
def idle(node: FakeNode) -> Run:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    return node.waiting("--on-drift", "report")


def memory(pid: int) -> Path:
    """Return where a waiting run has its memory file open, once it is the idle process."""
    deadline = time.monotonic() + DEADLINE
    while b"idle_process." not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (found,) = [each for each in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(each) == STATE_LINK]
    return found


def errors(attempts: list[Callable[[], object]], become: Callable[[], None]) -> list[int]:
    """Return the errno of each attempt by a process that has become another one; 0: it succeeded."""
    pid = os.fork()
    if pid == 0:
        found = bytearray(b"?" * len(attempts))
        try:
            become()
            for number, attempt in enumerate(attempts):
                found[number] = 0
                try:
                    attempt()
                except OSError as error:
                    found[number] = error.errno or 255
            os.write(_RESULT[1], bytes(found))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return list(os.read(_RESULT[0], 64))


_RESULT = os.pipe()


def as_a_user() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def as_root_of_a_container() -> None:
    """Keep root's user, and of the capabilities those that a container has by default (they are 14)."""
    kept = 0xA80425FB
    header = struct.pack("Ii", _CAPABILITIES_3, 0)
    words = struct.pack("6I", kept, kept, 0, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, words):
        raise OSError(ctypes.get_errno(), "capset")


@pytest.mark.parametrize("become", [as_a_user, as_root_of_a_container])
def test_no_other_user_and_no_container_reads_what_a_run_remembers(idle: Run, become: Callable[[], None]) -> None:
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    place = memory(idle.pid)
    attempts: list[Callable[[], object]] = [
        place.read_bytes,
        lambda: os.close(os.open(place, os.O_RDWR)),
        lambda: os.readlink(place),
        lambda: Path(f"/proc/{idle.pid}/environ").read_bytes(),
        lambda: Path(f"/proc/{idle.pid}/mem").read_bytes(),
    ]
    assert 0 not in errors(attempts, become)
    assert errors(attempts, lambda: None)[0] == 0, "the test's own process may"


def test_nobody_changes_what_a_run_remembers(idle: Run, node: FakeNode) -> None:
    place = memory(idle.pid)
    before = place.read_bytes()
    assert str(node.root).encode() in before
    with place.open("r+b", buffering=0) as stream:
        changes: list[Callable[[], object]] = [
            lambda: stream.write(b"{}\0"),
            lambda: stream.truncate(0),
            lambda: stream.truncate(1 << 20),
        ]
        for change in changes:
            with pytest.raises(OSError, match="not permitted") as refused:
                change()
            assert refused.value.errno == errno.EPERM
    assert place.read_bytes() == before
    assert idle.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER


def test_what_everybody_sees_of_a_waiting_run_holds_no_secret(idle: Run) -> None:
    place = memory(idle.pid)
    for name in ("cmdline", "comm", "status", "stat"):
        assert SECRET.encode() not in Path(f"/proc/{idle.pid}/{name}").read_bytes()
    words = Path(f"/proc/{idle.pid}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    assert Path(os.fsdecode(words[-2])).name.startswith("idle_process.")
    assert words[-1] == place.name.encode()
