"""A managed file that is missing, empty or damaged: the engine keeps what it had, and never gets our part alone."""

from __future__ import annotations

import dataclasses
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.drift import content_of, put
from tests.node.engines import cri_socket
from tests.node.faults import Outcome, run
from tests.support.fake_node import CONFIG_TOML, CRIO_DROP_IN, DAEMON_JSON, DROP_IN, STORE, TOOLKIT, FakeNode

Loss = Callable[[bytes], bytes | None]

DOCKER = b'{\n  "log-driver": "json-file",\n  "runtimes": {"crun": {"path": "/usr/bin/crun"}}\n}\n'
CONTAINERD = b"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example/pause:3.9"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[debug]
  level = "info"
"""
CRIO = b'# the site\'s\n[crio.image]\npause_image = "registry.example/pause:3.9"\n[crio.runtime]\nlog_level = "debug"\n'


@dataclasses.dataclass(frozen=True)
class Managed:
    """An engine, and a file of it that had a content before us; `replaced` has lost the tables that it had."""

    engine: str
    path: str
    content: bytes
    replaced: tuple[bytes, ...]

    def __str__(self) -> str:
        return self.engine


FILES = (
    Managed("docker", DAEMON_JSON, DOCKER, (b"{}", b'{"debug": true}')),
    Managed("containerd", CONFIG_TOML, CONTAINERD, (b"version = 3\n", b"# nothing\n", b'[debug]\n  level = "info"\n')),
    Managed("crio", CRIO_DROP_IN, CRIO, (b'[crio.runtime]\nlog_level = "debug"\n', b"[crio]\n")),
)
EACH = pytest.mark.parametrize("managed", FILES, ids=str)
LOST: dict[str, Loss] = {"missing": lambda _: None, "empty": lambda _: b"", "blank": lambda _: b" \n\n"}
LOSSES = pytest.mark.parametrize("loss", LOST.values(), ids=LOST.keys())


class Bench:
    """A node with one engine, which nobody restarts."""

    def __init__(self, node: FakeNode, folder: Path, managed: Managed) -> None:
        self.node, self.folder, self.managed = node, folder, managed
        node.write(managed.path, managed.content, 0o600)
        self.before = node.snapshot()
        assert self.do("run").code == 0
        self.installed = node.read(managed.path)
        assert TOOLKIT.encode() in self.installed

    def do(self, command: str) -> Outcome:
        more = ("--no-daemon",) if command == "run" else ()
        done = run(self.node, self.folder, command, *more, engine=self.managed.engine)
        assert "Traceback" not in done.output
        return done

    def kept(self) -> list[bytes]:
        """Return the copies that are kept beside the receipt."""
        return [place.read_bytes() for place in self.node.place(f"{STORE}/originals").iterdir()]


@pytest.fixture
def bench_of(node: FakeNode, tmp_path: Path) -> Callable[[Managed], Bench]:
    return lambda managed: Bench(node, tmp_path, managed)


@LOSSES
@EACH
def test_a_run_restores_a_lost_file_with_ours_and_keeps_its_original(
    bench_of: Callable[[Managed], Bench], managed: Managed, loss: Loss
) -> None:
    bench = bench_of(managed)
    put(bench.node, managed.path, loss(bench.installed))
    done = bench.do("run")
    assert done.code == 0, done.output
    assert "what stood there before is restored" in done.output
    assert bench.node.read(managed.path) == bench.installed
    assert stat.S_IMODE(bench.node.place(managed.path).stat().st_mode) == 0o600
    assert managed.content in bench.kept()
    assert bench.do("uninstall").code == 0
    assert bench.node.snapshot() == bench.before


@LOSSES
@EACH
def test_a_cleanup_restores_a_lost_file(bench_of: Callable[[Managed], Bench], managed: Managed, loss: Loss) -> None:
    bench = bench_of(managed)
    put(bench.node, managed.path, loss(bench.installed))
    done = bench.do("uninstall")
    assert done.code == 0, done.output
    assert "what stood there before is restored" in done.output
    assert bench.node.snapshot() == bench.before


@pytest.mark.parametrize("command", ["run", "uninstall"])
@EACH
def test_a_folder_that_is_gone_is_made_for_the_file_that_is_restored(
    bench_of: Callable[[Managed], Bench], managed: Managed, command: str
) -> None:
    bench = bench_of(managed)
    bench.node.place(managed.path).unlink()
    bench.node.place(managed.path).parent.rmdir()
    done = bench.do(command)
    assert done.code == 0, done.output
    assert bench.node.read(managed.path) == (bench.installed if command == "run" else managed.content)


@pytest.mark.parametrize("managed", FILES[:2], ids=str)
def test_a_file_whose_symlink_was_removed_is_not_made_anew_with_ours_alone(
    node: FakeNode, tmp_path: Path, managed: Managed
) -> None:
    target = f"/srv/engine/{managed.path.rpartition('/')[2]}"
    node.write(target, managed.content, 0o600)
    link = node.place(managed.path)
    link.symlink_to(target)

    def do(command: str) -> Outcome:
        return run(node, tmp_path, command, *(["--no-daemon"] * (command == "run")), engine=managed.engine)

    assert do("run").code == 0
    installed = node.read(target)
    link.unlink()
    refused = do("run")
    assert refused.code == 3, refused.output
    assert f"make it a symlink to {target}" in refused.output
    assert not node.exists(managed.path)
    assert node.read(target) == installed
    link.symlink_to(target)
    assert do("run").code == 0
    link.unlink()
    done = do("uninstall")
    assert done.code == 0, done.output
    assert node.read(target) == managed.content
    assert not node.exists(managed.path)


@pytest.mark.parametrize("managed", FILES[1:], ids=str)
def test_a_file_that_was_cut_off_in_a_line_is_restored(bench_of: Callable[[Managed], Bench], managed: Managed) -> None:
    bench = bench_of(managed)
    lines = bench.installed.splitlines(keepends=True)
    restored = 0
    for count in range(1, len(lines)):
        short = b"".join(lines[:count]).removesuffix(b"\n")
        put(bench.node, managed.path, short)
        done = bench.do("run")
        assert done.code == 0, (count, done.output)
        assert bench.node.read(managed.path) == bench.installed, count
        restored += "it ends early" in done.output
    assert restored > len(lines) // 2
    put(bench.node, managed.path, lines[0].removesuffix(b"\n"))
    assert bench.do("uninstall").code == 0
    assert bench.node.snapshot() == bench.before


@pytest.mark.parametrize("managed", FILES[1:], ids=str)
def test_a_file_without_its_last_lines_is_an_edit_or_refused(
    bench_of: Callable[[Managed], Bench], managed: Managed
) -> None:
    bench = bench_of(managed)
    lines = bench.installed.splitlines(keepends=True)
    for count in range(1, len(lines)):
        short = b"".join(lines[:count])
        put(bench.node, managed.path, short)
        done = bench.do("run")
        assert done.code in (0, 3), (count, done.output)
        now = bench.node.read(managed.path)
        if done.code:
            assert "kept in" in done.output
            assert now == short
        else:
            theirs = set(lines[:count]) & set(managed.content.splitlines(keepends=True))
            assert all(line in now for line in theirs if b"default_runtime" not in line), count
            assert TOOLKIT.encode() in now
        put(bench.node, managed.path, bench.installed)
        assert bench.do("run").code == 0


def test_the_last_line_that_an_administrator_removed_stays_removed(node: FakeNode, tmp_path: Path) -> None:
    root = CONTAINERD + b"  gid = 30\n"
    node.write(CONFIG_TOML, root)
    with cri_socket.answering(node.place("/run/containerd/containerd.sock"), "v2.1.4"):
        flags = ("--no-daemon", "--restart-mode", "none")
        assert run(node, tmp_path, "run", *flags, engine="containerd").code == 0
        for line in (b"  gid = 3\n", b""):
            put(node, CONFIG_TOML, node.read(CONFIG_TOML).partition(b"  gid")[0] + line)
            assert run(node, tmp_path, "run", *flags, engine="containerd").code == 0
            assert node.read(CONFIG_TOML).endswith(b'level = "info"\n' + line)
        assert run(node, tmp_path, "uninstall", engine="containerd").code == 0
    assert node.read(CONFIG_TOML) == CONTAINERD


def test_an_imported_file_that_an_administrator_removed_stays_away(node: FakeNode, tmp_path: Path) -> None:
    node.write(CONFIG_TOML, b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    imported, later = "/etc/containerd/conf.d/20-cri.toml", "/etc/containerd/conf.d/10-cri.toml"
    newer = CONTAINERD.replace(b"pause:3.9", b"pause:3.10")
    node.write(imported, CONTAINERD)
    assert run(node, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    assert TOOLKIT.encode() in node.read(imported)
    node.place(imported).unlink()
    node.write(later, newer)
    assert run(node, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    assert not node.exists(imported)
    assert run(node, tmp_path, "uninstall", engine="containerd").code == 0
    assert not node.exists(imported)
    assert node.read(later) == newer


def test_a_root_that_was_written_for_a_newer_containerd_is_accepted(node: FakeNode, tmp_path: Path) -> None:
    node.write(CONFIG_TOML, CONTAINERD)
    assert run(node, tmp_path, "run", "--no-daemon", engine="containerd").code == 0
    newer = CONTAINERD.replace(b"version = 2", b"version = 3").replace(b"grpc.v1.cri", b"cri.v1.runtime")
    put(node, CONFIG_TOML, newer)
    done = run(node, tmp_path, "run", "--no-daemon", engine="containerd")
    assert done.code == 0, done.output
    assert run(node, tmp_path, "uninstall", engine="containerd").code == 0
    assert node.read(CONFIG_TOML) == newer


def test_a_default_that_a_crio_that_is_down_may_know_is_accepted(node: FakeNode, tmp_path: Path) -> None:
    node.write(CRIO_DROP_IN, b'[crio.runtime]\ndefault_runtime = "runc"\n')
    done = run(node, tmp_path, "run", "--no-daemon", "--set-as-default=false", engine="crio")
    assert done.code == 0, done.output


@EACH
def test_a_file_that_lost_its_tables_is_refused_and_the_kept_copy_named(
    bench_of: Callable[[Managed], Bench], managed: Managed
) -> None:
    bench = bench_of(managed)
    for replaced in managed.replaced:
        put(bench.node, managed.path, replaced)
        before = bench.node.snapshot()
        done = bench.do("run")
        assert done.code == 3, done.output
        assert "somebody replaced it" in done.output
        assert bench.node.snapshot() == before
        kept = re.search(rf"kept in ({STORE}/originals/[0-9a-f]+)", done.output)
        assert kept is not None, done.output
        assert bench.node.read(kept[1]) == managed.content
    done = bench.do("uninstall")
    assert done.code == 0, done.output
    assert bench.node.read(managed.path) == managed.replaced[-1]
    assert not bench.node.exists(STORE)


@EACH
def test_a_file_that_cannot_be_read_is_refused_and_the_kept_copy_named(
    bench_of: Callable[[Managed], Bench], managed: Managed
) -> None:
    bench = bench_of(managed)
    put(bench.node, managed.path, bench.installed[:-3] + b"[[[")
    before = bench.node.snapshot()
    for command in ("run", "uninstall"):
        done = bench.do(command)
        assert done.code == 3, done.output
        assert f"kept in {STORE}/originals/" in done.output
        assert bench.node.snapshot() == before


@EACH
def test_the_first_original_is_kept_beside_a_later_one(bench_of: Callable[[Managed], Bench], managed: Managed) -> None:
    bench = bench_of(managed)
    later = (
        managed.content.replace(b"json-file", b"journald").replace(b'"info"', b'"warn"').replace(b'"debug"', b'"warn"')
    )
    assert later != managed.content
    put(bench.node, managed.path, later)
    for _ in range(2):
        assert bench.do("run").code == 0
        assert sorted(bench.kept()) == sorted([managed.content, later])
    put(bench.node, managed.path, None)
    assert bench.do("uninstall").code == 0
    assert bench.node.read(managed.path) == later


def test_a_lost_root_that_imports_the_drop_in_by_itself_is_not_made_anew(node: FakeNode, tmp_path: Path) -> None:
    root = b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n[debug]\n  level = "info"\n'
    node.write(CONFIG_TOML, root)
    with cri_socket.answering(node.place("/run/containerd/containerd.sock"), "v2.1.4"):
        flags = ("--no-daemon", "--restart-mode", "none")
        assert run(node, tmp_path, "run", *flags, engine="containerd").code == 0
        assert node.exists(DROP_IN)
        for lost in (None, b""):
            put(node, CONFIG_TOML, lost)
            done = run(node, tmp_path, "run", *flags, engine="containerd")
            assert done.code == 3, done.output
            assert content_of(node, CONFIG_TOML) == lost
            put(node, CONFIG_TOML, root) if lost is not None else node.write(CONFIG_TOML, root)
        assert run(node, tmp_path, "uninstall", engine="containerd").code == 0
    assert node.read(CONFIG_TOML) == root
