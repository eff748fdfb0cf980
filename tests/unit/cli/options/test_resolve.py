"""Variables that no option has, and that somebody may have meant for one: they are reported, and others are not."""

from __future__ import annotations

import pytest

from toolkit_installer.cli.options.resolve import find_near_misses
from toolkit_installer.cli.options.table import OPTIONS


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
