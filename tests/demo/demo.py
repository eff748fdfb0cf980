"""Shows the whole job on a fake node: install, second run, stop; with the tree, the diffs, and every byte back.

No root privileges, no engine and no GPU are needed; the node is a folder that is thrown away at the end. On a terminal
the program's own lines look as they look there.
"""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script, from anywhere

from tests.support import payloads
from toolkit_installer.documents import diff
from toolkit_installer.errors import ExitCode

PROGRAM = Path(sys.executable).parent / "toolkit-installer"
DEADLINE = 30.0
INTRODUCTION = """
This shows the whole job on two made-up nodes, which are folders that are removed at the end. The toolkit is
installed, the engine's file gets the handlers, a second instance is refused, and the program is killed and
started again. When it is told to stop, every byte comes back. One node has docker's configuration, and the
other one has containerd's. No engine runs on these nodes, by design.
"""
BY_DESIGN = ("does not answer", "was not reloaded")
"""What the program says of an engine that does not run."""

DAEMON_JSON = """{
\t"log-driver":   "json-file",
\t"log-opts": {"max-size": "10m",   "max-file": "3"},

\t"registry-mirrors": [ "https://mirror.example" ],   "max-concurrent-downloads": 1e1
}
"""

CONFIG_TOML = """\
# Managed by the platform team. Ask in #platform before you touch this.
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.example/pause:3.9"   # pinned: see the runbook

    [plugins."io.containerd.grpc.v1.cri".containerd]
      # overlayfs only: the disks are xfs
      snapshotter = "overlayfs"
      default_runtime_name = "runc"  # nothing else, please

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true

    [plugins."io.containerd.grpc.v1.cri".registry.configs."registry.example".auth]
      password = "correct horse battery staple"
"""

CONFIGS = {
    "docker": ("etc/docker/daemon.json", DAEMON_JSON),
    "containerd": ("etc/containerd/config.toml", CONFIG_TOML),
}

COLOR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOR else text


def title(text: str) -> None:
    print(f"\n{paint(f'── {text} ', '1;36')}{paint('─' * max(0, 96 - len(text)), '36')}")


def say(text: str) -> None:
    print(paint(f"   {text}", "2"))


def check(good: bool, text: str) -> None:  # noqa: FBT001  # what was found, not a switch
    print(paint(f"   ✔ {text}", "32") if good else paint(f"   ✘ {text}", "1;31"))
    if not good:
        sys.exit(1)


def snapshot(node: Path) -> dict[str, tuple[int, int, int, bytes | str | None]]:
    """Return mode, owner and content of everything on the node."""
    found = {}
    for path in sorted(node.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(node))] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


def times(node: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in node.rglob("*") if path.is_file()}


def show_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        depth = len(path.relative_to(folder).parts) - 1
        arrow = f" -> {os.readlink(path)}" if path.is_symlink() else ""
        size = f"  {path.stat().st_size} B" if path.is_file() and not path.is_symlink() else ""
        name = paint(path.name + "/", "34") if path.is_dir() else path.name
        print(f"   {'   ' * depth}{name}{paint(arrow + size, '2')}")


def show_log(line: str) -> None:
    print(f"   {paint('log', '35')} {line}")
    if any(each in line for each in BY_DESIGN):
        say("    by design: no engine runs on this made-up node")


class Running:
    """The installer in the background."""

    def __init__(self, *arguments: str) -> None:
        # on a terminal of its own it says what it says as on any
        reading, writing = pty.openpty() if COLOR else os.pipe()
        self.process = subprocess.Popen([PROGRAM, "run", *arguments], stderr=writing)
        os.close(writing)
        self._said = os.fdopen(reading, "rb", buffering=0)

    def lines(self) -> Iterator[str]:
        """Yield what it says, line by line, until it has ended."""
        return (shown(line.decode()) for line in _until_closed(self._said))

    def until(self, text: str) -> None:
        """Show its log up to the line with `text`."""
        for line in self.lines():
            show_log(line)
            if text in line:
                return
        check(False, f"the log ends without {text!r}")  # noqa: FBT003

    def end(self) -> int:
        """Show the rest of its log, and return its exit code."""
        for line in self.lines():
            show_log(line)
        self._said.close()
        return self.process.wait(DEADLINE)

    def stop(self) -> int:
        """Tell it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()


def shown(line: str) -> str:
    """Return what a terminal shows of a line in the end: on a slow machine a bar may have been there before."""
    return line.rstrip("\r\n").rpartition("\r\x1b[K")[2]


def _until_closed(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines until nobody writes any more, which a terminal tells by an error."""
    try:
        yield from iter(stream.readline, b"")
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def demonstrate(engine: str, node: Path, payload: Path) -> None:
    place, text = CONFIGS[engine]
    path = node / place
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o640)
    before = snapshot(node)
    arguments = ["--runtime", engine, "--node-root", str(node), "--toolkit-source-root", str(payload)]

    title(f"{engine}: install")
    say(f"toolkit-installer run --runtime {engine} --node-root NODE --toolkit-source-root PAYLOAD")
    run = Running(*arguments)
    run.until("Waiting for signal")
    title(f"{engine}: what changed in /{place}")
    print(diff.format_diff(f"/{place}", before[place][3], path.read_bytes(), color=COLOR), end="")  # type: ignore[arg-type]
    title(f"{engine}: what is on the node now")
    show_tree(node / "usr/local/nvidia/toolkit")

    title(f"{engine}: a second instance is refused")
    refused = Running(*arguments).end()
    check(refused == ExitCode.ALREADY_RUNNING, "exit 4, and the first one's PID is named")

    title(f"{engine}: killed, and started again")
    run.process.kill()
    run.process.wait(DEADLINE)
    untouched = times(node / "etc") | times(node / "usr")
    again = Running(*arguments)
    again.until("Waiting for signal")
    check(times(node / "etc") | times(node / "usr") == untouched, "the second run wrote nothing")

    title(f"{engine}: stopped by SIGTERM")
    check(again.stop() == ExitCode.DONE, "exit 0")
    check(snapshot(node) == before, "every byte, mode and owner is back, and nothing is left over")


if __name__ == "__main__":
    started = time.monotonic()
    print(INTRODUCTION.strip())
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-demo-") as scratch:
        payload_root = payloads.build(Path(scratch, "payload"))
        for name in CONFIGS:
            demonstrate(name, Path(scratch, f"{name}-node"), payload_root)
    title(f"done in {time.monotonic() - started:.1f} s")
