"""A node with one engine, and what an administrator and other installers do to its file beside the program."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.node.drift import FOLDERS, content_of, put
from tests.node.faults import Outcome, run
from tests.support.fake_node import CONFIG_TOML, CRIO_DROP_IN, DAEMON_JSON, STORE, TOOLKIT, FakeNode
from toolkit_installer.documents import json_document, toml_document
from toolkit_installer.documents.changes import ABSENT, Change, Remove, Set, Table, lookup
from toolkit_installer.documents.changes import Path as Keys

OURS = ("nvidia", "nvidia-cdi", "nvidia-legacy")
RESET = "runc"
"""What NVIDIA's cleanup makes docker's default where its handler was that."""
PEERS = "/usr/bin/nvidia-container-runtime"
PROGRAMS = ("/usr/bin/crun", "/usr/bin/kata", PEERS)
_CRI: Keys = ("plugins", "io.containerd.grpc.v1.cri")


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine's file: what it holds before us, and where it keeps what is edited."""

    name: str
    path: str
    content: bytes
    runtimes: Keys
    default: Keys
    other: Keys
    entry: Callable[[str], Table]
    executable: Keys

    def __str__(self) -> str:
        return self.name

    def parse(self, content: bytes) -> Table:
        if self.name == "docker":
            return json.loads(content)  # type: ignore[no-any-return]
        return tomllib.loads(content.decode())

    def edit(self, content: bytes, changes: list[Change]) -> bytes:
        if self.name == "docker":
            return json_document.edit(content, changes)
        return toml_document.edit(content, changes, marker="theirs")

    def executables(self, document: Table) -> dict[str, str]:
        found = lookup(document, self.runtimes)
        named = {name: lookup(entry, self.executable) for name, entry in (found or {}).items()}
        return {name: path for name, path in named.items() if path is not ABSENT}


ENGINES = (
    Engine(
        "docker",
        DAEMON_JSON,
        b"""\
{
  "log-level": "info",
  "default-runtime": "crun",
  "runtimes": {"crun": {"path": "/usr/bin/crun"}}
}
""",
        ("runtimes",),
        ("default-runtime",),
        ("log-level",),
        lambda path: {"path": path, "args": []},
        ("path",),
    ),
    Engine(
        "containerd",
        CONFIG_TOML,
        b"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "crun" # chosen with care
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
      BinaryName = "/usr/bin/crun"
[debug]
  level = "info"
""",
        (*_CRI, "containerd", "runtimes"),
        (*_CRI, "containerd", "default_runtime_name"),
        ("debug", "level"),
        lambda path: {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": path}},
        ("options", "BinaryName"),
    ),
    Engine(
        "crio",
        CRIO_DROP_IN,
        b"""\
[crio.runtime]
log_level = "info"
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
[crio.image]
pause_image = "registry.example/pause:3.9"
""",
        ("crio", "runtime", "runtimes"),
        ("crio", "runtime", "default_runtime"),
        ("crio", "runtime", "log_level"),
        lambda path: {"runtime_path": path, "runtime_type": "oci"},
        ("runtime_path",),
    ),
)


class World:
    """A node with one engine, and what an administrator set last in its file."""

    def __init__(self, engine: Engine, folder: Path, payloads: tuple[Path, Path]) -> None:
        self.engine, self.folder, self.payloads = engine, folder, payloads
        root = folder / "node"
        shutil.rmtree(root, ignore_errors=True)
        for place in (*FOLDERS, "etc/crio/crio.conf.d", "usr/bin"):
            (root / place).mkdir(parents=True)
        self.node = FakeNode(root, payloads[0])
        for program in PROGRAMS:
            self.node.write(program, "", 0o755)
        self.node.write(engine.path, engine.content, 0o600)
        self.theirs: dict[Keys, Any] = {engine.other: "info", engine.default: "crun"}
        self.runtimes = {"crun": "/usr/bin/crun"}
        self.lost = False
        self.kept = ""
        """The copy of what stood there before, where the program refused to go on."""
        self.seen: tuple[bytes | None, dict[Keys, Any], dict[str, str]] = (None, {}, {})
        """The file as the program left it last, and what an administrator had set by then."""
        self.steps: list[str] = []

    @property
    def installed(self) -> bool:
        return self.node.exists(STORE)

    @property
    def default(self) -> Any:
        return lookup(self.engine.parse(self.node.read(self.engine.path)), self.engine.default)

    def served(self) -> list[dict[str, str]]:
        """Return the executables by handler, as each engine that may read the files has them."""
        return [self.engine.executables(self.engine.parse(self.node.read(self.engine.path)))]

    def do(self, step: str) -> None:
        self.steps.append(step)
        name, _, argument = step.partition(" ")
        getattr(self, name)(argument)

    # --- the program ---

    def _program(self, command: str, *more: str) -> Outcome:
        before = content_of(self.node, self.engine.path)
        done = run(self.node, self.folder, command, *more, engine=self.engine.name)
        story = (self.steps, done.output)
        assert done.code in (0, 3), story
        if done.code == 3:
            assert content_of(self.node, self.engine.path) == before, story
            kept = re.search(rf"kept in ({STORE}/originals/[0-9a-f]+)", done.output)
            assert kept is not None, story
            self.kept = kept[1]
        else:
            self.lost = False
            self._check(story)
            self.seen = content_of(self.node, self.engine.path), dict(self.theirs), dict(self.runtimes)
        return done

    def runs(self, flag: str) -> None:
        done = self._program("run", "--no-daemon", f"--set-as-default={flag}")
        if done.code == 0:
            for named in self.served():
                assert {name: named.get(name, "").rpartition("/")[0] for name in OURS} == dict.fromkeys(
                    OURS, TOOLKIT
                ), done.output
            assert self.node.broken_runtimes() == [], self.steps

    def upgrades(self, flag: str) -> None:
        self.node.payload = self.payloads[self.node.payload == self.payloads[0]]
        self.runs(flag)

    def uninstalls(self, _argument: str = "") -> None:
        if self._program("uninstall").code == 0:
            assert not self.node.exists(TOOLKIT)
            assert not self.node.exists(STORE)
            content = self.node.read(self.engine.path)
            assert TOOLKIT.encode() not in content, (self.steps, content)
            assert self.default == self.theirs[self.engine.default], (self.steps, content)

    def _check(self, story: tuple[list[str], str]) -> None:
        """Fail unless all that anybody but an installer set is there, and every executable that is named."""
        content = self.node.read(self.engine.path)
        document = self.engine.parse(content)
        assert b"registry.example" in content or self.engine.name == "docker", story
        assert lookup(document, self.engine.other) == self.theirs[self.engine.other], story
        named = self.engine.executables(document)
        assert named.items() >= self.runtimes.items(), story
        assert all(self.node.exists(path) for path in named.values()), story
        assert lookup(document, self.engine.default) in named, (*story, content)

    # --- others ---

    def _edit(self, *changes: Change) -> None:
        content = self.node.read(self.engine.path)
        put(self.node, self.engine.path, self.engine.edit(content, list(changes)))

    def sets(self, value: str) -> None:
        if not self.lost:
            self.theirs[self.engine.other] = value
            self._edit(Set(self.engine.other, value))

    def chooses(self, default: str) -> None:
        """Make a runtime the default, as an administrator does: one of ours goes when its handler goes."""
        if not self.lost and default in self.engine.executables(self.engine.parse(self.node.read(self.engine.path))):
            self.theirs[self.engine.default] = self.theirs[self.engine.default] if default in OURS else default
            self._edit(Set(self.engine.default, default))

    def adds(self, name: str) -> None:
        if not self.lost:
            self.runtimes[name] = f"/usr/bin/{name}"
            self._edit(Set((*self.engine.runtimes, name), self.engine.entry(f"/usr/bin/{name}")))

    def configures(self, argument: str) -> None:
        """Do as `nvidia-ctk runtime configure` does, beside ours: with the toolkit's own program.

        Not right after `removes`: where a handler stands, a default that is missing counts as an administrator's edit.
        """
        if not self.lost and self.installed and TOOLKIT.encode() in self.node.read(self.engine.path):
            entry = self.engine.entry(f"{TOOLKIT}/nvidia-container-runtime")
            default: list[Change] = [Set(self.engine.default, "nvidia")] if argument == "default" else []
            self._edit(Set((*self.engine.runtimes, "nvidia"), entry), *default)

    def removes(self, _argument: str) -> None:
        """Do as the cleanup of NVIDIA's installer does: its handlers go, and a default that names one of them.

        tests/e2e/test_any_sequence_with_peer.py runs that installer.
        """
        if not self.lost and self.installed:
            gone: list[Change] = [Remove((*self.engine.runtimes, name)) for name in OURS]
            reset = Set(self.engine.default, RESET) if self.engine.name == "docker" else Remove(self.engine.default)
            self._edit(*gone, *([reset] if self.default in OURS else []))

    def loses(self, how: str) -> None:
        content = content_of(self.node, self.engine.path)
        if not content or not self.installed or TOOLKIT.encode() not in content:
            return
        text, theirs, runtimes = self.seen
        if how == "the end" and text != content:
            return  # what was edited since is no beginning of what stood there
        self.lost, self.theirs, self.runtimes = True, dict(theirs), dict(runtimes)  # nobody can know what came since
        lines = content.splitlines(keepends=True)
        put(self.node, self.engine.path, {"all": None, "content": b""}.get(how, b"".join(lines[: len(lines) // 3])))


PROGRAM = ("runs true", "runs false", "upgrades true", "upgrades false", "uninstalls")
ADMINISTRATOR = ("sets debug", "sets warn", "adds kata", "chooses kata", "chooses crun", "chooses nvidia")
LOSS = ("loses all", "loses content", "loses the end")


def check_steps(world: World, steps: list[str]) -> None:
    """Do the steps, and take the handlers back; fail where anything is lost."""
    for step in steps:
        world.do(step)
    if world.lost and world.installed:
        world.uninstalls()
    if world.installed:
        if world.lost:  # what cannot be read is put back first, as the message says
            put(world.node, world.engine.path, world.node.read(world.kept))
            world.lost = False
        world.do("uninstalls")
    assert not world.installed
    shutil.rmtree(world.node.root)
