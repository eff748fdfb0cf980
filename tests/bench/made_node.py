"""The made-up node: a folder with containerd's config.toml, a payload of a size, and our commands on them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.bench.measuring import seconds
from tests.support import payloads

PROGRAM = Path(sys.executable).parent / "toolkit-installer"
PLAIN = "version = 2\n"


def payload_of(folder: Path, megabytes: int) -> Path:
    """Write a payload of this size; its files are equally large, and of bytes that no file system can leave out."""
    payload = payloads.build(folder)
    files = [path for path in payload.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".toml"]
    for path in files:
        with path.open("ab") as stream:
            for _ in range(megabytes * 16 // len(files)):
                stream.write(os.urandom(1_000_000 // 16))
    return payload


class Node:
    """A node below `folder`, which is made anew each time that it is wanted fresh."""

    def __init__(self, folder: Path, payload: Path, config: str = PLAIN, parts: int = 0) -> None:
        self.folder = folder
        self.payload = payload
        self._config = config
        self._parts = parts
        self.fresh()

    def fresh(self) -> None:
        """Make it as it was before anything was installed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        config = self.folder / "etc/containerd/config.toml"
        config.parent.mkdir(parents=True)
        text = self._config
        for number in range(self._parts):
            part = self.folder / f"etc/containerd/parts/{number}.toml"
            part.parent.mkdir(exist_ok=True)
            part.write_text(f'version = 2\n[plugins."example.{number}"]\n  value = {number}\n')
        if self._parts:
            text = f'imports = ["/etc/containerd/parts/*.toml"]\n{text}'
        config.write_text(text)

    def command(self, name: str, *more: str) -> list[str]:
        """Return one of our commands on this node."""
        source = ["--toolkit-source-root", str(self.payload)] if name in {"run", "plan"} else []
        return [str(PROGRAM), name, "--node-root", str(self.folder), "--runtime", "containerd", *source, *more]

    def first(self) -> float:
        """Return what a first install costs."""
        self.fresh()
        return self.converged()

    def converged(self) -> float:
        """Return what the next run costs, which finds nothing to do."""
        return seconds(self.command("run", "--no-daemon"))
