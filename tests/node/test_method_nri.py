"""`--method nri` on a made node: handlers go once it is served, and come again by name."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.fake_node import CONFIG_TOML, NOTHING_TO_DO, TOOLKIT, FakeNode
from tests.unit.nri.nri_engine import NriEngine
from toolkit_installer.nri.decision import DOMAIN

THEIRS = b"version = 2\n# theirs\n"
SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
NRI = ("--method", "nri", "--nri-namespace", "gpu")
GPU = {DOMAIN: "nvidia.com/gpu=0"}


@pytest.fixture
def gpu(with_driver: FakeNode) -> FakeNode:
    """A node with a driver, and containerd's file."""
    with_driver.write(CONFIG_TOML, THEIRS, 0o640)
    return with_driver


@pytest.fixture
def engine(gpu: FakeNode) -> Iterator[NriEngine]:
    with NriEngine(gpu.place("/run/nri/nri.sock")) as made:
        yield made


def test_handlers_go_once_the_plugin_is_served_and_all_of_it_is_taken_back(gpu: FakeNode, engine: NriEngine) -> None:
    before = gpu.snapshot()
    assert gpu.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    assert b"nvidia" in gpu.read(CONFIG_TOML)
    shown = gpu.do("plan", *NRI, engine="containerd").output
    assert "Method: nri (it was asked for)" in shown
    assert any(line.startswith("-") and "nvidia" in line for line in shown.splitlines()), shown
    run = gpu.waiting(*NRI, engine="containerd")
    assert run.output.index("event=nri-connected") < run.output.index("event=configured")
    assert engine.ask("default", GPU).devices == ("nvidia.com/gpu=0",)
    assert gpu.read(CONFIG_TOML) == THEIRS
    assert gpu.exists(SPECIFICATION)
    told = json.loads(gpu.do("status", "--json", engine="containerd").output)
    assert told["plugin"]["connected"] is True
    assert told["engines"] == []
    assert run.stop() == 0
    assert gpu.snapshot() == before


@pytest.mark.usefixtures("engine")
def test_another_run_by_it_has_nothing_to_do_and_handlers_come_again_by_their_name(gpu: FakeNode) -> None:
    keep = ("--cleanup", "never")
    run = gpu.waiting(*NRI, *keep, engine="containerd")
    assert run.stop() == 0
    again = gpu.waiting(*NRI, *keep, engine="containerd")
    assert NOTHING_TO_DO in again.output
    assert again.stop() == 0
    assert gpu.read(CONFIG_TOML) == THEIRS
    assert gpu.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    assert b"nvidia" in gpu.read(CONFIG_TOML)
    assert not gpu.exists(SPECIFICATION)
    assert gpu.do("uninstall", engine="containerd").process.returncode == 0
    assert gpu.read(CONFIG_TOML) == THEIRS
    assert not gpu.exists(TOOLKIT)


def test_where_the_engine_does_not_take_the_plugin_the_handlers_stay(gpu: FakeNode, engine: NriEngine) -> None:
    assert gpu.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    configured = gpu.stamps()
    engine.version = "v2.0.7"
    refused = gpu.start(*NRI, engine="containerd")
    assert refused.finish() == 3
    assert "2.0.7" in refused.output
    assert gpu.stamps() == configured
