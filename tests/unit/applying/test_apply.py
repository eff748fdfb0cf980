"""What stands in the receipt at each point of applying, and what becomes of it where the change fails."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from toolkit_installer.applying import files, record
from toolkit_installer.applying.apply import Applier
from toolkit_installer.applying.reload import NotServedError
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError, InstallerError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.root import NodeError
from toolkit_installer.planning import files_naming, toolkit_users
from toolkit_installer.receipt.schema import Copy, Receipt, State

FOLDER = "/usr/local/nvidia/toolkit"
OLD = Receipt(State.INSTALLED, "1", FOLDER, ("old", "both"), ("/usr/local",), "/run/toolkit.pid", (), ())
BEGUN = msgspec.structs.replace(
    OLD, state=State.APPLYING, toolkit_files=("both", "new"), folders=("/usr/local", FOLDER)
)
COPIES = (Copy("both", "/usr/bin/both", "1 2 3 4", "1 2 3 5"),)
SETTLED = msgspec.structs.replace(BEGUN, state=State.INSTALLED)


class Played:
    """The receipt's store, its recorder and the budget, all in one: each notes what is asked of it."""

    def __init__(self, there: Receipt | None) -> None:
        self.there = there
        self.folder = "/store"
        self.done: list[Any] = []
        self.refused: set[State] = set()

    def require_reload(self) -> None:
        self.done.append("budget")

    def require_recordable(self, _seen: object) -> None:
        self.done.append("recordable")

    def prepare(self) -> tuple[str, ...]:
        return ("/made",)

    def load(self) -> Receipt | None:
        return self.there

    def begun(self, _seen: object, created: tuple[str, ...]) -> Receipt:
        assert created == ("/made",)
        return BEGUN

    def save(self, receipt: Receipt, originals: object) -> None:
        if receipt.state in self.refused:
            raise NodeError("no space is left", path=self.folder)
        self.done.append((receipt, originals))

    def tidy(self, receipt: Receipt) -> None:
        self.done.append(("tidied", receipt.state))


@pytest.fixture
def played() -> Played:
    return Played(OLD)


@pytest.fixture
def applier(played: Played, monkeypatch: pytest.MonkeyPatch) -> Applier:
    made = Applier.__new__(Applier)
    parts = {"node": object(), "store": played, "recorder": played, "budget": played}
    vars(made).update(parts, switcher=SimpleNamespace(unseen=False, reloads=0))

    def change(_seen: object, _receipt: Receipt) -> tuple[Copy, ...]:
        played.done.append("change")
        return COPIES

    def settled(_seen: object, _receipt: Receipt, copies: tuple[Copy, ...]) -> Receipt:
        assert copies == COPIES
        return SETTLED

    monkeypatch.setattr(made, "_change", change)
    monkeypatch.setattr(record, "build_final_receipt", settled)
    monkeypatch.setattr(files, "remove", lambda _node, folder, name: played.done.append(f"removed {folder}/{name}"))
    return made


def seen(*, reload_why: str = "", receipt: Receipt | None = OLD) -> Any:
    engines = [SimpleNamespace(name="first", reload_why=reload_why), SimpleNamespace(name="second", reload_why="")]
    toolkit = SimpleNamespace(folder=FOLDER, remove=("old",), present=("both",), write=())
    plan = SimpleNamespace(engines=engines, specifications=("a", "b"), device_nodes=(), toolkit=toolkit)
    return SimpleNamespace(plan=plan, receipt=receipt, originals={"sha": b"before"})


@pytest.mark.parametrize("reload_why, first", [("its files changed", ["budget"]), ("", [])])
def test_the_record_comes_before_the_change_and_what_is_no_longer_needed_goes_last(
    applier: Applier, played: Played, reload_why: str, first: list[str]
) -> None:
    applier.apply(seen(reload_why=reload_why))
    assert played.done == [
        *first,
        "recordable",
        (BEGUN, {"sha": b"before"}),
        "change",
        (SETTLED, {}),
        ("tidied", State.INSTALLED),
        f"removed {FOLDER}/old",
    ]


def test_a_plan_about_another_record_than_the_one_that_lies_there_is_not_carried_out(
    applier: Applier, played: Played
) -> None:
    played.there = None
    with pytest.raises(ChangedMeanwhileError):
        applier.apply(seen())
    assert played.done == ["recordable"]


def fail(applier: Applier, monkeypatch: pytest.MonkeyPatch, error: InstallerError, *failures: InstallerError) -> None:
    """Let the change fail, and of what is given back each engine in turn."""
    order = {"first": None, "second": None} | dict(zip(("second", "first"), failures, strict=False))

    def change(_seen: object, _receipt: object) -> None:
        raise error

    def back(work: Any, why: object) -> InstallerError | None:
        assert why is error
        applier.store.done.append(f"back {work.name}")  # type: ignore[attr-defined]
        return order[work.name]

    monkeypatch.setattr(applier, "_change", change)
    monkeypatch.setattr(applier, "_tried_back", back)
    monkeypatch.setattr(applier, "_tried_replacing", lambda made: applier.store.done.append(f"replaced {made}"))  # type: ignore[attr-defined]


def test_a_failed_change_is_rolled_back_in_reverse_and_the_old_record_updated(
    applier: Applier, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(applier, monkeypatch, ConfigurationError("no"))
    with pytest.raises(ConfigurationError):
        applier.apply(seen())
    kept = msgspec.structs.replace(OLD, toolkit_files=("old", "both", "new"), folders=("/usr/local", FOLDER))
    assert played.done[2:] == ["back second", "back first", "replaced a", "replaced b", (kept, {})]


def test_of_several_failures_the_dead_engine_is_raised_and_the_record_says_applying(
    applier: Applier, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = EngineDownError("down")
    fail(applier, monkeypatch, ConfigurationError("no"), ConfigurationError("its file"), down)
    with pytest.raises(EngineDownError) as told:
        applier.apply(seen())
    assert told.value is down
    assert played.done[-1] == "replaced b"


def test_an_old_record_that_cannot_be_written_back_is_told_and_hides_no_reason(
    applier: Applier, played: Played, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    fail(applier, monkeypatch, ConfigurationError("no"))
    played.refused = {State.INSTALLED}
    with pytest.raises(ConfigurationError):
        applier.apply(seen())
    assert "the next run repairs it" in logged.getvalue()


@pytest.mark.parametrize(
    "unseen, words", [([], "is back, and it answers"), (["docker"], "is restarted by systemd once")]
)
def test_an_engine_that_did_not_serve_the_change_is_told_as_one_that_rejected_it(
    applier: Applier, monkeypatch: pytest.MonkeyPatch, unseen: list[str], words: str
) -> None:
    applier.switcher.unseen = unseen
    error = NotServedError("nvidia is missing", answers=True)
    fail(applier, monkeypatch, error)
    with pytest.raises(EngineRejectedError, match=words) as told:
        applier.apply(seen())
    assert told.value.__cause__ is error


@pytest.mark.parametrize("named, held, removed", [(False, False, ("new",)), (True, False, None), (False, True, None)])
def test_without_an_old_record_what_is_new_goes_unless_somebody_needs_it(
    applier: Applier,
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    logged: io.StringIO,
    removed: tuple[str, ...] | None,
    *,
    named: bool,
    held: bool,
) -> None:
    played.there = None
    gone: list[tuple[str, ...]] = []
    monkeypatch.setattr(files, "remove_toolkit_files", lambda _node, receipt: gone.append(receipt.toolkit_files))
    monkeypatch.setattr(files, "remove_folders", lambda *_: played.done.append("folders"))
    monkeypatch.setattr(files_naming, "list_recorded_files", lambda _receipt: ())
    found = [SimpleNamespace(file=Path("/etc/x"), line=7)] if named else []
    monkeypatch.setattr(files_naming, "find_naming_files", lambda *_, **_known: found)
    monkeypatch.setattr(toolkit_users, "is_still_needed", lambda *_: held)
    fail(applier, monkeypatch, ConfigurationError("no"))
    with pytest.raises(ConfigurationError):
        applier.apply(seen(receipt=None))
    assert gone == ([] if removed is None else [removed])
    assert ("The toolkit stays" in logged.getvalue()) is named
    assert played.done[-1] == "folders"


# --- a specification that somebody else writes meanwhile ---


def test_a_specification_that_somebody_else_wrote_meanwhile_stays_and_is_named(
    applier: Applier, logged: io.StringIO
) -> None:
    def write(*_: object) -> None:
        raise ChangedMeanwhileError("/var/run/cdi/x.yaml")

    vars(applier)["switcher"] = SimpleNamespace(writer=SimpleNamespace(write=write))
    file = SimpleNamespace(content=b"")
    work: Any = SimpleNamespace(path="/var/run/cdi/x.yaml", file=file)
    assert applier._tried_replacing(work) is None
    assert "event=cdi-changed-meanwhile file=/var/run/cdi/x.yaml" in logged.getvalue()
