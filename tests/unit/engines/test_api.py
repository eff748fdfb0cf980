"""The clients of engines: whatever keeps them from asking is the engine's silence to who asks, and no other error."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit_installer.engines import registry
from toolkit_installer.engines.api import EngineSilentError, get_adapter
from toolkit_installer.engines.common import cri
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.settings import EngineName

PATH = "/run/engine/engine.sock"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    place = tmp_path / PATH.lstrip("/")
    place.parent.mkdir(parents=True)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{folder}/{place.name}")
        listening.listen(8)
        listening.settimeout(0)
        yield Node(str(tmp_path))
    os.close(folder)


def cannot_fork(*_: object) -> bytes:
    raise ProgramError("cannot start python: [Errno 11] Resource temporarily unavailable", path="python")


def says_half(*_: object) -> bytes:
    return b'{"answer": {"name": "contai\n'


@pytest.mark.parametrize("engine", [EngineName.CONTAINERD, EngineName.CRIO])
@pytest.mark.parametrize("ask", [cannot_fork, says_half])
def test_a_client_that_cannot_start_or_is_cut_off_is_an_engine_that_is_silent(
    node: Node, monkeypatch: pytest.MonkeyPatch, engine: EngineName, ask: Callable[..., bytes]
) -> None:
    monkeypatch.setattr(cri._CHILD, "ask", ask)
    with pytest.raises(EngineSilentError):
        get_adapter(engine).ask(node, PATH, 1)


@pytest.mark.parametrize("engine", registry.names())
@pytest.mark.parametrize("spoil", ["gone", "loop", "file"])
def test_a_sockets_folder_that_vanishes_is_an_engine_that_is_silent(node: Node, engine: EngineName, spoil: str) -> None:
    folder = Path(node.root.outside("/run/engine"))
    shutil.rmtree(folder)
    if spoil == "loop":
        folder.symlink_to(folder.name)
    elif spoil == "file":
        folder.write_text("")
    with pytest.raises(EngineSilentError):
        get_adapter(engine).ask(node, PATH, 1)
