"""Plugins on a live engine's NRI socket: ours, NVIDIA's own, and what is between one of them and the engine."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.unit.nri import engine as wire

_PROGRAM = Path(__file__).with_name("program.py")
_SECONDS = 30
_READ = 1 << 16
_PRIORITY = 2


class Plugin:
    """Ours: program.py, with its words. It is ended when it is left."""

    def __init__(self, nri: Path, *words: str, namespaces: str = "gpu-operator", kinds: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(nri), namespaces, kinds, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._heard = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def told(self) -> list[Any]:
        """Return what happened next: its name, and what there is to say of it."""
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        while b"\n" not in self._heard:
            with selectors.DefaultSelector() as selector:
                selector.register(stdout, selectors.EVENT_READ)
                assert selector.select(_SECONDS), "the plugin says nothing"
            data = os.read(stdout, _READ)
            assert data, self.finish()
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        told: list[Any] = json.loads(line)
        return told

    def until(self, name: str) -> list[Any]:
        """Return the next event of this name; those before are passed over."""
        while (told := self.told())[0] != name:
            pass
        return told

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def finish(self) -> tuple[int, str]:
        """Return the exit code and what it says on stderr, once it has ended by itself."""
        _, errors = self._process.communicate(timeout=_SECONDS)
        return self._process.returncode, errors.decode()

    def end(self) -> int:
        """Tell it to end and return its exit code."""
        self._process.communicate(timeout=_SECONDS)  # which closes its stdin
        return self._process.returncode


class Recorder:
    """Between an engine's socket and one plugin, which connects to `path`. It notes what each says, and when.

    Its thread has a higher priority than the plugin, where that is allowed: what it waits for is the plugin alone.
    """

    def __init__(self, nri: Path, path: Path) -> None:
        self.path = path
        self.by_engine = bytearray()
        self.by_plugin = bytearray()
        self._pieces: list[tuple[float, bool]] = []
        """When a piece came, by time.perf_counter(), and whether it was the plugin's."""
        self._nri = nri
        self._said = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run)
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in self._ends[:1]:  # the thread ends both
            with contextlib.suppress(OSError):  # it has done so by now
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def wait_for(self, calls: int) -> None:
        """Wait until the plugin has answered so many calls."""
        with self._said:
            assert self._said.wait_for(lambda: len(wire.answers(bytes(self.by_plugin))) >= calls, _SECONDS)

    def connected(self) -> bool:
        """Tell whether neither of the two has ended the connection."""
        return bool(self._ends)

    def waits(self) -> list[float]:
        """Return for each answer how many seconds the engine waited for it, since the last piece of what it asked.

        An engine asks a plugin one thing at a time: containerd holds a lock meanwhile, CRI-O likewise.
        """
        with self._said:
            pairs = list(itertools.pairwise(self._pieces))
        return [end - start for (start, before), (end, after) in pairs if (before, after) == (False, True)]

    def _run(self) -> None:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))  # of this thread
        try:
            plugin, _ = self._listener.accept()
        except OSError:
            return  # it was left without a plugin
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(str(self._nri))
        self._ends = [plugin, engine]
        with plugin, engine, selectors.DefaultSelector() as selector:
            selector.register(plugin, selectors.EVENT_READ, (engine, self.by_plugin))
            selector.register(engine, selectors.EVENT_READ, (plugin, self.by_engine))
            while True:
                for key, _ in selector.select():
                    other, noted = key.data
                    data = key.fileobj.recv(_READ)  # type: ignore[union-attr]  # it is a socket
                    if not data:
                        self._ends = []
                        return
                    came = time.perf_counter()
                    with self._said:
                        self._pieces.append((came, other is engine))
                        noted += data
                        self._said.notify_all()
                    other.sendall(data)


class Peer:
    """NVIDIA's own installer, with its plugin."""

    def __init__(
        self, program: Path, nri: Path, folder: Path, payload: Path, *, namespace: str = "gpu-operator"
    ) -> None:
        command = [
            *(str(program), "--runtime", "containerd", "--restart-mode", "none"),
            *("--enable-nri-plugin", "--nri-socket", str(nri), "--nri-namespace", namespace),
            *("--toolkit-install-dir", str(folder / "peer"), "--toolkit-source-root", str(payload)),
            *("--pid-file", str(folder / "peer-pid" / "toolkit.pid")),
        ]
        (folder / "peer-pid").mkdir(exist_ok=True)
        self._log = folder / "peer.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)

    def log(self) -> str:
        return self._log.read_text()
