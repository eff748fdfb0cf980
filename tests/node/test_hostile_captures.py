"""A damaged or hostile capture is one refused node with its reason, and the rest of the fleet is answered."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import capture_mutations, fleet_captures
from tests.support.capture_mutations import FAILED, closed, opened
from toolkit_installer.cli import commands
from toolkit_installer.settings import Program

READER = "node.reading.Reader"
CANONICAL = "node.root.Root.canonical"
DOCKER = "engines.docker.client.query_info"
LOOP = ["NodeError", "cannot follow its symlinks: Too many levels of symbolic links", "/etc/docker", None, None, 40]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "captures"
    fleet_captures.make(folder, 6, variants=1)
    return folder


def answered(*arguments: object) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of a command, its JSON, and what it logged."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        words = (*map(str, arguments), "--json")
        code = commands.main(Program.TOOLKIT_INSTALLER, words, {"PATH": os.environ["PATH"]})
    return code, json.loads(out.getvalue() or "{}"), errors.getvalue()


def answers_of(content: bytes, seam: str, answer: Any) -> bytes:
    """Return the capture with every answer of a seam replaced."""
    value = opened(content)
    value["answers"][seam] = dict.fromkeys(value["answers"][seam], answer)
    return closed(value)


def file_of(content: bytes) -> list[Any]:
    """Return the answer of a file with this content."""
    identity = dict.fromkeys(("device", "inode", "size", "mtime_ns", "ctime_ns"), 1)
    metadata = {"mode": 0o644, "uid": 0, "gid": 0, "xattrs": []}
    return [{"path": "/x", "content": content, "metadata": metadata, "identity": identity}]


def with_fields(content: bytes, **fields: Any) -> bytes:
    return closed(opened(content) | fields)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "an error of the system": lambda content: answers_of(content, CANONICAL, FAILED),
    "an error in a status": lambda content: answers_of(content, f"{READER}.status", FAILED),
    "an error with a number that there is not": lambda content: answers_of(content, CANONICAL, [None, [*LOOP[:5], -1]]),
    "an error of ours": lambda content: answers_of(content, CANONICAL, [None, ["InstallerError", "made up"]]),
    "a relative canonical path": lambda content: answers_of(content, CANONICAL, ["relative"]),
    "a canonical path without an end": lambda content: answers_of(content, CANONICAL, ["//"]),
    "a NUL in a path": lambda content: answers_of(content, CANONICAL, ["/a\0b"]),
    "links that lead in a circle": lambda content: answers_of(content, CANONICAL, [None, LOOP]),
    "a negative mode": lambda content: answers_of(content, f"{READER}.status", [[-1] * 11]),
    "a huge mode": lambda content: answers_of(content, f"{READER}.status", [[1 << 62] * 11]),
    "a folder that is a file": lambda content: answers_of(
        content, f"{READER}.status", [[0o100644, 1, 1, 1, 0, 0, 1, 0, 1, 1, 1]]
    ),
    "handlers as a text": lambda content: answers_of(content, DOCKER, [{"Runtimes": "text", "ServerVersion": "28"}]),
    "processes with negative numbers": lambda content: answers_of(content, "node.processes.names", [[[-1, "dockerd"]]]),
    "a clock of the far future": lambda content: answers_of(content, "node.machine.boot_seconds", [1e300]),
    "a file of 8 MB": lambda content: answers_of(content, f"{READER}.read_file", file_of(b" " * 8_000_000)),
    "many levels": lambda content: answers_of(content, f"{READER}.read_file", file_of(b'{"a":' * 800_000)),
    "an escape of nothing": lambda content: answers_of(content, CANONICAL, ["/\uf8fe", None, True]),
    "many values in few bytes": lambda content: with_fields(content, given={"runtime": [""] * 60_000_000}),
    "a long name": lambda content: with_fields(content, node="x" * 1_000_000),
    "an option that there is not": lambda content: with_fields(content, given={"runtime": ["no engine"]}),
    "a root that is none": lambda content: with_fields(content, root="\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_is_refused_and_the_rest_is_answered(fleet: Path, tmp_path: Path, name: str) -> None:
    files = sorted(fleet.iterdir())
    _, plain, _ = answered("replay", fleet)
    assert plain["nodes"]["refused"] == 0
    captures = tmp_path / "captures"
    captures.mkdir()
    for number, file in enumerate(files):
        content = file.read_bytes()
        (captures / file.name).write_bytes(HOSTILE[name](content) if number == 0 else content)
    code, found, log = answered("replay", captures, "--html", tmp_path / "page.html")
    assert (code, "bug" in log) == (3, False), log
    assert found["nodes"]["captures"] == len(files)
    assert found["nodes"]["refused"] == 1, found["refusals"]
    assert found["refusals"][0]["exit_code"] != 1
    assert "holds what no node answers" not in found["refusals"][0]["reason"], found["refusals"]  # found by its type
    assert (tmp_path / "page.html").stat().st_size > 1000
    for before, after in ((fleet, captures), (captures, fleet)):
        code, found, log = answered("compare", before, after)
        assert code in (0, 3), log
        assert "bug" not in log
        nodes = found["nodes"]
        assert nodes["unusable"] + nodes["untold"] + nodes["lagging"] <= len(files) + 1
        assert len(files) - 1 <= nodes["compared"] <= len(files)


def test_captures_that_use_up_the_limits_are_refused_one_by_one(fleet: Path, tmp_path: Path) -> None:
    """One takes more memory, and one leads to a larger answer, than a capture may; those around them are answered."""
    content = min(fleet.iterdir()).read_bytes()
    long = answers_of(content, f"{READER}.read_file", file_of(b'{"a": [' + b"[]," * 1_300_000 + b"[]]}"))
    for number, each in enumerate([content, long, content, long, content]):
        (tmp_path / f"{number}.capture").write_bytes(each)
    code, found, log = answered("replay", tmp_path)
    assert (code, "bug" in log) == (3, False), log
    assert (found["nodes"]["captures"], found["nodes"]["refused"]) == (5, 2)


ELSEWHERE = """
import contextlib, importlib, io, os, pkgutil, socket, subprocess, sys
import toolkit_installer
from toolkit_installer.cli import capture_workers, commands
from toolkit_installer.engines.detect import own_container
from toolkit_installer.settings import Program
for module in pkgutil.walk_packages(toolkit_installer.__path__, "toolkit_installer."):
    if not module.name.endswith("__main__") and "process" not in module.name:
        importlib.import_module(module.name)

def read(path, *_):  # the program opens a file by its descriptor, for which there is no /proc there
    with open(path, "rb") as file:
        return file.read()

capture_workers.read_bounded = read

def refuse(what, name):
    if isinstance(name, int) or str(name).startswith(("/captures", "/proc/self/statm")):
        return
    os.write(2, f"the machine is asked: {what} {name}\\n".encode())
    os._exit(99)

def heard(event, given):
    kind = event.partition(".")[0]
    if event in ("open", "os.listdir", "os.scandir"):
        refuse(event, given[0])
    elif kind in ("socket", "subprocess", "ctypes") or event in ("os.exec", "os.posix_spawn", "os.system"):
        refuse(event, given)

def guarded(name):
    function = getattr(os, name)
    def guard(place, *given, **named):
        refuse(name, place)
        return function(place, *given, **named)
    return guard

def told(folder):
    answers = []
    for words in (("replay", folder, "--each"), ("replay", folder, "--json"), ("compare", folder, folder, "--json")):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = commands.main(Program.TOOLKIT_INSTALLER, words, {})
        answers.append((code, out.getvalue().replace(folder, "FOLDER")))
    return answers

def plant(read):
    planned = own_container.list_requested_folders
    def read_and_plan(settings):
        with contextlib.suppress(OSError):
            read()
        return planned(settings)
    own_container.list_requested_folders = read_and_plan

there, root, watched, *planted = sys.argv[1:]
if planted:
    plant(eval(f"lambda: {planted[0]}"))
before = told(there)
os.chroot(root)
os.chdir("/")
if watched == "watched":
    for name in ("stat", "lstat", "readlink", "access", "statvfs", "getxattr", "listxattr"):
        setattr(os, name, guarded(name))
    sys.addaudithook(heard)
after = told("/captures")
for one, other in zip(before, after):
    assert one == other, (one, other)
print(len(after), "answers are the same")
"""
CONTRADICTING = {
    "etc/docker/daemon.json": '{"default-runtime": "another", "runtimes": {"nvidia": {"path": "/another"}}}',
    "etc/containerd/config.toml": 'version = 2\nimports = ["/nowhere"]\n',
    "etc/crio/crio.conf": '[crio]\nroot = "/another"\n',
    "usr/local/nvidia": "a file",
    "run/nvidia": "a file",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml": "no TOML at all [",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml": "no TOML at all [",
    "usr/bin/nvidia-smi": "#!/bin/sh\n",
    "tmp": "a file, where made-up nodes have their folders",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot")
@pytest.mark.parametrize("kind", ["empty", "contradicting"])
def test_a_replay_asks_nothing_of_the_machine_that_it_runs_on(fleet: Path, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "root"
    captures = root / "captures"
    captures.mkdir(parents=True)
    for number, file in enumerate(sorted(fleet.iterdir())):
        (captures / file.name).write_bytes(file.read_bytes())
        value = opened(file.read_bytes())
        every = capture_mutations.mutations(value, set())
        for place, index in every[number :: len(every) // 6]:  # other ways through the plan
            mutant = closed(capture_mutations.mutated(value, place, index))
            (captures / f"{file.name}.{len(list(captures.iterdir()))}.capture").write_bytes(mutant)
    for name, text in CONTRADICTING.items() if kind == "contradicting" else ():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/statm").write_text("100000 0 0 0 0 0 0")
    done = replay_elsewhere(captures, root, "watched" if kind == "empty" else "as it is")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3 answers are the same\n"


def replay_elsewhere(captures: Path, root: Path, watched: str, *planted: str) -> subprocess.CompletedProcess[str]:
    """Replay captures on this machine and then below another root, with a planted read."""
    words = [sys.executable, "-c", ELSEWHERE, str(captures), str(root), watched, *planted]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for chroot")
@pytest.mark.parametrize(
    "planted",
    [
        "os.path.exists('/etc/hostname')",
        "os.readlink('/proc/1/root')",
        "os.listdir('/etc')",
        "open('/etc/hostname').close()",
        "socket.socket(socket.AF_UNIX).connect('/run/docker.sock')",
        "subprocess.run(['/bin/true'])",
    ],
)
def test_a_read_of_the_machine_that_is_no_query_is_found(fleet: Path, tmp_path: Path, planted: str) -> None:
    captures = tmp_path / "root" / "captures"
    captures.mkdir(parents=True)
    file = min(fleet.iterdir())
    (captures / file.name).write_bytes(file.read_bytes())
    (tmp_path / "root/proc/self").mkdir(parents=True)
    (tmp_path / "root/proc/self/statm").write_text("100000 0 0 0 0 0 0")
    done = replay_elsewhere(captures, tmp_path / "root", "watched", planted)
    assert done.returncode != 0
    assert "the machine is asked: " in done.stderr
