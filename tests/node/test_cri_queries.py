"""The program that asks CRIs: what it costs, what it says, and that no question leaves a trace in the next one."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.engines import cri_socket
from tests.support.fake_node import CONFIG_TOML, FakeNode
from toolkit_installer.engines.common import cri
from toolkit_installer.node.programs import Coprocess

SECONDS = 20.0
OWN = "/run/containerd/containerd.sock"
ASKED = """
import sys
from toolkit_installer import lazy
from toolkit_installer.engines.common import cri_child
assert cri_child.main() == 0
loaded = [name for name, module in sys.modules.items() if not isinstance(module, lazy.LazyModule)]
print("", *loaded, sep="\\n")
"""
UNUSED = {
    *("asyncio", "grpc.aio", "inspect", "ssl"),
    *("google.protobuf.internal.python_message", "google.protobuf.text_format"),
    "toolkit_installer.engines.common.cri_canary",
}


def question(place: Path, what: str = "status", seconds: float = SECONDS) -> bytes:
    asked = {"what": what, "folder": str(place.parent), "name": place.name, "seconds": seconds, "handlers": None}
    return json.dumps(asked).encode() + b"\n"


@pytest.fixture
def child() -> Iterator[Coprocess]:
    """The program's own, as no test has one forked."""
    started = Coprocess(cri._CHILD._start.command)
    yield started
    started.end()


def answer(child: Coprocess, place: Path, seconds: float = SECONDS) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(child.ask(question(place, seconds=seconds), 60))
    return told


def test_a_query_loads_no_coroutines_no_secure_channels_and_no_text_format(tmp_path: Path) -> None:
    place = tmp_path / "run/containerd.sock"
    with cri_socket.answering(place, "1.7.24"):
        command = [sys.executable, "-c", ASKED]
        done = subprocess.run(command, input=question(place), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    said, *modules = done.stdout.decode().splitlines()
    assert json.loads(said)["answer"]["version"] == "1.7.24"
    assert {"grpc", "google.protobuf.message"} <= set(modules)
    assert not UNUSED & set(modules)


def test_an_engine_that_is_not_there_is_said_in_its_own_words(tmp_path: Path, child: Coprocess) -> None:
    assert answer(child, tmp_path / "absent.sock", 1)["said"].startswith("UNAVAILABLE: ")


def test_a_folder_that_is_gone_is_said_in_the_systems_words(tmp_path: Path, child: Coprocess) -> None:
    assert answer(child, tmp_path / "absent/it.sock") == {"said": "No such file or directory"}


def test_one_child_asks_several_engines_and_stays_in_nobodys_folder(tmp_path: Path, child: Coprocess) -> None:
    sockets = [tmp_path / name / "containerd.sock" for name in ("one", "other")]
    with cri_socket.answering(sockets[0], "1.7.24"), cri_socket.answering(sockets[1], "2.1.4"):
        answers = [answer(child, each) for each in (*sockets, *sockets)]
    assert [each["answer"]["version"] for each in answers] == ["1.7.24", "2.1.4"] * 2
    assert child._child is not None
    assert os.readlink(f"/proc/{child._child.pid}/cwd") == "/"


def test_a_started_engine_answers_the_next_query_however_many_failed_before(tmp_path: Path, child: Coprocess) -> None:
    # a channel that found nobody is not to be what the next question waits for
    place = tmp_path / "run/containerd.sock"
    place.parent.mkdir()
    with listening_to_nobody(place):
        for _ in range(8):
            assert "Connection refused" in answer(child, place, 5)["said"]
    with cri_socket.answering(place, "1.7.24"):
        assert answer(child, place)["answer"]["version"] == "1.7.24"


@contextlib.contextmanager
def listening_to_nobody(place: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place))
    yield
    place.unlink()


@pytest.mark.real_start
def test_who_falls_asleep_takes_no_child_that_asked_along(node: FakeNode) -> None:
    node.write(CONFIG_TOML, "version = 2\n")
    with cri_socket.answering(node.place(OWN), "1.7.24"):
        run = node.waiting("--socket", OWN, "--restart-mode", "none", engine="containerd")
        assert "was not reloaded" in run.output, "it asked nobody"
        process = Path(f"/proc/{run.pid}")
        deadline = time.monotonic() + SECONDS
        while b"idle_process" not in (process / "cmdline").read_bytes():  # it says that it waits right before
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (process / f"task/{run.pid}/children").read_text() == ""
