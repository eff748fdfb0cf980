"""A node is reverted: engines first, then what they no longer name, and of what stays the record stays as well."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from tests.unit.noted_calls import Calls
from toolkit_installer.engines.api import DesiredFile, EngineFile, get_adapter
from toolkit_installer.engines.containerd.inspection import ContainerdInspection
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError, EngineDownError
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.other_installer import OtherInstaller
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.revert.engine import EngineReverter
from toolkit_installer.revert.node import Remainder, revert_recorded
from toolkit_installer.settings import EngineName, ReloadMode

FOLDER = "/usr/local/nvidia/toolkit"
PROGRAM = "nvidia-container-runtime"
SPECIFICATION = "/run/cdi/nvidia.yaml"
FILES = {EngineName.DOCKER: "/etc/docker/daemon.json", EngineName.CONTAINERD: "/etc/containerd/config.toml"}
ROLES = {EngineName.DOCKER: "daemon.json", EngineName.CONTAINERD: "config.toml"}
BEFORE = {EngineName.DOCKER: b'{"debug": true}\n', EngineName.CONTAINERD: b"version = 2\n"}
OTHER = OtherInstaller("nvidia-ctk-installer", 4711)


class Installed:
    """A node with the toolkit, a CDI specification and two engines that do not run, as a run left them."""

    def __init__(self, root: Path) -> None:
        self.calls = Calls()
        self.node = Node(str(root), calls=self.calls)
        self.store = ReceiptStore(self.node, "/usr/local/nvidia")
        self.reverter = EngineReverter(self.node, self.store, SignalCollector(), 1.0)
        folders = (*self.store.prepare(), *self.node.files.make_folders(FOLDER))
        self.put(f"{FOLDER}/{PROGRAM}", b"")
        originals: dict[str, bytes] = {}
        engines = tuple(self._install(name, originals) for name in FILES)
        self.put(SPECIFICATION, b"cdiVersion: 0.5.0\n")
        written = file_records.digest_of(b"cdiVersion: 0.5.0\n")
        self.receipt = Receipt(
            *(State.INSTALLED, "1", FOLDER, (PROGRAM,), folders, "/run/toolkit.pid", (), engines),
            specifications=(FileRecord("cdi", SPECIFICATION, None, (written,)),),
        )
        self.store.save(self.receipt, originals)

    def _install(self, name: EngineName, originals: dict[str, bytes]) -> EngineRecord:
        adapter, path = get_adapter(name), FILES[name]
        self.put(path, BEFORE[name])
        handlers = (Handler("nvidia", f"{FOLDER}/{PROGRAM}"),)
        wanted = self._desired(name, Request(EngineTarget(name), handlers, None, FOLDER))
        self.put(path, wanted.target or b"")
        record = file_records.build_record(adapter, wanted, wanted.file.found, None, [wanted.target])
        originals[file_records.digest_of(BEFORE[name])] = BEFORE[name]
        served = tuple((each.name, each.executable) for each in handlers)
        return EngineRecord(name, f"/run/{name}.sock", ReloadMode.NONE, served, None, (record,))

    def _desired(self, name: EngineName, request: Request) -> DesiredFile:
        files = [EngineFile(ROLES[name], FILES[name], self.node.files.read_file(FILES[name]))]
        if name is EngineName.CONTAINERD:
            files.append(EngineFile("drop-in", "/etc/containerd/conf.d/99-nvidia.toml", None))
        desired = get_adapter(name).build_desired_state(ContainerdInspection("/s", tuple(files), None), request, {})
        return next(each for each in desired.files if each.changes)

    def place(self, path: str) -> Path:
        return Path(self.node.root.outside(path))

    def put(self, path: str, content: bytes) -> None:
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        self.place(path).write_bytes(content)

    def revert(
        self, receipt: Receipt | None = None, *, keep: bool = False, known: tuple[str, ...] = (), other: bool = False
    ) -> Remainder:
        return revert_recorded(
            *(self.reverter, receipt or self.receipt),
            keep_toolkit=keep,
            known=known,
            other=OTHER if other else None,
        )

    def is_as_before(self, name: EngineName) -> bool:
        return self.place(FILES[name]).read_bytes() == BEFORE[name]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    # what this machine's own containers and engines need is no matter here
    monkeypatch.setattr(toolkit_users, "_list_other_engines", lambda *_: ([], []))
    monkeypatch.setattr(toolkit_users, "list_container_users", lambda *_: [])
    (tmp_path / "usr/local").mkdir(parents=True)
    return Installed(tmp_path)


def test_all_that_was_changed_is_as_it_was_and_nothing_of_ours_is_left(installed: Installed) -> None:
    assert installed.revert() == Remainder(toolkit_stays=False, recorded=False)
    assert all(map(installed.is_as_before, FILES))
    assert not installed.place(SPECIFICATION).exists()
    assert not installed.place("/usr/local/nvidia").exists()
    assert installed.place("/usr/local").is_dir()


def test_a_toolkit_that_is_to_be_kept_stays_without_a_receipt(installed: Installed) -> None:
    assert installed.revert(keep=True) == Remainder(toolkit_stays=True, recorded=False)
    assert installed.place(f"{FOLDER}/{PROGRAM}").exists()
    assert installed.store.load() is None


def test_engines_are_reverted_in_reverse_and_before_the_toolkit(installed: Installed, logged: io.StringIO) -> None:
    installed.revert()
    said = logged.getvalue()
    places = [said.index(f"engine={name}") for name in reversed(FILES)]
    assert places == sorted(places)
    assert places[-1] < said.index("event=toolkit-removed")


def test_an_engine_that_fails_keeps_no_other_from_its_revert_and_keeps_the_receipt(
    installed: Installed, logged: io.StringIO
) -> None:
    installed.place(FILES[EngineName.CONTAINERD]).write_bytes(b"version = = 2\n")
    with pytest.raises(ConfigurationError) as failed:
        installed.revert()
    assert failed.value.path == FILES[EngineName.CONTAINERD]
    assert installed.is_as_before(EngineName.DOCKER)
    assert installed.place(f"{FOLDER}/{PROGRAM}").exists()
    assert "event=handlers-not-removed" in logged.getvalue()
    kept = installed.store.load()
    assert kept is not None
    installed.put(FILES[EngineName.CONTAINERD], BEFORE[EngineName.CONTAINERD])
    assert installed.revert(kept) == Remainder(toolkit_stays=False, recorded=False)


def test_of_several_failures_the_gravest_is_raised(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_reverter: object, _receipt: Receipt, record: EngineRecord) -> Receipt:
        raise EngineDownError("down") if record.name is EngineName.CONTAINERD else ConfigurationError("refused")

    monkeypatch.setattr(EngineReverter, "revert", fail)
    with pytest.raises(EngineDownError):
        installed.revert()


def test_a_toolkit_that_a_file_still_names_stays_with_its_whole_record(installed: Installed) -> None:
    installed.put("/etc/other/c.toml", f'path = "{FOLDER}/{PROGRAM}"\n'.encode())
    left = installed.revert(known=("/etc/other/c.toml",))
    assert [naming.file for naming in left.named] == ["/etc/other/c.toml"]
    assert (left.toolkit_stays, left.recorded) == (True, True)
    kept = installed.store.load()
    assert kept is not None
    assert (kept.state, len(kept.engines), kept.toolkit_files) == (State.REVERTING, 2, (PROGRAM,))
    assert all(map(installed.is_as_before, FILES))


def test_a_record_without_engines_is_one_of_a_begun_revert_as_well(installed: Installed) -> None:
    installed.put("/etc/other/c.toml", f'path = "{FOLDER}/{PROGRAM}"\n'.encode())
    receipt = msgspec.structs.replace(installed.receipt, engines=(), specifications=())
    assert installed.revert(receipt, known=("/etc/other/c.toml",)).recorded
    assert installed.store.load() == msgspec.structs.replace(receipt, state=State.REVERTING)


def test_a_toolkit_that_anothers_specification_names_stays_without_a_record(installed: Installed) -> None:
    installed.put("/etc/cdi/theirs.yaml", f"path: {FOLDER}/nvidia-cdi-hook\n".encode())
    left = installed.revert()
    assert [naming.file for naming in left.named] == ["/etc/cdi/theirs.yaml"]
    assert (left.toolkit_stays, left.recorded) == (True, False)
    assert installed.place(f"{FOLDER}/{PROGRAM}").exists()


def test_a_toolkit_that_a_container_needs_stays(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit_users, "list_container_users", lambda *_: ["the container a"])
    assert installed.revert() == Remainder(toolkit_stays=True, recorded=False)


def test_a_specification_that_somebody_edited_is_theirs_and_that_is_said(
    installed: Installed, logged: io.StringIO
) -> None:
    installed.put(SPECIFICATION, b"cdiVersion: 0.6.0\n")
    installed.revert()
    assert "event=cdi-changed" in logged.getvalue()
    assert installed.place(SPECIFICATION).read_bytes() == b"cdiVersion: 0.6.0\n"


# --- a killed run, and other installations ---


@pytest.mark.parametrize("state", State)
def test_what_a_killed_run_may_have_restored_is_flushed_before_anything_goes(
    installed: Installed, state: State
) -> None:
    installed.calls.noted.clear()
    installed.revert(msgspec.structs.replace(installed.receipt, state=state, engines=()))
    flushed_first = installed.calls.noted[0] == "fsync"
    assert flushed_first is (state is not State.INSTALLED)


def test_an_engine_that_another_installation_took_meanwhile_stays_theirs(
    installed: Installed, logged: io.StringIO
) -> None:
    theirs = b'{"runtimes": {"nvidia": {"path": "/opt/theirs/toolkit/nvidia-container-runtime"}}}'
    installed.put("/opt/theirs/.toolkit-installer/receipt.json", b"{}")
    installed.put(FILES[EngineName.DOCKER], theirs)
    assert installed.revert() == Remainder(toolkit_stays=False, recorded=False)
    assert installed.place(FILES[EngineName.DOCKER]).read_bytes() == theirs
    assert installed.is_as_before(EngineName.CONTAINERD)
    assert "event=left-to-other-installation" in logged.getvalue()


def test_files_that_another_running_installer_wrote_stay_and_keep_their_record(
    installed: Installed, logged: io.StringIO
) -> None:
    theirs = installed.place(FILES[EngineName.DOCKER]).read_bytes() + b"\n"
    installed.put(FILES[EngineName.DOCKER], theirs)
    installed.put(SPECIFICATION, b"cdiVersion: 0.6.0\n")
    left = installed.revert(other=True)
    assert (left.toolkit_stays, left.recorded, left.other) == (True, True, OTHER)
    assert installed.place(FILES[EngineName.DOCKER]).read_bytes() == theirs
    assert installed.place(SPECIFICATION).exists()
    assert installed.is_as_before(EngineName.CONTAINERD)
    kept = installed.store.load()
    assert kept is not None
    assert [engine.name for engine in kept.engines] == [EngineName.DOCKER]
    assert [file.path for file in kept.specifications] == [SPECIFICATION]
    assert logged.getvalue().count("event=left-to-other ") == 2


def test_where_another_installer_wrote_nothing_yet_only_the_toolkit_is_left_to_it(installed: Installed) -> None:
    assert installed.revert(other=True) == Remainder(toolkit_stays=True, recorded=False, other=OTHER)
    assert all(map(installed.is_as_before, FILES))
    assert installed.place(f"{FOLDER}/{PROGRAM}").exists()
