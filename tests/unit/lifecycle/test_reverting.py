"""Whose pods keep an engine from losing its handlers: those of a handler that goes, and of none that it has again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.engines.api import Live
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.revert.engine import EngineReverter
from toolkit_installer.lifecycle.still_needed import stranding
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.settings import EngineName

FOLDER = "/usr/local/nvidia/toolkit"
LIVE = Live("2.1.0", {"runc": "/usr/bin/runc", "nvidia": f"{FOLDER}/a", "nvidia-cdi": f"{FOLDER}/b"}, "runc")
RECORD = EngineRecord(EngineName.CONTAINERD, "/run/c.sock", None, (("nvidia", f"{FOLDER}/a"),), None, ())
RECEIPT = Receipt(State.INSTALLED, "1", FOLDER, (), (), "/run/toolkit.pid", (), (RECORD,))


@pytest.mark.parametrize(
    "staying, going", [((), {"nvidia", "nvidia-cdi"}), (("nvidia",), {"nvidia-cdi"}), (("nvidia", "nvidia-cdi"), set())]
)
def test_pods_of_a_handler_that_the_engine_has_again_soon_are_no_reason_to_leave_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, staying: tuple[str, ...], going: set[str]
) -> None:
    asked: list[set[str]] = []

    def refuse(_node: object, _work: object, is_ours: Callable[[Live], set[str]], then: str) -> None:
        asked.append(is_ours(LIVE))
        raise ConfigurationError("pods would be stranded", hint=then)

    monkeypatch.setattr(stranding, "refuse", refuse)
    monkeypatch.setattr(EngineReverter, "_work", lambda *_: None)
    node: Any = None
    store: Any = SimpleNamespace(folder="/store")
    attention: Any = None
    with pytest.raises(ConfigurationError, match="stranded") as refused:
        EngineReverter(node, store, attention, 1).retire(RECEIPT, RECORD, staying)
    assert asked == [going]
    assert refused.value.hint == "then start this run again"
