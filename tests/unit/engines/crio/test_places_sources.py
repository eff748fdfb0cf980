"""`--config-source` for CRI-O: who is asked, in which order, and what is said when nobody answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.crio.places import CrioLiveState, CrioSource, CrioSources, read_first_source
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineSettings

RUNNING = '[crio.runtime.runtimes.crun]\nruntime_root = "/running"\n'
FILES = '[crio.runtime.runtimes.crun]\nruntime_root = "/files"\n'
TOLD = b'[crio.runtime.runtimes.crun]\nruntime_root = "/told"\n'
LIVE = CrioLiveState("1.37.0", {"crun": None}, "crun", config=TOLD)


def program(folder: Path, status: str, config: str) -> str:
    """Make a program that is called as CRI-O's is; each text is a line of shell."""
    path = folder / "crio"
    path.write_text(f'#!/bin/sh\ncase "$*" in\nstatus*config) {status};;\n*config) {config};;\n*) exit 64;;\nesac\n')
    path.chmod(0o755)
    return str(path)


def said(text: str) -> str:
    return f"printf '%s' '{text}'"


def asked(
    *sources: str,
    executable: str | None = None,
    live: LiveState | None = None,
    status: Sequence[str] = (),
    config: Sequence[str] = (),
) -> CrioSources:
    settings = EngineSettings(config_sources=sources, executable=executable)
    return read_first_source(Node("/", whole=False), settings, live, status, config)


def test_what_runs_is_asked_before_what_its_files_say(tmp_path: Path) -> None:
    binary = program(tmp_path, said(RUNNING), said(FILES))
    assert asked("command", executable=binary).source == CrioSource(f"`{binary} status config`", RUNNING.encode())
    assert asked("command", "file", executable=binary).source is not None


@pytest.mark.parametrize("status", ["exit 1", "kill -9 $$", said("no toml"), said("[crio.runtime]\n"), "true"])
def test_one_that_does_not_answer_is_asked_what_its_files_say(tmp_path: Path, status: str) -> None:
    binary = program(tmp_path, status, said(FILES))
    found = asked("command", executable=binary)
    assert found.source == CrioSource(f"`{binary} config`", FILES.encode())


def test_a_program_that_cannot_ask_leaves_it_to_the_socket(tmp_path: Path) -> None:
    binary = program(tmp_path, "exit 1", said(FILES))
    assert asked("command", executable=binary, live=LIVE).source == CrioSource("what CRI-O says on its socket", TOLD)


def test_its_own_socket_and_files_are_named_to_it(tmp_path: Path) -> None:
    binary = program(tmp_path, "exit 1", said('[crio.runtime.runtimes.x]\nruntime_root = "\'"$*"\'"\n'))
    found = asked("command", executable=binary, status=["--socket", "/s"], config=["--config", "/c"])
    assert found.source is not None
    assert found.source.content == b'[crio.runtime.runtimes.x]\nruntime_root = "--config /c config"\n'
    binary = program(tmp_path, said('[crio.runtime.runtimes.x]\nruntime_root = "\'"$*"\'"\n'), "exit 1")
    found = asked("command", executable=binary, status=["--socket", "/s"])
    assert found.source is not None
    assert b'"status --socket /s config"' in found.source.content


def test_the_sources_are_tried_in_the_order_given(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(FILES)
    binary = program(tmp_path, said(RUNNING), "exit 1")
    assert asked(f"file={other}", "command", executable=binary).source == CrioSource(str(other), FILES.encode())
    assert asked("file", "command", executable=binary) == CrioSources()
    named = asked(f"file={tmp_path}/none", "command", executable=binary)
    assert named.source == CrioSource(f"`{binary} status config`", RUNNING.encode())
    assert named.failures == (f"{tmp_path}/none does not exist",)


def test_where_none_can_be_read_each_says_why(tmp_path: Path) -> None:
    binary = program(tmp_path, "echo starting >&2; echo 'no socket' >&2; exit 1", "echo 'bad table' >&2; exit 3")
    found = asked("command", f"file={tmp_path}/none", executable=binary)
    assert found.failed
    assert found.source is None
    assert found.failures == (
        f"`{binary} status config` ended with 1: no socket",
        f"`{binary} config` ended with 3: bad table",
        f"{tmp_path}/none does not exist",
    )


def test_without_a_source_it_is_what_the_files_say_and_nobody_is_asked(tmp_path: Path) -> None:
    binary = program(tmp_path, f"touch {tmp_path}/asked; {said(RUNNING)}", "exit 1")
    assert asked(executable=binary, live=LIVE) == CrioSources()
    assert not (tmp_path / "asked").exists()


def test_a_configuration_that_is_all_built_in_is_one_that_can_be_read(tmp_path: Path) -> None:
    binary = program(tmp_path, "exit 1", said("# [crio.runtime]\n"))
    assert asked("command", executable=binary).source == CrioSource(f"`{binary} config`", b"# [crio.runtime]\n")
