from __future__ import annotations

import pytest

from toolkit_installer.errors import UsageError
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit.payload import choose_low_level

FOLDER = "/usr/local/nvidia/toolkit"


@pytest.mark.parametrize(
    "engines, expected",
    [
        ((), ("runc", "crun")),
        (("/usr/bin/runc",), ("/usr/bin/runc", "runc", "crun")),
        (("crun",), ("crun", "runc")),
        (("/a", "/b", "/a"), ("/a", "/b", "runc", "crun")),
        (("", "./runc", "bin/runc", "/usr/bin/\ud800", "/usr/bin/\0", "ru\nc"), ("runc", "crun")),
        ((f"{FOLDER}/nvidia-container-runtime", "/usr/bin/runc"), ("/usr/bin/runc", "runc", "crun")),
        ((f"{FOLDER}/../toolkit/other",), ("runc", "crun")),
        (("/elsewhere/nvidia-container-runtime.cdi.real", "nvidia-container-runtime"), ("runc", "crun")),
    ],
)
def test_the_engines_own_runtimes_come_first(engines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert choose_low_level(ToolkitSettings(), engines, FOLDER) == expected


def test_the_users_list_stands_alone() -> None:
    settings = ToolkitSettings(low_level_runtimes=("kata", "/opt/crun", "kata"))
    assert choose_low_level(settings, ("/usr/bin/runc",), FOLDER) == ("kata", "/opt/crun")


@pytest.mark.parametrize("runtime", ["", "./runc", "a/b", "run\0c", "nvidia-container-runtime", f"{FOLDER}/x"])
def test_a_runtime_that_cannot_work_is_refused(runtime: str) -> None:
    with pytest.raises(UsageError, match="runtimes"):
        choose_low_level(ToolkitSettings(low_level_runtimes=(runtime,)), (), FOLDER)
