"""Nodes as distributions lay them out: `tests/data/DISTRIBUTION/CASE/` has a NOTE, the files before, those that change.

`in/` is the node's `/`, as far as it matters; `out/` has the files that differ while we are installed, and no others.
`left/`, where an older installer's entries were there before, has the files without them, as cleanup leaves them.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from tests.support.fake_node import FakeNode

DATA = Path(__file__).parents[1] / "data"
_OWN_PLACES = ("usr/local/nvidia", "run/nvidia")
WRITE = os.environ.get("DISTRIBUTION_FILES") == "write"
"""Write the expected files anew, to be read before use."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One node of one distribution."""

    distribution: str
    name: str

    def __str__(self) -> str:
        return f"{self.distribution}-{self.name}"

    @property
    def folder(self) -> Path:
        return DATA / self.distribution / self.name

    def put(self, node: FakeNode) -> None:
        """Lay its files out on a node."""
        shutil.copytree(self.folder / "in", node.root, symlinks=True, dirs_exist_ok=True)
        for place in node.root.rglob("bin/*"):
            place.chmod(0o755)

    def read(self, path: str) -> bytes:
        """Return one of its files as it is before."""
        return (self.folder / "in" / path.lstrip("/")).read_bytes()

    def expected(self) -> dict[str, bytes]:
        """Return the files that differ while we are installed, by their path on the node."""
        return _files(self.folder / "out")

    def left(self) -> dict[str, bytes]:
        """Return the files that cleanup leaves otherwise than they were."""
        return _files(self.folder / "left")

    def changed(self, node: FakeNode) -> dict[str, bytes]:
        """Return the files of a node that are not as the case has them."""
        before = _files(self.folder / "in")
        return {path: content for path, content in _files(node.root).items() if before.get(path) != content}

    def write(self, files: dict[str, bytes]) -> None:
        """Make these the expected files."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        for path, content in files.items():
            place = self.folder / "out" / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def cases() -> list[Case]:
    """Return all cases: the folders of `tests/data` whose cases have a NOTE."""
    return [Case(note.parent.parent.name, note.parent.name) for note in sorted(DATA.glob("*/*/NOTE"))]


def _files(root: Path) -> dict[str, bytes]:
    found = {}
    for place in sorted(root.rglob("*")):
        name = str(place.relative_to(root))
        if place.is_file() and not place.is_symlink() and not name.startswith(_OWN_PLACES):
            found[f"/{name}"] = place.read_bytes()
    return found
