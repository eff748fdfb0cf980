"""The engine's file broken, locked, moved or handed to others while we are installed; and asked to look again."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.drift import FOLDERS, Templates, put, swap
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, STORE, TOOLKIT, WAITING, FakeNode, patiently

CONTAINERD = b'version = 2\n# mine\n[debug]\n  level = "info"\n'
BASES = {DAEMON_JSON: DOCKER, CONFIG_TOML: CONTAINERD}
BOTH = pytest.mark.parametrize("path", [DAEMON_JSON, CONFIG_TOML])
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, attributes and owners are root's")


def installed(templates: Templates, path: str) -> FakeNode:
    return templates.installed(path, BASES[path])


@pytest.mark.parametrize(
    "path, damage, line, word",
    [
        (DAEMON_JSON, swap(b'"args": []', b'"args": ['), 6, "not valid JSON"),
        (DAEMON_JSON, lambda text: text[: len(text) // 2], 8, "not valid JSON"),
        (DAEMON_JSON, swap(b'"runtimes": {', b'"runtimes": 5, "x": {'), 2, "must be an object"),
        (DAEMON_JSON, lambda text: text + text, 19, "not valid JSON"),
        (CONFIG_TOML, swap(b"[debug]", b"[debug"), 3, "not valid TOML"),
        (CONFIG_TOML, lambda text: text[: text.index(b"nvidia-cdi.options")], 18, "not valid TOML"),
        (CONFIG_TOML, swap(b"version = 2", b"version = 7"), 1, "is of version 7"),
    ],
)
def test_a_broken_file_is_named_and_left_alone_and_after_its_repair_cleanup_is_exact(
    templates: Templates, path: str, damage: Callable[[bytes], bytes], line: int, word: str
) -> None:
    node = installed(templates, path)
    good = node.read(path)
    put(node, path, damage(good))
    before = node.snapshot()
    for command in ("uninstall", "run"):
        refused = templates.run(node, path, command, *(["--no-daemon"] if command == "run" else []))
        assert refused.code == 3, refused.output
        assert path in refused.output
        assert f"line={line}" in refused.output, refused.output
        assert word in refused.output
        assert "hint=" in refused.output
        assert "Traceback" not in refused.output
        assert node.snapshot() == before
    put(node, path, good)
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    assert node.read(path) == BASES[path]
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)


@NEEDS_ROOT
@BOTH
@pytest.mark.parametrize("edited", [False, True])
def test_mode_and_owner_that_somebody_gave_the_file_meanwhile_stay(
    templates: Templates, path: str, *, edited: bool
) -> None:
    node = installed(templates, path)
    if edited:
        put(node, path, node.read(path) + b"\n")
    node.place(path).chmod(0o400)
    os.chown(node.place(path), 4321, 1234)
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    status = node.place(path).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o400, 4321, 1234)
    assert node.read(path) == BASES[path] + (b"\n" if edited else b"")


class Lock:
    """One of the ways to make a file one that nobody can change; `open` ends it."""

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.place = place
        self._closed = False

    def close(self) -> bool:
        """Lock the file; tell whether this machine can."""
        if self.name == "immutable":
            done = subprocess.run(["chattr", "+i", str(self.place)], capture_output=True, check=False)
            self._closed = done.returncode == 0
        elif self._mount(["--bind", str(self.place), str(self.place)]):
            self._closed = True
            return self.name == "mounted" or self._mount(["-o", "remount,bind,ro", str(self.place)])
        return self._closed

    def _mount(self, arguments: list[str]) -> bool:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0

    def open(self) -> None:
        """Let it be changed again."""
        if self._closed:
            command = ["chattr", "-i"] if self.name == "immutable" else ["umount"]
            subprocess.run([*command, str(self.place)], check=True)
        self._closed = False


LOCKS = {
    "immutable": ("", "Operation not permitted"),
    "mounted": ("", "Device or resource busy"),
    "read-only": ("", "Device or resource busy"),
    "read-only-folder": ("..", "Read-only file system"),
}


@pytest.fixture(params=list(LOCKS))
def lock(request: pytest.FixtureRequest) -> Iterator[Callable[[FakeNode, str], tuple[Lock, str]]]:
    made: list[Lock] = []

    def closed(node: FakeNode, path: str) -> tuple[Lock, str]:
        where, words = LOCKS[request.param]
        made.append(Lock(request.param, Path(os.path.normpath(node.place(path) / where))))
        if not made[-1].close():
            pytest.skip(f"this machine cannot make a file {request.param}")
        return made[-1], words

    yield closed
    for each in made:
        each.open()


@NEEDS_ROOT
@BOTH
def test_a_file_that_cannot_be_changed_is_named_and_a_later_uninstall_finishes(
    templates: Templates, path: str, lock: Callable[[FakeNode, str], tuple[Lock, str]]
) -> None:
    node = installed(templates, path)
    before = node.read(path)
    locked, words = lock(node, path)
    refused = templates.run(node, path, "uninstall")
    assert refused.code == 3, refused.output
    assert path in refused.output
    assert words in refused.output
    assert node.read(path) == before
    assert node.exists(f"{STORE}/receipt.json")
    assert node.broken_runtimes() == []
    locked.open()
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    assert node.read(path) == BASES[path]
    assert sorted(os.listdir(node.place(os.path.dirname(path)))) == [os.path.basename(path)]
    assert not node.exists(TOOLKIT)


@BOTH
def test_a_file_moved_away_with_a_symlink_in_its_place_is_edited_where_it_is_now(
    templates: Templates, path: str
) -> None:
    node = installed(templates, path)
    moved = "/srv/managed/config"
    node.place(moved).parent.mkdir(parents=True)
    node.place(path).rename(node.place(moved))
    node.place(path).symlink_to(moved)
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    assert os.readlink(node.place(path)) == moved
    assert node.read(moved) == BASES[path]


# --- asked to look again ---


@pytest.fixture
def nodes(tmp_path: Path, payload: Path) -> Iterator[dict[str, FakeNode]]:
    made = {}
    for path, base in BASES.items():
        root = tmp_path / os.path.basename(path)
        for folder in FOLDERS:
            (root / folder).mkdir(parents=True)
        made[path] = FakeNode(root, payload)
        made[path].write(path, base)
    yield made
    for node in made.values():
        node.close()


EDITS = {
    DAEMON_JSON: swap(b"json-file", b"journald"),
    CONFIG_TOML: swap(b'"info"', b'"debug"'),
}


def engine_of(path: str) -> str:
    return "docker" if path == DAEMON_JSON else "containerd"


def test_on_drift_repair_restores_the_handlers_and_the_cleanup_keeps_the_edit(
    nodes: dict[str, FakeNode],
) -> None:
    runs = {path: node.waiting("--on-drift", "repair", engine=engine_of(path)) for path, node in nodes.items()}
    for path, node in nodes.items():
        put(node, path, EDITS[path](BASES[path]))
    for path, node in nodes.items():
        patiently(runs[path], "A managed file was changed")
        runs[path].wait_for(WAITING)
        assert set(node.named_runtimes()) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
        assert node.broken_runtimes() == []
        assert runs[path].stop() == 0
        assert node.read(path) == EDITS[path](BASES[path])
        assert not node.exists(TOOLKIT)


def test_on_drift_report_names_the_file_and_leaves_it(nodes: dict[str, FakeNode]) -> None:
    path = DAEMON_JSON
    run = nodes[path].waiting()
    edited = EDITS[path](BASES[path])
    put(nodes[path], path, edited)
    patiently(run, "Somebody changed the file")
    assert path in run.output
    run.wait_for(WAITING)
    assert nodes[path].read(path) == edited
    assert run.stop() == 0
    assert nodes[path].read(path) == edited


@BOTH
@pytest.mark.parametrize("gone", [False, True])
def test_hangup_puts_the_handlers_back_in_a_file_made_anew_or_removed(
    nodes: dict[str, FakeNode], path: str, *, gone: bool
) -> None:
    node = nodes[path]
    run = node.waiting(engine=engine_of(path))
    edited = None if gone else EDITS[path](BASES[path])
    put(node, path, edited)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert set(node.named_runtimes()) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert run.stop() == 0
    assert node.read(path) == (BASES[path] if gone else edited)


def test_a_stop_on_a_broken_file_exits_3_and_uninstall_finishes_after_the_repair(nodes: dict[str, FakeNode]) -> None:
    node = nodes[DAEMON_JSON]
    run = node.waiting()
    good = node.read(DAEMON_JSON)
    put(node, DAEMON_JSON, good[:-4])
    assert run.stop() == 3
    assert DAEMON_JSON in run.output
    assert node.exists(f"{STORE}/receipt.json")
    assert node.place(f"{TOOLKIT}/nvidia-container-runtime").exists()
    put(node, DAEMON_JSON, good)
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)
