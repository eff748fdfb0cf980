"""The low-level runtime of a machine for tests, where this machine's root may do less than root usually may.

A privileged container gets every capability that the kernel knows, and a pod's own container is the last that the
kernel kills for memory. In a sandbox root may lack the rights for that itself, and then no such container starts: its
runc is told to leave those out.
"""

from __future__ import annotations

from pathlib import Path

from tests.e2e.hosts.host import Host

_RUNC = "/usr/sbin/runc"
_REAL = f"{_RUNC}.real"
# linux/capability.h: those that sandboxes are known to take away
_NUMBERS = {16: "CAP_SYS_MODULE", 17: "CAP_SYS_RAWIO", 22: "CAP_SYS_BOOT", 24: "CAP_SYS_RESOURCE", 25: "CAP_SYS_TIME"}
_EDITS = f"{_RUNC}.edits"
_WRAPPER = f"""\
#!/bin/sh
# most calls name no configuration, and there are a dozen for each container: those start no interpreter
for each; do
    case $each in --bundle|--process) exec {_EDITS} "$@" ;; esac
done
exec {_REAL} "$@"
"""
_EDITING = """\
#!/usr/bin/python3 -IS
import json, os, sys
for flag, name in (("--bundle", "config.json"), ("--process", "")):
    if flag in sys.argv:
        path = os.path.join(sys.argv[sys.argv.index(flag) + 1], name).rstrip("/")
        with open(path) as stream:
            config = json.load(stream)
        process = config.get("process", config)
        for names in (process.get("capabilities") or {}).values():
            names[:] = [name for name in names if name not in LACKING]
        if "CAP_SYS_RESOURCE" in LACKING and process.get("oomScoreAdj", 0) < 0:
            del process["oomScoreAdj"]
        with open(path, "w") as stream:
            json.dump(config, stream)
os.execv("REAL", sys.argv)
"""


def lacking() -> list[str]:
    """Return the capabilities that this machine's root does not have."""
    lines = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    bounding = int(lines["CapBnd"], 16)
    return [name for number, name in _NUMBERS.items() if not bounding >> number & 1]


def make_privileged_containers_possible(host: Host) -> None:
    """Have the machine's runc leave out what no process here can have. Nothing is changed where root has it all."""
    if not lacking() or host.path(_REAL).exists():
        return
    host.path(_RUNC).rename(host.path(_REAL))
    editing = _EDITING.replace("LACKING", repr(lacking())).replace("REAL", _REAL)
    for path, text in ((_EDITS, editing), (_RUNC, _WRAPPER)):
        host.path(path).write_text(text)
        host.path(path).chmod(0o755)
