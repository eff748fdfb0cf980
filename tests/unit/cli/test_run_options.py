"""Which options a command takes from the run that waits, or from the receipt, and which only the caller decides."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from toolkit_installer.cli import run_options
from toolkit_installer.cli.options.resolve import OptionSources, OptionValue
from toolkit_installer.cli.run_options import _WaitingRun
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, Program

OURS, OLD = Program.TOOLKIT_INSTALLER, Program.NVIDIA_TOOLKIT
INSTALL_DIR = "/usr/local/nvidia"
TOOLKIT = f"{INSTALL_DIR}/toolkit"
HANDLERS = (("gpu", f"{TOOLKIT}/nvidia-container-runtime"), ("gpu-cdi", f"{TOOLKIT}/nvidia-container-runtime.cdi"))
ENGINE = EngineRecord(EngineName.CONTAINERD, "/run/c.sock", None, HANDLERS, "gpu", ())
INSTALLED = Receipt(State.INSTALLED, "1", TOOLKIT, (), (), "/run/toolkit.pid", (), (ENGINE,))
NAMES = ("runtime", "method", "set_as_default", "runtime_name", "socket", "pid_file", "cleanup", "no_such_option")


# --- from the receipt ---


@pytest.mark.parametrize(
    "receipt, options",
    [
        (
            INSTALLED,
            {"runtime": "containerd", "method": "handlers", "set_as_default": "true", "runtime_name": "gpu"},
        ),
        (
            msgspec.structs.replace(INSTALLED, engines=(msgspec.structs.replace(ENGINE, default=None),)),
            {"runtime": "containerd", "method": "handlers", "set_as_default": "false", "runtime_name": "gpu"},
        ),
        (
            msgspec.structs.replace(INSTALLED, engines=(), cdi=(msgspec.structs.replace(ENGINE, handlers=()),)),
            {"runtime": "containerd", "method": "cdi"},
        ),
        (
            msgspec.structs.replace(
                INSTALLED, engines=(ENGINE, msgspec.structs.replace(ENGINE, name=EngineName.DOCKER))
            ),
            {"runtime": "containerd,docker", "method": "handlers", "set_as_default": "true", "runtime_name": "gpu"},
        ),
        (msgspec.structs.replace(INSTALLED, engines=()), {}),
    ],
    ids=["handlers", "no-default", "cdi", "two-engines", "toolkit-alone"],
)
def test_a_receipt_tells_the_options_that_made_it(receipt: Receipt, options: Mapping[str, str]) -> None:
    assert run_options._derive_options(receipt) == {name: (text,) for name, text in options.items()}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the root of a node that has the toolkit."""
    store = ReceiptStore(Node(str(tmp_path)), INSTALL_DIR)
    store.prepare()
    store.save(INSTALLED, {})
    if store.lock_fd is not None:
        os.close(store.lock_fd)
    return str(tmp_path)


def complete(
    values: Mapping[str, Sequence[str]], names: Sequence[str] = NAMES, **environment: str
) -> dict[str, Sequence[str]]:
    return run_options.complete_options(values, environment, OURS, names)


def test_options_that_were_not_given_come_from_the_receipt(root: str, logged: io.StringIO) -> None:
    given = {"node_root": [root]}
    assert complete(given) == given | run_options._derive_options(INSTALLED)
    assert "event=options-taken" in logged.getvalue()
    assert complete(given, ["runtime"]) == given | {"runtime": ("containerd",)}


@pytest.mark.parametrize(
    "values, environment",
    [
        ({"runtime": ["docker"]}, {}),
        ({"socket": ["/run/other.sock"]}, {}),
        ({}, {"RUNTIME": "docker"}),
        ({"install_dir": ["/opt/other"]}, {}),
        ({"runtime": ["dokcer"]}, {}),
        ({"log_format": ["xml"]}, {}),
        ({"pid_file": ["relative"]}, {}),
    ],
    ids=["an engine", "its socket", "a variable", "another folder", "a bad value", "another bad value", "no place"],
)
def test_a_caller_who_says_what_is_meant_gets_nothing_from_the_receipt(
    root: str, logged: io.StringIO, values: dict[str, list[str]], environment: dict[str, str]
) -> None:
    given = {"node_root": [root], **values}
    assert complete(given, **environment) == given
    assert logged.getvalue() == ""


def test_where_and_how_a_command_works_keeps_the_receipt_in_use(root: str) -> None:
    given = {"node_root": [root], "pid_file": ["/run/other/toolkit.pid"], "keep_toolkit": ["true"]}
    assert complete(given)["runtime"] == ("containerd",)


def test_a_node_without_a_receipt_gives_no_options(tmp_path: Path) -> None:
    given = {"node_root": [str(tmp_path)]}
    assert complete(given) == given
    missing = {"node_root": [str(tmp_path / "gone")]}
    assert complete(missing) == missing


# --- from the run ---


@pytest.mark.parametrize(
    "words, program, values",
    [
        (["python", "-m", "toolkit_installer", "run", "--runtime", "docker"], OURS, {"runtime": ["docker"]}),
        (["/usr/bin/python3", "/opt/toolkit_installer/__main__.py", "run"], OURS, {}),
        (["/usr/bin/toolkit-installer", "run", "--socket=/s", "--socket", "/t"], OURS, {"socket": ["/s", "/t"]}),
        (["/x/nvidia-toolkit", "--runtime", "crio", "/opt"], OLD, {"runtime": ["crio"]}),
        (["python", "-m", "another", "run"], None, {}),
        ([], None, {}),
    ],
)
def test_a_command_line_is_that_of_a_run_under_each_of_its_names(
    words: list[str], program: Program | None, values: dict[str, list[str]]
) -> None:
    parsed = run_options._parse_command_line(words)
    assert parsed == ((program, values) if program is not None else None)


def run(values: Mapping[str, Sequence[str]], program: Program = OURS, **environment: str) -> _WaitingRun:
    """Return a run that sees the same files as this process does: it is this process."""
    process = Process(os.getpid(), "python", "/usr/bin/python3", (), 1.0, None)
    return _WaitingRun(process, program, values, environment)


def from_run(
    waiting: _WaitingRun,
    given: dict[str, Sequence[str]],
    wanted: Sequence[str] = ("runtime", "socket", "method", "low_level_runtimes"),
    engines: tuple[str, ...] = (),
    **environment: str,
) -> dict[str, Sequence[str]]:
    own = OptionSources(given, environment, OURS).resolve_all(None, None).by_name
    return run_options._complete_from_run(given, environment, waiting, own, wanted, None, engines)


def test_options_of_the_run_are_taken_as_it_was_given_them(logged: io.StringIO) -> None:
    waiting = run({"runtime": ["containerd"], "socket": ["/s"]}, RUNTIME="docker")
    assert from_run(waiting, {}) == {"runtime": ("containerd",), "socket": ("/s",)}
    assert "event=options-taken" in logged.getvalue()
    assert from_run(run({}), {}) == {}


def test_an_option_of_the_caller_stands_and_the_difference_is_logged(logged: io.StringIO) -> None:
    waiting = run({"runtime": ["containerd"], "low_level_runtimes": ["runc"]})
    given: dict[str, Sequence[str]] = {"low_level_runtimes": ["crun"]}
    assert from_run(waiting, given) == given | {"runtime": ("containerd",)}
    assert "event=option-differs" in logged.getvalue()
    assert "given=crun" in logged.getvalue()


def test_a_variable_that_the_runs_container_has_too_is_no_word_of_the_caller() -> None:
    waiting = run({"runtime": ["containerd"]}, RUNTIME="docker")
    assert from_run(waiting, {}, RUNTIME="docker")["runtime"] == ("containerd",)
    assert "runtime" not in from_run(waiting, {}, RUNTIME="crio")


def test_for_another_engine_the_runs_socket_and_method_are_not_taken() -> None:
    waiting = run({"runtime": ["containerd"], "socket": ["/s"], "method": ["cdi"], "low_level_runtimes": ["crun"]})
    given: dict[str, Sequence[str]] = {"runtime": ["docker"]}
    assert from_run(waiting, given) == given | {"low_level_runtimes": ("crun",)}
    same: dict[str, Sequence[str]] = {"runtime": ["containerd"]}
    assert from_run(waiting, same)["socket"] == ("/s",)


def test_a_run_that_found_its_engine_itself_is_compared_by_what_it_has_installed() -> None:
    waiting = run({"runtime": ["auto"], "socket": ["/s"]})
    given: dict[str, Sequence[str]] = {"runtime": ["docker"]}
    assert "socket" in from_run(waiting, given, engines=("docker",))
    assert "socket" not in from_run(waiting, given, engines=("containerd",))


def test_a_run_of_a_release_with_other_values_gives_no_options() -> None:
    given: dict[str, Sequence[str]] = {"socket": ["/s"]}
    assert from_run(run({"runtime": ["another-engine"]}), given) == given


@pytest.mark.parametrize(
    "name, option, taken",
    [
        ("socket", OptionValue("/s", "/s", "--socket"), True),
        ("socket", OptionValue("/s", "/s", None), False),
        ("socket", OptionValue(None, "", None), False),
        ("runtime", OptionValue(("docker",), "docker", None), True),
    ],
    ids=["given", "its default", "none", "the engine by default"],
)
def test_a_default_of_the_run_is_none_here(name: str, option: OptionValue, *, taken: bool) -> None:
    assert run_options._translate(name, option, run({}), None) == (option if taken else None)
