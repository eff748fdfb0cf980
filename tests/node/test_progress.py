"""How far the copy of a large payload is: a bar on a terminal, else a line every 5 seconds; nothing of a short one.

The clock is the test's: nothing here waits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from tests.node.faults import Fault, Plan, _child, run
from tests.support.fake_node import FakeNode
from tests.support.terminal import CLEARED
from toolkit_installer.applying.files import CopyProgress


@contextlib.contextmanager
def timed(now: Callable[[], float]) -> Iterator[None]:
    with mock.patch.object(CopyProgress.__init__, "__defaults__", (now,)):
        yield


def test_an_install_that_takes_long_tells_how_far_it_is_until_all_is_copied(node: FakeNode, tmp_path: Path) -> None:
    with timed(itertools.count(0, 5).__next__):
        done = run(node, tmp_path, "run", "--no-daemon")
    assert done.code == 0, done.output
    amounts = re.findall(
        r'msg="Copying the toolkit" event=copying bytes_done=(\d+) bytes_total=(\d+) bytes_per_second=\d+', done.output
    )
    files = [path for path in node.payload.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = [path.stat().st_size for path in files if path.suffix != ".toml"]
    counts = [int(count) for count, _ in amounts]
    assert {int(of) for _, of in amounts} == {sum(sizes)}
    assert counts == sorted(counts)
    assert counts[-1] == sum(sizes)
    # each file is one piece, and told of again once it is on the disk
    assert counts[::2] == counts[1::2]
    assert len(set(counts)) == len(sizes)


def test_an_install_that_takes_short_says_nothing_of_it(node: FakeNode, tmp_path: Path) -> None:
    with timed(lambda: 0.0):
        done = run(node, tmp_path, "run", "--no-daemon")
    assert done.code == 0, done.output
    assert "Installed the toolkit" in done.output
    assert "Copying" not in done.output


def on_terminal(node: FakeNode, plan: Plan) -> tuple[int, str]:
    """Install on a terminal, a second between any two looks at the clock; return the exit code and the output."""
    ours, theirs = pty.openpty()
    with timed(itertools.count(0, 1).__next__):
        pid = os.fork()
        if pid == 0:
            arguments = node.arguments("run", "--no-daemon", log_format="console")
            os._exit(_child(arguments, plan, Path(os.ttyname(theirs))))
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: it has ended
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


def test_on_a_terminal_the_bar_fills_and_is_gone_before_the_next_line(node: FakeNode) -> None:
    code, said = on_terminal(node, Plan())
    assert code == 0, said
    bars, after = said.rsplit(CLEARED, 1)
    assert bars.count(f"{CLEARED}Copying the toolkit [") > 5
    assert "Copying the toolkit [####################] 0.0 of 0.0 MB, 0.0 MB/s" in bars
    assert re.match(r"\S+Z \S*info .*Installed the toolkit", after)


def test_the_bar_is_gone_before_it_is_said_that_the_disk_failed_amid_the_copy(node: FakeNode, tmp_path: Path) -> None:
    other = FakeNode(tmp_path / "other", node.payload)
    for folder in ("etc/docker", "run", "usr/local"):
        (other.root / folder).mkdir(parents=True)
    calls = run(other, tmp_path, "run", "--no-daemon").calls
    last = max(number for number, call in enumerate(calls) if call == "copy_range")
    code, said = on_terminal(node, Plan(at=last, fault=Fault.ONCE))
    assert code == 3, said
    bars, after = said.rsplit(CLEARED, 1)
    assert "Copying the toolkit [" in bars
    assert re.match(r"\S+Z \S*error .*The change failed and is taken back", after)
