"""What NVIDIA's own installer left when it was killed: taken over by a run, taken away by uninstall, never restored."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.drift import FOLDERS, engine_of, parsed
from tests.node.engines import cri_socket
from tests.node.faults import Outcome, run
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DROP_IN, NOTHING_TO_DO, STORE, TOOLKIT, FakeNode
from toolkit_installer.documents.changes import is_same

DATA = Path(__file__).parents[1] / "data" / "leftovers"
PLACES = {"daemon.json": DAEMON_JSON, "config.toml": CONFIG_TOML, "99-nvidia.toml": DROP_IN}
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
CASES = pytest.mark.parametrize("case", sorted(path.name for path in DATA.iterdir() if path.is_dir()))


class Leftover:
    """A node as the peer left it."""

    def __init__(self, case: str, node: FakeNode, folder: Path) -> None:
        self.data = DATA / case
        self.node = node
        self.folder = folder
        self.path = DAEMON_JSON if case.startswith("docker") else CONFIG_TOML
        for name, place in PLACES.items():
            if (self.data / name).exists():
                node.write(place, (self.data / name).read_bytes())
        for line in (self.data / "toolkit.txt").read_text().splitlines():
            name, _, target = line.partition(" ")
            if target:
                node.place(f"{TOOLKIT}/{name}").symlink_to(target)
            else:
                node.write(f"{TOOLKIT}/{name}", b"#!/bin/sh\n", 0o755)

    def do(self, command: str, *more: str) -> Outcome:
        done = run(self.node, self.folder, command, *more, engine=engine_of(self.path))
        assert done.code == 0, done.output
        return done

    def check_gone(self) -> None:
        expected = (self.data / "expected").read_bytes()
        assert is_same(parsed(self.path, self.node.read(self.path)), parsed(self.path, expected))
        assert self.node.named_runtimes().keys().isdisjoint(HANDLERS | {"gpu"})
        assert not self.node.exists(DROP_IN)
        assert not self.node.exists(STORE)


@pytest.fixture
def bare(tmp_path: Path, payload: Path) -> Iterator[FakeNode]:
    for folder in FOLDERS:
        (tmp_path / "node" / folder).mkdir(parents=True)
    made = FakeNode(tmp_path / "node", payload)
    yield made
    made.close()


@CASES
def test_uninstall_takes_it_away_and_leaves_what_is_the_operators(case: str, bare: FakeNode, tmp_path: Path) -> None:
    leftover = Leftover(case, bare, tmp_path)
    leftover.do("uninstall")
    leftover.check_gone()
    assert not bare.exists(TOOLKIT)
    before = bare.snapshot()
    assert "Nothing is installed" in leftover.do("uninstall").output
    assert bare.snapshot() == before


@CASES
def test_a_run_takes_it_over_and_its_cleanup_restores_none_of_it(case: str, bare: FakeNode, tmp_path: Path) -> None:
    leftover = Leftover(case, bare, tmp_path)
    leftover.do("run", "--no-daemon")
    assert bare.named_runtimes().keys() >= HANDLERS
    assert "gpu" not in bare.named_runtimes()
    assert bare.broken_runtimes() == []
    assert not bare.exists(DROP_IN)
    assert NOTHING_TO_DO in leftover.do("run", "--no-daemon").output
    leftover.do("uninstall")
    leftover.check_gone()


@CASES
@pytest.mark.parametrize("by_run", [True, False], ids=["taken-over-by-a-run", "found-by-uninstall"])
def test_what_is_gone_of_it_is_said_with_its_place(case: str, bare: FakeNode, tmp_path: Path, *, by_run: bool) -> None:
    leftover = Leftover(case, bare, tmp_path)
    names = [name for name in ("nvidia", "nvidia-cdi") if name in bare.named_runtimes()]
    if by_run:
        leftover.do("run", "--no-daemon")
        leftover.do("run", "--no-daemon", "--set-as-default=false")  # the record outlives another change
    output = leftover.do("uninstall").output
    assert f"{TOOLKIT}: " in output
    assert "Cleaned up, and nothing of another installer's leftover is restored" in output
    assert "The node is as it was" not in output
    for name in names:
        assert any(name in line and "Gone for good" in line and "/etc/" in line for line in output.splitlines())


def test_a_node_without_leftovers_is_as_it_was(bare: FakeNode, tmp_path: Path) -> None:
    bare.write(DAEMON_JSON, b"{}\n")
    for command in ("run --no-daemon", "uninstall"):
        done = run(bare, tmp_path, *command.split(), engine="docker")
    assert "another installer" not in done.output
    assert "The node is as it was" in done.output


def test_a_run_and_its_cleanup_leave_no_file_of_it(bare: FakeNode, tmp_path: Path) -> None:
    leftover = Leftover("docker-1.19.0", bare, tmp_path)
    leftover.do("run", "--no-daemon")
    leftover.do("uninstall")
    assert not bare.exists(TOOLKIT)


@pytest.mark.parametrize("case", ["containerd-1.19.0-version-2", "containerd-1.19.0-version-3"])
def test_the_peers_drop_in_becomes_ours_and_goes_and_the_root_stays_as_it_is(
    case: str, bare: FakeNode, tmp_path: Path
) -> None:
    leftover = Leftover(case, bare, tmp_path)
    root = bare.read(CONFIG_TOML)
    with cri_socket.answering(bare.place("/run/containerd/containerd.sock"), "v2.1.4"):
        leftover.do("run", "--no-daemon", "--restart-mode", "none")
    assert bare.read(CONFIG_TOML) == root
    (plugin,) = tomllib.loads(bare.read(DROP_IN).decode())["plugins"].values()
    assert plugin.keys() == {"containerd"}, "the peer's copy of the operator's settings would make later edits void"
    assert plugin["containerd"]["runtimes"].keys() == HANDLERS
    leftover.do("uninstall")
    leftover.check_gone()
    assert bare.read(CONFIG_TOML) == root


ROOT = b"""\
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "crun"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
  runtime_type = "io.containerd.runc.v2"
"""
KATA = b"""\
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
  runtime_type = "io.containerd.kata.v2"
"""


def copied(root: bytes, default: bytes | None) -> bytes:
    """Return the drop-in that NVIDIA's installer makes of a root: a copy of the CRI's table."""
    lines = [line for line in root.splitlines(keepends=True) if not line.startswith((b"imports", b"#"))]
    named = [number for number, line in enumerate(lines) if b"default_runtime_name" in line]
    for number in named:
        lines[number] = b"" if default is None else b'  default_runtime_name = "%s"\n' % default
    return b"".join(lines)


@pytest.mark.parametrize("default", [None, b"nvidia"], ids=["no-default", "default"])
def test_a_copy_of_the_root_that_nvidias_installer_made_goes_whole(
    bare: FakeNode, tmp_path: Path, default: bytes | None
) -> None:
    bare.write(CONFIG_TOML, ROOT)
    assert run(bare, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    bare.write(DROP_IN, copied(bare.read(CONFIG_TOML), default))
    done = run(bare, tmp_path, "uninstall", engine="containerd")
    assert done.code == 0, done.output
    assert bare.read(CONFIG_TOML) == ROOT
    assert not bare.exists(DROP_IN)  # containerd 1.x reads its table in place of the root's


def test_a_copy_of_the_root_keeps_an_operators_runtime_and_the_earlier_default(bare: FakeNode, tmp_path: Path) -> None:
    bare.write(CONFIG_TOML, ROOT)
    assert run(bare, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    bare.write(DROP_IN, copied(bare.read(CONFIG_TOML), b"nvidia") + KATA)
    assert run(bare, tmp_path, "uninstall", engine="containerd").code == 0
    assert bare.read(CONFIG_TOML) == ROOT
    assert is_same(tomllib.loads(bare.read(DROP_IN).decode()), tomllib.loads((copied(ROOT, b"crun") + KATA).decode()))


def test_handlers_are_put_into_the_root_once_nvidias_drop_in_is_gone(bare: FakeNode, tmp_path: Path) -> None:
    bare.write(CONFIG_TOML, ROOT)
    theirs = ROOT.replace(b"runtimes.crun", b"runtimes.nvidia") + (
        b'  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n'
        b'    BinaryName = "/usr/bin/nvidia-container-runtime"\n'
    )
    bare.write(DROP_IN, copied(theirs, b"nvidia"))
    assert run(bare, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    bare.place(DROP_IN).unlink()
    assert run(bare, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    assert not bare.exists(DROP_IN)
    assert bare.named_runtimes().keys() >= HANDLERS
    assert run(bare, tmp_path, "uninstall", engine="containerd").code == 0
    assert bare.read(CONFIG_TOML) == ROOT
