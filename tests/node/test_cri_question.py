"""The program that asks a CRI: it is started for each question, and costs as much as all else that a run does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.node.engines import cri_socket

ASKED = """
import sys
sys.argv = ["ask", *sys.argv[1:]]
from toolkit_installer import late
from toolkit_installer.engines.common.cri import ask
assert ask.main() == 0
loaded = [name for name, module in sys.modules.items() if not isinstance(module, late.StandIn)]
print("", *loaded, sep="\\n")
"""
UNUSED = {
    *("asyncio", "grpc.aio", "inspect", "ssl"),
    *("google.protobuf.internal.python_message", "google.protobuf.text_format"),
}


def test_a_question_is_answered_without_coroutines_secure_channels_and_messages_as_text(tmp_path: Path) -> None:
    socket = tmp_path / "run/containerd.sock"
    with cri_socket.answering(socket, "1.7.24"):
        done = subprocess.run(
            [sys.executable, "-c", ASKED, socket.name, "20"],
            cwd=socket.parent,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    said, *modules = done.stdout.splitlines()
    assert json.loads(said)["version"] == "1.7.24"
    assert {"grpc", "google.protobuf.message"} <= set(modules)
    assert not UNUSED & set(modules)


def test_an_engine_that_is_not_there_is_said_in_its_own_words(tmp_path: Path) -> None:
    text = ASKED.replace("assert ask.main() == 0", "raise SystemExit(ask.main())")
    done = subprocess.run(
        [sys.executable, "-c", text, "absent.sock", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("UNAVAILABLE: ")
