"""CDI was off, and `--method cdi` switched it on by an edit: what is said of it, and what somebody changes since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.node import faults
from tests.node.engines.live import FakeContainerd
from tests.node.engines.rules import containerd_started
from tests.node.faults import Outcome
from tests.node.sweeps.trees import taken
from tests.support.fake_node import CONFIG_TOML, DROP_IN, NOTHING_TO_DO, FakeNode

CONTAINERD = b"""\
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = false # by the operator
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
"""
REJECTED = 5
Do = Callable[..., Outcome]


@pytest.fixture
def switched(with_driver: FakeNode) -> FakeNode:
    """A node with a driver, and containerd's file, in which CDI is off."""
    with_driver.write(CONFIG_TOML, CONTAINERD)
    return with_driver


@pytest.fixture
def engine(switched: FakeNode) -> FakeContainerd:
    made = FakeContainerd(switched, ("/etc/cdi", "/run/cdi"))
    made.put(containerd_started(taken(switched)))
    return made


@pytest.fixture
def do(switched: FakeNode, engine: FakeContainerd, tmp_path: Path) -> Do:
    def run(command: str, *more: str) -> Outcome:
        with engine.inside():
            return faults.run(switched, tmp_path, command, "--socket=/run/c.sock", *more, engine="containerd")

    return run


@pytest.fixture
def by_cdi(do: Do, engine: FakeContainerd) -> FakeContainerd:
    """Return the engine once CDI is on in it by our edit."""
    done = do("run", "--no-daemon", "--method=cdi", "--cdi-output-dir=/run/cdi")
    assert done.code == 0, done.output
    assert engine.take().cdi
    return engine


def again(do: Do) -> Outcome:
    return do("run", "--no-daemon", "--method=cdi", "--cdi-output-dir=/run/cdi")


def status(do: Do) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(do("status", "--json").output)
    return facts


def switch_off(node: FakeNode) -> bytes:
    """Have somebody say in our drop-in that CDI is off; return what it says then."""
    text = node.read(DROP_IN).replace(b"enable_cdi = true", b"enable_cdi = false")
    node.write(DROP_IN, text)
    return text


def test_one_edit_and_one_restart_switch_cdi_on_and_off_and_the_revert_is_reported(
    switched: FakeNode, by_cdi: FakeContainerd, do: Do
) -> None:
    assert b"enable_cdi = true" in switched.read(DROP_IN)
    assert b"nvidia-container-runtime" not in switched.read(DROP_IN)
    assert by_cdi.take().starts == 2
    assert NOTHING_TO_DO in again(do).output
    done = do("uninstall")
    assert done.code == 0, done.output
    assert "Took back the edit that switched CDI on" in done.output
    assert "Took the handlers back" not in done.output
    assert (switched.read(CONFIG_TOML), switched.exists(DROP_IN)) == (CONTAINERD, False)
    assert (by_cdi.take().starts, by_cdi.take().cdi) == (3, False)


def test_what_says_that_handlers_were_taken_back_is_said_where_there_were_any(
    switched: FakeNode, engine: FakeContainerd, do: Do
) -> None:
    assert do("run", "--no-daemon").code == 0
    assert not engine.take().cdi
    assert "Took the handlers back" in do("uninstall").output
    assert switched.read(CONFIG_TOML) == CONTAINERD


def test_cdi_that_is_switched_off_later_is_reported_and_restored_by_the_next_run(
    switched: FakeNode, by_cdi: FakeContainerd, do: Do
) -> None:
    switch_off(switched)
    states = {file["path"]: file["state"] for each in status(do)["engines"] for file in each["files"]}
    assert states[DROP_IN] != "as written"
    by_cdi.put(containerd_started(taken(switched)))  # it is restarted, and reads that
    method = status(do)["method"]
    assert (method["name"], method["met"]) == ("cdi", False)
    assert "CDI is off" in " ".join(method["against"])
    planned = do("plan", "--method=cdi", "--cdi-output-dir=/run/cdi").output
    assert "+enable_cdi = true" in planned.replace("+  ", "+")
    assert again(do).code == 0
    assert by_cdi.take().cdi
    assert status(do)["method"]["met"] is True


def test_cdi_that_somebody_switched_off_after_us_stays_off_once_we_are_gone(
    switched: FakeNode, by_cdi: FakeContainerd, do: Do
) -> None:
    theirs = switch_off(switched)
    done = do("uninstall")
    assert done.code == 0, done.output
    assert "somebody set it since" in done.output
    assert b"enable_cdi = false" in switched.read(DROP_IN)
    assert b"enable_cdi = true" not in switched.read(DROP_IN)
    assert len(switched.read(DROP_IN)) <= len(theirs)
    assert switched.read(CONFIG_TOML) == CONTAINERD
    assert not by_cdi.take().cdi


def test_after_the_next_run_cleanup_gives_back_that_somebody_switched_it_off(
    switched: FakeNode, by_cdi: FakeContainerd, do: Do
) -> None:
    switch_off(switched)
    assert again(do).code == 0
    assert b"enable_cdi = true" in switched.read(DROP_IN)
    assert do("uninstall").code == 0
    assert b"enable_cdi = false" in switched.read(DROP_IN)
    assert not by_cdi.take().cdi
