"""The made-up node: a folder with containerd's config.toml, a payload of a size, and our commands on them."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

from tests.bench import image_root
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


@dataclasses.dataclass(frozen=True)
class Place:
    """Where nodes are made. If the folder is inside of the unpacked `image`, that image's program is run on them."""

    folder: Path
    image: Path | None = None
    program: Path = PROGRAM
    """The program that is run outside of an image."""

    def within(self, name: str) -> Place:
        """Return a folder of this one."""
        return dataclasses.replace(self, folder=self.folder / name)

    def seen(self, path: Path) -> str:
        """Return the name that the program has for a file."""
        return str(path) if self.image is None else f"/{path.relative_to(self.image)}"

    def cost(self, *arguments: str) -> float:
        """Return what the program costs with these arguments."""
        return seconds([str(self.program) if self.image is None else image_root.PROGRAM, *arguments], self.image)

    def node(self, name: str, payload: Path, config: str = PLAIN, parts: int = 0) -> Node:
        """Make a node in a folder of this name."""
        return Node(self.folder / name, payload, config, parts, self)


class Node:
    """A node below `folder`, which is made anew each time that it is wanted fresh."""

    def __init__(
        self, folder: Path, payload: Path, config: str = PLAIN, parts: int = 0, place: Place | None = None
    ) -> None:
        self.folder = folder
        self.payload = payload
        self._place = place or Place(folder)
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

    def arguments(self, name: str, *more: str) -> list[str]:
        """Return what one of our commands is given for this node."""
        seen = self._place.seen
        source = ["--toolkit-source-root", seen(self.payload)] if name in {"run", "plan"} else []
        return [name, "--node-root", seen(self.folder), "--runtime", "containerd", *source, *more]

    def command(self, name: str, *more: str) -> list[str]:
        """Return one of our commands on this node, as the development environment has it."""
        return [str(PROGRAM), *self.arguments(name, *more)]

    def cost(self, name: str, *more: str) -> float:
        """Return what one of our commands costs on this node."""
        return self._place.cost(*self.arguments(name, *more))

    def first(self) -> float:
        """Return what a first install costs."""
        self.fresh()
        return self.converged()

    def converged(self) -> float:
        """Return what the next run costs, which finds nothing to do."""
        return self.cost("run", "--no-daemon")
