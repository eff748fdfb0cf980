"""Any sequence of runs, edits, losses and what NVIDIA's own programs do: no engine ever has less than it had."""

from __future__ import annotations

import dataclasses
import posixpath
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.node.sequences import ADMINISTRATOR, ENGINES, LOSS, OURS, PROGRAM, RESET, Engine, World, check_steps
from tests.support import payloads
from tests.support.built import go_tools
from tests.support.fake_node import CRIO_DROP_IN, DROP_IN, TOOLKIT, WAITING, Run
from toolkit_installer.documents.changes import ABSENT, Change, Remove, Table, apply_changes, lookup, merge_tables
from toolkit_installer.documents.changes import Path as Keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.node.faults import Outcome
    from tests.support.built.go_tools import Tool

RUNS = settings(max_examples=24, derandomize=True, phases=(Phase.explicit, Phase.generate), deadline=None)
"""A failure has the steps in its message: to look for fewer takes long."""
CRIO_CONF = "/etc/crio/crio.conf"
BUILT_IN = ("runc", "crun")
UNKNOWN = object()
"""The default that NVIDIA's program replaced where nothing remembered it."""
_PAUSE = 0.05
"""Seconds from that line until NVIDIA's installer cleans up on a signal: it ends at once before that."""
_ENTER = 'for folder in etc run usr/local; do mount -n --bind "$1/$folder" "/$folder" || exit; done; shift; exec "$@"'
"""Starts a program for which the made node's folders are the machine's."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """NVIDIA's own: `nvidia-ctk` by release, and the installer."""

    ctk: dict[str, Path]
    installer: Path


class PeersWorld(World):
    """A node on which NVIDIA's own programs are run, too. CRI-O's administrator writes into crio.conf."""

    def __init__(self, engine: Engine, folder: Path, releases: tuple[Path, Path], programs: Programs) -> None:
        super().__init__(engine, folder, releases)
        self.programs = programs
        self.peers_defaults: set[Any] = set()
        """Defaults of NVIDIA's programs that name nothing of the toolkit: they may stay."""

    # --- what the engine's files say ---

    def files(self) -> dict[str, bytes]:
        """Return all files of the engine."""
        places = (self.engine.path, DROP_IN, CRIO_DROP_IN)
        return {path: self.node.read(path) for path in places if self.node.exists(path)}

    def views(self) -> tuple[Table, Table]:
        """Return what the engine makes of its files: containerd before 2.1, and later; others have one view."""
        root, drop_in = (
            self.engine.parse(self.node.read(path)) if self.node.exists(path) else {}
            for path in (self.engine.path, {"crio": CRIO_DROP_IN}.get(self.engine.name, DROP_IN))
        )
        if self.engine.name == "containerd":
            if not any(posixpath.dirname(each) == posixpath.dirname(DROP_IN) for each in root.get("imports", ())):
                return root, root
            replaced = root | {"plugins": root.get("plugins", {}) | drop_in.get("plugins", {})}
            return replaced, merge_tables(root, drop_in)
        both = merge_tables(root, drop_in, whole=self.engine.runtimes)
        return both, both

    def others(self, view: Table) -> dict[Keys, Any]:
        """Return the values that no installer has a say in."""
        ours: list[Change] = [Remove(path) for path in (self.engine.runtimes, self.engine.default)]
        rest = apply_changes(view, tuple(ours))
        return {path: value for path, value in _leaves(rest) if path[0] not in ("imports", "version")}

    def foreign(self, view: Table) -> dict[str, str]:
        """Return the executables of runtimes outside of the toolkit's folder, by name."""
        named = self.engine.executables(view)
        return {name: path for name, path in named.items() if not path.startswith(TOOLKIT)}

    def served(self) -> list[dict[str, str]]:
        return [self.engine.executables(view) for view in self.views()]

    # --- our program ---

    def _program(self, command: str, *more: str) -> Outcome:
        before = None if self.lost else self.views()
        done = super()._program(command, *more)
        if done.code == 0 and before is not None:
            for old, new in zip(before, self.views(), strict=True):
                self._compare(command, old, new, (self.steps, done.output))
        return done

    def _compare(self, command: str, old: Table, new: Table, story: object) -> None:
        """Fail unless a view of the engine's files has all that it had before a command of ours."""
        lost = self.others(old).items() - self.others(new).items()
        assert not lost, story
        kept = {name: path for name, path in self.foreign(old).items() if command == "uninstall" or name not in OURS}
        assert self.foreign(new).items() >= kept.items(), story
        default, before = lookup(new, self.engine.default), lookup(old, self.engine.default)
        if command == "uninstall":
            assert self.foreign(new).keys() == self.engine.executables(new).keys(), story
            theirs = self.theirs[self.engine.default]
            right = {theirs, *self.peers_defaults, *([before] if before in self.foreign(old) else ())}
            if self.node.exists(DROP_IN):
                right.add(ABSENT)  # NVIDIA's copy of containerd's table has lost the default, and stays as it wrote it
            gone = theirs is UNKNOWN or theirs not in self.foreign(new)
            assert gone or default in right, story

    def _check(self, story: tuple[list[str], str]) -> None:
        for view in self.views():
            named = self.engine.executables(view)
            assert all(self._is_program(path) for path in named.values()), (*story, named)
            default = lookup(view, self.engine.default)
            assert default is ABSENT or default in (*named, *BUILT_IN), (*story, default)
        document = self.engine.parse(self.node.read(self.engine.path))
        assert lookup(document, self.engine.other) == self.theirs[self.engine.other], story
        assert self.engine.executables(document).items() >= self.runtimes.items(), story

    def _is_program(self, path: str) -> bool:
        return self.node.exists(path if "/" in path else f"/usr/bin/{path}")

    def uninstalls(self, _argument: str = "") -> None:
        if self._program("uninstall").code == 0:
            assert not self.installed
            assert not any(TOOLKIT.encode() in content for content in self.files().values()), self.steps

    def chooses(self, default: str) -> None:
        super().chooses(default)
        if any(lookup(view, self.engine.default) != default for view in self.views()):
            self.theirs[self.engine.default] = UNKNOWN  # a file that is read later says otherwise

    # --- NVIDIA's ---

    def configures(self, argument: str) -> None:
        """Run `nvidia-ctk runtime configure` of a release, with its flags."""
        release, *flags = argument.split()
        if not self.lost:
            self._peer(self.programs.ctk[release], "runtime", "configure", f"--runtime={self.engine.name}", *flags)

    def peer_installs(self, flag: str) -> None:
        """Run nvidia-ctk-installer to its end: it replaces the toolkit, and leaves its handlers."""
        if not self.lost:
            self._peer(*self._installer(flag), "--no-daemon")

    def peer_leaves(self, flag: str) -> None:
        """Have nvidia-ctk-installer install, wait, and clean up."""
        if not self.lost:
            run = Run(self._entering(*self._installer(flag)))
            try:
                run.wait_for(WAITING)
                time.sleep(_PAUSE)
                assert run.stop() == 0, run.output
            finally:
                run.close()
            self._peer_was_there()

    def _installer(self, flag: str) -> tuple[object, ...]:
        return (
            *(self.programs.installer, "--runtime", self.engine.name, f"--set-as-default={flag}"),
            *("--restart-mode", "none", "--config-source", "file", "--driver-root", "/"),
            *("--toolkit-source-root", self.node.payload),
        )

    def _entering(self, *command: object) -> list[str]:
        enter = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", _ENTER, "sh", str(self.node.root)]
        return [*enter, *map(str, command)]

    def _peer(self, *command: object) -> None:
        if self.default == RESET:
            self.peers_defaults.add(RESET)  # beside handlers nothing tells it from an administrator's choice
        done = subprocess.run(self._entering(*command), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (self.steps, done.stdout, done.stderr)
        self._peer_was_there()

    def _peer_was_there(self) -> None:
        """Count as theirs what NVIDIA's program left of the default where ours was not there to remember it."""
        for view in self.views():
            self.peers_defaults |= {lookup(view, self.engine.default)} & self.foreign(view).keys() & set(OURS)
        if not self.installed:
            view, _ = self.views()
            default = lookup(view, self.engine.default)
            of_toolkit = default in self.engine.executables(view) and default not in self.foreign(view)
            self.theirs[self.engine.default] = UNKNOWN if of_toolkit else default


def _leaves(value: Any, path: Keys = ()) -> list[tuple[Keys, Any]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [leaf for key, each in value.items() for leaf in _leaves(each, (*path, key))]


_RELEASES = {"1.19.0": go_tools.TOOLKIT, "1.20.2": go_tools.NEWEST_CTK}
_OURS = f"--runtime-path={TOOLKIT}/nvidia-container-runtime"
PEER = (
    *(f"configures {release} {flags}".strip() for release in _RELEASES for flags in ("", "--set-as-default")),
    *(f"configures 1.20.2 {_OURS}", f"configures 1.20.2 --set-as-default {_OURS}"),
    "configures 1.20.2 --cdi.enabled",
    *(f"peer_{what} {flag}" for what in ("installs", "leaves") for flag in ("true", "false")),
)
LOST = [loss for loss in LOSS if loss != "loses the end"]
"""A file that NVIDIA's program has written anew and that ends with a whole line may be an administrator's edit."""
STEPS = st.lists(st.sampled_from((*PROGRAM, *ADMINISTRATOR, *PEER, *LOST)), min_size=1, max_size=4)
SITES = [dataclasses.replace(engine, path=CRIO_CONF) if engine.name == "crio" else engine for engine in ENGINES]


@pytest.fixture(scope="module")
def programs(go_tool: Callable[[Tool], Path], peer: Path) -> Programs:
    return Programs({release: go_tool(tool) / "nvidia-ctk" for release, tool in _RELEASES.items()}, peer)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("payloads")
    return payloads.build(folder / "1"), payloads.build(folder / "2", version="1.99.0")


@pytest.mark.parametrize("engine", SITES, ids=str)
@RUNS
@given(first=st.sampled_from((*PROGRAM[:2], *PEER)), second=st.sampled_from((*PROGRAM[:2], *PEER)), steps=STEPS)
def test_nothing_is_lost_beside_nvidias_own_programs(
    tmp_path_factory: pytest.TempPathFactory,
    releases: tuple[Path, Path],
    programs: Programs,
    engine: Engine,
    first: str,
    second: str,
    steps: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("world")
    check_steps(PeersWorld(engine, folder, releases, programs), [first, second, *steps])
    shutil.rmtree(folder)
