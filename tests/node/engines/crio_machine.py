"""A made-up node beside a CRI-O that answers: a stand-in, restarted where systemd would restart CRI-O."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from tests.node import faults
from tests.support import fake_crio
from tests.support.fake_node import FakeNode
from toolkit_installer.node import processes, signals, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.services import Services

SITE = '[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nmonitor_path = "/usr/bin/conmon"\n'
UNIT = "crio.service"
DEADLINE = 30.0


@dataclasses.dataclass
class Machine:
    """A node, the stand-in on it, and a systemd that knows its unit. Forked children restart it too."""

    node: FakeNode
    folder: Path
    flags: tuple[str, ...] = ()
    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    signals_only: bool = False
    """A fault: what should restart it sends SIGHUP."""
    stops_caller: bool = False
    """A kubelet has it stop the installer just when it is to end, which it does once the installer has ended."""
    children: list[subprocess.Popen[bytes]] = dataclasses.field(default_factory=list)

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def starts(self) -> int:
        """How often it was started."""
        return len((self.folder / "starts").read_text().splitlines())

    def start(self) -> None:
        """Start it and wait until it answers. Raises ProgramError if it does not start."""
        script = str(Path(fake_crio.__file__))
        command = [sys.executable, script, "--root", str(self.node.root), *self.flags]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | self.variables,
            )
        self.children.append(process)
        (self.folder / "pid").write_text(str(process.pid))
        with (self.folder / "starts").open("a") as starts:
            starts.write(f"{process.pid}\n")
        deadline = time.monotonic() + DEADLINE
        while (
            sockets.find_responding_peer(
                Node(str(self.node.root)).root, fake_crio.LISTEN, b"GET /info HTTP/1.0\r\n\r\n"
            )
            is None
        ):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ProgramError(f"it does not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def end(self) -> None:
        """End it, if it runs: by its PID, as it may be another process's child."""
        process = processes.inspect_process(self.pid)
        if process is None or "fake_crio.py" not in " ".join(process.arguments):
            return
        os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE
        while processes.inspect_process(self.pid) == process:
            assert time.monotonic() < deadline, "the stand-in does not end"
            time.sleep(0.02)

    def restart(self, unit: str) -> None:
        assert unit == UNIT
        if self.signals_only:
            os.kill(self.pid, signal.SIGHUP)
            return
        self.end()
        self.start()

    def do(self, command: str, *flags: str, engine: str = "crio") -> faults.Outcome:
        """Run a command of the program."""
        more = ("--no-daemon",) if command == "run" else ()

        def restart(_services: Services, unit: str, *, seconds: float, meanwhile: Callable[[], None]) -> None:
            assert seconds > 0
            if self.stops_caller:
                os.kill(os.getpid(), signal.SIGTERM)
            deadline = time.monotonic() + DEADLINE
            while True:  # as a program is waited for
                signals.raise_if_pending()
                meanwhile()
                if not self.stops_caller:
                    break
                assert time.monotonic() < deadline, "it waits for an engine that waits for it"
                time.sleep(0.02)
            self.restart(unit)

        with (
            mock.patch.object(Services, "knows", lambda _services, unit: unit == UNIT),
            mock.patch.object(Services, "restart", restart),
            mock.patch.object(processes, "_unit", return_value=UNIT),
        ):
            return faults.run(self.node, self.folder, command, *more, *flags, engine=engine)

    def good(self, command: str, *flags: str, engine: str = "crio") -> str:
        outcome = self.do(command, *flags, engine=engine)
        assert outcome.code == 0, outcome.output
        return outcome.output

    def handlers(self) -> dict[str, str]:
        """Return what the stand-in says that it runs with."""
        folder = os.open(self.node.place(fake_crio.LISTEN).parent, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(DEADLINE)
                connection.connect(f"/proc/self/fd/{folder}/crio.sock")  # a socket's path has 107 bytes at most
                connection.sendall(b"GET /config HTTP/1.0\r\n\r\n")
                said = b"".join(iter(lambda: connection.recv(65536), b""))
        finally:
            os.close(folder)
        runtimes = tomllib.loads(said.partition(b"\r\n\r\n")[2].decode())["crio"]["runtime"]["runtimes"]
        return {name: entry["runtime_path"] for name, entry in runtimes.items()}


@contextlib.contextmanager
def beside_crio(node: FakeNode, folder: Path) -> Iterator[Machine]:
    """Have a node with CRI-O's files; whatever was started of the stand-in is ended with the block."""
    for program in ("crun", "conmon"):
        node.write(f"/usr/bin/{program}", "", 0o755)
    node.write("/etc/crio/crio.conf.d/10-site.conf", SITE)
    machine = Machine(node, folder)
    try:
        yield machine
    finally:
        if (folder / "pid").exists():
            machine.end()
        for child in machine.children:
            child.wait(DEADLINE)


def etc(node: FakeNode) -> dict[str, object]:
    """Return what is in the node's /etc and /usr."""
    return {path: entry for path, entry in node.snapshot().items() if path.startswith(("/etc/", "/usr/"))}
