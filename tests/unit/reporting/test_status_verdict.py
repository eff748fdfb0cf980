"""The verdict of `status`: what makes a node DEGRADED or BROKEN, and how people and machines are told.

`STATUS_FILES=write pytest …` writes the expected texts, and docs/status.schema.json, anew, to be read before use.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import msgspec
import pytest

from toolkit_installer.cli import show_status
from toolkit_installer.planning.installed import Damage
from toolkit_installer.reporting import status_verdict
from toolkit_installer.reporting.outcome import LastRun
from toolkit_installer.reporting.status_verdict import (
    DriverHealth,
    EngineHealth,
    FileFault,
    FileHealth,
    Health,
    LastLook,
    LiveHealth,
    MethodHealth,
    NodeStatus,
    PendingReload,
    Places,
    PluginHealth,
    ProcessState,
    SilentEngine,
    ToolkitHealth,
    Verdict,
)

ROOT = pathlib.Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "status"
SCHEMA = ROOT / "docs" / "status.schema.json"
DRIVER = "/run/nvidia/driver"
TOOLKIT = "/usr/local/nvidia/toolkit"
LIVE = LiveHealth(answers=True, served=True, default="nvidia", version="2.1.4", pid=812, since="2026-11-23T06:12:01Z")
ENGINE = EngineHealth(
    "containerd",
    "/run/containerd/containerd.sock",
    {"nvidia": f"{TOOLKIT}/nvidia-container-runtime"},
    "nvidia",
    (FileHealth("/etc/containerd/config.toml", "as written"),),
    LIVE,
)
WHOLE = NodeStatus(
    version="1.2.3",
    looked_in=Places("/host", "/usr/local/nvidia/.toolkit-installer/receipt.json", "/run/nvidia/toolkit.pid"),
    installed=True,
    state="installed",
    changed="2026-11-22T23:59:59Z",
    running_pid=3035,
    refresh="kubectl -n toolkit-installer exec toolkit-installer-x7x2p -- toolkit-installer refresh",
    killed_pid=None,
    last_look=LastLook("2026-11-23T06:12:04Z", None),
    pending_reload=None,
    last_run=None,
    gpus=("NVIDIA device 2330 at 0000:1b:00.0",),
    has_gpu=True,
    driver=DriverHealth(usable=True, root="/run/nvidia/driver", version="580.82.07", wrong=(), meant_for=DRIVER),
    toolkit=ToolkitHealth(TOOLKIT, 19, (), (), "1.19.0"),
    engines=(ENGINE,),
    specifications=(FileHealth("/var/run/cdi/management.nvidia.com-gpu.yaml", "as written"),),
)
BARE = msgspec.structs.replace(
    WHOLE,
    installed=False,
    state="absent",
    changed=None,
    running_pid=None,
    refresh=None,
    last_look=None,
    toolkit=None,
    engines=(),
    specifications=(),
)


def but(found: NodeStatus = WHOLE, **changes: Any) -> NodeStatus:
    return msgspec.structs.replace(found, **changes)


def toolkit(*damage: Damage, missing: tuple[str, ...] = ()) -> ToolkitHealth:
    return ToolkitHealth(TOOLKIT, 19, missing, damage, None)


def engine(
    live: LiveHealth = LIVE, state: str = "as written", files: tuple[FileHealth, ...] = ()
) -> tuple[EngineHealth, ...]:
    files = files or (FileHealth("/etc/containerd/config.toml", state),)
    return (msgspec.structs.replace(ENGINE, live=live, files=files),)


DIFFERENCE = """\
--- /etc/containerd/config.toml
+++ /etc/containerd/config.toml
@@ -9,4 +9,7 @@
 [plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example".auth]
 \tpassword = "****"
+# Added by toolkit-installer, which removes it when it stops.
+[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
+runtime_type = "io.containerd.runc.v2"
"""
CHANGED = (FileHealth("/etc/containerd/config.toml", "changed by somebody else", DIFFERENCE),)


SILENT = LiveHealth(answers=False, served=None, detail=("the CRI of containerd does not answer: connection refused",))
ELSEWHERE = msgspec.structs.replace(LIVE, served=False, reads="/etc/other.toml", detail=("it lists no nvidia",))
UNSERVED = LiveHealth(answers=True, served=False, detail=("it does not list the handler nvidia",), version="2.1.4")
NO_DRIVER = DriverHealth(
    usable=False,
    root=None,
    version=None,
    meant_for="/run/nvidia/driver",
    wrong=("/run/nvidia/driver: nvidia-smi ends with 9: Failed to initialize NVML: Driver/library version mismatch",),
)
WAITS = PendingReload(
    ("containerd",), "it is outside of Sat 02:00-04:00", "2026-11-23T06:12:04Z", "2026-11-28T01:00:00Z"
)
REJECTED = LastRun(
    command="run",
    version="1.2.3",
    exit_code=5,
    event="engine-rejected",
    ended="2026-11-23T06:12:09Z",
    reason="the engine did not serve the new configuration within 60 s, and the old one is back: "
    "it does not list the handler nvidia",
    file="/etc/containerd/config.toml",
    line=None,
    remedy="look at the engine's own log",
)
REFUSED = msgspec.structs.replace(
    REJECTED, exit_code=3, event="bad-configuration", line=7, reason="not valid TOML", remedy="correct the file"
)
MISTYPED = LastRun(
    command="run",
    version="1.2.3",
    exit_code=2,
    event="usage",
    ended="2026-11-23T06:12:09Z",
    reason="--runtime: 'dokcer' is not allowed",
    file=None,
    line=None,
    remedy="did you mean 'docker'? allowed: docker, containerd, crio, auto",
)
GIVEN = MethodHealth("handlers", "the default", "the handler nvidia", met=True)
NO_SPECIFICATION = "no CDI specification of the kind nvidia.com/gpu is in /etc/cdi or /var/run/cdi"
NO_RUNTIME = "none of the low-level runtimes is there that NVIDIA's runtime looks for: /usr/bin/runc"
HANGS = "/: /usr/bin/nvidia-smi did not end within 20 s"
FAILED = LastLook("2026-11-23T06:12:04Z", "/etc/docker/daemon.json:3: not JSON", 3, "/etc/containerd/config.toml")
UNIT = "containerd.service"
BROKEN_FILE = FileFault(
    "/etc/containerd/config.toml:41: not valid TOML: Invalid value (column 8)",
    "correct the file, or restore it",
    stops=True,
    path="/etc/containerd/config.toml",
)
UNREAD_FILE = FileFault("/etc/containerd/a.toml:3: is of version 2, and ...", "write both for the same version")
LOST = (FileHealth("/etc/containerd/config.toml", "changed by somebody else", lost=("the handler nvidia is gone",)),)


def broken(*faults: FileFault, files: tuple[FileHealth, ...] = ()) -> tuple[EngineHealth, ...]:
    (one,) = engine(files=files)
    return (msgspec.structs.replace(one, faults=faults),)


def silent(why: SilentEngine, *faults: FileFault) -> tuple[EngineHealth, ...]:
    (one,) = engine(SILENT)
    return (msgspec.structs.replace(one, silent=why, faults=faults),)


CASES = {
    "one-handler-without-devices": (
        but(method=msgspec.structs.replace(GIVEN, not_by={"nvidia-cdi": NO_SPECIFICATION})),
        Verdict.OK,
        "",
    ),
    "low-level-runtime-gone": (
        but(method=msgspec.structs.replace(GIVEN, met=False, against=(NO_RUNTIME,), no_runtime=NO_RUNTIME)),
        Verdict.BROKEN,
        "/usr/bin/runc",
    ),
    "another-installer": (
        but(running_pid=None, last_look=None, other_installer="nvidia-ctk-installer (PID 7)"),
        Verdict.DEGRADED,
        "nvidia-ctk-installer (PID 7)",
    ),
    "toolkit-alone": (but(engines=()), Verdict.OK, ""),
    "whole": (WHOLE, Verdict.OK, ""),
    "stopped-on-purpose": (but(running_pid=None, last_look=None), Verdict.OK, ""),
    "bare-without-gpu": (but(BARE, has_gpu=False, gpus=("none is seen",), driver=None), Verdict.OK, ""),
    "bare-with-gpu": (BARE, Verdict.DEGRADED, "the node has a GPU, and nothing is installed"),
    "bare-gpu-unknown": (but(BARE, has_gpu=None), Verdict.DEGRADED, "nothing is installed"),
    "waiting-without-install": (but(BARE, running_pid=7), Verdict.DEGRADED, "an instance runs (PID 7)"),
    "failed-again": (
        but(last_look=FAILED, engines=engine(state="changed by somebody else")),
        Verdict.DEGRADED,
        "could not do its work at 2026-11-23T06:12:04Z: /etc/docker/daemon.json:3: not JSON",
    ),
    "failed-on-a-bare-node": (
        but(BARE, running_pid=7, last_look=FAILED),
        Verdict.DEGRADED,
        "could not do its work at 2026-11-23T06:12:04Z: /etc/docker/daemon.json:3: not JSON",
    ),
    "failed-and-mended": (but(last_look=FAILED), Verdict.OK, ""),
    "failed-at-what-is-not-seen": (
        but(last_look=LastLook("2026-11-23T06:12:04Z", "/usr/bin: no payload", 3, "/usr/bin")),
        Verdict.DEGRADED,
        "could not do its work at 2026-11-23T06:12:04Z: /usr/bin: no payload",
    ),
    "instance-stopped": (
        but(running_state=ProcessState.STOPPED),
        Verdict.DEGRADED,
        "the running instance (PID 3035) is stopped (SIGSTOP)",
    ),
    "receipt-gone": (
        but(BARE, running_pid=3035, refresh=WHOLE.refresh, receipt_gone=True),
        Verdict.DEGRADED,
        "/usr/local/nvidia/.toolkit-installer/receipt.json is gone, the record of what PID 3035 has installed",
    ),
    "receipt-gone-without-gpu": (
        but(BARE, running_pid=3035, refresh=WHOLE.refresh, receipt_gone=True, has_gpu=False, driver=None),
        Verdict.DEGRADED,
        "receipt.json is gone",
    ),
    "another-installer-amid": (
        but(other_installer="nvidia-ctk-installer (PID 7)", toolkit=toolkit(missing=("nvidia-ctk",))),
        Verdict.BROKEN,
        "another installer is at work on this node: nvidia-ctk-installer (PID 7) files are missing",
    ),
    "file-broken": (
        but(
            engines=broken(BROKEN_FILE, files=(FileHealth("/etc/containerd/config.toml", "changed by somebody else"),))
        ),
        Verdict.BROKEN,
        "containerd: /etc/containerd/config.toml:41: not valid TOML: Invalid value (column 8)",
    ),
    "file-unread": (but(engines=broken(UNREAD_FILE)), Verdict.DEGRADED, "is of version 2"),
    "handler-gone": (
        but(engines=engine(files=LOST)),
        Verdict.DEGRADED,
        "/etc/containerd/config.toml: changed by somebody else: the handler nvidia is gone",
    ),
    "handler-gone-and-read": (
        but(engines=engine(UNSERVED, files=LOST)),
        Verdict.BROKEN,
        "it does not list the handler nvidia; /etc/containerd/config.toml: changed by somebody else: the handler",
    ),
    "engine-masked": (
        but(engines=silent(SilentEngine(None, None, UNIT, "masked", None))),
        Verdict.BROKEN,
        "containerd does not run: containerd.service is masked, so that nothing starts it",
    ),
    "engine-inactive": (
        but(engines=silent(SilentEngine(None, None, UNIT, "inactive", None))),
        Verdict.BROKEN,
        "containerd does not run: containerd.service is inactive: it was stopped",
    ),
    "engine-failed": (
        but(engines=silent(SilentEngine(None, None, UNIT, "failed", "exit-code", ("the disk is gone",)), BROKEN_FILE)),
        Verdict.BROKEN,
        "containerd does not run: containerd.service has failed (exit-code); its log says: the disk is gone",
    ),
    "engine-stopped": (
        but(engines=silent(SilentEngine(812, ProcessState.STOPPED, UNIT, "active", None))),
        Verdict.BROKEN,
        "containerd (PID 812) is stopped (SIGSTOP): it answers nobody",
    ),
    "engine-hangs": (
        but(engines=silent(SilentEngine(812, ProcessState.IN_KERNEL, UNIT, "active", None))),
        Verdict.BROKEN,
        "containerd (PID 812) runs and hangs in the kernel and does not answer",
    ),
    "engine-refuses": (
        but(engines=silent(SilentEngine(812, None, UNIT, "active", None))),
        Verdict.BROKEN,
        "containerd on /run/containerd/containerd.sock: the CRI of containerd does not answer: connection refused",
    ),
    "driver-hangs": (
        but(driver=msgspec.structs.replace(NO_DRIVER, hangs=True, wrong=(HANGS,))),
        Verdict.BROKEN,
        f"nvidia-smi hangs, so the driver or a GPU does: {HANGS}",
    ),
    "driver-absent": (
        but(driver=msgspec.structs.replace(NO_DRIVER, absent=True, wrong=("/: there is no nvidia-smi",))),
        Verdict.BROKEN,
        "no driver is usable: /: there is no nvidia-smi",
    ),
    "run-rejected": (
        but(BARE, last_run=REJECTED),
        Verdict.DEGRADED,
        "the last `run` failed at 2026-11-23T06:12:09Z: /etc/containerd/config.toml: the engine did not serve",
    ),
    "run-refused-at-a-line": (
        but(running_pid=None, last_run=msgspec.structs.replace(REJECTED, line=7, remedy=None)),
        Verdict.DEGRADED,
        "/etc/containerd/config.toml:7: the engine",
    ),
    "run-refused-and-mended": (but(running_pid=None, last_look=None, last_run=REFUSED), Verdict.OK, ""),
    "run-refused-and-not-mended": (
        but(running_pid=None, last_run=REFUSED, engines=engine(state="changed by somebody else")),
        Verdict.DEGRADED,
        "/etc/containerd/config.toml:7: not valid TOML",
    ),
    "run-refused-for-another-file": (
        but(running_pid=None, last_run=msgspec.structs.replace(REFUSED, file="/etc/other.toml")),
        Verdict.DEGRADED,
        "/etc/other.toml:7: not valid TOML",
    ),
    "run-left-an-engine-down": (
        but(running_pid=None, last_run=msgspec.structs.replace(REJECTED, exit_code=6), engines=engine(SILENT)),
        Verdict.BROKEN,
        "the last `run` failed at 2026-11-23T06:12:09Z",
    ),
    "run-left-an-engine-that-is-up-again": (
        but(running_pid=None, last_run=msgspec.structs.replace(REJECTED, exit_code=6)),
        Verdict.OK,
        "",
    ),
    "run-rejected-and-another-at-work": (but(last_look=None, last_run=REJECTED), Verdict.OK, ""),
    "run-mistyped": (but(running_pid=None, last_look=None, last_run=MISTYPED), Verdict.OK, ""),
    "run-mistyped-on-a-bare-node": (
        but(BARE, last_run=MISTYPED),
        Verdict.DEGRADED,
        "the last `run` failed at 2026-11-23T06:12:09Z: --runtime: 'dokcer' is not allowed",
    ),
    "killed-amid": (but(state="applying", installed=False, running_pid=None), Verdict.BROKEN, "was killed"),
    "reverting-now": (but(state="reverting", installed=False), Verdict.DEGRADED, "reverted right now"),
    "killed-waiting": (but(running_pid=None, killed_pid=77), Verdict.DEGRADED, "(PID 77) was killed"),
    "file-missing": (but(toolkit=toolkit(missing=("nvidia-ctk",))), Verdict.BROKEN, "missing in"),
    "wrapper-emptied": (
        but(toolkit=toolkit(Damage("nvidia-container-runtime", "it is empty"))),
        Verdict.BROKEN,
        f"{TOOLKIT}/nvidia-container-runtime: it is empty",
    ),
    "copy-touched": (but(toolkit=toolkit(Damage("a.real", "touched", certain=False))), Verdict.DEGRADED, "touched"),
    "reload-pending": (
        but(BARE, running_pid=7, pending_reload=WAITS),
        Verdict.DEGRADED,
        "a reload of containerd is pending since 2026-11-23T06:12:04Z: it is outside of Sat 02:00-04:00",
    ),
    "engine-silent": (but(engines=engine(SILENT)), Verdict.BROKEN, "connection refused"),
    "engine-serves-not": (but(engines=engine(UNSERVED)), Verdict.BROKEN, "it does not list the handler nvidia"),
    "engine-reads-another": (
        but(engines=engine(ELSEWHERE)),
        Verdict.BROKEN,
        "the running containerd (PID 812) reads /etc/other.toml, and not /etc/containerd/config.toml",
    ),
    "plugin-connected": (
        but(engines=(), plugin=PluginHealth(connected=True, engine="containerd v2.1.4", reason=None)),
        Verdict.OK,
        "",
    ),
    "plugin-lost": (
        but(engines=(), running_pid=7, plugin=PluginHealth(connected=False, engine=None, reason="it hung up")),
        Verdict.BROKEN,
        "the NRI plugin is not connected, so containers get no devices from it: it hung up",
    ),
    "drift": (but(engines=engine(state="changed by somebody else")), Verdict.DEGRADED, "changed by somebody else"),
    "drift-told": (but(engines=engine(files=CHANGED)), Verdict.DEGRADED, "changed by somebody else"),
    "specification-missing": (but(specifications=(FileHealth("/s.yaml", "missing"),)), Verdict.DEGRADED, "/s.yaml"),
    "driver-broken": (but(driver=NO_DRIVER), Verdict.BROKEN, "nvidia-smi ends with 9"),
    "driver-elsewhere": (
        but(driver=DriverHealth(usable=True, root="/", version="1", wrong=(), meant_for="/run/nvidia/driver")),
        Verdict.BROKEN,
        "the usable driver is in /, and the toolkit takes it from /run/nvidia/driver",
    ),
    "driver-broken-gpu-unknown": (but(driver=NO_DRIVER, has_gpu=None), Verdict.DEGRADED, "nvidia-smi ends with 9"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_verdict_and_says_what_to_do(name: str) -> None:
    found, expected, says = CASES[name]
    health = status_verdict.judge_node(found)
    assert health.verdict is expected
    assert says in " ".join(reason.what for reason in health.reasons)
    assert all(reason.remedy for reason in health.reasons)
    assert bool(health.reasons) is (expected is not Verdict.OK)


@pytest.mark.parametrize(
    "name, command",
    [
        ("engine-masked", "`systemctl unmask containerd.service && systemctl start containerd.service`"),
        ("engine-inactive", "`systemctl start containerd.service`"),
        ("engine-failed", "correct the file, or restore it, then `systemctl restart containerd.service`"),
        ("engine-stopped", "`kill -CONT 812`"),
        ("engine-hangs", "`systemctl restart containerd.service`"),
        ("instance-stopped", "`kill -CONT 3035`"),
        ("receipt-gone", "-- toolkit-installer refresh`"),
        ("driver-absent", "install the driver"),
        ("driver-broken", "`modprobe nvidia`"),
        ("driver-hangs", "`dmesg | grep -iE 'nvrm|xid'`"),
    ],
)
def test_the_first_remedy_names_the_command(name: str, command: str) -> None:
    assert command in status_verdict.judge_node(CASES[name][0]).reasons[0].remedy


def test_a_file_that_cannot_be_parsed_is_not_said_to_be_put_back() -> None:
    said = [reason.what for reason in status_verdict.judge_node(CASES["file-broken"][0]).reasons]
    place = "/etc/containerd/config.toml:41"
    assert said == [f"containerd: {place}: not valid TOML: Invalid value (column 8); containerd cannot start with it"]


def test_the_gravest_reason_comes_first_and_decides() -> None:
    found = but(engines=engine(SILENT, "changed by somebody else"), running_pid=None, killed_pid=7)
    health = status_verdict.judge_node(found)
    assert [reason.verdict for reason in health.reasons] == [
        Verdict.BROKEN,
        Verdict.DEGRADED,
        Verdict.DEGRADED,
    ]
    assert health.verdict is Verdict.BROKEN


SHOWN = (
    "one-handler-without-devices",
    "low-level-runtime-gone",
    "another-installer",
    "toolkit-alone",
    "whole",
    "bare-with-gpu",
    "bare-without-gpu",
    "driver-broken",
    "engine-reads-another",
    "engine-serves-not",
    "engine-silent",
    "killed-waiting",
    "drift-told",
    "plugin-connected",
    "plugin-lost",
    "reload-pending",
    "run-rejected",
    "run-mistyped",
    "failed-and-mended",
    "run-refused-and-mended",
    "receipt-gone",
    "file-broken",
    "handler-gone",
    "engine-masked",
    "engine-failed",
    "engine-stopped",
    "driver-hangs",
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SHOWN)
def test_people_are_shown_what_was_read_and_found_good(name: str, width: int) -> None:
    lines = show_status.status_lines(status_verdict.judge_node(CASES[name][0]), width)
    difference = {line.expandtabs(4) for line in DIFFERENCE.splitlines()}
    assert all(len(line) <= width or " " not in line.strip() or line[9:] in difference for line in lines)
    text = "".join(f"{line}\n" for line in lines)
    file = DATA / f"{name}-{width}.txt"
    if os.environ.get("STATUS_FILES") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize(
    "seen, says",
    [
        pytest.param({}, "nvidia is given it", id="gpu-and-driver"),
        pytest.param({"has_gpu": False, "driver": None}, "finds none: the node shows no NVIDIA GPU", id="no-gpu"),
        pytest.param({"has_gpu": None, "driver": None}, "would be given it, if the node has one", id="unknown"),
    ],
)
def test_nothing_is_given_on_a_node_without_a_gpu(seen: dict[str, Any], says: str) -> None:
    health = status_verdict.judge_node(but(method=GIVEN, **seen))
    assert any(line.endswith(says) for line in show_status.status_lines(health, None))


def test_the_default_is_the_live_engines_where_it_answers() -> None:
    def shown(live: LiveHealth, state: str = "as written") -> str:
        lines = show_status.status_lines(status_verdict.judge_node(but(engines=engine(live, state))), None)
        return next(line for line in lines if line.startswith("Handler:"))

    assert "nvidia (default) ->" in shown(msgspec.structs.replace(LIVE, default="nvidia"))
    assert "default" not in shown(msgspec.structs.replace(LIVE, default="runc"))
    assert "nvidia (default in its files) ->" in shown(SILENT)
    assert "default" not in shown(SILENT, "changed by somebody else")


def test_a_path_is_never_torn_however_narrow_the_terminal_is() -> None:
    place = f"/etc/containerd/{'very-' * 30}long.toml"
    found = but(engines=engine(files=(FileHealth(place, "missing"),)))
    for width in (20, 80):
        assert any(
            f"{place}:" in line.split() for line in show_status.status_lines(status_verdict.judge_node(found), width)
        )


def test_in_a_pipe_each_fact_is_one_line() -> None:
    health = status_verdict.judge_node(CASES["driver-broken"][0])
    assert any(len(line) > 120 for line in show_status.status_lines(health, None))


def test_the_schema_of_the_json_is_the_one_in_the_documentation() -> None:
    text = json.dumps(msgspec.json.schema(Health), indent=2) + "\n"
    if os.environ.get("STATUS_FILES") == "write":
        SCHEMA.write_text(text)
    assert SCHEMA.read_text() == text


@pytest.mark.parametrize("name", CASES)
def test_the_json_holds_all_that_is_known_and_reads_back(name: str) -> None:
    health = status_verdict.judge_node(CASES[name][0])
    text = show_status.status_json(health)
    assert msgspec.json.decode(text, type=Health) == health
    assert list(json.loads(text))[:3] == ["schema", "verdict", "reasons"]


def test_a_fault_of_an_engines_files_degrades_the_node() -> None:
    fault = FileFault("/etc/a.toml:3: is not read", "write both for one version")
    found = msgspec.structs.replace(WHOLE, engines=(msgspec.structs.replace(ENGINE, faults=(fault,)),))
    health = status_verdict.judge_node(found)
    assert health.verdict is Verdict.DEGRADED
    assert [(each.what, each.remedy) for each in health.reasons] == [(f"containerd: {fault.what}", fault.remedy)]


def test_files_that_were_touched_are_one_reason_and_are_not_called_damaged() -> None:
    touched = [Damage(f"{number}.real", "touched since it was put in place", certain=False) for number in range(9)]
    found = status_verdict.judge_node(but(toolkit=toolkit(*touched, Damage("a", "it is empty"))))
    assert [reason.verdict for reason in found.reasons] == [Verdict.BROKEN, Verdict.DEGRADED]
    shown = show_status.status_lines(found, None)
    assert [line.strip() for line in shown if "TOUCHED" in line] == [
        "TOUCHED: {0.real,1.real,2.real,3.real,4.real,5.real,6.real,7.real,8.real}: touched since it was put in place"
    ]
    assert [line.strip() for line in shown if "DAMAGED" in line] == ["DAMAGED: a: it is empty"]
