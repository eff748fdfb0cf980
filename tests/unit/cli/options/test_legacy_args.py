"""RUNTIME_ARGS and TOOLKIT_ARGS."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.cli.options.argv import parse, runtime_flags, toolkit_flags
from toolkit_installer.errors import UsageError
from toolkit_installer.settings import EngineName

DOCKER = runtime_flags(EngineName.DOCKER)


def test_the_string_that_manifests_of_2020_hold() -> None:
    text = (
        "--socket /run/k3s/containerd/containerd.sock --config /etc/containerd/config.toml --runtime-class nvidia "
        "--set-as-default --restart-mode systemd"
    )
    assert parse(text, label="RUNTIME_ARGS", grammar=runtime_flags(EngineName.CONTAINERD)) == {
        "socket": ("/run/k3s/containerd/containerd.sock",),
        "config": ("/etc/containerd/config.toml",),
        "runtime_name": ("nvidia",),
        "set_as_default": ("true",),
        "restart_mode": ("systemd",),
    }


@pytest.mark.parametrize("engine", [EngineName.DOCKER, EngineName.CONTAINERD, None])
def test_docker_and_containerd_have_the_letters_c_s_r_d(engine: EngineName | None) -> None:
    assert parse("-c /c -s /s -r gpu -d", label="X", grammar=runtime_flags(engine)) == {
        "config": ("/c",),
        "socket": ("/s",),
        "runtime_name": ("gpu",),
        "set_as_default": ("true",),
    }


def test_crio_has_other_meanings_for_its_letters() -> None:
    assert parse("-d /hooks -f hook.json", label="X", grammar=runtime_flags(EngineName.CRIO)) == {
        "hooks_dir": ("/hooks",),
        "hook_filename": ("hook.json",),
    }


def test_toolkit_args_hold_the_install_steps_flags() -> None:
    text = "--nvidia-driver-root=/ --nvidia-container-runtime-debug '/var/log/with space.log' --root /opt"
    assert parse(text, label="TOOLKIT_ARGS", grammar=toolkit_flags()) == {
        "driver_root": ("/",),
        "runtime_debug": ("/var/log/with space.log",),
        "install_dir": ("/opt",),
    }


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_string_says_nothing(text: str) -> None:
    assert parse(text, label="RUNTIME_ARGS", grammar=DOCKER) == {}


def test_nested_quotes_and_shell_syntax_reach_nobody() -> None:
    text = r"""--config "/etc/a 'b' \"c\".json" --socket '/x/$(reboot);`id`|&>' """
    assert parse(text, label="RUNTIME_ARGS", grammar=DOCKER) == {
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
        parse(text, label="RUNTIME_ARGS", grammar=DOCKER)
    assert str(caught.value).startswith("RUNTIME_ARGS: ")
    assert token in caught.value.reason
    assert "--socket" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["--config 'unclosed", '"', "--socket /x\\"])
def test_bad_quoting_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"RUNTIME_ARGS: .* is not quoted as a shell would read it"):
        parse(text, label="RUNTIME_ARGS", grammar=DOCKER)


@given(st.text(max_size=20))
def test_any_value_comes_through_shell_quoting_unchanged(value: str) -> None:
    text = shlex.join(["--config", value, "-s", value, "-d"])
    assert parse(text, label="RUNTIME_ARGS", grammar=DOCKER) == {
        "config": (value,),
        "socket": (value,),
        "set_as_default": ("true",),
    }
