"""The many spellings of a flag, RUNTIME_ARGS and TOOLKIT_ARGS, and variables that are nearly an option's."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli.options.model import Kind, Option
from toolkit_installer.cli.options.resolve import (
    Given,
    find_near_misses,
    grammar_of,
    normalize_arguments,
    parse_string,
    read_arguments,
    runtime_grammar,
    toolkit_grammar,
)
from toolkit_installer.cli.options.table import OPTIONS
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName

GRAMMAR = grammar_of(OPTIONS)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--runtime", "docker"], ["--runtime=docker"]),
        (["-runtime", "docker"], ["--runtime=docker"]),
        (["-runtime=docker"], ["--runtime=docker"]),
        (["-r", "docker"], ["--runtime=docker"]),
        (["-rdocker"], ["--runtime=docker"]),
        (["-r=docker"], ["--runtime=docker"]),
        (["-nr", "docker"], ["--no-daemon=true", "--runtime=docker"]),
        (["-n=false"], ["--no-daemon=false"]),
        (["--no-daemon", "/usr/local/nvidia"], ["--no-daemon=true", "/usr/local/nvidia"]),
        (["--no-daemon", "false"], ["--no-daemon=true", "false"]),
        (["--root", "/a"], ["--toolkit-install-dir=/a"]),
        (["-u", "--socket /x"], ["--runtime-args=--socket /x"]),
        (["-t", ""], ["--toolkit-args="]),
        (["--socket=a=b"], ["--socket=a=b"]),
        (["--socket"], ["--socket"]),
        (["-r"], ["-r"]),
        (["--", "--no-daemon"], ["--", "--no-daemon"]),
        (["-"], ["-"]),
        (["-help", "-version"], ["--help", "--version"]),
        (["--nonsense", "-x", "-nx", "-v", "--n"], ["--nonsense", "-x", "-nx", "-v", "--n"]),
        (["---runtime", "docker"], ["---runtime", "docker"]),
        (["/usr/local/nvidia", "-n"], ["/usr/local/nvidia", "--no-daemon=true"]),
    ],
)
def test_one_spelling_for_all(arguments: list[str], expected: list[str]) -> None:
    assert normalize_arguments(arguments, GRAMMAR) == expected


@st.composite
def spelled(draw: st.DrawFn) -> tuple[list[str], Option, str]:
    """An option in any of its spellings, with its text."""
    option = draw(st.sampled_from(OPTIONS))
    flag = draw(st.sampled_from(option.flags))
    if flag.startswith("--"):
        flag = draw(st.sampled_from([flag, flag[1:]]))
    if option.kind is Kind.FLAG and draw(st.booleans()):
        return [flag], option, "true"
    text = draw(st.text(max_size=8))
    glued = option.kind is Kind.FLAG or draw(st.booleans())
    return ([f"{flag}={text}"] if glued else [flag, text]), option, text


@given(st.lists(st.one_of(spelled(), st.sampled_from(["/usr/local/nvidia", "positional"])), max_size=6))
def test_whatever_the_spelling_no_flag_swallows_its_neighbour(
    pieces: list[tuple[list[str], Option, str] | str],
) -> None:
    arguments: list[str] = []
    expected: list[Given | str] = []
    for piece in pieces:
        if isinstance(piece, str):
            arguments.append(piece)
            expected.append(piece)
        else:
            words, option, text = piece
            arguments += words
            expected.append(Given(option, text))
    assert list(read_arguments(arguments, GRAMMAR)) == expected
    once = normalize_arguments(arguments, GRAMMAR)
    assert normalize_arguments(once, GRAMMAR) == once


DOCKER = runtime_grammar(EngineName.DOCKER)


def test_the_string_that_manifests_of_2020_hold() -> None:
    text = (
        "--socket /run/k3s/containerd/containerd.sock --config /etc/containerd/config.toml --runtime-class nvidia "
        "--set-as-default --restart-mode systemd"
    )
    assert parse_string(text, label="RUNTIME_ARGS", grammar=runtime_grammar(EngineName.CONTAINERD)) == {
        "socket": ("/run/k3s/containerd/containerd.sock",),
        "config": ("/etc/containerd/config.toml",),
        "runtime_name": ("nvidia",),
        "set_as_default": ("true",),
        "restart_mode": ("systemd",),
    }


@pytest.mark.parametrize("engine", [EngineName.DOCKER, EngineName.CONTAINERD, None])
def test_docker_and_containerd_have_the_letters_c_s_r_d(engine: EngineName | None) -> None:
    assert parse_string("-c /c -s /s -r gpu -d", label="X", grammar=runtime_grammar(engine)) == {
        "config": ("/c",),
        "socket": ("/s",),
        "runtime_name": ("gpu",),
        "set_as_default": ("true",),
    }


def test_crio_has_other_meanings_for_its_letters() -> None:
    assert parse_string("-d /hooks -f hook.json", label="X", grammar=runtime_grammar(EngineName.CRIO)) == {
        "hooks_dir": ("/hooks",),
        "hook_filename": ("hook.json",),
    }


def test_toolkit_args_hold_the_install_steps_flags() -> None:
    text = "--nvidia-driver-root=/ --nvidia-container-runtime-debug '/var/log/with space.log' --root /opt"
    assert parse_string(text, label="TOOLKIT_ARGS", grammar=toolkit_grammar()) == {
        "driver_root": ("/",),
        "runtime_debug": ("/var/log/with space.log",),
        "install_dir": ("/opt",),
    }


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_string_says_nothing(text: str) -> None:
    assert parse_string(text, label="RUNTIME_ARGS", grammar=DOCKER) == {}


def test_nested_quotes_and_shell_syntax_reach_nobody() -> None:
    text = r"""--config "/etc/a 'b' \"c\".json" --socket '/x/$(reboot);`id`|&>' """
    assert parse_string(text, label="RUNTIME_ARGS", grammar=DOCKER) == {
        "config": ("""/etc/a 'b' "c".json""",),
        "socket": ("/x/$(reboot);`id`|&>",),
    }


@pytest.mark.parametrize(
    "text, token",
    [
        ("--bogus", "'--bogus'"),
        ("--bogus=1", "'--bogus=1'"),
        ("-x", "'-x'"),
        ("--no-daemon", "'--no-daemon'"),
        ("--root /opt", "'--root'"),
        ("--set-as-default false", "'false' is left over"),
        ("/usr/local/nvidia", "'/usr/local/nvidia' is left over"),
        ("-- --config", "'--'"),
        ("--socket", "'--socket' needs a value"),
        ("-c", "'-c' needs a value"),
    ],
)
def test_what_is_no_flag_of_the_step_is_named_with_its_variable(text: str, token: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_string(text, label="RUNTIME_ARGS", grammar=DOCKER)
    assert str(caught.value).startswith("RUNTIME_ARGS: ")
    assert token in caught.value.reason
    assert "--socket" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["--config 'unclosed", '"', "--socket /x\\"])
def test_bad_quoting_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"RUNTIME_ARGS: .* is not quoted as a shell would read it"):
        parse_string(text, label="RUNTIME_ARGS", grammar=DOCKER)


@given(st.text(max_size=20))
def test_any_value_comes_through_shell_quoting_unchanged(value: str) -> None:
    text = shlex.join(["--config", value, "-s", value, "-d"])
    assert parse_string(text, label="RUNTIME_ARGS", grammar=DOCKER) == {
        "config": (value,),
        "socket": (value,),
        "set_as_default": ("true",),
    }


@pytest.mark.parametrize(
    "name, meant",
    [
        ("METHOD", "TOOLKIT_METHOD"),
        ("SET_AS_DEFAULT", "NVIDIA_RUNTIME_SET_AS_DEFAULT"),
        ("RUNTIMES", "RUNTIME"),
        ("RUNTIM", "RUNTIME"),
        ("RUNTIEM", "RUNTIME"),
        ("CLEAN_UP", "CLEANUP"),
        ("ON_DRIFF", "ON_DRIFT"),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours_is_named(name: str, meant: str) -> None:
    assert find_near_misses({name: "x", "PATH": "/bin"}) == [(name, meant)]


def test_variables_of_others_and_our_own_are_not_named() -> None:
    others = (
        "PATH HOME LANG HOSTNAME TERM SHELL PWD KUBERNETES_PORT NVIDIA_VISIBLE_DEVICES _RUNTIME CUDA_VERSION POD_NAME"
    )
    own = [variable for option in OPTIONS for variable in option.variables]
    assert find_near_misses(dict.fromkeys([*others.split(), *own], "x")) == []
