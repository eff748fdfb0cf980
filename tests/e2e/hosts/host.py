"""A whole machine for tests: systemd as PID 1, with containerd and docker as their distribution's units run them.

It has its own processes, mounts, host name, IPC and control groups, and shares the kernel and the network. Its files
are an overlay of this machine's: what is changed is in memory, and gone with it. The script host makes it.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from tests.support.engines.daemons import PATH, SPARING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.hosts.hardware import Hardware
    from tests.support.built.releases import Release

CHECKOUT = Path(__file__).parents[3]
TARGET = "test-host.target"
PROGRAMS = ("unshare", "nsenter", "setpriv", "findmnt", "systemctl")
_SCRIPT = Path(__file__).with_name("host")
_POLL = 0.1  # each time that it is asked whether it is up, two programs are started
_LEFTOVERS = 99
"""The script's exit code where it could not take everything away."""


class HostError(Exception):
    """The machine did not start, did not end, or a command failed in it."""


class Host:
    """A machine below `folder`, with the engines of `release` or this machine's own.

    The checkout and the folders `shown` are there under the same paths, read-only. With `hardware`, whose disk `folder`
    is then, it has a network of its own, and may be started again after it was closed: what was on its disk is there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        release: Release | None = None,
        shown: Iterable[Path] = (),
        hardware: Hardware | None = None,
    ) -> None:
        self.folder = folder
        self._hardware = hardware
        self.name = f"toolkit-test-{uuid.uuid4().hex[:12]}"
        self.log = folder.with_name(f"{folder.name}.log")
        self._release = release
        self._shown = (CHECKOUT, *((release.root.parent,) if release is not None else ()), *shown)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its PID 1, as seen from here."""
        return self._pid

    def start(self, *, within: float = 60.0) -> None:
        """Start it, and wait until its systemd is up. Raises HostError."""
        self.folder.mkdir(parents=True, exist_ok=self._hardware is not None)
        engines = str(self._release.root) if self._release is not None else ""
        # It ends with the tests even where these are killed and no finalizer runs.
        below = self._hardware.enter if self._hardware is not None else ()
        command = ["setpriv", "--pdeathsig", "TERM", *below, _SCRIPT, self.name, self.folder, engines, *self._shown]
        self._pid = 0
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": PATH, "LANG": "C.UTF-8", **SPARING},
                start_new_session=True,
            )
        try:
            self._wait_until_up(self._keeper, time.monotonic() + within)
        except BaseException:
            self.close()
            raise

    def _wait_until_up(self, keeper: subprocess.Popen[bytes], deadline: float) -> None:
        while not self._up(keeper):
            if keeper.poll() is not None or time.monotonic() > deadline:
                raise HostError(f"the machine did not start:\n{self.log.read_text(errors='replace')}")
            time.sleep(_POLL)

    def _up(self, keeper: subprocess.Popen[bytes]) -> bool:
        """Tell whether its systemd has reached its target."""
        if not self._pid:
            self._pid = next((pid for pid in _below(keeper.pid) if _is_systemd(pid)), 0)
        return bool(self._pid) and self.run("systemctl", "is-active", TARGET, check=False).returncode == 0

    def close(self, *, within: float = 60.0) -> None:
        """End it: its processes, its mounts, its control groups. Raises HostError where something is left."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.terminate()
        try:
            keeper.wait(within)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            raise HostError(f"the machine did not end in {within:g} s") from None
        if keeper.returncode == _LEFTOVERS:
            raise HostError(f"the machine left something behind:\n{self.log.read_text(errors='replace')}")

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before a command so that it runs in the machine, as a child of what is started."""
        network = ("--net",) if self._hardware is not None else ()
        return ("nsenter", f"--target={self._pid}", "--mount", "--uts", "--ipc", "--pid", "--cgroup", *network)

    def run(
        self, *command: str | Path, check: bool = True, within: float = 60.0, given: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it. Raises HostError with what it said where it fails and that was not expected."""
        done = subprocess.run(
            [*self.enter, *command],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=within,
            env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", **SPARING},
        )
        if check and done.returncode:
            words = " ".join(map(str, command))
            raise HostError(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def path(self, path: str | Path) -> Path:
        """Return where a file of the machine is seen from here; an absolute symlink on the way leads astray."""
        return Path(f"/proc/{self._pid}/root") / Path(path).relative_to("/")

    def property(self, unit: str, name: str) -> str:
        """Return a unit's property, such as `MainPID`."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """Return all that a unit, and systemd of it, said."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout


def _below(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _is_systemd(pid: int) -> bool:
    """Tell whether a process is the first of its namespace, and has become systemd."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status["Name"] == "systemd" and status["NSpid"].split()[-1] == "1"
