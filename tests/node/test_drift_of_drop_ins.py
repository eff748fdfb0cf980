"""A drop-in and the import of it, edited or removed by somebody else: no import leads nowhere once we are gone."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.drift import Edit, content_of, formatted_toml, put, swap, unchanged
from tests.node.engines import cri_socket
from tests.node.faults import run
from tests.support.fake_node import CONFIG_TOML, DROP_IN, STORE, TOOLKIT, FakeNode

ROOT = b"""\
version = 2
# mine
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[debug]
  level = "info"
"""
BARE = b"version = 2\n"
SOCKET = "/run/containerd/containerd.sock"
IMPORT = f'imports = ["{DROP_IN}"]\n'.encode()
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


class Bench:
    """A node with containerd 2.1, which is restarted by somebody else."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.folder = folder

    def do(self, command: str, *more: str) -> str:
        """Run a command, which must succeed, and return what it said."""
        done = run(self.node, self.folder, command, *more, engine="containerd")
        assert done.code == 0, done.output
        return done.output

    def install(self, root: bytes = ROOT) -> None:
        self.node.write(CONFIG_TOML, root)
        self.do("run", "--no-daemon", "--restart-mode", "none")

    def handlers(self) -> set[str]:
        """Return the handlers that the drop-in names, if the root imports it."""
        imports = tomllib.loads(self.node.read(CONFIG_TOML).decode()).get("imports", [])
        assert DROP_IN in imports
        document = tomllib.loads(self.node.read(DROP_IN).decode())
        return set(document["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"])

    def dangling(self) -> list[str]:
        """Return the literal imports that lead nowhere: containerd does not start with one."""
        imports = tomllib.loads(self.node.read(CONFIG_TOML).decode()).get("imports", [])
        places = [os.path.join(os.path.dirname(CONFIG_TOML), each) for each in imports if "*" not in each]
        return [place for place in places if not self.node.exists(place)]


@pytest.fixture
def bench(node: FakeNode, tmp_path: Path) -> Iterator[Bench]:
    with cri_socket.answering(node.place(SOCKET), "v2.1.4"):
        yield Bench(node, tmp_path)


def relative(text: bytes) -> bytes:
    return text.replace(b"/etc/containerd/conf.d/", b"conf.d/").replace(b'["conf.d', b'["./conf.d')


ROOT_EDITS: dict[str, tuple[Edit, Edit]] = {
    "a-line-of-theirs": (swap(b'"info"', b'"debug"'), swap(b'"info"', b'"debug"')),
    "the-import-removed": (swap(IMPORT, b""), unchanged),
    "an-import-of-theirs-beside-it": (
        swap(f'"{DROP_IN}"'.encode(), f'"{DROP_IN}", "/etc/other.toml"'.encode()),
        swap(b"version = 2\n", b'version = 2\nimports = ["/etc/other.toml"]\n'),
    ),
    "the-import-by-a-relative-path": (relative, unchanged),
    "the-import-twice": (swap(f'"{DROP_IN}"'.encode(), f'"{DROP_IN}", "{DROP_IN}"'.encode()), unchanged),
    "a-wildcard-instead": (
        swap(f'"{DROP_IN}"'.encode(), b'"/etc/containerd/conf.d/*.toml"'),
        swap(b"version = 2\n", b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'),
    ),
    "made-anew-from-the-original": (lambda _text: ROOT, unchanged),
    "sorted-by-a-tool": (formatted_toml, formatted_toml),
}


@pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])
@pytest.mark.parametrize("edit, alone", ROOT_EDITS.values(), ids=ROOT_EDITS.keys())
def test_an_edited_root_loses_our_import_and_nothing_else(
    bench: Bench, edit: Edit, alone: Edit, *, again: bool
) -> None:
    bench.install()
    put(bench.node, CONFIG_TOML, edit(bench.node.read(CONFIG_TOML)))
    bench.node.write("/etc/other.toml", b"version = 2\n")
    if again:
        bench.do("run", "--no-daemon", "--restart-mode", "none")
        assert bench.dangling() == []
        assert {"nvidia", "nvidia-cdi", "nvidia-legacy"} <= set(runtimes_of(bench))
    said = bench.do("uninstall")
    assert bench.node.read(CONFIG_TOML) == alone(ROOT)
    assert not bench.node.exists(DROP_IN)
    assert bench.dangling() == []
    assert not bench.node.exists(TOOLKIT), said


def runtimes_of(bench: Bench) -> list[str]:
    document = tomllib.loads(bench.node.read(DROP_IN).decode())
    return list(document["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"])


RUNTIME = f'BinaryName = "{TOOLKIT}/nvidia-container-runtime"'.encode()
GOES = "somebody else wrote it, but it runs our executable: it goes"
STAYS = "the rest is somebody else's and stays"
METRICS = b'[metrics]\n  address = ":1338"\n'

DROP_IN_EDITS: dict[str, tuple[Edit, bytes | None, str]] = {
    "an-option-more": (swap(RUNTIME, RUNTIME + b"\n  Root = '/x'"), None, GOES),
    "a-table-of-theirs": (lambda text: text + METRICS, METRICS, STAYS),
    "a-comment-of-theirs": (lambda text: b"# mine\n" + text, b"# mine\n", STAYS),
    "sorted-by-a-tool": (formatted_toml, None, ""),
    "deleted": (lambda _text: None, None, ""),
    "emptied": (lambda _text: b"", None, ""),
    "made-anew": (lambda _text: METRICS, METRICS, ""),
}


@pytest.mark.parametrize("edit, left, says", DROP_IN_EDITS.values(), ids=DROP_IN_EDITS.keys())
def test_an_edited_drop_in_loses_ours_and_goes_unless_somebody_has_something_in_it(
    bench: Bench, edit: Edit, left: bytes | None, says: str
) -> None:
    bench.install()
    put(bench.node, DROP_IN, edit(bench.node.read(DROP_IN)))
    said = bench.do("uninstall")
    assert content_of(bench.node, DROP_IN) == left
    assert says in said
    assert bench.node.read(CONFIG_TOML) == ROOT
    assert not bench.node.exists(STORE)


def test_a_drop_in_that_was_there_before_gets_its_bytes_back_with_their_edit(bench: Bench) -> None:
    theirs = b"version = 2\n# theirs\n" + METRICS
    bench.node.write(DROP_IN, theirs, 0o600)
    bench.install()
    edit = swap(b"1338", b"1339")
    put(bench.node, DROP_IN, edit(bench.node.read(DROP_IN)))
    bench.do("uninstall")
    assert bench.node.read(DROP_IN) == edit(theirs)
    assert bench.node.read(CONFIG_TOML) == ROOT


@pytest.mark.parametrize("root", [ROOT, BARE], ids=["with-runc", "bare"])
@pytest.mark.parametrize("again", [False, True], ids=["uninstall", "run-and-uninstall"])
def test_without_its_receipt_the_import_goes_with_the_drop_in(bench: Bench, root: bytes, *, again: bool) -> None:
    bench.install(root)
    for name in ("receipt.json", "originals"):
        remove(bench.node.place(f"{STORE}/{name}"))
    if again:
        bench.do("run", "--no-daemon", "--restart-mode", "none")
        assert bench.handlers() >= HANDLERS
    bench.do("uninstall")
    assert bench.dangling() == []
    assert bench.node.read(CONFIG_TOML) == root
    assert not bench.node.exists(DROP_IN)
    assert not bench.node.exists(STORE)


def remove(place: Path) -> None:
    if place.is_dir():
        for each in place.iterdir():
            each.unlink()
        place.rmdir()
    else:
        place.unlink()


def test_without_its_receipt_what_somebody_put_into_our_drop_in_stays(bench: Bench) -> None:
    bench.install()
    put(bench.node, DROP_IN, bench.node.read(DROP_IN) + METRICS)
    remove(bench.node.place(f"{STORE}/receipt.json"))
    bench.do("uninstall")
    left = tomllib.loads(bench.node.read(DROP_IN).decode())
    assert left == {"version": 2, "metrics": {"address": ":1338"}}
    assert bench.dangling() == []
