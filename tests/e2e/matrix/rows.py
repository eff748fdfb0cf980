"""The engines of the matrix, one entry each: where an engine comes from, and of its kind, how it is spoken to."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.containerd_binaries import NEWEST
from tests.e2e.hosts import crio_unit
from tests.e2e.hosts import machine as containerds
from tests.e2e.hosts.host import Host
from tests.e2e.hosts.machine import Machine
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.built.releases import Suite
from tests.support.engines.cri_client import COMMAND
from tests.support.engines.crio import running_config
from tests.support.engines.daemons import cri_status

_SECONDS = 60
"""For one call of the CRI."""
_RUNTIME_VERSION = "3"
"""The field of the CRI's VersionResponse."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the versions of an engine have in common. Paths are those of its machine."""

    name: str
    called: str
    """Its name in the table."""
    probed: str
    """How probe.py asks it."""
    unit: str
    socket: str
    config: str
    text: str
    """What the file says before anything is installed."""
    owns: tuple[str, ...]
    """The files that may name our handlers, the first that is there does."""
    peer_flags: tuple[str, ...]
    """What the peer has to be told to do as we do by ourselves."""
    restarts: int
    """How many of them a change of the configuration may cost."""
    version: Callable[[Machine], str]
    serves: Callable[[Machine], dict[str, Any]]
    """All that the live engine says of its handlers; equal before and after."""
    executables: Callable[[dict[str, Any]], dict[str, str]]
    """Of that: each handler's executable."""
    damage: Callable[[str], str]
    """What somebody makes of our part of a file: a handler is gone, and another has a value that we did not write."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One version of an engine."""

    name: str
    kind: Kind
    suite: Suite | None = None
    """The release that it comes from; this machine's own if there is none."""
    prepare: Callable[[Host, Callable[[Tool], Path]], None] | None = None
    """What is done to its machine before it is started, for an engine that no release has; given what builds one."""

    def __str__(self) -> str:
        return self.name


def _docker_version(machine: Machine) -> str:
    return machine.host.run("docker", "version", "--format", "{{.Server.Version}}").stdout.strip()


def _docker_serves(machine: Machine) -> dict[str, Any]:
    shown = machine.host.run(
        "docker", "info", "--format", '{"runtimes":{{json .Runtimes}},"default":{{json .DefaultRuntime}}}'
    )
    served: dict[str, Any] = json.loads(shown.stdout)
    # 20.10 drops its own aliases of runc at a reload, until its next start
    served["runtimes"] = {name: each for name, each in served["runtimes"].items() if not name.startswith("io.")}
    return served


def _damaged_docker(text: str) -> str:
    less = _once(r'\s*"nvidia-cdi": \{[^}]*\},', "", text)
    return _once(r'("nvidia-legacy": \{[^}]*"args": \[)', r'\1"--debug"', less)


def _cri_version(machine: Machine, socket: str) -> str:
    query = json.dumps([socket, _SECONDS, ["Version", {}, []]]) + "\n"
    done = machine.host.run(*COMMAND, given=query)
    told = str(json.loads(done.stdout)["fields"][_RUNTIME_VERSION])
    return told.removeprefix("v").removesuffix("+unknown")  # the revision it was built from


def _damaged_containerd(text: str) -> str:
    less = _without_cdi(text)
    return _once(r"(runtimes\.nvidia-legacy\.options\](?:(?!\n\s*\[).)*SystemdCgroup = )true", r"\1false", less)


def _crio_serves(machine: Machine) -> dict[str, Any]:
    socket = machine.host.path(crio_unit.SOCKET)
    table = running_config(socket)["runtime"]
    listed = cri_status("CRI-O", socket)["handlers"]
    return {"runtimes": table["runtimes"], "default": table["default_runtime"], "listed": sorted(listed)}


def _damaged_crio(text: str) -> str:
    less = _without_cdi(text)
    return _once(r'(runtimes\.nvidia-legacy\](?:(?!\n\s*\[).)*runtime_root = ")[^"]*', r"\1/run/elsewhere", less)


def _without_cdi(text: str) -> str:
    """Return the text of a TOML file without the tables of one handler."""
    less, count = re.subn(r"^\s*\[[^\n]*nvidia-cdi[^\n]*\]\n(?:(?!\s*\[)[^\n]*\n?)*", "", text, flags=re.MULTILINE)
    assert count, text
    return less


def _once(pattern: str, new: str, text: str) -> str:
    changed, count = re.subn(pattern, new, text, flags=re.DOTALL)
    assert count == 1, text
    return changed


DOCKER = Kind(
    name="docker",
    called="docker",
    probed="docker",
    unit="docker",
    socket="/run/docker.sock",
    config="/etc/docker/daemon.json",
    text='{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}',
    owns=("/etc/docker/daemon.json",),
    peer_flags=("--restart-mode", "signal"),
    restarts=0,
    version=_docker_version,
    serves=_docker_serves,
    executables=lambda served: {name: str(each.get("path", "")) for name, each in served["runtimes"].items()},
    damage=_damaged_docker,
)
CONTAINERD = Kind(
    name="containerd",
    called="containerd",
    probed="cri",
    unit="containerd",
    socket=containerds.SOCKET,
    config=containerds.CONFIG,
    text=containerds.CONFIGURATION,
    owns=(containerds.DROP_IN, containerds.CONFIG),
    peer_flags=("--restart-mode", "systemd", "--host-root", "/"),
    restarts=1,
    version=lambda machine: _cri_version(machine, containerds.SOCKET),
    serves=Machine.containerd,
    executables=lambda served: {
        name: str((each["options"] or {}).get("BinaryName", "")) for name, each in served["runtimes"].items()
    },
    damage=_damaged_containerd,
)

CRIO = Kind(
    name="crio",
    called="CRI-O",
    probed="cri",
    unit=crio_unit.UNIT,
    socket=crio_unit.SOCKET,
    config=crio_unit.CONFIG,
    text=crio_unit.CONFIGURATION,
    owns=(crio_unit.DROP_IN,),
    # its own default, conf.d, is no folder that CRI-O reads
    peer_flags=("--restart-mode", "systemd", "--host-root", "/", "--drop-in-config", crio_unit.DROP_IN),
    restarts=1,
    version=lambda machine: _cri_version(machine, crio_unit.SOCKET),
    serves=_crio_serves,
    executables=lambda served: {
        name: str(served["runtimes"][name]["runtime_path"]) for name in served["listed"] if name
    },
    damage=_damaged_crio,
)


def _crio(host: Host, go_tool: Callable[[Tool], Path]) -> None:
    crio_unit.bring(host, go_tool(go_tools.CRIO))


def _newest_containerd(host: Host, go_tool: Callable[[Tool], Path]) -> None:
    """Let the unit start the newest containerd."""
    named = os.environ.get(NEWEST)
    program = "/usr/local/bin/containerd"
    shutil.copy2(named or go_tool(go_tools.CONTAINERD) / "containerd", host.path(program))
    folder = host.path(f"/etc/systemd/system/{CONTAINERD.unit}.service.d")
    (folder / "newest.conf").write_text(f"[Service]\nExecStart=\nExecStart={program}\n")
    host.run("systemctl", "daemon-reload")


ROWS = (
    Row("docker-bookworm", DOCKER),  # 20.10
    Row("docker-trixie", DOCKER, Suite.TRIXIE),  # 26
    Row("docker-sid", DOCKER, Suite.SID),  # 28
    Row("containerd-bookworm", CONTAINERD),  # 1.6
    Row("containerd-trixie", CONTAINERD, Suite.TRIXIE),  # 1.7
    Row("containerd-sid", CONTAINERD, Suite.SID),  # 2.1
    Row("containerd-newest", CONTAINERD, Suite.SID, _newest_containerd),
    Row("crio", CRIO, prepare=_crio),  # 1.34
)
