"""What a waiting run watches of its files, of the driver and of GPUs, and what it makes of a change."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.support import driver_roots
from toolkit_installer.documents import changes
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import idling
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.settings import AUTO, CdiSettings, EngineName, OnDrift, ToolkitSettings
from toolkit_installer.waiting.node_watch import DriftWatch, DriverHistory, DriverWatch, GpuWatch, identify_paths

TOOLKIT = "/usr/local/nvidia/toolkit"
RECEIPT = "/usr/local/nvidia/.toolkit-installer/receipt.json"
CONFIG, SPECIFICATION = "/etc/containerd/config.toml", "/var/run/cdi/nvidia.yaml"
OURS, THEIRS = b"oom_score = 1\n", b"oom_score = 2\n"
FILE = FileRecord("config", CONFIG, None, written=(changes.sha256(OURS),))
ENGINE = EngineRecord(EngineName.CONTAINERD, "/run/c.sock", None, (("nvidia", f"{TOOLKIT}/a"),), None, (FILE,))
INSTALLED = Receipt(
    State.INSTALLED,
    "1",
    TOOLKIT,
    ("sub/b",),
    (),
    "/run/toolkit.pid",
    (),
    (ENGINE,),
    (FileRecord(SPECIFICATION_ROLE, SPECIFICATION, None, written=(changes.sha256(OURS),)),),
)
WITHOUT_TOOLKIT = msgspec.structs.replace(INSTALLED, toolkit_files=(), specifications=())


class ManagedFiles:
    """A node with the files of a receipt, and a plan that a watch is given, or the error that prevents one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = Node(str(root))
        self.planned: list[Any] = []
        self.error: InstallerError | None = None
        self.prepared = 0
        for path, content in ((CONFIG, OURS), (SPECIFICATION, OURS), (RECEIPT, b"{}")):
            self.write(path, content)

    def write(self, path: str, content: bytes) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def plan(self, path: str, content: bytes, target: bytes) -> None:
        wanted = SimpleNamespace(path=path, file=SimpleNamespace(content=content), target=target)
        self.planned.append(SimpleNamespace(desired=SimpleNamespace(files=[wanted])))

    def _prepare(self, _receipt: Receipt | None) -> Any:
        self.prepared += 1
        if self.error is not None:
            raise self.error
        return SimpleNamespace(plan=SimpleNamespace(engines=self.planned))

    def watch(self, on_drift: OnDrift = OnDrift.REPORT) -> DriftWatch:
        return DriftWatch(self.node, RECEIPT, on_drift, ToolkitSettings(), self._prepare)


@pytest.fixture
def managed(tmp_path: Path) -> ManagedFiles:
    return ManagedFiles(tmp_path)


# --- drift ---


def test_each_managed_file_and_the_receipt_are_watched_as_they_are(managed: ManagedFiles) -> None:
    watched = managed.watch().list_watched_paths(INSTALLED)
    places = [str(managed.root / path.lstrip("/")) for path in (CONFIG, SPECIFICATION, f"{TOOLKIT}/sub/b", RECEIPT)]
    assert sorted(watched) == sorted((idling.DRIFT, place, idling.identity(place)) for place in places)


def test_folders_of_specifications_are_not_watched_for_every_change(managed: ManagedFiles) -> None:
    folders = managed.watch().list_watched_folders(INSTALLED)
    expected = ["/usr/local/nvidia", "/etc/containerd", f"{TOOLKIT}/sub"]
    assert folders == [str(managed.root / path.lstrip("/")) for path in expected]


def test_nothing_is_watched_where_drift_is_ignored_or_nothing_is_installed(managed: ManagedFiles) -> None:
    for watch, receipt in ((managed.watch(OnDrift.IGNORE), INSTALLED), (managed.watch(), None)):
        assert watch.list_watched_paths(receipt) == []
        assert watch.list_watched_folders(receipt) == []


def test_files_as_written_are_no_change(managed: ManagedFiles, logged: io.StringIO) -> None:
    watch = managed.watch()
    assert not watch.log_changes(WITHOUT_TOOLKIT)
    assert not watch.logged
    assert logged.getvalue() == ""


def test_a_changed_file_is_logged_with_what_a_run_would_change(managed: ManagedFiles, logged: io.StringIO) -> None:
    managed.write(CONFIG, THEIRS)
    managed.plan(CONFIG, THEIRS, OURS)
    managed.plan("/etc/other", b"x\n", b"y\n")
    watch = managed.watch()
    assert watch.log_changes(WITHOUT_TOOLKIT)
    assert watch.logged
    assert list(watch.differences) == [CONFIG]
    assert "-oom_score = 2\n+oom_score = 1" in watch.differences[CONFIG]
    assert logged.getvalue().count("event=drift ") == 1
    assert "puts it right" in logged.getvalue()


@pytest.mark.parametrize(
    "path, hint, reason", [(CONFIG, "mend the file, then", "cut off"), ("/etc/other", "puts it right", None)]
)
def test_a_file_that_no_run_can_edit_is_logged_with_the_reason(
    managed: ManagedFiles, logged: io.StringIO, path: str, hint: str, reason: str | None
) -> None:
    managed.write(CONFIG, THEIRS)
    managed.error = ConfigurationError("cut off", path=path, line=7)
    watch = managed.watch()
    assert watch.log_changes(WITHOUT_TOOLKIT)
    assert watch.differences == {}
    assert hint in logged.getvalue()
    assert ("cut off" in logged.getvalue()) is (reason is not None)


def test_a_long_difference_is_cut(managed: ManagedFiles) -> None:
    managed.write(CONFIG, THEIRS)
    managed.plan(CONFIG, THEIRS, b"a = 3\n" * 2000)
    watch = managed.watch()
    watch.log_changes(WITHOUT_TOOLKIT)
    assert len(watch.differences[CONFIG]) == 4000


def test_a_change_that_is_repaired_is_not_planned_for_the_log(managed: ManagedFiles, logged: io.StringIO) -> None:
    managed.write(CONFIG, THEIRS)
    watch = managed.watch(OnDrift.REPAIR)
    assert watch.repairs
    assert watch.log_changes(WITHOUT_TOOLKIT)
    assert managed.prepared == 0
    assert "event=drift-repair" in logged.getvalue()


def test_a_receipt_that_was_deleted_is_a_change(managed: ManagedFiles, logged: io.StringIO) -> None:
    watch = managed.watch()
    assert not watch.log_changes(None)
    (managed.root / RECEIPT.lstrip("/")).unlink()
    assert watch.log_changes(None)
    assert watch.logged
    assert "event=receipt-gone" in logged.getvalue()


def test_a_file_of_the_toolkit_that_is_gone_is_a_change(managed: ManagedFiles, logged: io.StringIO) -> None:
    assert managed.watch().log_changes(msgspec.structs.replace(WITHOUT_TOOLKIT, toolkit_files=("sub/b",)))
    assert "event=toolkit-damaged" in logged.getvalue()
    assert f"{TOOLKIT}/sub/b" in logged.getvalue()
    assert managed.prepared == 0


# --- GPUs ---


def plug(root: Path) -> None:
    """Put a GPU on the node's PCI bus."""
    place = root / "sys/bus/pci/devices/0000:3b:00.0"
    place.mkdir(parents=True)
    for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
        (place / name).write_text(f"{value}\n")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return the root of a node whose sysfs shows no GPU."""
    (tmp_path / "sys/devices/pci0000:00").mkdir(parents=True)
    return tmp_path


def test_a_node_without_a_gpu_is_left_alone_until_one_comes(bare: Path, logged: io.StringIO) -> None:
    watch = GpuWatch(Node(str(bare)), ToolkitSettings(), may_idle=True)
    assert watch.must_idle(None)
    assert watch.must_idle(None)
    assert logged.getvalue().count("event=no-gpu") == 1
    watched = watch.watched
    assert watched == identify_paths(path for path, _ in watched)
    plug(bare)
    assert watched != identify_paths(path for path, _ in watched)
    assert not watch.must_idle(None)
    assert (watch.idle, watch.watched) == (False, ())
    assert logged.getvalue().count("event=gpu-found") == 1


@pytest.mark.parametrize("may_idle, receipt", [(False, None), (True, INSTALLED)])
def test_an_installation_is_kept_up_without_a_gpu(bare: Path, receipt: Receipt | None, *, may_idle: bool) -> None:
    watch = GpuWatch(Node(str(bare)), ToolkitSettings(), may_idle=may_idle)
    watch.idle = True
    assert not watch.must_idle(receipt)
    assert (watch.idle, watch.watched) == (False, ())


def test_a_node_whose_bus_is_not_seen_is_not_left_alone(tmp_path: Path, logged: io.StringIO) -> None:
    assert not GpuWatch(Node(str(tmp_path)), ToolkitSettings(), may_idle=True).must_idle(None)
    assert logged.getvalue() == ""


# --- the driver ---


class NamedRoot:
    """A node whose driver root is named, and a watch of it."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "driver"
        self.node = folder / "node"
        plug(self.node)
        (self.node / "sys/devices/pci0000:00").mkdir(parents=True)
        settings = ToolkitSettings(driver_root="/run/nvidia/driver", driver_root_ctr_path=str(self.place))
        self.watch = DriverWatch(Node(str(self.node)), settings)

    def install(self, *, works: bool) -> Path:
        return driver_roots.install(self.place, works=works)


def is_missing(named: NamedRoot) -> bool:
    return named.watch.missing


@pytest.fixture
def named(tmp_path: Path) -> NamedRoot:
    return NamedRoot(tmp_path)


@pytest.mark.parametrize(
    "settings, is_named",
    [
        (ToolkitSettings(), True),
        (ToolkitSettings(driver_root=AUTO), False),
        (ToolkitSettings(cdi=CdiSettings(enabled=True)), False),
    ],
    ids=["named", "auto", "CDI"],
)
def test_only_a_named_root_without_specifications_is_inspected(
    tmp_path: Path, settings: ToolkitSettings, *, is_named: bool
) -> None:
    watch = DriverWatch(Node(str(tmp_path)), settings)
    watch.inspect_first()
    assert watch.named is is_named
    assert (watch.history is DriverHistory.UNKNOWN) is not is_named
    watch.restore((), DriverHistory.WORKING, missing=True)
    assert (watch.gone, watch.not_found) == (is_named, not is_named)
    assert watch.missing


def test_a_driver_that_was_never_there_cannot_go(named: NamedRoot, logged: io.StringIO) -> None:
    named.watch.inspect_first()
    assert named.watch.history is DriverHistory.NOTHING
    named.watch.refresh()
    assert not is_missing(named)
    assert logged.getvalue() == ""


needs_chroot = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)


@needs_chroot
def test_a_driver_that_worked_and_fails_is_gone_until_it_works_again(named: NamedRoot, logged: io.StringIO) -> None:
    named.install(works=True)
    named.watch.inspect_first()
    assert named.watch.history is DriverHistory.WORKING
    assert logged.getvalue() == ""
    named.install(works=False)
    named.watch.refresh()
    assert is_missing(named)
    assert logged.getvalue().count("event=driver-gone") == 1
    named.install(works=True)
    named.watch.refresh()
    assert not is_missing(named)
    assert logged.getvalue().count("event=driver-found") == 1


@needs_chroot
def test_a_driver_that_never_worked_is_gone_only_with_its_files(named: NamedRoot, logged: io.StringIO) -> None:
    program = named.install(works=False)
    named.watch.inspect_first()
    assert named.watch.history is DriverHistory.THERE
    named.install(works=False)
    named.watch.refresh()
    assert not is_missing(named)
    program.unlink()
    named.watch.refresh()
    assert is_missing(named)
    assert logged.getvalue().count("event=driver-gone") == 1


@needs_chroot
def test_a_driver_whose_files_stay_as_they_are_is_not_tried_again(named: NamedRoot) -> None:
    named.install(works=True)
    named.watch.inspect_first()
    program = named.install(works=False)
    named.watch.update_identities()
    named.watch.refresh()
    assert named.watch.history is DriverHistory.WORKING
    assert not is_missing(named)
    program.touch()
    named.watch.refresh()
    assert is_missing(named)


@needs_chroot
def test_without_a_gpu_a_driver_is_not_missed(named: NamedRoot) -> None:
    named.install(works=True)
    named.watch.inspect_first()
    (named.node / "sys/bus/pci/devices/0000:3b:00.0/vendor").write_text("0x1002\n")
    named.install(works=False)
    named.watch.refresh()
    assert not is_missing(named)
