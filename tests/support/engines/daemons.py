"""Real engines for tests: dockerd and containerd as a distribution ships them, each in a folder of its own.

Nothing is shared with an engine that the machine itself runs: configuration, state, sockets and log lie below the
folder that an engine is given, and `close()` leaves neither process nor mount behind, whatever happened before.
"""

from __future__ import annotations

import abc
import http.client
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.support.built.releases import Release
from tests.support.engines import cri_client, leftovers
from tests.support.engines.cri_client import CriStatusError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLL = 0.02
SPARING = {"GOGC": "400", "GOMAXPROCS": "1"}
"""What Go's programs are started with: they look for garbage less often, a tenth of their work, as memory is there; and
wake no second thread to look for something to do, another."""
_ANSWER_SECONDS = 10


class EngineError(Exception):
    """The engine did not start, did not answer or did not stop."""


class Engine(abc.ABC):
    """A daemon that can be started, stopped and asked: this machine's own, or another release's."""

    programs: tuple[str, ...]
    """What has to be installed, by name."""
    config: Path
    """The file that it reads."""
    answers_within = 60.0
    """Seconds that a start may take."""

    def __init__(
        self, folder: Path, name: str, release: Release | None = None, programs_in: Path | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.release = release
        self.enter: tuple[str, ...] = ()
        """What to put before its command so that it runs in other namespaces; itself, not as a child."""
        folders = [*([programs_in] if programs_in is not None else ()), *(release.folders if release else ())]
        self.path = ":".join([*map(str, folders), PATH])
        """Where its programs, and those that they start, are looked for."""
        self.socket = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        self.starts = 0
        self.started_at = 0.0
        """When it was last started, by time.monotonic()."""
        self.start_took = 0.0
        """Seconds from the last start to the first answer."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def missing(cls) -> list[str]:
        """Return the programs that are not installed."""
        return [program for program in cls.programs if shutil.which(program, path=PATH) is None]

    @abc.abstractmethod
    def command(self) -> list[str]:
        """Return the command line."""

    @abc.abstractmethod
    def info(self) -> dict[str, Any]:
        """Return what the live engine says of itself. Raises EngineError when it does not answer."""

    @abc.abstractmethod
    def handlers(self) -> dict[str, str]:
        """Return the live engine's handlers and the executable of each, empty where the engine's default is used."""

    @abc.abstractmethod
    def default_handler(self) -> str:
        """Return the handler that a container gets which asks for none."""

    @property
    def pid(self) -> int:
        """The process ID of the last start. Raises EngineError before the first."""
        if self._process is None:
            raise EngineError(f"{self.name} was not started")
        return self._process.pid

    def alive(self) -> bool:
        """Tell whether the process started last still runs. (A zombie does not: poll() reaps it.)"""
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        """Tell whether the engine is ready to be used."""
        try:
            self.info()
        except EngineError:
            return False
        return True

    def start(self) -> None:
        """Start the engine and wait until it answers. Raises EngineError with the end of its log."""
        if self.alive():
            raise EngineError(f"{self.name} runs already, PID {self.pid}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {"PATH": self.path, "LANG": "C.UTF-8", **SPARING, leftovers.MARK: str(self.folder)}
        # It ends with the tests even where these are killed and no finalizer runs.
        program, *arguments = self.command()
        binary = shutil.which(program, path=self.path)
        if binary is None:
            raise EngineError(f"{program} is not installed in {self.path}")
        # HUP is what it is reloaded by: below `nohup make e2e` it would not hear it.
        command = [*self.enter, "env", "--default-signal=HUP", "setpriv", "--pdeathsig", "TERM", binary, *arguments]
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.starts += 1
        while not self.answers():
            if not self.alive():
                raise EngineError(f"{self.name} exited {self._process.returncode} at its start:\n{self.log_tail()}")
            if time.monotonic() - self.started_at > self.answers_within:
                raise EngineError(f"{self.name} gave no answer in {self.answers_within:g} s:\n{self.log_tail()}")
            time.sleep(_POLL)
        self.start_took = time.monotonic() - self.started_at

    def stop(self, *, within: float = 20.0) -> None:
        """End the daemon with SIGTERM; containers stay, as with systemd. Raises EngineError where it takes SIGKILL."""
        if self._process is None or not self.alive():
            return
        self._process.terminate()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise EngineError(f"{self.name} did not end in {within:g} s:\n{self.log_tail()}") from None

    def kill(self) -> None:
        """End the daemon with SIGKILL; containers stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop and start the daemon: it reads its configuration anew."""
        self.stop()
        self.start()

    def shut_down(self) -> None:
        """Stop the daemon and those that it needs."""
        self.stop()

    def close(self) -> None:
        """Stop the engine and take away whatever it left: processes and mounts."""
        try:
            self.shut_down()
        finally:
            leftovers.sweep(self.folder)

    def log_count(self, text: str) -> int:
        """Return how many lines of the log contain `text`."""
        return sum(text in line for line in self.log.read_text(errors="replace").splitlines())

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def cri_status(name: str, path: Path) -> dict[str, Any]:
    """Return the verbose Status of the CRI on a socket as cri_program.py tells it. Raises EngineError."""
    if not path.exists():  # nobody is waited for who is not there
        raise EngineError(f"{name} has no socket")
    try:
        answer = cri_client.status(path, _ANSWER_SECONDS)
    except CriStatusError as error:
        raise EngineError(f"the CRI of {name} does not answer: {error}") from error
    if not answer["conditions"].get("RuntimeReady"):
        raise EngineError(f"the CRI of {name} is not ready: {answer['conditions']}")
    return answer


class ContainerdEngine(Engine):
    """containerd. `config` is the caller's to write before the start; it needs `version` and the CRI's tables only.

    Where `programs_in` names a folder, its containerd is taken, with the release's runc.
    """

    programs = ("containerd", "runc", "setpriv")

    def __init__(self, folder: Path, release: Release | None = None, programs_in: Path | None = None) -> None:
        super().__init__(folder, "containerd", release, programs_in)
        self.config = folder / "config.toml"

    def command(self) -> list[str]:
        """Return the command line; what it says goes before the file."""
        places = {"--root": self.folder / "root", "--state": self.folder / "state", "--address": self.socket}
        return ["containerd", "--config", str(self.config), *(f"{flag}={path}" for flag, path in places.items())]

    def info(self) -> dict[str, Any]:
        """Return the CRI's verbose Status as cri_program.py tells it."""
        return cri_status(self.name, self.socket)

    def runtimes(self) -> dict[str, dict[str, Any]]:
        """Return the live CRI's runtimes map."""
        runtimes: dict[str, dict[str, Any]] = self.info()["config"]["containerd"]["runtimes"]
        return runtimes

    def handlers(self) -> dict[str, str]:
        """Return each handler's `BinaryName`."""
        return {name: str((table["options"] or {}).get("BinaryName", "")) for name, table in self.runtimes().items()}

    def default_handler(self) -> str:
        """Return the CRI's default runtime name."""
        return str(self.info()["config"]["containerd"]["defaultRuntimeName"])


class _DockersContainerd(ContainerdEngine):
    """The containerd below dockerd: no CRI, so it is asked by its socket alone."""

    def __init__(self, folder: Path, release: Release | None = None) -> None:
        super().__init__(folder, release)
        # "opt" makes /opt/containerd. Its neighbours are off in dockerd's own arrangement as well.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config.write_text(
            'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        )

    def info(self) -> dict[str, Any]:
        """Return nothing, once containerd greets (its HTTP/2 settings come unasked)."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            try:
                client.connect(str(self.socket))
                if client.recv(1):
                    return {}
            except OSError as error:
                raise EngineError(f"{self.name} does not answer: {error}") from error
        raise EngineError(f"{self.name} closed the connection")


class DockerEngine(Engine):
    """dockerd, with a containerd of its own. `config` is the caller's to write before the start."""

    programs: tuple[str, ...] = ("dockerd", *ContainerdEngine.programs)

    def __init__(self, folder: Path, release: Release | None = None) -> None:
        super().__init__(folder, "docker", release)
        self.config = folder / "daemon.json"
        self.containerd = _DockersContainerd(folder / "containerd", release)
        self._made_outside: list[Path] = []

    def command(self) -> list[str]:
        """Return the command line: no network, no state elsewhere, and no directive that belongs in daemon.json."""
        places = {
            "--config-file": self.config,
            "--data-root": self.folder / "data",
            "--exec-root": self.folder / "exec",
            "--pidfile": self.folder / "docker.pid",
            "--containerd": self.containerd.socket,
            "--host": f"unix://{self.socket}",
        }
        network = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs")
        return ["dockerd", *(f"{flag}={place}" for flag, place in places.items()), *network]

    def start(self) -> None:
        """Start containerd where it does not run, then dockerd."""
        if not self.containerd.alive():
            self.containerd.enter = self.enter
            self.containerd.start()
        # Before version 23 every start makes this file if it is missing, and no option tells it not to.
        self._made_outside += [path for path in (Path("/etc/docker/key.json"),) if not path.exists()]
        super().start()

    def shut_down(self) -> None:
        """Stop dockerd first: it needs its containerd for an orderly end."""
        try:
            self.stop()
        finally:
            self.containerd.stop()
            for path in self._made_outside:
                path.unlink(missing_ok=True)
            self._made_outside.clear()

    def info(self) -> dict[str, Any]:
        """Return the answer to `GET /info`."""
        connection = UnixConnection(self.socket)
        try:
            connection.request("GET", "/info")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EngineError(f"dockerd does not answer: {error!r}") from error
        finally:
            connection.close()
        if "Runtimes" not in answer:
            raise EngineError(f"dockerd does not say its runtimes: {answer}")
        return answer

    def handlers(self) -> dict[str, str]:
        """Return each runtime's path."""
        return {name: runtime.get("path", "") for name, runtime in self.info()["Runtimes"].items()}

    def default_handler(self) -> str:
        """Return dockerd's default runtime."""
        return str(self.info()["DefaultRuntime"])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
