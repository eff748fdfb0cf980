"""What stands in the receipt at each point of applying, and what becomes of it where the change fails."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from toolkit_installer.applying.apply import Applier
from toolkit_installer.applying.reload import NotServedError, Switch
from toolkit_installer.engines.api import DesiredState, EngineFile, Inspection
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError, InstallerError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.installed import Copies, SpecificationWork
from toolkit_installer.planning.plan import EngineWork, Plan, ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt.schema import Copy, Receipt, State
from toolkit_installer.settings import EngineName, Settings

FOLDER = "/usr/local/nvidia/toolkit"
OLD = Receipt(State.INSTALLED, "1", FOLDER, ("old", "both"), ("/usr/local",), "/run/toolkit.pid", (), ())
BEGUN = msgspec.structs.replace(
    OLD, state=State.APPLYING, toolkit_files=("both", "new"), folders=("/usr/local", FOLDER)
)
SETTLED = msgspec.structs.replace(BEGUN, state=State.INSTALLED)
SPECIFICATIONS = ("/etc/cdi/a.yaml", "/etc/cdi/b.yaml")
WRITTEN = [(path, b"new") for path in SPECIFICATIONS]
RESTORED = [(path, None) for path in SPECIFICATIONS]


class Played:
    """The receipt's store and builder, the switcher with its writer, gate and budget, in one: each notes its calls.

    `change` is what the first engine's change raises, `restore` what giving back each engine raises.
    """

    def __init__(self, folder: Path) -> None:
        self.there: Receipt | None = OLD
        self.folder = "/store"
        self.done: list[Any] = []
        self.refused: set[State] = set()
        self.change: InstallerError | None = None
        self.restore: dict[str, InstallerError] = {}
        self.changed_meanwhile = False
        self.node = Node(str(folder))
        self.attention = SignalCollector()
        self.writer = self
        self.reloads = 0
        self.left_to_systemd: list[str] = []
        self.toolkit = folder / FOLDER[1:]
        self.toolkit.mkdir(parents=True)
        for name in ("old", "both", "new"):
            (self.toolkit / name).write_text(name)

    def require_reload(self) -> None:
        raise ConfigurationError("too many reloads")

    def require(self, _seen: object) -> None:
        self.done.append("gate")

    def require_recordable(self, _seen: object) -> None:
        self.done.append("recordable")

    def prepare(self) -> tuple[str, ...]:
        return ("/made",)

    def load(self) -> Receipt | None:
        return self.there

    def build(self, _seen: object, created: tuple[str, ...]) -> Receipt:
        assert created == ("/made",)
        return BEGUN

    def save(self, receipt: Receipt, originals: object) -> None:
        if receipt.state in self.refused:
            raise NodeError("no space is left", path=self.folder)
        self.done.append((receipt, originals))

    def tidy(self, receipt: Receipt) -> None:
        self.done.append(("tidied", receipt.state, sorted(path.name for path in self.toolkit.iterdir())))

    def clear(self) -> None:
        self.done.append("cleared")

    def write(self, _engine: None, file: EngineFile, content: bytes | None) -> None:
        if content is None and self.changed_meanwhile:
            raise ChangedMeanwhileError(file.path)
        self.done.append((file.path, content))

    def make(self, switch: Switch, *, interruptible: bool) -> None:
        name = str(switch.engine.name)
        assert interruptible is not switch.last_resort
        self.done.append(f"{'back' if switch.last_resort else 'change'} {name}")
        error = self.restore.get(name) if switch.last_resort else self.change
        if error is not None:
            raise error


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path)


@pytest.fixture
def applier(played: Played) -> Applier:
    parts: Any = played
    return Applier(parts, parts, parts, parts, parts, interruptible=True)


def seen(
    *, receipt: Receipt | None = OLD, copies: tuple[Copy, ...] = (), payload: str = "/", reload_why: str = ""
) -> Prepared:
    """Return a plan that changes two engines and two specifications, and removes a file of the toolkit."""
    names = (EngineName.DOCKER, EngineName.CONTAINERD)
    inspection, desired = Inspection("/x.sock", (), None), DesiredState((), {}, None)
    engines = tuple(EngineWork(name, inspection, desired, reload_why=reload_why) for name in names)
    files = (EngineFile("specification", path, None) for path in SPECIFICATIONS)
    specifications = tuple(SpecificationWork(file, None, b"new") for file in files)
    plan = Plan(ToolkitWork(FOLDER, (), (), ("old",), frozenset({"both"})), engines, specifications)
    target: Any = SimpleNamespace(settings=Settings(), payload=SimpleNamespace(root=payload))
    facts: Any = SimpleNamespace(
        receipt=receipt, originals={"sha": b"before"}, toolkit=SimpleNamespace(copies=copies), generated=None
    )
    return Prepared(target, facts, plan)


def test_the_record_comes_before_the_change_and_what_is_no_longer_needed_goes_last(
    applier: Applier, played: Played, tmp_path: Path
) -> None:
    (tmp_path / "payload").mkdir()
    (tmp_path / "payload/both").write_text("both")
    payload = str(tmp_path / "payload")
    copy = Copies(played.node, FOLDER, Tree(payload)).taken("both", "/both")
    assert copy is not None
    applier.apply(seen(copies=(copy,), payload=payload))
    assert played.done == [
        "recordable",
        (BEGUN, {"sha": b"before"}),
        *WRITTEN,
        "gate",
        *("change docker", "change containerd"),
        (msgspec.structs.replace(SETTLED, copies=(copy,)), {}),
        ("tidied", State.INSTALLED, ["both", "new", "old"]),
    ]
    assert not (played.toolkit / "old").exists()


def test_a_reload_beyond_the_budget_is_refused_before_anything_is_recorded(applier: Applier, played: Played) -> None:
    with pytest.raises(ConfigurationError, match="too many reloads"):
        applier.apply(seen(reload_why="its files changed"))
    assert played.done == []


def test_a_plan_about_another_record_than_the_one_that_lies_there_is_not_carried_out(
    applier: Applier, played: Played
) -> None:
    played.there = None
    with pytest.raises(ChangedMeanwhileError):
        applier.apply(seen())
    assert played.done == ["recordable"]


def test_a_failed_change_is_rolled_back_in_reverse_and_the_old_record_updated(applier: Applier, played: Played) -> None:
    played.change = ConfigurationError("no")
    with pytest.raises(ConfigurationError):
        applier.apply(seen())
    kept = msgspec.structs.replace(OLD, toolkit_files=("old", "both", "new"), folders=("/usr/local", FOLDER))
    failed = played.done.index("change docker")
    assert played.done[failed + 1 :] == ["back containerd", "back docker", *RESTORED, (kept, {})]


def test_of_several_failures_the_dead_engine_is_raised_and_the_record_says_applying(
    applier: Applier, played: Played
) -> None:
    down = EngineDownError("down")
    played.change = ConfigurationError("no")
    played.restore = {"containerd": ConfigurationError("its file"), "docker": down}
    with pytest.raises(EngineDownError) as told:
        applier.apply(seen())
    assert told.value is down
    assert played.done[-1] == RESTORED[-1]


def test_an_old_record_that_cannot_be_written_back_is_told_and_hides_no_reason(
    applier: Applier, played: Played, logged: io.StringIO
) -> None:
    played.change = ConfigurationError("no")
    played.refused = {State.INSTALLED}
    with pytest.raises(ConfigurationError):
        applier.apply(seen())
    assert "the next run repairs it" in logged.getvalue()


@pytest.mark.parametrize("left, words", [([], "is back, and it answers"), (["docker"], "is restarted by systemd once")])
def test_an_engine_that_did_not_serve_the_change_is_told_as_one_that_rejected_it(
    applier: Applier, played: Played, left: list[str], words: str
) -> None:
    played.left_to_systemd = left
    played.change = error = NotServedError("nvidia is missing", answers=True)
    with pytest.raises(EngineRejectedError, match=words) as told:
        applier.apply(seen())
    assert told.value.__cause__ is error


@pytest.mark.parametrize("named, held", [(False, False), (True, False), (False, True)])
def test_without_an_old_record_what_is_new_goes_unless_somebody_needs_it(
    applier: Applier,
    played: Played,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: io.StringIO,
    *,
    named: bool,
    held: bool,
) -> None:
    played.there, played.change = None, ConfigurationError("no")
    if named:
        (tmp_path / "etc/docker").mkdir(parents=True)
        (tmp_path / "etc/docker/daemon.json").write_text(f'{{"runtimes": {{"x": {{"path": "{FOLDER}/x"}}}}}}')
    monkeypatch.setattr(toolkit_users, "is_still_needed", lambda *_: held)
    with pytest.raises(ConfigurationError):
        applier.apply(seen(receipt=None))
    assert (played.toolkit / "new").exists() is (named or held)
    assert (played.toolkit / "both").exists()  # it stood there before
    assert ("The toolkit stays" in logged.getvalue()) is named
    assert played.done[-1] == "cleared"


def test_a_specification_that_somebody_else_wrote_meanwhile_stays_and_is_named(
    applier: Applier, played: Played, logged: io.StringIO
) -> None:
    played.change, played.changed_meanwhile = ConfigurationError("no"), True
    with pytest.raises(ConfigurationError):
        applier.apply(seen())
    for path in SPECIFICATIONS:
        assert f"event=cdi-changed-meanwhile file={path}" in logged.getvalue()
