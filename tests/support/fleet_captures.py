"""Captures of a made-up fleet: a few nodes of each kind are made and captured, and all others are copies of these.

python -m tests.support.fleet_captures FOLDER COUNT     writes COUNT captures into FOLDER, a new one

A copy has a name of its own, and is read, and planned for, like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import msgspec

from tests.node.engines import cri_socket
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.engines.rules import docker_started
from tests.support import distribution_cases, payloads
from tests.support.browser import Browser
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, FakeNode
from toolkit_installer.applying import reload
from toolkit_installer.cli import commands
from toolkit_installer.fleet import archive
from toolkit_installer.settings import Program

DATA = Path(__file__).parents[1] / "data"
VARIANTS = 3
"""How many nodes of a kind are made: they differ in what no change is about, or in the change."""
_CRI = "/run/containerd/containerd.sock"
_OF_K3S = "/run/k3s/containerd/containerd.sock"
_FOLDERS = ("etc/docker", "etc/containerd", "run", "usr/local")
_CUT_OFF = 300
"""Bytes that are left of a damaged capture."""
_STEP = 37
"""By how much of a hundred one node's place among the kinds differs from the next one's: neighbours differ."""

Alive = Callable[[FakeNode, int], contextlib.AbstractContextManager[object]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Nodes of one kind. `put` gives a node its files; both it and `alive` are told which variant it is."""

    name: str
    share: int
    """Of a hundred nodes."""
    engine: str
    put: Callable[[FakeNode, int], None]
    alive: Alive = lambda _node, _variant: contextlib.nullcontext()
    """Has its engine answer meanwhile."""
    installed: bool = False
    since: Callable[[bytes], bytes] | None = None
    """What somebody made of the engine's file since it was installed."""
    flags: tuple[str, ...] = ()
    cut_off: bool = False
    """The capture is not whole."""


def kinds() -> list[Kind]:
    """Return all kinds. Their shares come to a hundred."""
    live = ("--socket", SOCKET)
    unmanaged = ("--restart-mode", "none")
    return [
        Kind("docker", 18, "docker", _docker, _dockerd, flags=live),
        Kind("docker-installed", 16, "docker", _docker, _dockerd, installed=True, flags=live),
        Kind("docker-edited", 4, "docker", _docker, _dockerd, installed=True, since=_without_default, flags=live),
        Kind("docker-broken", 2, "docker", lambda node, _: node.write(DAEMON_JSON, '{"runtimes": {')),
        Kind("containerd-1.7", 10, "containerd", _containerd, _answering("1.7.24"), flags=unmanaged),
        Kind("containerd-2.1", 10, "containerd", _containerd, _answering("2.1.4"), flags=unmanaged),
        Kind("containerd-installed", 12, "containerd", _containerd, installed=True),
        Kind("containerd-edited", 3, "containerd", _containerd, installed=True, since=_with_another_path),
        Kind("containerd-broken", 1, "containerd", lambda node, _: node.write(CONFIG_TOML, "version = 2\n[plugins\n")),
        Kind("crio", 8, "crio", _crio),
        Kind("k3s", 5, "auto", _distribution("k3s", "drop-in"), _answering("2.1.4", _OF_K3S), flags=unmanaged),
        Kind("k3s-template", 3, "auto", _distribution("k3s", "template-created"), flags=unmanaged),
        Kind("rke2", 6, "auto", _distribution("rke2", "drop-in"), flags=unmanaged),
        Kind("cut-off", 2, "docker", _docker, cut_off=True),
    ]


def make(folder: Path, count: int, variants: int = VARIANTS) -> list[str]:
    """Write `count` captures into a new folder; return the kind of each, in their order."""
    folder.mkdir()
    made = kinds()
    places = [kind for kind in made for _ in range(kind.share)]
    chosen = [places[number * _STEP % len(places)] for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="made-fleet-") as scratch:
        payload = payloads.build(Path(scratch) / "payload")
        originals = {
            kind.name: [_captured(kind, variant, Path(scratch), payload) for variant in range(variants)]
            for kind in made
            if kind in chosen
        }
    for number, kind in enumerate(chosen):
        name = f"gpu-{number:05}"
        content = _renamed(originals[kind.name][number // len(places) % variants], name)
        content = content[:_CUT_OFF] if kind.cut_off else content
        (folder / f"{name}{archive.SUFFIX}").write_bytes(content)
    return [kind.name for kind in chosen]


def _renamed(content: bytes, name: str) -> bytes:
    """Return the capture of a node that differs in its name alone."""
    found = archive.read(content, name)
    head = msgspec.structs.replace(found, node=name, answers={})
    # as they were read: an answer is decoded once it is asked for
    return archive.packed(head, found.answers)  # type: ignore[arg-type]


def _captured(kind: Kind, variant: int, scratch: Path, payload: Path) -> bytes:
    """Return the capture of a node."""
    place = scratch / f"{kind.name}-{variant}"
    node = FakeNode(place / "node", payload)
    for folder in _FOLDERS:
        (node.root / folder).mkdir(parents=True)
    kind.put(node, variant)
    flags = (*node.arguments("plan", engine=kind.engine)[1:], *kind.flags)
    with kind.alive(node, variant), mock.patch.object(reload, "STEADY_SECONDS", 0.0):
        if kind.installed:
            _do("run", *flags, "--no-daemon", "--cleanup", "never")
        if kind.since is not None:
            path = DAEMON_JSON if kind.engine == "docker" else CONFIG_TOML
            node.write(path, kind.since(node.read(path)))
        _do("capture", *flags, str(place / "node.capture"))
    return (place / "node.capture").read_bytes()


def _do(*arguments: str) -> None:
    """Run a command of the program in this process."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = commands.main(Program.TOOLKIT_INSTALLER, arguments, {"PATH": os.environ["PATH"]})
    assert code == 0, said.getvalue()


def _docker(node: FakeNode, variant: int) -> None:
    texts = ('{\n  "log-driver": "json-file"\n}\n', '{\n    "live-restore": true\n}\n', "{}\n")
    node.write(DAEMON_JSON, texts[variant % len(texts)])


@contextlib.contextmanager
def _dockerd(node: FakeNode, variant: int) -> Iterator[None]:
    """Have a dockerd answer that was started on its file."""
    says = {"LiveRestoreEnabled": variant == 1, "ContainersRunning": 4 * variant, "ServerVersion": "28.0.4"}
    with contextlib.closing(FakeDockerd(node, **says)) as dockerd:
        dockerd.put(docker_started(node.read(DAEMON_JSON)))
        yield


def _containerd(node: FakeNode, variant: int) -> None:
    names = ("debian-package", "eks", "kubeadm")
    content = (DATA / "corpus" / "containerd" / f"{names[variant % len(names)]}.toml").read_bytes()
    node.write(CONFIG_TOML, content)


def _answering(version: str, socket: str = _CRI) -> Alive:
    return lambda node, _: cri_socket.answering(node.place(socket), version)


def _crio(node: FakeNode, _variant: int) -> None:
    shutil.copytree(DATA / "crio" / "packaged" / "in", node.root, dirs_exist_ok=True)


def _distribution(distribution: str, name: str) -> Callable[[FakeNode, int], None]:
    return lambda node, _: distribution_cases.Case(distribution, name).put(node)


def _without_default(content: bytes) -> bytes:
    return content.replace(b'"default-runtime": "nvidia"', b'"default-runtime": "runc"')


def _with_another_path(content: bytes) -> bytes:
    return content.replace(b"/nvidia-container-runtime.cdi", b"/somebody-elses-runtime")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a fleet's captures."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fleet_captures")
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--picture", type=Path, help="what a browser shows of their replay, as docs/fleet.md has it")
    options = parser.parse_args(arguments)
    make(options.folder, options.count)
    if options.picture is not None:
        options.picture.write_bytes(_picture(options.folder))


def _picture(folder: Path) -> bytes:
    """Return a picture of the page that a replay of the captures writes, as PNG."""
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "fleet.html"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            commands.main(Program.TOOLKIT_INSTALLER, ("replay", str(folder), "--html", str(page)), dict(os.environ))
        with Browser(Path(name) / "profile") as browser:
            browser.prefer("light")
            browser.open(page)
            return browser.picture()


if __name__ == "__main__":
    main()
