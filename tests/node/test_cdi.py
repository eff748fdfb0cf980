"""The CDI specification on a made node: made by the payload's nvidia-ctk, kept as any other file, and given back."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.node import faults
from tests.node.faults import Call, Fault, Outcome, Plan
from tests.node.instants import Deed, stopping
from tests.node.sweeps.ordering import disorder, on_the_node
from tests.node.sweeps.warm import Warm
from tests.support import fake_ctk, payloads
from tests.support.fake_ctk import CONTROL, NEWER, NO_MODULES, VERSION
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, STORE, TOOLKIT, WAITING, Entry, FakeNode, patiently

ON = ("--cdi-enabled",)
SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
HOOK = f"{TOOLKIT}/nvidia-cdi-hook"
DOCKER = b'{\n  "debug": true\n}\n'
THEIRS = b"cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\ndevices: []\n"
OF_AN_OLDER_INSTALLER = f"cdiVersion: 0.3.0\nkind: management.nvidia.com/gpu\n# {HOOK}\n".encode()
STAYS = "no driver is usable now, so it stays as it is"
PAYLOAD_INCOMPLETE, NOT_READY, USED = 7, 8, 2


@pytest.fixture
def gpu(with_driver: FakeNode) -> FakeNode:
    """A node with a driver, and docker, down."""
    with_driver.write(DAEMON_JSON, DOCKER)
    return with_driver


def do(node: FakeNode, command: str, *more: str, plan: Plan | None = None) -> Outcome:
    """Run a command to its end, in a fork."""
    return faults.run(node, node.root.parent, command, *more, plan=plan)


def install(node: FakeNode, *more: str) -> Outcome:
    done = do(node, "run", "--no-daemon", *ON, *more)
    assert done.code == 0, done.output
    return done


def uninstall(node: FakeNode, *more: str, code: int = 0) -> Outcome:
    done = do(node, "uninstall", *more)
    assert done.code == code, done.output
    return done


def specification(node: FakeNode) -> str:
    return node.read(SPECIFICATION).decode()


def status(node: FakeNode) -> dict[str, str]:
    facts = json.loads(do(node, "status", "--json").output)
    return {file["path"]: file["state"] for file in facts["specifications"]}


# --- what is written, and given back ---


def test_the_specification_names_the_drivers_files_by_node_paths_and_is_removed(gpu: FakeNode) -> None:
    before = gpu.snapshot()
    run = gpu.waiting(*ON)
    text = specification(gpu)
    for wanted in (
        "kind: management.nvidia.com/gpu\n",
        f"path: {HOOK}\n",
        f"hostPath: {fake_ctk.DRIVER}/dev/nvidia0\n",
        f"hostPath: {fake_ctk.DRIVER}/{fake_ctk.LIBRARIES}/libcuda.so.{VERSION}\n",
        f"containerPath: /{fake_ctk.LIBRARIES}/libcuda.so.{VERSION}\n",
    ):
        assert wanted in text
    assert str(gpu.root) not in text
    assert gpu.snapshot()[SPECIFICATION].mode == 0o644
    assert run.stop() == 0, run.output
    assert gpu.snapshot() == before


def test_diagnose_sends_to_a_run_where_the_specification_is_broken(gpu: FakeNode) -> None:
    install(gpu)
    gpu.write(SPECIFICATION, "")
    gpu.write("/run/cdi/theirs.yaml", "")
    found = json.loads(do(gpu, "diagnose", "--json").output)["findings"]
    remedies = {os.path.basename(each["path"]): each["remedy"] for each in found if each["illness"] == "unreadable-cdi"}
    assert remedies[os.path.basename(SPECIFICATION)].startswith("`toolkit-installer refresh`")
    assert f"`{TOOLKIT}/nvidia-ctk cdi generate" in remedies["theirs.yaml"]


def test_where_device_nodes_are_elsewhere_only_they_are_named_from_there(gpu: FakeNode) -> None:
    gpu.place("/dev").mkdir()
    gpu.place("/dev/nvidia0").touch()
    install(gpu, "--dev-root=/", "--create-device-nodes=none")
    assert "hostPath: /dev/nvidia0\n" in specification(gpu)
    assert f"hostPath: {fake_ctk.DRIVER}/dev" not in specification(gpu)
    assert f"hostPath: {fake_ctk.DRIVER}/{fake_ctk.LIBRARIES}/" in specification(gpu)


def test_a_driver_of_the_nodes_own_is_named_without_any_root(gpu: FakeNode) -> None:
    fake_ctk.driver(gpu.root)
    install(gpu, "--driver-root=/")
    assert f"hostPath: /{fake_ctk.LIBRARIES}/libcuda.so.{VERSION}\n" in specification(gpu)
    assert "hostPath: /dev/nvidiactl\n" in specification(gpu)


def test_another_kind_in_another_folder_is_another_file_and_the_folder_goes_with_it(gpu: FakeNode) -> None:
    before = gpu.snapshot()
    install(gpu, "--cdi-output-dir=/etc/cdi/made", "--cdi-kind=example.com/device")
    assert "\nkind: example.com/device\n" in gpu.read("/etc/cdi/made/example.com-device.yaml").decode()
    assert not gpu.exists(SPECIFICATION)
    uninstall(gpu)
    after = gpu.snapshot()
    assert {path: after[path] for path in before} == before
    assert not gpu.exists("/etc/cdi")


@pytest.mark.parametrize("more", [("--cdi-output-dir=",), ("--cdi-enabled=false",)])
def test_without_a_place_or_without_being_asked_for_there_is_none(gpu: FakeNode, more: tuple[str, ...]) -> None:
    shutil.rmtree(gpu.place(fake_ctk.DRIVER))
    install(gpu, *more)
    assert not gpu.exists("/run/cdi")


def test_it_is_written_also_where_no_engine_is_configured(gpu: FakeNode) -> None:
    install(gpu, "--no-runtime-config")
    assert VERSION in specification(gpu)
    assert gpu.read(DAEMON_JSON) == DOCKER
    uninstall(gpu)
    assert not gpu.exists("/run/cdi")


# --- what comes next ---


def test_a_second_run_with_the_same_driver_writes_nothing(gpu: FakeNode) -> None:
    install(gpu)
    stamps = gpu.stamps()
    assert NOTHING_TO_DO in install(gpu).output
    assert gpu.stamps() == stamps


def test_a_newer_driver_renews_it_at_the_next_run(gpu: FakeNode) -> None:
    install(gpu)
    fake_ctk.driver(gpu.place(fake_ctk.DRIVER), NEWER)
    install(gpu)
    assert NEWER in specification(gpu)
    assert VERSION not in specification(gpu)
    uninstall(gpu)
    assert not gpu.exists("/run/cdi")


def test_a_newer_driver_renews_it_while_the_run_waits_once_it_is_told_to_look(gpu: FakeNode) -> None:
    run = gpu.waiting(*ON)
    fake_ctk.driver(gpu.place(fake_ctk.DRIVER), NEWER)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert NEWER in specification(gpu)
    shutil.rmtree(gpu.place(f"{fake_ctk.DRIVER}/{fake_ctk.LIBRARIES}"))
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(STAYS)
    run.wait_for(WAITING)
    assert NEWER in specification(gpu), "a driver that is being replaced is no reason to take anything away"
    fake_ctk.driver(gpu.place(fake_ctk.DRIVER))
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert NEWER not in specification(gpu)
    assert run.stop() == 0
    assert not gpu.exists("/run/cdi")


@pytest.mark.parametrize("flags", [(), ("--cdi-enabled=false",)], ids=["with", "without"])
def test_a_newer_driver_renews_it_while_the_run_waits_without_being_told(gpu: FakeNode, flags: tuple[str, ...]) -> None:
    with stopping(gpu, "never", "run", *ON, *flags, woken=True) as run:
        run.wait_for(WAITING)
        fake_ctk.driver(gpu.place(fake_ctk.DRIVER), NEWER)
        if flags:
            run.process.send_signal(signal.SIGHUP)
            run.wait_for(NOTHING_TO_DO)
        else:
            run.wait_for("its files changed")
            run.wait_for("The node is configured")
            run.wait_for(WAITING)
            assert NEWER in specification(gpu)
            assert VERSION not in specification(gpu)
        assert run.stop() == 0, run.output
    assert not gpu.exists("/run/cdi")


def test_a_node_without_a_driver_waits_for_one_where_that_is_asked_for(gpu: FakeNode) -> None:
    shutil.rmtree(gpu.place(fake_ctk.DRIVER))
    with stopping(gpu, "never", "run", *ON, "--wait-for-driver", woken=True) as run:
        run.wait_for("No driver is usable yet: nothing is changed before one is")
        run.wait_for(WAITING)
        assert not gpu.exists(TOOLKIT)
        assert gpu.read(DAEMON_JSON) == DOCKER
        fake_ctk.driver(gpu.place(fake_ctk.DRIVER))
        run.wait_for("The node is configured")
        assert VERSION in specification(gpu)
        assert run.stop() == 0, run.output
    assert not gpu.exists("/run/cdi")


def test_a_driver_whose_module_is_loaded_after_its_files_are_there_is_looked_for(gpu: FakeNode) -> None:
    with stopping(gpu, "never", "run", *ON, woken=True) as run:
        run.wait_for(WAITING)
        libraries = gpu.place(f"{fake_ctk.DRIVER}/{fake_ctk.LIBRARIES}")
        shutil.rmtree(libraries)
        run.wait_for(STAYS)
        run.wait_for("none was usable so far")
        libraries.mkdir()
        for name in ("libcuda.so", "libnvidia-ml.so"):  # no link to them yet, which would be a sign
            (libraries / f"{name}.{NEWER}").write_text("no library\n")
        run.wait_for("The node is configured")
        assert NEWER in specification(gpu)
        assert run.stop() == 0, run.output


def test_after_a_boot_that_emptied_run_it_is_written_again(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS)
    install(gpu)
    shutil.rmtree(gpu.place("/run/cdi"))
    install(gpu)
    assert VERSION in specification(gpu)
    uninstall(gpu)
    assert not gpu.exists(SPECIFICATION), "what stood there before the boot is as gone as if nobody had been here"


def test_turned_off_at_the_next_run_it_goes_and_the_handlers_stay(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS, 0o600)
    install(gpu)
    install(gpu, "--cdi-enabled=false")
    assert gpu.read(SPECIFICATION) == THEIRS
    assert gpu.broken_runtimes() == []
    assert set(gpu.named_runtimes()) >= {"nvidia", "nvidia-cdi"}
    stamps = gpu.stamps()
    assert NOTHING_TO_DO in install(gpu, "--cdi-enabled=false").output
    assert gpu.stamps() == stamps


def test_another_folder_at_the_next_run_leaves_nothing_in_the_first(gpu: FakeNode) -> None:
    before = gpu.snapshot()
    install(gpu)
    install(gpu, "--cdi-output-dir=/etc/cdi")
    assert not gpu.exists(SPECIFICATION)
    assert gpu.exists("/etc/cdi/management.nvidia.com-gpu.yaml")
    uninstall(gpu)
    after = gpu.snapshot()
    assert {path: entry for path, entry in after.items() if "cdi" in path} == {}
    assert after["/etc/docker/daemon.json"] == before["/etc/docker/daemon.json"]


# --- while the driver is away ---


def lose(node: FakeNode, what: str) -> None:
    """Make the driver unusable, in one of the ways in which one that is being replaced is."""
    if what == "modules":
        node.place(f"{fake_ctk.DRIVER}/dev/nvidia-uvm").unlink()
        node.write(f"{fake_ctk.DRIVER}/{NO_MODULES}", "")
        return
    shutil.rmtree(node.place(f"{fake_ctk.DRIVER}/{what}"))


AWAY = pytest.mark.parametrize(
    "what", [fake_ctk.LIBRARIES, "dev", "modules", ""], ids=["libraries", "devices", "modules", "all"]
)


@AWAY
def test_a_driver_that_is_away_is_no_reason_to_refuse_a_node_that_is_right(gpu: FakeNode, what: str) -> None:
    install(gpu)
    lose(gpu, what)
    stamps = gpu.stamps()
    again = install(gpu)
    assert NOTHING_TO_DO in again.output
    (told,) = (line for line in again.output.splitlines() if STAYS in line)
    assert SPECIFICATION in told
    assert "level=warning" in told
    planned = do(gpu, "plan", *ON)
    assert planned.code == 0
    assert "Nothing to do" in planned.output
    assert STAYS in planned.output
    assert gpu.stamps() == stamps


@AWAY
def test_while_the_driver_is_away_the_rest_is_put_right_and_given_back_with_it(gpu: FakeNode, what: str) -> None:
    gpu.write(SPECIFICATION, THEIRS, 0o640)
    before = gpu.snapshot()
    install(gpu)
    made = specification(gpu)
    lose(gpu, what)
    gpu.write(DAEMON_JSON, DOCKER)
    install(gpu)
    assert "nvidia" in gpu.named_runtimes()
    assert specification(gpu) == made
    assert status(gpu) == {SPECIFICATION: "as written"}
    uninstall(gpu)
    after = gpu.snapshot()
    assert {path: entry for path, entry in after.items() if fake_ctk.DRIVER not in path} == {
        path: entry for path, entry in before.items() if fake_ctk.DRIVER not in path
    }


def test_what_a_killed_run_began_is_finished_while_the_driver_is_away(gpu: FakeNode, tmp_path: Path) -> None:
    calls = install(gpu).calls
    uninstall(gpu)
    switched = next(at for at, call in enumerate(calls) if Path(DAEMON_JSON).name in call)
    for at in (switched, switched + 1):
        do(gpu, "run", "--no-daemon", *ON, plan=Plan(at, Fault.KILL))
        shutil.move(gpu.place(fake_ctk.DRIVER), tmp_path / "away")
        assert json.loads(gpu.read(f"{STORE}/receipt.json"))["state"] == "applying"
        install(gpu)
        assert json.loads(gpu.read(f"{STORE}/receipt.json"))["state"] == "installed"
        assert "nvidia" in gpu.named_runtimes()
        assert NOTHING_TO_DO in install(gpu).output
        shutil.move(tmp_path / "away", gpu.place(fake_ctk.DRIVER))
        uninstall(gpu)
        assert gpu.read(DAEMON_JSON) == DOCKER
        assert not gpu.exists("/run/cdi")


def test_drift_of_an_engines_file_is_repaired_while_the_driver_is_away(gpu: FakeNode) -> None:
    run = gpu.waiting(*ON, "--on-drift", "repair")
    shutil.rmtree(gpu.place(fake_ctk.DRIVER))
    gpu.write(DAEMON_JSON, DOCKER)
    patiently(run, "A managed file was changed")
    run.wait_for(WAITING)
    assert "nvidia" in gpu.named_runtimes()
    assert VERSION in specification(gpu)
    assert run.stop() == 0, run.output
    assert gpu.read(DAEMON_JSON) == DOCKER
    assert not gpu.exists("/run/cdi")


@pytest.mark.parametrize("content", [None, THEIRS, OF_AN_OLDER_INSTALLER], ids=["removed", "theirs", "edited"])
def test_what_does_not_stand_as_ours_cannot_be_kept_while_the_driver_is_away(
    gpu: FakeNode, content: bytes | None
) -> None:
    install(gpu)
    shutil.rmtree(gpu.place(fake_ctk.DRIVER))
    if content is None:
        gpu.place(SPECIFICATION).unlink()
    else:
        gpu.write(SPECIFICATION, content)
    before = gpu.snapshot()
    assert do(gpu, "run", "--no-daemon", *ON).code == NOT_READY
    assert gpu.snapshot() == before


# --- what others wrote ---


def test_what_somebody_else_had_there_comes_back_with_all_it_carries(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS, 0o640)
    if os.geteuid() == 0:
        os.chown(gpu.place(SPECIFICATION), 4321, 1234)
    os.setxattr(gpu.place(SPECIFICATION), "user.origin", b"\x00\xff")
    before = gpu.snapshot()
    run = gpu.waiting(*ON)
    assert VERSION in specification(gpu)
    assert run.stop() == 0, run.output
    assert gpu.snapshot() == before


def test_what_an_older_installer_left_there_does_not_come_back(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, OF_AN_OLDER_INSTALLER)
    run = install(gpu)
    assert "names the toolkit's folder" in run.output
    assert "cdiVersion: 0.3.0" not in specification(gpu)
    uninstall(gpu)
    assert not gpu.exists(SPECIFICATION)
    assert not gpu.exists(TOOLKIT)


@pytest.mark.parametrize("removed", [False, True], ids=["changed", "removed"])
def test_a_later_edit_stays_at_cleanup_and_is_seen_before(gpu: FakeNode, removed: bool) -> None:  # noqa: FBT001
    install(gpu)
    assert status(gpu) == {SPECIFICATION: "as written"}
    if removed:
        gpu.place(SPECIFICATION).unlink()
    else:
        gpu.write(SPECIFICATION, THEIRS)
    assert status(gpu) == {SPECIFICATION: "missing" if removed else "changed by somebody else"}
    said = uninstall(gpu).output
    assert gpu.exists(SPECIFICATION) is not removed
    assert removed or (gpu.read(SPECIFICATION) == THEIRS and SPECIFICATION in said)
    assert not gpu.exists(TOOLKIT)


def test_an_edit_that_still_names_the_toolkit_stays_and_keeps_it(gpu: FakeNode) -> None:
    install(gpu)
    edited = specification(gpu).replace("name: all", "name: everything")
    gpu.write(SPECIFICATION, edited)
    last = uninstall(gpu, code=3).output.strip().splitlines()[-1]
    assert "everything was taken back but the toolkit, which stays" in last
    assert re.search(rf"/var{SPECIFICATION}:\d+ names {HOOK}", last)
    assert specification(gpu) == edited
    assert gpu.exists(HOOK)
    for _ in range(2):  # there is no receipt any more
        stamp = gpu.stamps()[SPECIFICATION]
        assert f"/var{SPECIFICATION}:" in uninstall(gpu, code=3).output.strip().splitlines()[-1]
        assert gpu.stamps()[SPECIFICATION] == stamp
        assert gpu.exists(HOOK)
        assert not gpu.exists(STORE)
    gpu.place(SPECIFICATION).unlink()
    uninstall(gpu)
    assert not gpu.exists(TOOLKIT)


def test_one_made_for_a_toolkit_that_was_left_on_purpose_stays_and_keeps_it(gpu: FakeNode) -> None:
    install(gpu)
    made = specification(gpu)
    uninstall(gpu, "--keep-toolkit")
    assert not gpu.exists(SPECIFICATION)
    gpu.write(SPECIFICATION, made)
    uninstall(gpu, code=3)
    assert specification(gpu) == made
    assert gpu.exists(HOOK)


def test_specification_and_toolkit_outlive_another_installers_cleanup_and_not_ours(gpu: FakeNode) -> None:
    install(gpu)
    made = specification(gpu)
    uninstall(gpu, "--keep-toolkit")
    gpu.write(SPECIFICATION, made)
    for name in gpu.place(TOOLKIT).iterdir():
        if name.with_name(f"{name.name}.real").exists():
            name.write_text(f'#! /bin/sh\nPATH={TOOLKIT}:$PATH \\\n\t{TOOLKIT}/{name.name}.real "$@"\n')
    uninstall(gpu)
    assert not gpu.exists(SPECIFICATION)
    assert not gpu.exists(TOOLKIT)


def test_the_next_run_puts_ours_back_and_cleanup_theirs(gpu: FakeNode) -> None:
    install(gpu)
    gpu.write(SPECIFICATION, THEIRS)
    assert "comes back at cleanup" in install(gpu).output
    assert VERSION in specification(gpu)
    uninstall(gpu)
    assert gpu.read(SPECIFICATION) == THEIRS


def test_what_stood_there_before_us_comes_back_also_after_somebody_edited_ours(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS, 0o640)
    os.setxattr(gpu.place(SPECIFICATION), "user.origin", b"\x00\xff")
    before = gpu.snapshot()
    install(gpu)
    made = specification(gpu)
    edited = made.replace("name: all", "name: everything")
    assert edited != made
    for _ in range(2):
        with open(gpu.place(SPECIFICATION), "w", encoding="utf-8") as stream:  # as an editor does, in place
            stream.write(edited)
        assert "what stood there before us comes back at cleanup" in install(gpu).output
        assert specification(gpu) == made
    stamps = gpu.stamps()
    assert NOTHING_TO_DO in install(gpu).output
    assert gpu.stamps() == stamps
    uninstall(gpu)
    assert gpu.snapshot() == before


def test_a_failed_or_killed_run_over_an_edited_specification_keeps_the_original(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS)
    install(gpu)
    edited = specification(gpu).replace("name: all", "name: everything")
    gpu.write(SPECIFICATION, edited)
    calls = install(gpu).calls
    put = [at for at, call in enumerate(calls) if Path(SPECIFICATION).name in call]
    assert put
    for fault in (Fault.ONCE, Fault.KILL):
        for at in (put[0], put[-1], put[-1] + 1):  # before ours is written, while it is exchanged, and after
            gpu.write(SPECIFICATION, edited)
            do(gpu, "run", "--no-daemon", *ON, plan=Plan(at, fault, errno.EIO))
            install(gpu)
            uninstall(gpu)
            assert gpu.read(SPECIFICATION) == THEIRS, f"{fault} at {at}: {calls[at]}"
            install(gpu)


def test_removed_while_the_run_waits_it_is_back_once_that_is_told_to_look(gpu: FakeNode) -> None:
    run = gpu.waiting(*ON)
    made = specification(gpu)
    gpu.place(SPECIFICATION).unlink()
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert specification(gpu) == made
    assert run.stop() == 0


def test_our_own_does_not_hold_the_toolkit_and_anothers_does(gpu: FakeNode) -> None:
    other = "/etc/cdi/other.yaml"
    install(gpu)
    gpu.write(other, f"kind: a/b\n# {TOOLKIT}/x\npath: {HOOK}\n")
    assert f"{other}:3 names {HOOK}" in uninstall(gpu, code=3).output
    assert gpu.exists(HOOK)
    assert not gpu.exists(SPECIFICATION)
    gpu.place(other).unlink()
    uninstall(gpu)
    assert not gpu.exists(TOOLKIT)


def test_our_own_does_not_keep_what_a_newer_toolkit_no_longer_has(gpu: FakeNode, tmp_path: Path) -> None:
    install(gpu)
    newer = payloads.build(tmp_path / "newer", version="1.20.0", without=["nvidia-container-runtime.legacy"])
    gpu.payload = fake_ctk.into(newer)
    install(gpu)
    assert not gpu.exists(f"{TOOLKIT}/nvidia-container-runtime.legacy")


def test_without_its_receipt_it_is_recognised_by_what_it_runs(gpu: FakeNode) -> None:
    install(gpu)
    shutil.rmtree(gpu.place(STORE))
    uninstall(gpu)
    assert not gpu.exists(SPECIFICATION)
    assert not gpu.exists(TOOLKIT)


def test_without_a_receipt_somebody_elses_stays(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS)
    install(gpu, "--cdi-output-dir=/etc/cdi")
    shutil.rmtree(gpu.place(STORE))
    uninstall(gpu, "--cdi-output-dir=/etc/cdi")
    assert gpu.read(SPECIFICATION) == THEIRS
    assert not gpu.exists("/etc/cdi/management.nvidia.com-gpu.yaml")


# --- the driver's device nodes ---


def test_missing_control_nodes_are_created_first_named_and_stay(gpu: FakeNode) -> None:
    devices = gpu.place(f"{fake_ctk.DRIVER}/dev")
    for name in CONTROL[1:]:
        (devices / name).unlink()
    before = gpu.snapshot()
    planned = do(gpu, "plan", *ON).output
    assert all(str(devices / name) in planned for name in CONTROL[1:])
    assert gpu.snapshot() == before
    install(gpu)
    assert all(f"hostPath: {fake_ctk.DRIVER}/dev/{name}\n" in specification(gpu) for name in CONTROL)
    assert NOTHING_TO_DO in install(gpu).output
    uninstall(gpu)
    assert all((devices / name).exists() for name in CONTROL), "the driver's own tools make them, and never remove them"


def test_where_there_is_no_node_at_all_yet_the_plan_says_what_comes_first(gpu: FakeNode) -> None:
    shutil.rmtree(gpu.place(f"{fake_ctk.DRIVER}/dev"))
    gpu.place(f"{fake_ctk.DRIVER}/dev").mkdir()
    planned = do(gpu, "plan", *ON)
    assert planned.code == 0
    assert "Device nodes to create: " in planned.output
    install(gpu)
    assert f"hostPath: {fake_ctk.DRIVER}/dev/nvidiactl\n" in specification(gpu)


def test_nodes_are_not_created_unless_asked_for(gpu: FakeNode) -> None:
    for name in CONTROL[1:]:
        gpu.place(f"{fake_ctk.DRIVER}/dev/{name}").unlink()
    install(gpu, "--create-device-nodes=none")
    assert sorted(os.listdir(gpu.place(f"{fake_ctk.DRIVER}/dev"))) == ["nvidia0", "nvidiactl"]


# --- what is found before anything is written ---


@pytest.mark.parametrize("missing", ["nvidia-ctk", "nvidia-cdi-hook"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_payload_that_lacks_what_it_takes_is_refused_whole(
    gpu: FakeNode, tmp_path: Path, command: str, missing: str
) -> None:
    gpu.payload = fake_ctk.into(payloads.build(tmp_path / "payload"))
    (gpu.payload / "usr/bin" / missing).unlink()
    before = gpu.snapshot()
    run = do(gpu, command, *ON)
    assert run.code == PAYLOAD_INCOMPLETE
    assert f"the payload has no {missing}" in run.output
    assert "--cdi-enabled" in run.output
    assert gpu.snapshot() == before


def test_a_payload_whose_generator_does_not_start_is_refused_whole(gpu: FakeNode, tmp_path: Path) -> None:
    gpu.payload = payloads.build(tmp_path / "payload")
    (gpu.payload / "usr/bin/nvidia-ctk").write_text("#!/nowhere/sh\n")
    before = gpu.snapshot()
    run = do(gpu, "run", "--no-daemon", *ON)
    assert run.code == PAYLOAD_INCOMPLETE
    assert "cannot start" in run.output
    assert gpu.snapshot() == before


def test_a_generator_that_says_something_else_is_refused_whole(gpu: FakeNode, tmp_path: Path) -> None:
    gpu.payload = payloads.build(tmp_path / "payload")  # its nvidia-ctk prints its version, whatever it is asked
    before = gpu.snapshot()
    run = do(gpu, "run", "--no-daemon", *ON)
    assert run.code == PAYLOAD_INCOMPLETE
    assert "its CDI specification is none of management.nvidia.com/gpu" in run.output
    assert gpu.snapshot() == before


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_generator_that_cannot_write_is_refused_in_its_own_words(gpu: FakeNode, tmp_path: Path, command: str) -> None:
    gpu.payload = fake_ctk.into(payloads.build(tmp_path / "payload"))
    words = "failed to write CDI spec to STDOUT: open /tmp/nvcdi-spec-1.yaml: read-only file system"
    program = gpu.payload / "usr/bin/nvidia-ctk"
    program.write_text(f"#!/bin/sh\necho 'level=error msg=\"{words}\"' >&2\nexit 1\n")
    before = gpu.snapshot()
    run = do(gpu, command, *ON)
    assert run.code == PAYLOAD_INCOMPLETE
    assert f"nvidia-ctk ends with 1: {words}" in run.output
    assert "driver-missing" not in run.output
    assert gpu.snapshot() == before


@pytest.mark.parametrize(
    "gone, words",
    [
        (f"{fake_ctk.DRIVER}/{fake_ctk.LIBRARIES}", "libcuda.so.*.*: not found"),
        (f"{fake_ctk.DRIVER}/dev", "no NVIDIA device nodes found"),
        (fake_ctk.DRIVER, "no NVIDIA device nodes found"),
    ],
    ids=["libraries", "devices", "driver"],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_driver_that_cannot_be_used_is_not_waited_for_and_nothing_is_written(
    gpu: FakeNode, command: str, gone: str, words: str
) -> None:
    shutil.rmtree(gpu.place(gone))
    before = gpu.snapshot()
    run = do(gpu, command, *ON, "--create-device-nodes=none")
    assert run.code == NOT_READY
    assert words in run.output
    assert "--driver-root-ctr-path" in run.output
    assert str(gpu.place(fake_ctk.DRIVER)) in run.output
    assert gpu.snapshot() == before


def test_nodes_that_cannot_be_created_are_found_before_anything_is_written(gpu: FakeNode) -> None:
    gpu.place(f"{fake_ctk.DRIVER}/dev/nvidia-uvm").unlink()
    gpu.write(f"{fake_ctk.DRIVER}/{NO_MODULES}", "")
    before = gpu.snapshot()
    run = do(gpu, "run", "--no-daemon", *ON)
    assert run.code == NOT_READY
    assert "no NVIDIA devices found" in run.output
    assert gpu.snapshot() == before


def test_a_folder_in_its_place_is_refused_before_anything_is_written(gpu: FakeNode) -> None:
    gpu.place(SPECIFICATION).mkdir(parents=True)
    before = gpu.snapshot()
    run = do(gpu, "run", "--no-daemon", *ON)
    assert run.code == 3
    assert "is a folder" in run.output
    assert gpu.snapshot() == before


# --- what fails on the way ---


def test_whatever_fails_on_the_way_takes_the_specification_back_too(gpu: FakeNode) -> None:
    gpu.write(SPECIFICATION, THEIRS, 0o640)
    before = gpu.snapshot()
    calls = install(gpu).calls
    uninstall(gpu)
    put = [at for at, call in enumerate(calls) if Path(SPECIFICATION).name in call]
    switched = max(at for at, call in enumerate(calls) if Path(DAEMON_JSON).name in call)
    assert 3 < len(put) < put[-1] < switched
    for at in range(put[0] - 3, switched):
        failed = do(gpu, "run", "--no-daemon", *ON, plan=Plan(at, Fault.ONCE, errno.EIO))
        if failed.code == 0:  # it can be done another way, or need not be done
            uninstall(gpu)
        assert failed.code in (0, 3), failed.output
        after = gpu.snapshot()
        assert {path: after.get(path) for path in before} == before, f"{at}: {calls[at]}"
        assert not gpu.exists(TOOLKIT), f"{at}: {calls[at]}"


def test_somebody_elses_specification_that_comes_while_ours_is_put_is_never_lost(gpu: FakeNode) -> None:
    replaced = 0
    calls = install(gpu).calls
    uninstall(gpu)
    put = next(at for at, call in enumerate(calls) if Path(SPECIFICATION).name in call)
    for at in range(put, put + 4):
        done = do(gpu, "run", "--no-daemon", *ON, plan=Deed(at, deed=lambda: gpu.write(SPECIFICATION, THEIRS)))
        assert done.code == 0, done.output
        replaced += VERSION in specification(gpu)
        uninstall(gpu)
        assert gpu.read(SPECIFICATION) == THEIRS, f"{at}: {calls[at]}"
        gpu.place(SPECIFICATION).unlink()
    assert replaced, "it came before ours was in its place, and nobody looked again"


def test_nodes_that_could_not_be_created_leave_the_node_as_it_was(gpu: FakeNode) -> None:
    gpu.place(f"{fake_ctk.DRIVER}/dev/nvidia-uvm").unlink()
    calls = install(gpu).calls
    uninstall(gpu)
    gpu.place(f"{fake_ctk.DRIVER}/dev/nvidia-uvm").unlink()
    before = gpu.snapshot()
    at = calls.index("make_device_nodes")
    failed = do(gpu, "run", "--no-daemon", *ON, plan=Plan(at, Fault.ONCE))
    assert failed.code != 0
    assert gpu.snapshot() == before


def without_nodes(node: FakeNode, *names: str) -> None:
    """Remove control device nodes of the driver, all of its nodes unless some are named."""
    devices = node.place(f"{fake_ctk.DRIVER}/dev")
    for name in names or os.listdir(devices):
        (devices / name).unlink(missing_ok=True)


def but_for_nodes(node: FakeNode) -> dict[str, Entry]:
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith(f"{fake_ctk.DRIVER}/dev/")}


def traced(node: FakeNode) -> list[Call]:
    warm = Warm()
    try:
        # not beneath /run, which no power cut outlives
        done = warm.run(node.arguments("run", "--no-daemon", *ON, "--cdi-output-dir=/etc/cdi"))
    finally:
        warm.close()
    assert done.code == 0, done.output
    return on_the_node(done.trace, str(node.root))


def test_nodes_are_created_once_the_receipt_says_that_a_change_is_under_way(gpu: FakeNode) -> None:
    without_nodes(gpu, "nvidia-uvm")
    calls = traced(gpu)
    created = [at for at, call in enumerate(calls) if call.name == "make_device_nodes"]
    put = next(at for at, call in enumerate(calls) if call.paths and Path(SPECIFICATION).name in call.paths[-1])
    assert len(created) == 1
    assert created[0] < put
    assert disorder(calls) == []
    first = calls.pop(created[0])
    assert any("make_device_nodes" in wrong for wrong in disorder([first, *calls])), "before the receipt"


@pytest.mark.parametrize("installed", [False, True], ids=["at first", "with a newer driver"])
@pytest.mark.parametrize("names", [(), ("nvidia-uvm",)], ids=["all gone", "one gone"])
def test_killed_around_the_nodes_it_is_finished_or_taken_back(
    gpu: FakeNode,
    installed: bool,  # noqa: FBT001
    names: tuple[str, ...],
) -> None:
    untouched = but_for_nodes(gpu)

    def begin() -> None:
        fake_ctk.driver(gpu.place(fake_ctk.DRIVER))
        if installed:
            install(gpu)
            fake_ctk.driver(gpu.place(fake_ctk.DRIVER), NEWER)
        without_nodes(gpu, *names)

    begin()
    calls = install(gpu).calls
    uninstall(gpu)
    for at in (0, 1, 3):
        for finished in (True, False):
            begin()
            instant = calls.index("make_device_nodes") + at
            killed = do(gpu, "run", "--no-daemon", *ON, plan=Plan(instant, Fault.KILL))
            assert killed.code == -signal.SIGKILL
            assert json.loads(gpu.read(f"{STORE}/receipt.json"))["state"] == "applying"
            if finished:
                install(gpu)
                assert json.loads(gpu.read(f"{STORE}/receipt.json"))["state"] == "installed"
                assert "nvidia-uvm\n" in specification(gpu)
            uninstall(gpu)
            fake_ctk.driver(gpu.place(fake_ctk.DRIVER))
            assert but_for_nodes(gpu) == untouched, calls[instant]


def test_what_fails_around_the_nodes_leaves_the_node_as_it_was(gpu: FakeNode) -> None:
    untouched = but_for_nodes(gpu)
    without_nodes(gpu)
    calls = install(gpu).calls
    uninstall(gpu)
    for at in range(calls.index("make_device_nodes") - 3, calls.index("make_device_nodes") + 8):
        without_nodes(gpu)
        failed = do(gpu, "run", "--no-daemon", *ON, plan=Plan(at, Fault.ONCE, errno.EIO))
        if failed.code == 0:  # it can be done another way, or need not be done
            uninstall(gpu)
        assert but_for_nodes(gpu) == untouched, f"{at}: {calls[at]}"


def test_told_to_stop_before_the_nodes_it_creates_none(gpu: FakeNode) -> None:
    without_nodes(gpu)
    calls = install(gpu).calls
    uninstall(gpu)
    without_nodes(gpu)
    before = gpu.snapshot()
    stopped = do(gpu, "run", "--no-daemon", *ON, plan=Plan(stop_at=calls.index("make_device_nodes") - 1))
    assert stopped.code == 128 + signal.SIGTERM, stopped.output
    assert gpu.snapshot() == before


# --- what a receipt may say of it ---


@pytest.mark.parametrize(
    "path, content, words",
    [
        ("/etc/passwd", b"root:x:0:0\n", "no CDI specification"),
        ("/etc/cdi/theirs-gpu.yaml", THEIRS, "cannot have been written by this installer"),
        (f"{TOOLKIT}/a-b.yaml", b"", "a file of this installer's own"),
    ],
)
def test_a_receipt_that_speaks_of_another_file_is_not_believed(
    gpu: FakeNode, path: str, content: bytes, words: str
) -> None:
    install(gpu)
    receipt = gpu.place(f"{STORE}/receipt.json")
    body = json.loads(receipt.read_text())
    gpu.write(path, content)
    digest = hashlib.sha256(content).hexdigest()
    body["specifications"].append(body["specifications"][0] | {"path": path, "written": [digest]})
    receipt.write_text(json.dumps(body))
    run = do(gpu, "uninstall")
    assert run.code == 3
    assert words in run.output
    assert gpu.read(path) == content
