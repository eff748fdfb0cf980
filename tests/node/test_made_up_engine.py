"""An engine is a folder of code and a row in the registry: one that nobody knew is recognised, named and configured."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_node import NOTHING_TO_DO, STORE, TOOLKIT, FakeNode, Run

CONFIG = "/etc/boxer/boxer.toml"
WRITTEN = b'# boxes\ndefault = "runc"\n\n[runtimes.runc]\npath = "/opt/boxer/runc"\n'
ADAPTER = """
from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Set
from toolkit_installer.engines import ownership
from toolkit_installer.engines.api import Adapter, DesiredFile, DesiredState, EngineFile, EngineSilentError
from toolkit_installer.engines.api import Inspection, RecordedFile
from toolkit_installer.engines.common import reload_method, serving
from toolkit_installer.settings import EngineName, ReloadMode

ROLE = "boxer.toml"
SHAPE = ownership.Shape(("runtimes",), ("default",), lambda entry: entry.get("path"))


class Boxer(Adapter):
    name = EngineName("boxer")

    def has_role(self, role):
        return role == ROLE

    def allows_name(self, role, name):
        return ".toml" in name

    def inspect(self, node, target):
        socket = target.socket or "/run/boxer.sock"
        live, silence = serving.query_engine(self, node, socket, target.settings.answer_timeout)
        file = EngineFile(ROLE, *node.locate_file(target.config or "/etc/boxer/boxer.toml"))
        return Inspection(socket, (file,), live, silence)

    def build_desired_state(self, inspection, request, memories):
        (file,) = inspection.files
        without = self.remove_ours(file, memories.get(file.path, RecordedFile()), request.toolkit_folder)
        base = toml_document.parse(without.base or b"")
        changes = [Set(("runtimes", each.name), {"path": each.executable}) for each in request.handlers]
        changes += [Set(("default",), request.default)] if request.default else []
        text = toml_document.edit(without.base or b"", changes, marker="Added for boxer.")
        served = {each.name: each.executable for each in request.handlers}
        goal = without.with_target(text, toml_document.parse, ownership.record_ownership(base, changes))
        return DesiredState((goal,), served, request.default, ownership.list_low_level_runtimes(base, SHAPE))

    def find_unrecorded(self, inspection, toolkit_folder):
        return {}

    def remove_ours(self, file, memory, toolkit_folder):
        def without_ours(content):
            gone, left = ownership.remove_ours(toml_document.parse(content), SHAPE, memory.ownership, toolkit_folder)
            return toml_document.edit(content, gone, marker="Added for boxer."), left

        base, left = ownership.revert_content(file.content, memory.before, memory.written, without_ours)
        return DesiredFile(file, base=base, target=base, left=left)

    def choose_reload(self, node, inspection, settings):
        return reload_method.choose_reload(node, self.name, inspection, settings.reload_mode, ReloadMode.SIGNAL)

    def ask(self, node, socket, seconds):
        raise EngineSilentError("boxer does not answer", path=socket)
"""
PROGRAM = f"""
import sys

from toolkit_installer.engines import registry
from toolkit_installer.engines.registry import Distribution
from toolkit_installer.settings import EngineName

registry.ENGINES = (
    *registry.ENGINES,
    registry.EngineRow(
        name=EngineName("boxer"),
        adapter="boxer:Boxer",
        processes=frozenset({{"boxerd"}}),
        address_flags=("--listen",),
        socket_names=("boxer.sock",),
        distributions=(
            Distribution(
                name="boxer",
                engine=EngineName("boxer"),
                sockets=("/run/boxer.sock",),
                config="{CONFIG}",
                units=("boxer.service",),
                configured="boxer.toml, in place",
            ),
        ),
    ),
)

from toolkit_installer.__main__ import toolkit_installer

sys.exit(toolkit_installer())
"""


class Boxer:
    """A node of that engine, and the program once it knows it."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        (folder / "boxer.py").write_text(ADAPTER)
        node.write("/etc/systemd/system/boxer.service", "[Service]\nExecStart=/opt/boxer/boxerd\n")
        node.write("/opt/boxer/runc", "#!/bin/sh\n", 0o755)
        node.write(CONFIG, WRITTEN.decode())

    def do(self, *arguments: str, code: int = 0) -> Run:
        run = Run([sys.executable, str(self.program), *arguments])
        try:
            run.finish()
        finally:
            run.close()
        assert run.process.returncode == code, run.output
        return run

    def command(self, name: str, *more: str, engine: str = "boxer") -> Run:
        return self.do(*self.node.arguments(name, *more, engine=engine))

    def tree(self) -> dict[str, Any]:
        return {path: each for path, each in self.node.snapshot().items() if not path.startswith("/run")}


@pytest.fixture
def boxer(node: FakeNode, tmp_path: Path) -> Boxer:
    return Boxer(node, tmp_path)


def test_it_is_a_choice_of_the_command_line_and_says_so(boxer: Boxer) -> None:
    assert "containerd, crio or boxer" in " ".join(boxer.do("run", "--help").output.split())
    refused = boxer.do("plan", "--runtime", "bexer", "--node-root", str(boxer.node.root), code=2)
    assert "docker, containerd, crio, boxer, a comma list of these, or auto" in refused.output


def test_it_is_recognised_with_its_places(boxer: Boxer) -> None:
    shown = boxer.do("detect", "--json", "--node-root", str(boxer.node.root), "--reload-timeout", "5").output
    facts = json.loads(shown[shown.index("{") : shown.rindex("\n}") + 2])
    (decided,) = facts["decided"]
    assert (decided["engine"], decided["distribution"], decided["config"]) == ("boxer", "boxer", CONFIG)
    assert [each["path"] for each in decided["files"]] == [CONFIG]


@pytest.mark.parametrize("engine", ["boxer", "auto"])
def test_it_is_configured_found_converged_and_given_back(boxer: Boxer, engine: str) -> None:
    before = boxer.tree()
    boxer.command("run", "--no-daemon", "--cleanup", "never", engine=engine)
    document = tomllib.loads(boxer.node.read(CONFIG).decode())
    assert document["default"] == "nvidia"
    assert document["runtimes"]["nvidia"] == {"path": f"{TOOLKIT}/nvidia-container-runtime"}
    assert b"/opt/boxer/runc" in boxer.node.read(f"{TOOLKIT}/nvidia-container-runtime")
    receipt = json.loads(boxer.node.read(f"{STORE}/receipt.json"))
    assert [each["name"] for each in receipt["engines"]] == ["boxer"]
    assert NOTHING_TO_DO in boxer.command("plan", engine=engine).output
    boxer.command("uninstall", engine=engine)
    assert boxer.tree() == before


def test_an_installer_that_does_not_know_it_leaves_its_receipt_alone(boxer: Boxer) -> None:
    boxer.command("run", "--no-daemon", "--cleanup", "never")
    installed = boxer.tree()
    refused = boxer.node.do("uninstall", engine="auto")
    assert refused.process.returncode == 3
    assert "the receipt" in refused.output
    assert boxer.tree() == installed
