"""What a daemon's own binary prints of a candidate, compared; the binaries themselves are in the end-to-end tests."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from toolkit_installer.engines.common import reload_method
from toolkit_installer.node.programs import Programs
from toolkit_installer.node.root import Root

PLUGIN = "io.containerd.grpc.v1.cri"
HANDLERS = {"nvidia": "/t/nvidia-container-runtime"}


def dump(default: str, **runtimes: str) -> dict[str, Any]:
    table = {name: {"options": {"BinaryName": path}} for name, path in runtimes.items()}
    return {"plugins": {PLUGIN: {"containerd": {"default_runtime_name": default, "runtimes": table}}}}


BEFORE = dump("runc", runc="", crun="/usr/bin/crun")
AFTER = dump("nvidia", runc="", crun="/usr/bin/crun", **HANDLERS)


def losses(after: dict[str, Any], default: str | None = "nvidia") -> list[str]:
    return reload_method.compare_containerd_dumps(BEFORE, after, HANDLERS, default)


def test_a_candidate_that_adds_the_handlers_and_keeps_the_rest_is_good() -> None:
    assert losses(AFTER) == []
    assert losses(dump("runc", runc="", crun="/usr/bin/crun", **HANDLERS), default=None) == []


def test_a_runtime_that_a_shallow_merge_loses_is_noticed() -> None:
    assert losses(dump("nvidia", runc="", **HANDLERS)) == ["the runtime crun would not be what it was"]


def test_a_runtime_whose_options_change_is_noticed() -> None:
    changed = copy.deepcopy(AFTER)
    changed["plugins"][PLUGIN]["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] = True
    assert losses(changed) == ["the runtime runc would not be what it was"]


def test_a_handler_that_is_read_without_its_executable_is_noticed() -> None:
    assert losses(dump("nvidia", runc="", crun="/usr/bin/crun", nvidia="runc")) == [
        "it does not see the handler nvidia"
    ]


def test_a_default_that_something_else_overrides_is_noticed() -> None:
    (wrong,) = losses(dump("default", runc="", crun="/usr/bin/crun", **HANDLERS))
    assert wrong == "its default runtime would be 'default', not 'nvidia'"


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    return tmp_path / "daemon"


def play(binary: Path, body: str) -> Programs:
    binary.write_text(f"#!/bin/sh\n{body}\n")
    binary.chmod(0o755)
    return Programs(Root("/"))


def test_dockerds_reason_is_told_in_its_own_words(binary: Path) -> None:
    programs = play(binary, '! grep -q bogus /dev/stdin || { echo "unknown: bogus" >&2; exit 1; }')
    assert reload_method.validate_docker_config(programs, str(binary), [], b'{"bogus": 1}') == "unknown: bogus"
    assert reload_method.validate_docker_config(programs, str(binary), [], b'{"debug": true}') is None


def test_dockerd_is_asked_with_the_flags_that_it_runs_with(binary: Path) -> None:
    programs = play(binary, 'grep -q debug /dev/stdin && { echo "$*" >&2; exit 1; } || exit 0')
    words = reload_method.validate_docker_config(programs, str(binary), ["--debug", "-H", "fd://"], b'{"debug": true}')
    assert words == "--debug -H fd:// --validate --config-file=/dev/stdin"


def test_a_dockerd_that_knows_no_validation_refuses_nothing(binary: Path) -> None:
    programs = play(binary, 'echo "unknown flag: --validate" >&2; exit 125')
    assert reload_method.validate_docker_config(programs, str(binary), [], b'{"bogus": 1}') is None


def test_a_binary_that_is_gone_refuses_nothing(binary: Path) -> None:
    programs = Programs(Root("/"))
    assert reload_method.validate_docker_config(programs, f"{binary} (deleted)", [], b"{}") is None
    assert reload_method.dump_containerd_config(programs, f"{binary} (deleted)", b"")[0] is None


def test_containerd_is_given_the_drop_in_after_the_root(binary: Path) -> None:
    programs = play(binary, "cat")
    read, words = reload_method.dump_containerd_files(
        programs, str(binary), [b"version = 3\n", b"version = 3\nx = 1\n"]
    )
    assert words == ""
    assert read is not None
    assert read["version"] == 3
    assert [os.path.dirname(path) for path in read["imports"]] == ["/proc/self/fd"] * 2


def test_containerd_is_asked_for_what_it_makes_of_the_file_and_for_nothing_else(binary: Path) -> None:
    programs = play(binary, """cat >/dev/null; printf 'asked = "%s"' "$*" """)
    read, _ = reload_method.dump_containerd_config(programs, str(binary), b"")
    assert read == {"asked": "--config /dev/stdin config dump"}


def test_output_that_is_no_toml_is_no_answer(binary: Path) -> None:
    programs = play(binary, "cat >/dev/null; echo '{'")
    assert reload_method.dump_containerd_config(programs, str(binary), b"")[0] is None


GENERATED = b"""version = 3
[plugins.'io.containerd.cri.v1.images'.registry.configs."r.example:5000".auth]
  password = "hunter2"
  token = "also-secret" x
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = /usr/bin/runc
"""


@pytest.mark.parametrize(
    "words, line",
    [
        pytest.param(
            'time="2026-01-01T00:00:00Z" level=warning msg="Ignoring unknown key in TOML" column=3 error="x" '
            'file=/dev/stdin key="plugins" row=3\n'
            'time="2026-01-01T00:00:00Z" level=error msg="Failure unmarshaling TOML" column=16 error="toml: …" '
            "file=/dev/stdin row=6\n"
            "containerd: failed to unmarshal TOML at row 6 column 16: toml: incorrect value",
            6,
            id="containerd 2",
        ),
        pytest.param("containerd: failed to load TOML: /dev/stdin: (6, 16): parsing error: no value", 6, id="1.x"),
        pytest.param("toml: line 6: expected value but found '/' instead", 6, id="CRI-O"),
    ],
)
def test_the_line_that_the_binary_points_at_is_shown_as_nobody_else_could_look_it_up(words: str, line: int) -> None:
    said = reload_method.format_message(words, GENERATED)
    assert said.endswith(f"; line {line} of what it was given: BinaryName = /usr/bin/runc")


def test_of_the_line_that_is_pointed_at_a_secret_is_masked_and_its_name_is_not() -> None:
    said = reload_method.format_message(
        "containerd: failed to load TOML: /dev/stdin: (4, 25): parsing error", GENERATED
    )
    assert said.endswith('line 4 of what it was given: token = "****" ****')
    assert "also-secret" not in said


@pytest.mark.parametrize("words", ["it ended with 1", "(0, 1): parsing error", "(99, 1): parsing error", ""])
def test_words_that_point_at_no_line_are_shown_alone(words: str) -> None:
    assert reload_method.format_message(words, GENERATED) == words
    assert reload_method.format_message("(3, 1): parsing error") == "(3, 1): parsing error"
