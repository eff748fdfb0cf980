"""Who is signalled by `uninstall`: an installer that holds the PID file, and no other, whatever it looks like."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from toolkit_installer.errors import AlreadyRunningError
from toolkit_installer.node import locks, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.revert import uninstall

PATH = "/run/toolkit.pid"
PID = 4711
PYTHON = "/usr/bin/python3.11"


class Held:
    """A node whose PID file a process holds, which leaves once it is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(str(folder))
        self.store = ReceiptStore(self.node, "/usr/local/nvidia")
        self.place = folder / PATH.lstrip("/")
        self.place.parent.mkdir()
        self.signals: list[tuple[int, signal.Signals]] = []
        self.process: Process | None = None
        monkeypatch.setattr(processes, "inspect_process", lambda pid: self.process if pid == PID else None)
        monkeypatch.setattr(locks, "find_instance", lambda *_: None if self.signals else PID)
        monkeypatch.setattr(
            processes, "send_signal", lambda _, process, number: self.signals.append((process.pid, number))
        )

    def by(self, executable: str, *arguments: str, says: str) -> None:
        """Have a program hold it; `says`: what the file holds."""
        name = executable.rpartition("/")[2]
        self.process = Process(PID, name, executable, (name, *arguments), 1.0, None)
        self.place.write_text(says)

    def ask(self, *, keep_toolkit: bool = False) -> None:
        uninstall.request_cleanup(self.node, self.store, PATH, keep_toolkit=keep_toolkit, seconds=30)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "executable, arguments, says",
    [
        (PYTHON, ("-m", "http.server"), str(PID)),  # it says itself that it is the instance
        (PYTHON, ("-I", "/opt/venv/bin/toolkit-installer", "run"), ""),
        (PYTHON, ("/usr/bin/nvidia-toolkit",), "1"),
        (PYTHON, ("/opt/lib/toolkit_installer/node/idling.py",), ""),
        (PYTHON, ("-m", "toolkit_installer"), ""),
        ("/usr/bin/nvidia-ctk-installer", (), str(PID)),
        ("/usr/bin/nvidia-toolkit", ("/run", "--anything"), str(PID)),
    ],
)
def test_an_installer_is_asked_whichever_it_is_and_however_it_was_started(
    held: Held, executable: str, arguments: tuple[str, ...], says: str
) -> None:
    held.by(executable, *arguments, says=says)
    held.ask()
    assert held.signals == [(PID, signal.SIGTERM)]


@pytest.mark.parametrize(
    "executable, arguments, says",
    [
        (PYTHON, ("-m", "http.server"), ""),
        (PYTHON, ("-m", "http.server"), str(PID + 1)),
        (PYTHON, ("/srv/backup.py", "/opt/venv/bin/toolkit-installer"), "nonsense"),
        ("/usr/bin/vim", ("/opt/lib/toolkit_installer/log.py",), str(PID)),
        ("/usr/bin/flock", ("toolkit_installer",), str(PID)),
    ],
)
def test_another_program_that_holds_the_lock_is_not_signalled_and_is_named(
    held: Held, executable: str, arguments: tuple[str, ...], says: str
) -> None:
    held.by(executable, *arguments, says=says)
    with pytest.raises(AlreadyRunningError, match=f"PID {PID} holds the lock") as raised:
        held.ask()
    assert held.signals == []
    assert raised.value.path == PATH
    assert raised.value.hint


def test_a_holder_that_is_not_seen_is_not_signalled(held: Held) -> None:
    held.place.write_text(str(PID))
    with pytest.raises(AlreadyRunningError, match=f"PID {PID} holds the lock"):
        held.ask()
    assert held.signals == []


@pytest.mark.parametrize("keep, left", [(True, uninstall.KEEP), (False, uninstall.REMOVE)])
def test_what_becomes_of_the_toolkit_is_asked_with_it(held: Held, left: bytes, *, keep: bool) -> None:
    held.by(PYTHON, "-m", "toolkit_installer", says=str(PID))
    folder = Path(held.node.root.folder, held.store.folder.lstrip("/"))
    folder.mkdir(parents=True, mode=0o700)
    held.ask(keep_toolkit=keep)
    assert held.store.take_request() == left
