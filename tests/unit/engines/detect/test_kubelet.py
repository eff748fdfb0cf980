"""Cgroup drivers: what the kubelet was told, what the engine does, and when the kubelet asks the engine for it."""

from __future__ import annotations

import itertools

import pytest

from toolkit_installer.engines.api import LiveState
from toolkit_installer.engines.containerd.tables import read_cgroup_driver
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram, ProgramError, Programs
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.reporting import engine_faults
from toolkit_installer.reporting.status_verdict import FileFault
from toolkit_installer.settings import EngineName

SOCKET = "/run/containerd/containerd.sock"
CONFIG = "/var/lib/kubelet/config.yaml"
ENDPOINT = f"--container-runtime-endpoint=unix://{SOCKET}"
RUNC = "io.containerd.runc.v2"
NODE = Node("/")


def told(monkeypatch: pytest.MonkeyPatch, *flags: str, **files: str) -> kubelet.CgroupDriver | None:
    process = Process(7, "kubelet", "/usr/bin/kubelet", ("kubelet", ENDPOINT, *flags), 0.0, None)
    texts = {CONFIG: files.get("config", ""), "/d/10.conf": files.get("first", ""), "/d/20.conf": files.get("last", "")}
    monkeypatch.setattr(kubelet, "find_kubelet_processes", lambda _: [process])
    monkeypatch.setattr(kubelet, "_text", lambda _, path: texts[path])
    monkeypatch.setattr(kubelet, "_listed", lambda *_: ["/d/10.conf", "/d/20.conf"])
    return kubelet.find_cgroup_driver(NODE)


SYSTEMD, CGROUPFS = "kind: KubeletConfiguration\ncgroupDriver: systemd\n", "cgroupDriver: cgroupfs\n"


def test_a_flag_wins_over_drop_ins_and_these_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver(*flags: str, **files: str) -> tuple[str, str]:
        found = told(monkeypatch, *flags, **files)
        assert found is not None
        return found.driver, found.told_by

    config, folder = f"--config={CONFIG}", "--config-dir=/d"
    assert driver() == ("cgroupfs", "which is its default")
    assert driver(config, config=SYSTEMD) == ("systemd", f"in {CONFIG}")
    assert driver(config, folder, config=SYSTEMD, first=CGROUPFS) == ("cgroupfs", "in /d/10.conf")
    assert driver(config, folder, config=SYSTEMD, first=CGROUPFS, last=SYSTEMD) == ("systemd", "in /d/20.conf")
    assert driver(config, "--cgroup-driver=cgroupfs", config=SYSTEMD) == ("cgroupfs", "by --cgroup-driver")


@pytest.mark.parametrize(
    "entry, driver",
    [
        ({"runtimeType": RUNC, "options": {"SystemdCgroup": True}}, "systemd"),
        ({"runtimeType": RUNC, "options": {"SystemdCgroup": False}}, "cgroupfs"),
        ({"runtimeType": RUNC, "options": None}, "cgroupfs"),
        ({"runtimeType": "io.containerd.kata.v2"}, None),
        ("nonsense", None),
    ],
)
def test_only_runtimes_of_runcs_kind_have_a_cgroup_driver(entry: object, driver: str | None) -> None:
    assert read_cgroup_driver(entry) == driver


@pytest.mark.parametrize(
    "engine, release, version, asks",
    [
        (EngineName.CONTAINERD, (2, 0), b"Kubernetes v1.31.0\n", True),
        (EngineName.CONTAINERD, (1, 7), b"Kubernetes v1.34.4\n", False),
        (EngineName.CONTAINERD, (2, 1), b"Kubernetes v1.30.9\n", False),
        (EngineName.CRIO, (1, 28), b"Kubernetes v1.34.4\n", True),
        (EngineName.DOCKER, (28, 5), b"Kubernetes v1.34.4\n", False),
        (EngineName.CONTAINERD, None, b"Kubernetes v1.34.4\n", False),
        (EngineName.CONTAINERD, (2, 0), b"", False),
    ],
)
def test_a_newer_kubelet_asks_a_newer_engine(
    monkeypatch: pytest.MonkeyPatch, engine: EngineName, release: tuple[int, int] | None, version: bytes, *, asks: bool
) -> None:
    def run(*_: object, **__: object) -> CompletedProgram:
        if not version:
            raise ProgramError("it cannot be started")
        return CompletedProgram(0, version, "")

    monkeypatch.setattr(Programs, "run", run)
    found = told(monkeypatch)
    assert found is not None
    assert kubelet.uses_engine_cgroup_driver(NODE, found, engine, release) is asks


def faults(drivers: dict[str, str], version: str = "1.7.24", socket: str = SOCKET) -> list[FileFault]:
    handlers = tuple((name, f"/{name}") for name in drivers if name.startswith("nvidia"))
    engine = EngineRecord(EngineName.CONTAINERD, socket, None, handlers, None, ())
    live = LiveState(version, dict.fromkeys(drivers), "runc", cgroup_drivers=drivers)
    return list(engine_faults.find_faults(NODE, engine, live, ()))


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit_installer.engines.containerd.engine.Containerd.find_faults", lambda *_, **__: ())


@pytest.mark.parametrize(
    "kubelets, engines", list(itertools.product(["systemd", "cgroupfs"], repeat=2)), ids=lambda name: name
)
def test_drivers_that_differ_are_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, kubelets: str, engines: str
) -> None:
    told(monkeypatch, f"--config={CONFIG}", config=f"cgroupDriver: {kubelets}\n")
    found = faults({"runc": engines, "nvidia": engines, "kata": "cgroupfs"})
    if kubelets == engines:
        assert found == []
        return
    (fault,) = found
    assert fault.what.startswith(
        f"the kubelet's cgroup driver is {kubelets} (in {CONFIG}), and that of nvidia, runc is"
    )
    assert fault.stops is (engines == "systemd"), "runc refuses a path that is none of systemd's"
    assert ("`systemctl restart kubelet`" in fault.remedy) is (kubelets == "cgroupfs")
    assert ("SystemdCgroup = true" in fault.remedy) is (kubelets == "systemd")


def test_a_kubelet_of_another_engine_says_nothing_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    assert faults({"runc": "systemd", "nvidia": "systemd"}, socket="/run/other.sock") == []


def test_where_the_kubelet_asks_the_engine_only_other_handlers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    monkeypatch.setattr(Programs, "run", lambda *_, **__: CompletedProgram(0, b"Kubernetes v1.34.4\n", ""))
    assert faults({"runc": "systemd", "nvidia": "systemd"}, "2.1.4") == []
    (fault,) = faults({"runc": "systemd", "nvidia": "cgroupfs"}, "2.1.4")
    assert "the kubelet takes the cgroup driver of the default runtime runc, systemd, and that of nvidia" in fault.what


@pytest.mark.parametrize("default, other", [("cgroupfs", "systemd"), ("systemd", "cgroupfs")])
def test_a_kubelet_that_asks_the_engine_is_not_to_be_changed(
    monkeypatch: pytest.MonkeyPatch, default: str, other: str
) -> None:
    told(monkeypatch, f"--config={CONFIG}", config=SYSTEMD)
    monkeypatch.setattr(Programs, "run", lambda *_, **__: CompletedProgram(0, b"Kubernetes v1.34.4\n", ""))
    (fault,) = faults({"runc": default, "nvidia": other}, "2.1.4")
    assert f"the default runtime runc, {default}, and that of nvidia is {other}" in fault.what
    assert "kubelet" not in fault.remedy
    assert "SystemdCgroup" in fault.remedy
    assert fault.stops is (other == "systemd")
