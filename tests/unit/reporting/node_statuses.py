"""Nodes as `status` finds them, each with the verdict that it is to get."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit_installer.planning.installed import Damage
from toolkit_installer.reporting.outcome import LastRun
from toolkit_installer.reporting.status_verdict import (
    DriverHealth,
    EngineHealth,
    FileFault,
    FileHealth,
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
