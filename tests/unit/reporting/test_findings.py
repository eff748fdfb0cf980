"""Which illnesses follow from what was read of a node."""

from __future__ import annotations

import json
import os

import msgspec
import pytest

from tests.unit.reporting.engine_texts import CONFIG, CRI, DROP_IN, GRPC, RUNTIME, SOUND, SPECIFICATION
from toolkit_installer.reporting import findings
from toolkit_installer.reporting.diagnosis_form import (
    EngineSeen,
    HookSeen,
    Illness,
    KubeletSeen,
    NodeFacts,
    ProgramSeen,
    ReadFile,
    SpecificationSeen,
)
from toolkit_installer.settings import EngineName


def test_runtimes_of_a_containerd_that_merges_are_not_lost() -> None:
    spin = f'version = 2\n[{RUNTIME}.spin]\nruntime_type = "io.containerd.spin.v2"\n'
    assert findings.diagnose(containerd(SOUND, spin, version="2.1.4")) == ()
    (found,) = findings.diagnose(containerd(SOUND, spin, version="1.7.24"))
    assert found.causes == "every pod of this node fails"


@pytest.mark.parametrize("version, lost", [("", ""), ("2.1.4", "sandbox_image"), ("2.3.4", "does not start")])
def test_files_of_different_versions_name_what_is_lost(version: str, lost: str) -> None:
    root = SOUND + f'[plugins."{GRPC}"]\nsandbox_image = "pause:site"\n'
    drop_in = f'version = 3\n[plugins."{CRI}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    found = [
        each
        for each in findings.diagnose(containerd(root, drop_in, version=version))
        if each.illness is Illness.MIXED_VERSIONS
    ]
    assert len(found) == 1
    assert lost in found[0].what
    assert CONFIG in found[0].what + found[0].path
    assert found[0].line is not None


def test_a_socket_at_which_no_program_listens_is_found() -> None:
    kubelet = KubeletSeen("/run/crio/crio.sock", "--container-runtime-endpoint", listens=False)
    (found,) = findings.diagnose(NodeFacts(kubelets=(kubelet,)))
    assert (found.illness, found.path) == (Illness.OTHER_SOCKET, "/run/crio/crio.sock")


def test_handlers_of_an_engine_that_the_kubelet_does_not_use_are_found() -> None:
    kubelet = KubeletSeen("/run/containerd/containerd.sock", "a flag", listens=True)
    engines = (("docker", "/var/run/docker.sock"),)
    (found,) = findings.diagnose(NodeFacts(kubelets=(kubelet,), toolkit_engines=engines, installed=True))
    assert found.illness is Illness.OTHER_SOCKET
    shim = KubeletSeen("/run/cri-dockerd.sock", "a flag", listens=True)
    assert findings.diagnose(NodeFacts(kubelets=(shim,), toolkit_engines=engines, installed=True)) == ()


@pytest.mark.parametrize(
    "name, text, reported, driver",
    [
        (EngineName.DOCKER, '{"exec-opts": ["native.cgroupdriver=cgroupfs"]}', None, "cgroupfs"),
        (EngineName.DOCKER, "{}", "cgroupfs", "cgroupfs"),
        (EngineName.CRIO, '[crio.runtime]\ncgroup_manager = "cgroupfs"\n', None, "cgroupfs"),
        (EngineName.CRIO, "[crio.runtime]\n", None, "systemd"),
    ],
)
def test_the_cgroup_driver_of_each_engine(name: EngineName, text: str, reported: str | None, driver: str) -> None:
    engine = EngineSeen(
        name=name, distribution="x", socket="/s", cgroup_driver=reported, files=(ReadFile("/f", text.encode()),)
    )
    kubelet = KubeletSeen("/s", "a flag", cgroup_driver="systemd", cgroup_path="/k", cgroup_line=3)
    found = [each.what for each in findings.diagnose(NodeFacts(engines=(engine,), kubelets=(kubelet,)))]
    assert bool(found) == (driver != "systemd")
    assert all("/k:3" in what for what in found)


def test_links_in_dev_char_do_not_matter_without_systemd_cgroups() -> None:
    seen = containerd(SOUND.replace("true", "false"), version="1.7.24")
    unlinked = (("/dev/nvidia0", 195, 0),)
    assert findings.diagnose(NodeFacts(engines=seen.engines, unlinked=unlinked)) == ()


CTK = "/usr/local/nvidia/toolkit/nvidia-ctk"


@pytest.mark.parametrize("there, program", [(True, CTK), (False, "nvidia-ctk")])
def test_remedies_run_the_nvidia_ctk_that_the_node_has(*, there: bool, program: str) -> None:
    missing = SpecificationSeen("/etc/cdi/nvidia.yaml", SPECIFICATION.encode(), ((8, "/dev/other"),))
    broken = SpecificationSeen("/etc/cdi/broken.yaml", b"")
    seen = NodeFacts(
        unlinked=(("/dev/nvidia0", 195, 0),),
        specifications=(missing, broken),
        installed=True,
        toolkit_folder=os.path.dirname(CTK),
        programs={CTK: ProgramSeen(exists=there)},
    )
    links, *made = [each.remedy for each in findings.diagnose(seen)]
    assert links.startswith(f"`{program} system create-dev-char-symlinks ")
    assert f'RUN+="{CTK if there else "/usr/bin/nvidia-ctk"} system ' in links
    assert len(made) == 2
    assert all(f"`{program} cdi generate " in remedy for remedy in made)


@pytest.mark.parametrize("os_release", ["", "ID=nixos"])
def test_a_specification_of_this_program_is_made_again_by_refresh(os_release: str) -> None:
    missing = SpecificationSeen("/var/run/cdi/a.yaml", SPECIFICATION.encode(), ((8, "/dev/other"),), managed=True)
    broken = SpecificationSeen("/var/run/cdi/b.yaml", b"", managed=True)
    remedies = [
        each.remedy for each in findings.diagnose(NodeFacts(specifications=(missing, broken), os_release=os_release))
    ]
    assert len(remedies) == 2
    assert all(each.startswith("`toolkit-installer refresh`") for each in remedies)


@pytest.mark.parametrize(
    "version, folders, why",
    [
        ("1.7.10", ("/etc/cdi",), "is of version 1.0.0"),
        ("2.1.4", (), "CDI is off"),
        ("2.1.4", ("/opt/cdi",), "/opt/cdi alone"),
        ("2.1.4", ("/etc/cdi", "/var/run/cdi"), ""),
    ],
)
def test_a_specification_that_the_running_engine_does_not_read(
    version: str, folders: tuple[str, ...], why: str
) -> None:
    engine = EngineSeen(
        name=EngineName.CONTAINERD, distribution="containerd", socket="/s", version=version, cdi_folders=folders
    )
    text = b"cdiVersion: 1.0.0\nkind: nvidia.com/gpu\n"
    file = SpecificationSeen("/run/cdi/nvidia.yaml" if not why else "/etc/cdi/nvidia.yaml", text)
    found = findings.diagnose(NodeFacts(engines=(engine,), specifications=(file,)))
    assert [why in each.what for each in found] == ([True] if why else [])


def containerd(*texts: str, version: str) -> NodeFacts:
    """Return a node on which a containerd of a release reads these files."""
    files = tuple(ReadFile(path, text.encode()) for path, text in zip((CONFIG, DROP_IN), texts, strict=False))
    engine = EngineSeen(
        name=EngineName.CONTAINERD, distribution="containerd", socket="/s", version=version, files=files
    )
    return NodeFacts(engines=(engine,))


def test_findings_stand_in_the_order_of_the_table_and_once() -> None:
    hook = HookSeen("/hooks.d/a.json", 3, "/usr/bin/gone", exists=False)
    kubelet = KubeletSeen("/run/crio/crio.sock", "a flag", listens=False)
    found = findings.diagnose(NodeFacts(kubelets=(kubelet, kubelet), hooks=(hook, hook)))
    assert [each.illness for each in found] == [Illness.LEFTOVER, Illness.OTHER_SOCKET]


def test_what_another_installer_has_put_there_is_not_left_over_while_it_runs() -> None:
    hook = HookSeen("/hooks.d/a.json", 3, "/usr/bin/gone", exists=False)
    assert findings.diagnose(NodeFacts(hooks=(hook,), toolkit_files=9, other_installer=True)) == ()


def test_a_toolkit_with_a_receipt_is_not_left_over() -> None:
    (found,) = findings.diagnose(NodeFacts(toolkit_folder="/t", toolkit_files=9))
    assert (found.illness, found.path) == (Illness.LEFTOVER, "/t")
    assert findings.diagnose(NodeFacts(toolkit_folder="/t", toolkit_files=9, installed=True)) == ()


NVIDIA = "/t/nvidia-container-runtime"
OF_DOCKER = ReadFile("/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": NVIDIA}}}).encode())
DOCKER = EngineSeen(name=EngineName.DOCKER, distribution="docker", socket="/s", files=(OF_DOCKER,))


@pytest.mark.parametrize(
    "exists, folder, says",
    [
        (False, "/t", "which is not there"),
        (False, "/other", "which is not there"),
        (True, "/t", "no receipt of this program says so"),
        (True, "/other", None),
    ],
)
def test_a_handler_is_left_over_if_its_program_is_gone_or_lies_in_our_folder(
    *, exists: bool, folder: str, says: str | None
) -> None:
    programs = {NVIDIA: ProgramSeen(exists=exists)}
    seen = NodeFacts(engines=(DOCKER,), toolkit_folder=folder, programs=programs)
    found = [each.what for each in findings.diagnose(seen) if each.illness is Illness.LEFTOVER]
    assert len(found) == (says is not None)
    assert all(str(says) in what for what in found)
    ours = msgspec.structs.replace(seen, toolkit_folder="/t", installed=True)
    assert Illness.LEFTOVER not in {each.illness for each in findings.diagnose(ours)}


def test_runtimes_of_the_live_engine_alone_are_listed_and_shims_are_not() -> None:
    live = {"nvidia": NVIDIA, "late": "/opt/late", "io.containerd.runc.v2": "/opt/shim", "none": None, "odd": "/a?b=c"}
    engine = msgspec.structs.replace(DOCKER, handlers=live, default="late")
    found = findings.list_runtimes(engine)
    assert [(each.name, each.executable, each.path, each.default) for each in found[-1:]] == [
        ("late", "/opt/late", OF_DOCKER.path, True)
    ]
    assert [each.name for each in found].count("nvidia") == 1
    assert not {"io.containerd.runc.v2", "none", "odd"} & {each.name for each in found}
    assert "late" not in [each.name for each in findings.list_runtimes(msgspec.structs.replace(engine, generated=True))]


def test_a_runtime_for_which_nvidias_finds_no_program_is_one_finding() -> None:
    (found,) = findings.diagnose(NodeFacts(toolkit_folder="/t", no_low_level="none of runc, crun is there"))
    assert (found.illness, found.what) == (Illness.NO_RUNTIME, "none of runc, crun is there")
    assert found.path.startswith("/t/")
