"""What somebody else does to an engine's file while we are installed, and nodes to do it on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit

from tests.node.faults import Outcome, run
from tests.support.fake_node import DAEMON_JSON, FakeNode

Edit = Callable[[bytes], bytes | None]


FOLDERS = ("etc/docker", "etc/containerd", "run", "usr/local")


def swap(old: bytes, new: bytes) -> Edit:
    """Return an edit of the first place at which `old` stands; it must stand there."""

    def edit(text: bytes) -> bytes:
        assert old in text, text.decode()
        return text.replace(old, new, 1)

    return edit


def both(first: Edit, second: Edit) -> Edit:
    def edit(text: bytes) -> bytes | None:
        between = first(text)
        assert between is not None
        return second(between)

    return edit


def becomes(text: bytes | None) -> Edit:
    return lambda _text: text


def sorted_json(text: bytes) -> bytes:
    """Return the text as a formatter leaves it that sorts the keys."""
    command = [sys.executable, "-m", "json.tool", "--sort-keys", "--indent", "2"]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True, timeout=30).stdout


def reversed_json(text: bytes) -> bytes:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return value

    return json.dumps(turned(json.loads(text)), indent="\t").encode()


def formatted_toml(text: bytes) -> bytes:
    """Return the text as a tool leaves it that reads it all and writes it anew: other order, no comments."""

    def ordered(value: Any) -> Any:
        return {key: ordered(value[key]) for key in sorted(value)} if isinstance(value, dict) else value

    return tomlkit.dumps(ordered(tomllib.loads(text.decode()))).encode()


def parsed(path: str, content: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(content) if path == DAEMON_JSON else tomllib.loads(content.decode())
    return document


def unchanged(text: bytes) -> bytes:
    return text


def put(node: FakeNode, path: str, content: bytes | None) -> None:
    """Do as an editor does that writes in place."""
    if content is None:
        node.place(path).unlink()
    else:
        node.place(path).write_bytes(content)


def content_of(node: FakeNode, path: str) -> bytes | None:
    return node.read(path) if node.exists(path) else None


class Templates:
    """Nodes on which a file is installed, made once and copied."""

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder = folder
        self.payload = payload
        self._made: dict[tuple[str, bytes | None], Path] = {}
        self._copies = 0

    def installed(self, path: str, base: bytes | None) -> FakeNode:
        """Return a new node, installed on `base` at `path`."""
        root = self._made.get((path, base))
        if root is None:
            root = self.folder / f"template-{len(self._made)}"
            for place in FOLDERS:
                (root / place).mkdir(parents=True)
            template = FakeNode(root, self.payload)
            if base is not None:
                template.write(path, base, 0o640)
            done = run(template, self.folder, "run", "--no-daemon", engine=engine_of(path))
            assert done.code == 0, done.output
            self._made[path, base] = root
        self._copies += 1
        copy = self.folder / f"node-{self._copies}"
        shutil.copytree(root, copy, symlinks=True)
        return FakeNode(copy, self.payload)

    def run(self, node: FakeNode, path: str, command: str, *more: str) -> Outcome:
        return run(node, self.folder, command, *more, engine=engine_of(path))


def engine_of(path: str) -> str:
    return "docker" if path == DAEMON_JSON else "containerd"
