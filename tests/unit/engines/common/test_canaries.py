"""Whether a canary's container got any GPU: told only of a process whose /dev can be seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolkit_installer.engines.common import canaries
from toolkit_installer.node import processes
from toolkit_installer.node.root import Root


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the /dev of the container that this process plays."""
    monkeypatch.setattr(processes, "root_of", lambda _: Root(str(tmp_path)))
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


@pytest.mark.parametrize(
    "names, shown",
    [
        ((), False),
        (("null", "dri"), False),
        (("null", "nvidia0"), True),
        (("nvidiactl",), True),
        (("my-nvidia",), False),
    ],
)
def test_a_device_of_nvidias_is_told_by_its_name(container: Path, names: tuple[str, ...], *, shown: bool) -> None:
    for name in names:
        (container / name).touch()
    said = canaries.describe_missing_gpus(os.getpid())
    assert (said == "") is shown
    assert shown or "NVIDIA_VISIBLE_DEVICES=all" in said


def test_a_container_that_is_gone_or_hidden_is_no_fault(container: Path) -> None:
    assert canaries.describe_missing_gpus(2**22 + 1) == ""
    container.rmdir()
    container.symlink_to("dev")  # to itself
    assert canaries.describe_missing_gpus(os.getpid()) == ""


def test_all_gpus_are_asked_for_or_none_at_all() -> None:
    assert [canaries.choose_visible_devices(shows_gpus=shows) for shows in (True, False)] == ["all", "void"]
