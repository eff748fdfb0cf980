"""A made node: a folder that is its `/`, and the installed program run on it as an ordinary process."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import stat
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.warm_start import SCRIPTS, Popen

WAITING = "Waiting for signal"
NOTHING_TO_DO = "Nothing to do"
TOOLKIT = "/usr/local/nvidia/toolkit"
STORE = "/usr/local/nvidia/.toolkit-installer"
PID_FILE = "/run/nvidia/toolkit.pid"
PID_FILES = (PID_FILE, "/run/nvidia/toolkit/toolkit.pid")
"""A run holds the PID file of NVIDIA's own installer, too."""
DAEMON_JSON = "/etc/docker/daemon.json"
DOCKER = b'{\n  "log-driver": "json-file"\n}\n'
"""What most tests have there before a run."""
CONFIG_TOML = "/etc/containerd/config.toml"
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
CRIO_FOLDER = "/etc/crio/crio.conf.d"
CRIO_SITE = f"{CRIO_FOLDER}/10-site.conf"
CRIO_DROP_IN = f"{CRIO_FOLDER}/99-nvidia.toml"
DEADLINE = 30.0
"""Seconds. Far more than anything here takes, so that only what hangs meets it."""

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """All of a file, folder or symlink that cleanup must give back; times are no part of it."""

    kind: str
    mode: int
    owner: tuple[int, int]
    content: bytes | str
    xattrs: tuple[tuple[str, bytes], ...]


class RunError(AssertionError):
    """The program did not say, or do, in time what the test waits for; the message has all that it said."""


class Run:
    """The program in the background, started warm where that can be; `anew`: from scratch."""

    def __init__(self, command: list[str], *, anew: bool = False) -> None:
        self.command = command
        self.output = ""
        self._read_to = 0
        self.process = Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            start_new_session=True,
            anew=anew,
        )

    @property
    def pid(self) -> int:
        """Its process ID."""
        return self.process.pid

    def wait_for(self, text: str) -> None:
        """Wait until it says `text`, after what was waited for before. Raises RunError if it ends or goes silent."""
        deadline = time.monotonic() + DEADLINE
        while (place := self.output.find(text, self._read_to)) < 0:
            if not self._hear(deadline):
                raise RunError(f"{self.command}\nnever said {text!r}; it said:\n{self.output}")
        self._read_to = place + len(text)

    def finish(self) -> int:
        """Return its exit code once it has ended; negative: the signal. Raises RunError if it goes on."""
        deadline = time.monotonic() + DEADLINE
        while self._hear(deadline):
            pass
        try:
            return self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise RunError(f"{self.command}\ndoes not end; it said:\n{self.output}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.finish()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _hear(self, deadline: float) -> bool:
        """Read what it says next; False at its end, or at the deadline."""
        stream = self.process.stdout
        if stream is None or not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        said = os.read(stream.fileno(), 65536)
        self.output += said.decode(errors="replace")
        return bool(said)


def patiently(run: Run, text: str) -> None:
    """Wait for `text` also beyond one deadline: a waiting run looks at its files every 30 s."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return run.wait_for(text)
        except RunError:
            if run.process.poll() is not None or time.monotonic() > deadline:
                raise


class FakeNode:
    """A folder that is a node's `/`, a payload, and the program on them."""

    def __init__(self, root: Path, payload: Path) -> None:
        self.root = root
        self.payload = payload
        self._runs: list[Run] = []

    # --- files ---

    def place(self, path: str) -> Path:
        """Return where the node's `path` is for the test; symlinks in it are not looked at."""
        return self.root / path.lstrip("/")

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> None:
        """Put a file on the node."""
        place = self.place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        place.chmod(mode)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return self.place(path).read_bytes()

    def exists(self, path: str) -> bool:
        """Tell whether anything is at `path`."""
        return os.path.lexists(self.place(path))

    def snapshot(self) -> dict[str, Entry]:
        """Return everything on the node but times."""
        root = str(self.root)
        return {place[len(root) :]: _entry(place) for place in _beneath(root)}

    def stamps(self) -> dict[str, tuple[int, int, int]]:
        """Return inode, mtime and ctime of everything but the PID files and their folders: any write shows."""
        spared = {*PID_FILES, "/run/nvidia/toolkit", "/run/nvidia", "/run"}
        result = {}
        for place in self.root.rglob("*"):
            if self._path(place) not in spared:
                status = place.lstat()
                result[self._path(place)] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        return result

    def _path(self, place: Path) -> str:
        return "/" + str(place.relative_to(self.root))

    # --- what the engines' files say ---

    def docker(self) -> dict[str, Any]:
        """Return daemon.json's meaning, {} where there is none."""
        document: dict[str, Any] = json.loads(self.read(DAEMON_JSON)) if self.exists(DAEMON_JSON) else {}
        return document

    def containerd(self, plugin: str) -> dict[str, Any]:
        """Return the `containerd` table of config.toml's CRI plugin, {} where there is none."""
        if not self.exists(CONFIG_TOML):
            return {}
        document = tomllib.loads(self.read(CONFIG_TOML).decode())
        table: dict[str, Any] = document.get("plugins", {}).get(plugin, {}).get("containerd", {})
        return table

    def named_runtimes(self) -> dict[str, str]:
        """Return the executables that any of the engines' files names, by handler."""
        named = {name: entry["path"] for name, entry in self.docker().get("runtimes", {}).items()}
        for plugin in ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
            for name, entry in self.containerd(plugin).get("runtimes", {}).items():
                if "BinaryName" in entry.get("options", {}):
                    named[name] = entry["options"]["BinaryName"]
        return named

    def broken_runtimes(self) -> list[str]:
        """Return what is wrong with the runtimes of ours that a configuration names: each must be complete."""
        wrong = []
        for name, path in self.named_runtimes().items():
            if path.startswith(TOOLKIT + "/"):
                needed = (path, f"{path}.real", f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
                wrong += [f"{name} needs {part}" for part in needed if not self.place(part).is_file()]
                wrong += [f"{name}: {part}" for part in needed[:2] if not os.access(self.place(part), os.X_OK)]
        return wrong

    # --- the program ---

    def arguments(self, command: str, *more: str, engine: str = "docker", log_format: str = "logfmt") -> list[str]:
        """Return the arguments of one of its commands on this node."""
        given = ["--node-root", str(self.root), "--runtime", engine, "--log-format", log_format]
        source = ["--toolkit-source-root", str(self.payload)] if command in ("run", "plan", "status") else []
        return [command, *given, *source, *more]

    def start(self, *more: str, engine: str = "docker", log_format: str = "logfmt") -> Run:
        """Start `run` in the background."""
        command = [str(SCRIPTS / "toolkit-installer"), *self.arguments("run", *more, engine=engine)]
        command[command.index("logfmt")] = log_format
        return self._started(command)

    def waiting(self, *more: str, engine: str = "docker") -> Run:
        """Start `run` and return it once it waits."""
        run = self.start(*more, engine=engine)
        run.wait_for(WAITING)
        return run

    def do(self, command: str, *more: str, engine: str = "docker") -> Run:
        """Run a command to its end."""
        run = self._started([str(SCRIPTS / "toolkit-installer"), *self.arguments(command, *more, engine=engine)])
        run.finish()
        return run

    def begin(self, command: str, *more: str, engine: str = "docker") -> Run:
        """Start a command in the background."""
        return self._started([str(SCRIPTS / "toolkit-installer"), *self.arguments(command, *more, engine=engine)])

    def close(self) -> None:
        """End all that still runs."""
        for run in self._runs:
            run.close()

    def _started(self, command: list[str]) -> Run:
        self._runs.append(Run(command))
        return self._runs[-1]


def _beneath(folder: str) -> Iterator[str]:
    """Yield the paths of all that a folder holds, each before what it holds itself; symlinks are not followed."""
    with os.scandir(folder) as found:
        inside = sorted(found, key=lambda each: each.name)
    for each in inside:
        yield each.path
        if each.is_dir(follow_symlinks=False):
            yield from _beneath(each.path)


def _entry(place: str) -> Entry:
    status = os.lstat(place)
    kind = stat.filemode(status.st_mode)[0]
    content: bytes | str = ""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    if kind == "l":
        content = os.readlink(place)
    elif kind == "-":
        with open(place, "rb", buffering=0) as stream:
            content = stream.readall()
    if kind in "-d":
        xattrs = tuple((name, os.getxattr(place, name)) for name in sorted(os.listxattr(place)))
    return Entry(kind, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid), content, xattrs)
