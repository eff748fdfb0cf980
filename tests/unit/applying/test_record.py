"""Which engines the receipt names as those in which CDI is on by our edit, while that is taken out and afterwards.

One that is named too few stays switched on for good where the run is killed; one too many is restarted for nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.applying import record
from toolkit_installer.engines.api import DesiredState, Inspection, LiveState, Reload
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OwnedKey, Receipt, State
from toolkit_installer.settings import EngineName, ReloadMode

NAME = EngineName.CONTAINERD
EDIT = FileRecord(
    "root", "/etc/containerd/config.toml", None, (), (OwnedKey(("plugins", "cri", "enable_cdi"), "true", None),)
)
OTHER = FileRecord("root", "/etc/containerd/config.toml", None, (), (OwnedKey(("plugins", "cri", "x"), "true", None),))
RESTART = Reload(ReloadMode.SYSTEMD, "containerd.service", restarts=True)


def seen(
    *, by: FileRecord = EDIT, switched: bool = False, work: EngineWork | None = None, recorded: bool = True
) -> Any:
    """Return what a run has found: the receipt of an earlier one, and what is to become of the engine."""
    engine = EngineRecord(NAME, "/run/c.sock", None, (), None, (by,))
    receipt = Receipt(State.INSTALLED, "1", "/t/toolkit", (), (), "/run/toolkit.pid", (), (engine,))
    if switched:
        receipt = Receipt(State.INSTALLED, "1", "/t/toolkit", (), (), "/run/toolkit.pid", (), (), cdi_switched=(NAME,))
    plan = SimpleNamespace(
        engines=() if work is None else (work,), specifications=(), toolkit=SimpleNamespace(files=())
    )
    return SimpleNamespace(receipt=receipt if recorded else None, plan=plan)


def work(
    *,
    cdi_on: bool = False,
    is_removal: bool = False,
    folders: tuple[str, ...] | None = ("/etc/cdi",),
    reload: Reload = RESTART,
    why: str = "its configuration changes",
) -> EngineWork:
    live = None if folders is None else LiveState("2.1.0", {}, "runc", cdi_folders=folders)
    desired = DesiredState((), {}, None, cdi_on=cdi_on)
    return EngineWork(NAME, Inspection("/run/c.sock", (), live), desired, reload, why, is_removal)


@pytest.mark.parametrize(
    "found, named",
    [
        (seen(work=work()), True),
        (seen(work=work(is_removal=True, cdi_on=True)), True),
        (seen(work=work(cdi_on=True)), False),
        (seen(by=OTHER, work=work()), False),
        (seen(), False),
        (seen(switched=True), True),
        (seen(switched=True, work=work()), True),
        (seen(switched=True, work=work(cdi_on=True)), False),
        (seen(work=work(), recorded=False), False),
    ],
    ids=[
        *("taken out", "given back", "stays", "another edit", "not of this change"),
        *("taken out before", "still to be read", "on again", "nothing before"),
    ],
)
def test_before_the_edit_goes_the_receipt_says_in_which_engine_cdi_is_on_by_it(found: Any, *, named: bool) -> None:
    assert record._find_switched_engines(found) == ((NAME,) if named else ())


@pytest.mark.parametrize(
    "after, stays",
    [
        (None, True),
        (work(), False),
        (work(folders=()), False),
        (work(folders=None), False),
        (work(folders=(), why=""), False),
        (work(why=""), True),
        (work(reload=Reload(ReloadMode.SIGNAL)), True),
    ],
    ids=["not of this change", "restarted", "off", "down", "off and left alone", "left alone", "signalled"],
)
def test_it_says_so_until_the_engine_has_read_its_files_without_the_edit(
    after: EngineWork | None, *, stays: bool
) -> None:
    found = seen(switched=True, work=after)
    settled = record.build_final_receipt(found, found.receipt, ())
    assert settled.cdi_switched == ((NAME,) if stays else ())
