"""A default runtime that somebody else chose while we are installed: it stays, and the one from before us returns."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.drift import put, swap
from tests.node.engines import cri_socket
from tests.node.faults import Outcome, run
from tests.support.fake_node import (
    CONFIG_TOML,
    CRIO_DROP_IN,
    CRIO_SITE,
    DAEMON_JSON,
    DROP_IN,
    NOTHING_TO_DO,
    TOOLKIT,
    FakeNode,
)

DOCKER = b"""{
  "default-runtime": "crun",
  "runtimes": {
    "crun": {"path": "/usr/bin/crun"},
    "kata": {"path": "/usr/bin/kata"}
  }
}
"""
CONTAINERD = b"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "crun" # chosen with care
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
      BinaryName = "/usr/bin/crun"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]
    runtime_type = "io.containerd.kata.v2"
"""
CRIO = b"""\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
[crio.runtime.runtimes.kata]
runtime_path = "/usr/bin/kata"
"""
BASES = {"docker": (DAEMON_JSON, DOCKER), "containerd": (CONFIG_TOML, CONTAINERD), "crio": (CRIO_DROP_IN, CRIO)}
EACH = pytest.mark.parametrize("bench", BASES, indirect=True)
REWRITTEN = {
    "docker": b'{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}',
    "containerd": CONTAINERD[
        : CONTAINERD.index(b'  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.kata]')
    ].replace(b'  default_runtime_name = "crun" # chosen with care\n', b""),
    "crio": b'[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n',
}
"""A file that somebody wrote anew: another runtime is gone, as well as the default and our handlers."""
NOT_DEFAULT = "--set-as-default=false"
TO_OURS = swap(b'"crun"', b'"nvidia"')
"""What an administrator, or another installer, writes: the first "crun" is the default's name in each file."""


class Bench:
    """A node with one engine whose default runtime is crun, which nobody restarts."""

    def __init__(self, node: FakeNode, folder: Path, engine: str) -> None:
        self.node, self.folder, self.engine = node, folder, engine
        self.path, self.content = BASES[engine]
        node.write(self.path, self.content)

    def do(self, command: str, *flags: str) -> Outcome:
        more = ("--no-daemon", *flags) if command == "run" else ()
        done = run(self.node, self.folder, command, *more, engine=self.engine)
        assert done.code == 0, done.output
        return done

    def edit(self, old: bytes, new: bytes) -> None:
        put(self.node, self.path, swap(old, new)(self.node.read(self.path)))

    def default(self) -> Any:
        content = self.node.read(self.path)
        if self.engine == "docker":
            return json.loads(content).get("default-runtime")
        document = tomllib.loads(content.decode())
        if self.engine == "crio":
            return document["crio"]["runtime"].get("default_runtime")
        return document["plugins"]["io.containerd.grpc.v1.cri"]["containerd"].get("default_runtime_name")


@pytest.fixture
def bench(node: FakeNode, tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(node, tmp_path, request.param)


@EACH
def test_a_cleanup_returns_the_default_from_before_us_whoever_replaced_it(bench: Bench) -> None:
    bench.do("run", NOT_DEFAULT)
    bench.edit(b'"crun"', b'"nvidia"')
    assert bench.default() == "nvidia"
    bench.do("uninstall")
    assert bench.node.read(bench.path) == bench.content


@EACH
def test_a_default_of_somebody_else_survives_a_run_and_goes_with_the_handler(bench: Bench) -> None:
    bench.do("run", NOT_DEFAULT)
    bench.edit(b'"crun"', b'"nvidia"')
    for _ in range(2):
        bench.do("run", NOT_DEFAULT)
        assert bench.default() == "nvidia"
    assert NOTHING_TO_DO in bench.do("run", NOT_DEFAULT).output
    bench.do("uninstall")
    assert bench.node.read(bench.path) == bench.content


@EACH
def test_a_default_of_somebody_else_stays_where_another_edit_is_repaired(bench: Bench) -> None:
    bench.do("run", NOT_DEFAULT)
    bench.edit(b'"crun"', b'"nvidia"')
    bench.edit(f"{TOOLKIT}/nvidia-container-runtime.cdi".encode(), b"/opt/other")
    bench.do("run", NOT_DEFAULT)
    assert bench.default() == "nvidia"
    bench.do("uninstall")
    assert bench.default() == "crun"


@EACH
def test_our_own_default_is_taken_back_when_it_is_not_asked_for_any_more(bench: Bench) -> None:
    bench.do("run", "--set-as-default")
    assert bench.default() == "nvidia"
    bench.do("run", NOT_DEFAULT)
    assert bench.default() == "crun"
    bench.do("uninstall")
    assert bench.node.read(bench.path) == bench.content


@EACH
def test_an_administrators_own_default_stays_after_a_cleanup(bench: Bench) -> None:
    for flag in (NOT_DEFAULT, "--set-as-default"):
        bench.do("run", flag)
        bench.edit(f'"{bench.default()}"'.encode(), b'"kata"')
        bench.do("run", flag)
        bench.do("uninstall")
        assert bench.default() == "kata"
        put(bench.node, bench.path, bench.content)


@EACH
def test_a_default_of_somebody_else_does_not_pass_to_an_earlier_handler_of_that_name(bench: Bench) -> None:
    base = bench.content.replace(b"kata", b"nvidia")
    bench.node.write(bench.path, base)
    bench.do("run", NOT_DEFAULT)
    bench.edit(b'"crun"', b'"nvidia"')
    bench.do("uninstall")
    assert bench.node.read(bench.path) == base


@EACH
def test_a_default_without_its_handler_does_not_stay(bench: Bench) -> None:
    bench.do("run", NOT_DEFAULT)
    put(bench.node, bench.path, TO_OURS(bench.content))  # all handlers are gone, and their default is not
    bench.do("uninstall")
    assert bench.default() == "crun"


@EACH
@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
@pytest.mark.parametrize("flag", [NOT_DEFAULT, "--set-as-default"])
def test_the_default_returns_that_an_installers_cleanup_took_with_its_handlers(
    bench: Bench, flag: str, *, again: bool
) -> None:
    bench.do("run", flag)
    put(bench.node, bench.path, after_peers_cleanup(bench.content))
    if again:
        bench.do("run", flag)
    bench.do("uninstall")
    assert bench.default() == "crun"


def after_peers_cleanup(content: bytes) -> bytes:
    """Return the file as NVIDIA's own installer leaves it, where its handler was the default: dockerd's becomes runc.

    tests/e2e/test_any_sequence_with_peer.py runs that installer.
    """
    lines = content.splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if b"default" in line)
    lines[number] = lines[number].replace(b"crun", b"runc") if content.startswith(b"{") else b""
    return b"".join(lines)


@EACH
@pytest.mark.parametrize("flag", [NOT_DEFAULT, "--set-as-default"])
def test_a_file_that_was_written_anew_without_a_default_gets_none(bench: Bench, flag: str) -> None:
    bench.do("run", flag)
    anew = REWRITTEN[bench.engine]
    put(bench.node, bench.path, anew)
    bench.do("uninstall")
    assert bench.node.read(bench.path) == anew


@pytest.mark.parametrize("flag", [NOT_DEFAULT, "--set-as-default"])
def test_runc_stays_dockers_default_where_it_was_chosen_beside_the_handlers(
    node: FakeNode, tmp_path: Path, flag: str
) -> None:
    bench = Bench(node, tmp_path, "docker")
    bench.do("run", flag)
    bench.edit(f'"{bench.default()}"'.encode(), b'"runc"')
    bench.do("uninstall")
    assert bench.default() == "runc"


def test_a_default_that_crios_other_file_names_goes_with_the_handler(node: FakeNode, tmp_path: Path) -> None:
    node.write(CRIO_SITE, b"[crio.runtime]\n# mine\n")
    flags = ("--no-daemon", NOT_DEFAULT)
    assert run(node, tmp_path, "run", *flags, engine="crio").code == 0
    node.write(CRIO_SITE, b'[crio.runtime]\n# mine\ndefault_runtime = "nvidia"\n')
    for again in (False, True):
        assert run(node, tmp_path, "run", *flags, engine="crio").code == 0
        assert b'default_runtime = "nvidia"' in node.read(CRIO_SITE)
        if again:
            node.write(CRIO_SITE, node.read(CRIO_SITE) + b"# and mine\n")
    assert run(node, tmp_path, "uninstall", engine="crio").code == 0
    assert node.read(CRIO_SITE) == b"[crio.runtime]\n# mine\n# and mine\n"
    assert not node.exists(CRIO_DROP_IN)


@pytest.fixture
def containerd_2(node: FakeNode) -> Iterator[FakeNode]:
    with cri_socket.answering(node.place("/run/containerd/containerd.sock"), "v2.1.4"):
        yield node


@pytest.mark.parametrize("imported", [False, True], ids=["our-import", "their-import"])
@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
def test_a_default_that_the_root_names_goes_with_the_handler_of_the_drop_in(
    containerd_2: FakeNode, tmp_path: Path, *, again: bool, imported: bool
) -> None:
    line = b'imports = ["/etc/containerd/conf.d/*.toml"]\n' if imported else b""
    root = CONTAINERD.replace(b"version = 2\n", b"version = 2\n" + line)
    containerd_2.write(CONFIG_TOML, root)
    flags = ("--no-daemon", NOT_DEFAULT, "--restart-mode", "none")

    def do(command: str, *more: str) -> None:
        done = run(containerd_2, tmp_path, command, *more, engine="containerd")
        assert done.code == 0, done.output

    do("run", *flags)
    assert containerd_2.exists(DROP_IN)
    put(containerd_2, CONFIG_TOML, TO_OURS(containerd_2.read(CONFIG_TOML)))
    if again:
        do("run", *flags)
        assert b'default_runtime_name = "nvidia"' in containerd_2.read(CONFIG_TOML)
    do("uninstall")
    left = containerd_2.read(CONFIG_TOML)
    assert left.decode() == root.decode()
    assert not containerd_2.exists(DROP_IN)


@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
def test_the_default_of_an_unedited_crio_drop_in_returns(node: FakeNode, tmp_path: Path, *, again: bool) -> None:
    site = "/etc/crio/crio.conf.d/10-crio.conf"
    content = (
        b'[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
    )
    node.write(site, content)
    assert run(node, tmp_path, "run", "--no-daemon", NOT_DEFAULT, engine="crio").code == 0
    node.write(site, content.replace(b'default_runtime = "crun"', b'default_runtime = "nvidia"'))
    if again:
        assert run(node, tmp_path, "run", "--no-daemon", NOT_DEFAULT, engine="crio").code == 0
    done = run(node, tmp_path, "uninstall", engine="crio")
    assert done.code == 0, done.output
    assert node.read(site) == content
