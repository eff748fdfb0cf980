"""CRI-O's binary asked before the daemon: a program that reads as CRI-O does, or fails in some way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support import fake_crio
from toolkit_installer.documents import toml_document
from toolkit_installer.engines.api import DesiredState
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.crio import engine as crio_trial
from toolkit_installer.engines.crio.engine import Crio
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.root import Root

PROGRAMS = Programs(Root("/"))
SITE = b'[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
SERVED = {"nvidia": "/toolkit/nvidia-container-runtime"}


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "crio"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def crio(tmp_path: Path) -> str:
    return program(tmp_path, f'#!/bin/sh\nexec "{sys.executable}" "{fake_crio.__file__}" "$@"\n')


def part(default: str, runtimes: dict[str, str]) -> bytes:
    entries = {name: {"runtime_path": path} for name, path in runtimes.items()}
    return crio_config.extract_runtimes({"crio": {"runtime": {"default_runtime": default, "runtimes": entries}}})


def tried(binary: str, after: bytes, before: bytes = b"") -> list[str]:
    return crio_trial.find_trial_faults(PROGRAMS, binary, SITE, (before, after), DesiredState((), SERVED, "nvidia"))


def test_a_good_configuration_is_taken(crio: str) -> None:
    assert tried(crio, part("nvidia", SERVED)) == []


def test_a_default_that_no_file_has_is_refused_in_its_own_words(crio: str) -> None:
    (words,) = tried(crio, b'[crio.runtime]\ndefault_runtime = "nvidia"\n')
    assert "default_runtime set to 'nvidia', but no runtime entry table was found" in words


def test_what_it_would_lose_is_named(crio: str) -> None:
    after = part("runc", {"runc": "/other/runc"})
    assert tried(crio, after) == [
        "it does not see the handler nvidia",
        "its default runtime would be 'runc'",
        "the runtime runc would not be what it was",
    ]


@pytest.mark.parametrize(
    "text",
    ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho 'no: toml'\n", "no program at all"],
    ids=["one without the command", "one that prints something else", "none"],
)
def test_one_that_cannot_be_asked_says_nothing(tmp_path: Path, text: str) -> None:
    assert tried(program(tmp_path, text), b"") == []


def test_one_that_refuses_what_stands_there_already_says_nothing(crio: str) -> None:
    assert tried(crio, part("nvidia", SERVED), before=b'[crio.runtime]\ndefault_runtime = "gone"\n') == []


def test_what_is_tried_is_toml_whatever_the_runtimes_are_called() -> None:
    content = part("a b", {"a b": "/x", "dot.ted": "/y"})
    assert set(toml_document.parse(content)["crio"]["runtime"]["runtimes"]) == {"a b", "dot.ted"}


def test_files_that_cri_o_refuses_as_they_are_are_told_in_its_words(crio: str, tmp_path: Path) -> None:
    config, folder = tmp_path / "crio.conf", tmp_path / "crio.conf.d"
    folder.mkdir()
    config.write_bytes(SITE)
    flags = ["--config", str(config), "--config-dir", str(folder)]
    assert crio_trial.find_trial_refusal(PROGRAMS, crio, flags) is None
    (folder / "10-broken.conf").write_text("[crio.runtime\n")
    words = crio_trial.find_trial_refusal(PROGRAMS, crio, flags)
    assert words is not None
    assert "10-broken.conf" in words


def test_a_cri_o_that_cannot_be_started_says_nothing_against_its_files(tmp_path: Path) -> None:
    assert crio_trial.find_trial_refusal(PROGRAMS, str(tmp_path / "none"), []) is None


def refused(binary: str, *arguments: str) -> str | None:
    me = processes.inspect_process(os.getpid())
    assert me is not None
    process = msgspec.structs.replace(me, executable=binary, arguments=("crio", *arguments))
    return Crio().find_restart_obstacle(Node("/"), process)


def test_a_node_without_the_usual_root_file_is_not_refused_for_that(crio: str, tmp_path: Path) -> None:
    assert not Path("/etc/crio/crio.conf").exists()
    assert refused(crio, "--config-dir", str(tmp_path / "crio.conf.d")) is None


def test_a_root_file_that_crio_was_told_and_that_is_gone_is_a_reason(crio: str, tmp_path: Path) -> None:
    words = refused(crio, f"--config={tmp_path}/crio.conf", "-d", str(tmp_path / "crio.conf.d"))
    assert words is not None
    assert "no such file" in words
