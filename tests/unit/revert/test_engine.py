"""What keeps an engine from losing its handlers: pods of a handler that goes, and no answer about such pods."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.errors import ConfigurationError, EngineDownError
from toolkit_installer.node.processes import Process
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import prepare
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.revert import engine
from toolkit_installer.revert.engine import EngineReverter
from toolkit_installer.settings import EngineName

FOLDER = "/usr/local/nvidia/toolkit"
LIVE = LiveState("2.1.0", {"runc": "/usr/bin/runc", "nvidia": f"{FOLDER}/a", "nvidia-cdi": f"{FOLDER}/b"}, "runc")
RECORD = EngineRecord(EngineName.CONTAINERD, "/run/c.sock", None, (("nvidia", f"{FOLDER}/a"),), None, ())
RECEIPT = Receipt(State.INSTALLED, "1", FOLDER, (), (), "/run/toolkit.pid", (), (RECORD,))


@pytest.mark.parametrize(
    "staying, going", [((), {"nvidia", "nvidia-cdi"}), (("nvidia",), {"nvidia-cdi"}), (("nvidia", "nvidia-cdi"), set())]
)
def test_pods_of_a_handler_that_returns_soon_are_no_reason_to_leave_the_engine_alone(
    monkeypatch: pytest.MonkeyPatch, staying: tuple[str, ...], going: set[str]
) -> None:
    asked: list[set[str]] = []

    def refuse(_node: object, _work: object, is_ours: Callable[[LiveState], set[str]], then: str) -> None:
        asked.append(is_ours(LIVE))
        raise ConfigurationError("pods would be stranded", hint=then)

    monkeypatch.setattr(prepare, "refuse_stranding", refuse)
    adapter = SimpleNamespace(ask=lambda *_: LIVE, find_files_naming=lambda *_: ())
    monkeypatch.setattr(engine, "get_adapter", lambda _name: adapter)
    node: Any = None
    store: Any = SimpleNamespace(folder="/store")
    attention: Any = None
    with pytest.raises(ConfigurationError, match="stranded") as refused:
        EngineReverter(node, store, attention, 1).retire(RECEIPT, RECORD, staying)
    assert asked == [going]
    assert refused.value.hint == "then start this run again"


@pytest.mark.parametrize("ends_after_us, words", [(True, "ends only after this process"), (False, "DOES NOT ANSWER")])
def test_an_engine_that_ends_after_this_process_keeps_its_handlers(
    monkeypatch: pytest.MonkeyPatch, *, ends_after_us: bool, words: str
) -> None:
    asked: list[None] = []

    def ask(*_: object) -> LiveState:
        asked.append(None)
        raise EngineSilentError("connection refused", path=RECORD.socket)

    process = Process(4711, "crio", "/usr/bin/crio", ("crio",), 1.0, "crio.service")
    monkeypatch.setattr(engine, "get_adapter", lambda _name: SimpleNamespace(ask=ask))
    monkeypatch.setattr(engine, "find_process", lambda *_: process)
    attention = SignalCollector()
    attention.awaited_by = process if ends_after_us else msgspec.structs.replace(process, pid=4712)
    node: Any = None
    store: Any = SimpleNamespace(folder="/store")
    with pytest.raises(EngineDownError, match=words) as refused:
        EngineReverter(node, store, attention, 0.3).revert(RECEIPT, RECORD)
    assert refused.value.hint is not None
    assert refused.value.hint.endswith("then run `toolkit-installer uninstall`")
    assert (len(asked) == 1) is ends_after_us
