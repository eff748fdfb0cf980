"""A machine with systemd on which the installed program runs: its engine's unit, its files, what its engine serves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.e2e.file_states import FileState, state_of, traces_of_writing
from tests.e2e.hosts.host import Host
from tests.e2e.program import SCRIPTS, Installer, Program
from tests.support.engines import cri_client

SOCKET = "/run/containerd/containerd.sock"
CONFIG = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
INSTALL_DIR = "/usr/local/nvidia"
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
_STARTS = "/run/starts"
_POLL = 0.2  # systemd is asked by a program that is started each time

CONFIGURATION = """\
# Managed by hand: ask the storage team before you touch this.
version = 2   # of the format

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = 'registry.example/pause:1'   # mirrored
  [plugins."io.containerd.grpc.v1.cri".containerd]
\tsnapshotter = "native"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true   # as the kubelet has it
"""


class Machine:
    """A host, and the installer on it with the flags that all its runs get."""

    def __init__(self, host: Host, installer: Installer, payload: Path) -> None:
        self.host = host
        self.payload = payload
        self._installer = installer

    def serve(self, unit: str, config: str | Path, text: str | None) -> FileState | None:
        """Start an engine's unit on a file with this text (None: no file), and return how the file stands."""
        path = self.host.path(config)
        if text is not None:
            path.write_text(text)
            path.chmod(0o640)
        # each attempt to start it is counted, whoever made it and whatever comes of it
        self.override(unit, f"ExecStartPre=/bin/sh -c 'echo start >>{_STARTS}.{unit}'", name="count")
        self.host.run("systemctl", "start", unit)
        assert self.starts(unit) == 1
        return self.state(config)

    def starts(self, unit: str) -> int:
        """Return how often a unit was started, or tried to."""
        return len(self.host.path(f"{_STARTS}.{unit}").read_text().splitlines())

    def override(self, unit: str, *lines: str, name: str = "test", section: str = "Service") -> None:
        """Have these lines in a unit."""
        folder = self.host.path(f"/etc/systemd/system/{unit}.service.d")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.conf").write_text("\n".join([f"[{section}]", *lines, ""]))
        self.host.run("systemctl", "daemon-reload")

    def undo_override(self, unit: str, name: str = "test") -> None:
        """Have them no longer."""
        self.host.path(f"/etc/systemd/system/{unit}.service.d/{name}.conf").unlink()
        self.host.run("systemctl", "daemon-reload")

    def state(self, path: str | Path) -> FileState | None:
        """Return how a file stands, None where there is none."""
        place = self.host.path(path)
        return state_of(place) if place.exists() else None

    def exists(self, path: str | Path) -> bool:
        """Tell whether there is such a file or folder."""
        return self.host.path(path).exists()

    def written_below(self, *folders: str) -> dict[str, tuple[int, ...]]:
        """Return what any write or replacement below these folders, where they are, would change."""
        return traces_of_writing(*(self.host.path(folder) for folder in folders if self.exists(folder)))

    def active(self, unit: str) -> bool:
        """Tell whether a unit is up."""
        return self.host.property(unit, "ActiveState") == "active"

    def wait_until_settled(self) -> None:
        """Wait until nobody asks systemd for anything any more: what a killed program began may still be on its way."""
        deadline = time.monotonic() + 60
        while not self._settled():
            assert time.monotonic() < deadline, self.host.run("systemctl", "list-jobs").stdout
            time.sleep(_POLL)

    def _settled(self) -> bool:
        asking = self.host.run("pgrep", "--exact", "systemctl", check=False).returncode == 0
        return not asking and "No jobs" in self.host.run("systemctl", "list-jobs").stdout

    def wait_until_active(self, unit: str, within: float = 60.0) -> None:
        """Wait until systemd has a unit up again."""
        deadline = time.monotonic() + within
        while not self.active(unit):
            assert time.monotonic() < deadline, self.host.journal(unit)
            time.sleep(_POLL)

    def containerd(self) -> dict[str, Any]:
        """Return what the live containerd says of its runtimes."""
        answer = cri_client.status(self.host.path(SOCKET), 20)
        assert answer["conditions"]["RuntimeReady"]
        table: dict[str, Any] = answer["config"]["containerd"]
        return table

    def handlers(self) -> set[str]:
        """Return the names of the live containerd's handlers."""
        return set(self.containerd()["runtimes"])

    def docker_handlers(self) -> set[str]:
        """Return the names of the live dockerd's handlers, without those that it has of its own."""
        shown = self.host.run("docker", "info", "--format", "{{json .Runtimes}}").stdout
        return {name for name in json.loads(shown) if not name.startswith("io.containerd.")}

    def start(self, *flags: object) -> Program:
        """Start `toolkit-installer run` in the background."""
        return self._installer.start("toolkit-installer", "run", *self.flags, *flags)

    def run(self, *flags: object) -> tuple[int, str]:
        """Run `toolkit-installer run --no-daemon` and return its exit code and all that it said."""
        run = self.start("--no-daemon", *flags)
        return run.finish(within=120), run.output

    def plan(self) -> tuple[str, dict[str, Any]]:
        """Return what `toolkit-installer plan` shows to people, and with `--json`."""
        shown = []
        for flags in ((), ("--json",)):
            run = self._installer.start("toolkit-installer", "plan", *self.flags, *flags)
            assert run.finish() == 0, run.output
            shown.append(run.output)
        planned: dict[str, Any] = json.loads(shown[1][shown[1].index("{\n") :])
        return shown[0], planned

    def run_as_unit(self, *flags: object, with_unit: str) -> None:
        """Start it as the unit `installer`, which stops and starts with `with_unit` as a pod may with its engine."""
        words = " ".join(map(str, (SCRIPTS / "toolkit-installer", "run", *self.flags, *flags)))
        # unordered: neither waits for the other; and as in a pod, only the program itself is told to stop
        text = f"""\
[Unit]
DefaultDependencies=no
PartOf={with_unit}.service
[Service]
ExecStart={words}
KillMode=mixed
Restart=always
"""
        self.host.path("/etc/systemd/system/installer.service").write_text(text)
        self.host.run("systemctl", "daemon-reload")
        self.host.run("systemctl", "start", "installer")

    def uninstall(self, *flags: object) -> tuple[int, str]:
        """Run `toolkit-installer uninstall` likewise."""
        run = self._installer.start("toolkit-installer", "uninstall", *flags)
        return run.finish(within=120), run.output

    def refresh(self) -> tuple[int, str]:
        """Run `toolkit-installer refresh` likewise."""
        run = self._installer.start("toolkit-installer", "refresh")
        return run.finish(within=120), run.output

    def status(self) -> dict[str, Any]:
        """Return what `toolkit-installer status` says."""
        run = self._installer.start("toolkit-installer", "status", "--json")
        assert run.finish() == 0, run.output
        told: dict[str, Any] = json.loads(
            run.output[run.output.index("{\n") :]
        )  # it may log where its options are from
        return told

    def diagnosis(self) -> dict[str, Any]:
        """Return what `toolkit-installer diagnose` finds."""
        run = self._installer.start("toolkit-installer", "diagnose", "--json")
        assert run.finish() == 0, run.output
        found: dict[str, Any] = json.loads(run.output[run.output.index("{\n") :])
        return found

    def verdict(self) -> list[str]:
        """Return the lines of what `toolkit-installer status` shows to people, the verdict first."""
        run = self._installer.start("toolkit-installer", "status", "--log-format", "json")
        assert run.finish() == 0, run.output
        lines = run.output.splitlines()
        return lines[next(number for number, line in enumerate(lines) if line.startswith("Verdict:")) :]

    @property
    def flags(self) -> tuple[object, ...]:
        """The flags of every run."""
        return ("--toolkit-source-root", self.payload, "--driver-root", "/")
