"""Golden cases of containerd's files: `tests/data/containerd/CASE/`, and what the adapter makes of one.

`in` and `out` are what /etc/containerd holds before and while we are installed; files that stay as they are stand in
`in` alone. `case.toml`: a `note`; the release that is `live` (none: no daemon runs); the engine's `variables`; what is
`exit` and what is said (`says`) of a case that is refused; the containerds that are to see the handlers (`reads`);
why the `peer` differs.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from toolkit_installer.cli.options.build import build
from toolkit_installer.engines.api import DesiredState, EngineFile, Inspection, LiveState, RecordedFile
from toolkit_installer.engines.containerd import config
from toolkit_installer.engines.containerd import inspection as containerd_inspection
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import ContainerdInspection
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName, Program

DATA = Path(__file__).parents[1] / "data" / "containerd"
FOLDER = "/etc/containerd"
TOOLKIT = "/usr/local/nvidia/toolkit"
HANDLERS = tuple(
    Handler(name, f"{TOOLKIT}/nvidia-container-runtime{end}")
    for name, end in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One case."""

    folder: Path
    about: dict[str, Any]

    def __str__(self) -> str:
        return self.folder.name

    @property
    def refused(self) -> bool:
        """Whether it is not to be installed."""
        return "exit" in self.about

    def before(self) -> dict[str, bytes]:
        """Return what the folder holds, by path below it."""
        return _files(self.folder / "in")

    def after(self) -> dict[str, bytes]:
        """Return what it is to hold while we are installed."""
        return self.before() | _files(self.folder / "out")

    def write(self, after: dict[str, bytes]) -> None:
        """Make this what it is to hold."""
        for name, content in after.items():
            if content != self.before().get(name):
                place = self.folder / "out" / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)


def cases() -> list[Case]:
    """Return all cases."""
    return [Case(each.parent, tomllib.loads(each.read_text())) for each in sorted(DATA.glob("*/case.toml"))]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def put(files: dict[str, bytes], root: Path) -> None:
    """Write files into the containerd folder below `root`."""
    for name, content in files.items():
        place = root / FOLDER.lstrip("/") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


@dataclasses.dataclass(frozen=True)
class Made:
    """What the adapter made of a case."""

    inspection: ContainerdInspection
    desired: DesiredState

    def after(self, before: dict[str, bytes]) -> dict[str, bytes]:
        """Return what the folder would hold."""
        result = dict(before)
        for goal in self.desired.files:
            if goal.target is not None:
                result[goal.path.removeprefix(f"{FOLDER}/")] = goal.target
        return result


def make(case: Case, root: Path) -> Made:
    """Put the case's files below `root` and ask the adapter. Raises InstallerError."""
    put(case.before(), root)
    engine = build(
        {}, {"RUNTIME": "containerd", **case.about.get("variables", {})}, Program.NVIDIA_CTK_INSTALLER
    ).engine
    target = EngineTarget(EngineName.CONTAINERD, engine, detected=case.about.get("recognised", False))
    release = case.about.get("live")
    live = LiveState(release, {"runc": None}, "runc") if release is not None else None
    inspection = containerd_inspection.inspect_own(
        Node(str(root)), target, Inspection("/run/containerd/containerd.sock", (), live)
    )
    inspection = msgspec.structs.replace(inspection, kubelet=case.about.get("kubelet"))
    return Made(
        inspection, Containerd().build_desired_state(inspection, Request(target, HANDLERS, "nvidia", TOOLKIT), {})
    )


def taken_back(made: Made, *, touched: bool) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Return what each file was and what cleanup would leave of it; `touched`: somebody has added THEIRS meanwhile."""
    result = {}
    for goal in made.desired.files:
        now = goal.target
        if touched:
            if now is None:
                continue  # there is nothing to add to
            now = b"".join([FIRST_OF_THEIRS, now, b"" if now.endswith(b"\n") or not now else b"\n", LAST_OF_THEIRS])
        found = None if now is None else Found(goal.path, now, _METADATA, _IDENTITY)
        memory = RecordedFile(goal.base, frozenset({digest_of(goal.target or b"")}), goal.ownership)
        left = Containerd().remove_ours(EngineFile(goal.role, goal.path, found), memory, TOOLKIT)
        result[goal.path] = (goal.base, left.base)
    return result


def given_back(
    made: Made, ours: bytes, edit: bytes, *, recorded: bool
) -> list[tuple[bytes | None, bytes | None, tuple[str, ...]]]:
    """Return what each file with `ours` was, what cleanup leaves once that is `edit`, and what it says.

    `recorded`: there is a receipt; else what is ours has to be recognised.
    """
    result = []
    for goal in made.desired.files:
        if goal.target is None or ours not in goal.target:
            continue
        now = goal.target.replace(ours, edit)
        memory = RecordedFile(ownership=config.find_unrecorded(now, whole=False))
        if recorded:
            memory = RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)
        found = Found(goal.path, now, _METADATA, _IDENTITY)
        left = Containerd().remove_ours(EngineFile(goal.role, goal.path, found), memory, TOOLKIT)
        result.append((goal.base, left.base, left.left))
    return result


FIRST_OF_THEIRS = b"# theirs, at the top\n"
LAST_OF_THEIRS = b'[theirs]  # and at the end\n  key = "value"'
THEIRS = {"theirs": {"key": "value"}}
_METADATA = Metadata(0o644, 0, 0)
_IDENTITY = FileIdentity(1, 2, 3, 4, 5)
