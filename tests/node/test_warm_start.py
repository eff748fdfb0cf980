"""A program that is started warm is what it is when it is started from scratch, to itself, to others and at its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.sweeps import trees
from tests.support import warm_start
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DEADLINE, DOCKER, WAITING, FakeNode, Run
from tests.support.warm_start import SCRIPTS, Popen

TELLS = """\
import atexit, json, os, resource, signal, sys
import toolkit_installer.__main__

def of(name):
    with open(f"/proc/self/{name}", "rb") as file:
        return file.read().decode("utf-8", "surrogateescape")

def what(stream):
    return [stream.encoding, stream.errors, stream.line_buffering, stream.mode, stream.isatty(), repr(stream)]

told = {
    "words": [sys.argv, sys.orig_argv, of("cmdline"), of("comm"), os.readlink("/proc/self/exe"), sys.executable],
    "environment": [dict(os.environ), sorted(of("environ").split(chr(0)))],
    "module": [__name__, __file__, sys.path, sys.modules["__main__"].__file__, __builtins__.__name__],
    "place": [os.getcwd(), os.umask(0o77), os.getppid(), os.getsid(0) == os.getpid(), os.getresuid(), os.getgroups()],
    "descriptors": [[n, os.get_inheritable(n)] for n in range(256) if os.path.exists(f"/proc/self/fd/{n}")],
    "signals": [str(signal.getsignal(n)) for n in signal.valid_signals()],
    "dispositions": [line for line in of("status").split(chr(10)) if line[:4] in ("SigB", "SigC", "SigI", "Thre")],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "flags": [list(sys.flags), sys.getfilesystemencoding(), sys.dont_write_bytecode, sys.warnoptions],
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "streams": [what(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "input": sys.stdin.read(),
}
print(json.dumps(told), flush=True)
atexit.register(lambda: print("the end"))
print("held back until the end")
"""
"""A script that tells all that it sees of itself, and then comes to an end in one of the ways that follow."""
ENDS = {
    "nothing": "",
    "exit": "sys.exit(3)",
    "exit with a large number": "sys.exit(259)",
    "exit with none": "sys.exit()",
    "exit with words": "sys.exit('it says why')",
    "crash": "def broken():\n    raise ValueError('bad')\nbroken()",
    "crash with a cause": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError(2) from error",
    "interrupted": "raise KeyboardInterrupt",
    "SIGINT": "os.kill(os.getpid(), signal.SIGINT)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "os.abort()",
    "at once": "os._exit(7)",
    "nobody reads": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "another program": "sys.stdout.flush(); os.execv('/bin/sh', ['/bin/sh', '-c', 'exit 5'])",
    "a thread": "import threading\nthreading.Thread(target=lambda: print('from a thread')).start()",
}


@pytest.fixture
def tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a script that is started warm, and return it."""

    def write(end: str) -> str:
        script = tmp_path / "tells"
        script.write_text(TELLS + end + "\n")
        monkeypatch.setitem(warm_start.WARM, str(script), ())
        return str(script)

    yield write
    warm_start.close()


def both(command: list[str], **given: Any) -> Iterator[Popen]:
    """Yield the process twice: started warm, then from scratch."""
    for anew in (False, True):
        with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, anew=anew, **given) as process:
            yield process


def outcomes(command: list[str], **given: Any) -> list[tuple[int | None, str, str]]:
    found = []
    for process in both(command, **given):
        output, errors = process.communicate(timeout=DEADLINE)
        found.append((process.returncode, output.decode(), re.sub(r" at 0x[0-9a-f]+", "", errors.decode())))
    return found


def test_the_program_is_started_warm_here_and_from_scratch_where_that_is_asked_for() -> None:
    command = [str(SCRIPTS / "toolkit-installer"), "--version"]
    assert [process.warm for process in both(command)] == [True, False]
    with warm_start.from_scratch():
        assert not any(process.warm for process in both(command))


@pytest.mark.real_start
def test_a_test_that_is_marked_so_starts_it_from_scratch() -> None:
    assert not any(process.warm for process in both([str(SCRIPTS / "toolkit-installer"), "--version"]))


@pytest.mark.parametrize(
    "given",
    [
        {"preexec_fn": lambda: None},
        {"close_fds": False},
        {"restore_signals": False},
        {"process_group": 0},
        {"executable": "/bin/true"},
        {"env": {**os.environ, "COVERAGE_PROCESS_START": "x"}},
    ],
    ids=lambda given: str(*given),
)
def test_what_cannot_be_done_warm_is_done_from_scratch(given: dict[str, Any]) -> None:
    assert not any(process.warm for process in both([str(SCRIPTS / "toolkit-installer"), "--version"], **given))


@pytest.mark.parametrize("end", ENDS)
def test_it_sees_itself_and_ends_as_if_started_from_scratch(tells: Callable[[str], str], end: str) -> None:
    command = [sys.executable, tells(ENDS[end]), "one", "", "żółw \udcff"]
    warm, anew = outcomes(command, stdin=subprocess.DEVNULL)
    of_warm, of_anew = (json.loads(output.split("\n")[0]) for _, output, _ in (warm, anew))
    assert {name: (told, of_anew[name]) for name, told in of_warm.items() if told != of_anew[name]} == {}
    assert warm == anew


@pytest.mark.parametrize(
    "given",
    [
        {"env": {"PATH": "/usr/bin", "LANG": "C.UTF-8"}, "start_new_session": True},
        {"env": {"LANG": "C", "EMPTY": "", "PYTHONDONTWRITEBYTECODE": "1"}},
        {"env": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}},
        {"cwd": "/usr", "umask": 0o27},
        {"stderr": subprocess.STDOUT},
    ],
    ids=str,
)
def test_what_it_is_given_is_what_it_has(tells: Callable[[str], str], given: dict[str, Any]) -> None:
    command = [sys.executable, tells("")]
    found = []
    for anew in (False, True):
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | given
        done = warm_start.run(command, check=True, anew=anew, **piped)
        found.append(done)
    assert found[0].stdout == found[1].stdout
    assert found[0].stderr == found[1].stderr


def test_it_has_the_descriptors_that_it_is_passed_and_no_others(tells: Callable[[str], str]) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "wb"):
        warm, anew = outcomes([sys.executable, tells("")], stdin=subprocess.DEVNULL, pass_fds=(writing, reading))
    assert warm == anew
    assert [number for number, _ in json.loads(warm[1].split("\n")[0])["descriptors"]][3:] == [reading, writing]


def test_what_the_test_blocks_is_blocked(tells: Callable[[str], str]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        warm, anew = outcomes([sys.executable, tells("")], stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert warm == anew
    assert signal.SIGUSR1 in json.loads(warm[1].split("\n")[0])["mask"]


# --- the program ---


def masked(text: str, run: Run) -> str:
    """Return what it said without what differs from one start to the next."""
    text = re.sub(rf"(?i)\b(pid\W{{1,3}}){run.pid}\b", r"\1PID", text)  # elsewhere the same digits may be a date's
    return re.sub(r'"?\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-][\d:]+)"?|\b\d+\.\d+ s\b', "TIME", text)


class Bench:
    """The same node again and again, at the same place."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        node.write(DAEMON_JSON, DOCKER)
        node.write(CONFIG_TOML, "version = 2\n")
        self._kept = node.root.with_name("kept")
        shutil.copytree(node.root, self._kept, symlinks=True)

    def twice(self, story: Callable[[FakeNode], Iterator[Run]]) -> list[Any]:
        """Tell the story warm and from scratch; return what each of its runs said and ended with, and left."""
        found = []
        for anew in (False, True):
            shutil.rmtree(self.node.root)
            shutil.copytree(self._kept, self.node.root, symlinks=True)
            told = []
            with warm_start.from_scratch() if anew else contextlib.nullcontext():
                for run in story(self.node):
                    assert run.process.warm is not anew
                    code = run.finish()
                    tree = {path: self._still(path, entry, run) for path, entry in self.node.snapshot().items()}
                    told.append((code, masked(run.output, run), tree))
            found.append(told)
        return found

    @staticmethod
    def _still(path: str, entry: Any, run: Run) -> Any:
        if entry.kind != "-":
            return entry
        if path in trees.RECEIPTS:
            return entry.kind, entry.mode, entry.owner, trees.stampless(entry.content)
        content = re.sub(rb"\d{4}-\d\d-\d\dT[\d:.]+Z?|\b\d{10,}\b", b"", entry.content)
        return entry.kind, entry.mode, entry.owner, b"PID" if content.strip() == str(run.pid).encode() else content


@pytest.fixture
def bench(node: FakeNode) -> Bench:
    return Bench(node)


def through_all_commands(node: FakeNode) -> Iterator[Run]:
    for words in (
        ["plan"],
        ["run", "--no-daemon"],
        ["run", "--no-daemon"],
        ["status"],
        ["run", "--no-daemon", "--no-such-flag"],
        ["run", "--no-daemon", "--runtime-name=gpu", "--debug"],
        ["uninstall"],
    ):
        yield node.do(*words)


def without_a_node(node: FakeNode) -> Iterator[Run]:
    for name in ("toolkit-installer", "nvidia-toolkit", "nvidia-ctk-installer"):
        for words in (["--help"], ["--version"], ["--no-such-flag"]):
            yield node._started([str(SCRIPTS / name), *words])


def waiting_until_it_is_told_to_stop(node: FakeNode) -> Iterator[Run]:
    run = node.waiting()
    run.process.terminate()
    yield run


def woken_and_stopped(node: FakeNode) -> Iterator[Run]:
    run = node.waiting("--cleanup", "never")
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    run.process.send_signal(signal.SIGINT)
    yield run


def killed_while_it_waits(node: FakeNode) -> Iterator[Run]:
    run = node.waiting()
    run.process.kill()
    yield run
    yield node.do("uninstall")


STORIES = (
    through_all_commands,
    without_a_node,
    waiting_until_it_is_told_to_stop,
    woken_and_stopped,
    killed_while_it_waits,
)


@pytest.mark.parametrize("story", STORIES)
def test_a_story_goes_the_same_way(bench: Bench, story: Callable[[FakeNode], Iterator[Run]]) -> None:
    warm, anew = bench.twice(story)
    assert warm == anew


def test_a_run_before_its_idle_process_is_known_as_an_installer_by_its_start(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    with Popen(
        [str(SCRIPTS / "toolkit-installer"), *node.arguments("run", "--no-daemon")], stdout=subprocess.DEVNULL
    ) as process:
        told = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert process.warm
        assert process.wait(DEADLINE) == 0
    assert told.split(b"\0")[:3] == [os.fsencode(sys.executable), os.fsencode(SCRIPTS / "toolkit-installer"), b"run"]


def test_nothing_is_left_of_one_that_has_ended() -> None:
    children = set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())
    process = Popen([str(SCRIPTS / "toolkit-installer"), "--version"], stdout=subprocess.DEVNULL)
    assert process.wait(DEADLINE) == 0
    left = set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()) - children
    assert len(left) <= 1, "the one that starts others, and nothing else"
