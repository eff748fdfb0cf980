from __future__ import annotations

import pytest

from toolkit_installer.engines.target import Handler, select_handlers
from toolkit_installer.toolkit.payload import RUNTIMES

FOLDER = "/usr/local/nvidia/toolkit"


def test_three_runtimes_give_three_handlers() -> None:
    assert select_handlers("gpu", {*RUNTIMES, "nvidia-ctk"}, FOLDER) == (
        Handler("gpu", f"{FOLDER}/nvidia-container-runtime"),
        Handler("nvidia-cdi", f"{FOLDER}/nvidia-container-runtime.cdi"),
        Handler("nvidia-legacy", f"{FOLDER}/nvidia-container-runtime.legacy"),
    )


def test_a_handler_without_its_executable_is_not_registered() -> None:
    assert select_handlers("nvidia", {RUNTIMES[0]}, FOLDER) == (
        Handler("nvidia", f"{FOLDER}/nvidia-container-runtime"),
    )
    assert [handler.name for handler in select_handlers("nvidia", {RUNTIMES[0], RUNTIMES[2]}, FOLDER)] == [
        "nvidia",
        "nvidia-legacy",
    ]


@pytest.mark.parametrize("name", ["nvidia", "a", "NVIDIA_1.x-y", "0"])
def test_what_is_a_name_is_taken(name: str) -> None:
    assert select_handlers(name, RUNTIMES, FOLDER)[0].name == name


@pytest.mark.parametrize("name", ["nvidia-cdi", "nvidia-legacy"])
def test_a_fixed_handlers_name_chooses_the_default_and_renames_nothing(name: str) -> None:
    registered = select_handlers(name, RUNTIMES, "/t")
    assert [handler.name for handler in registered] == ["nvidia", "nvidia-cdi", "nvidia-legacy"]
    assert [handler.executable for handler in registered] == [f"/t/{runtime}" for runtime in RUNTIMES]
