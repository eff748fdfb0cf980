"""What each command imports: most of what a start costs.

tests/data/imports has a file for each: the package's own modules, the packages that it depends on, and those of the
standard library that take long. `IMPORT_FILES=write pytest …` writes them anew; read what was added.
"""

from __future__ import annotations

import difflib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.engines.rules import Served
from tests.support.api_server import DAEMON_SET_PATH, serving
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode, Run

DATA = Path(__file__).parents[1] / "data" / "imports"
STARTED = Path(__file__).with_name("recorded_start.py")
OWN = "toolkit_installer"
HEAVY = {
    *("asyncio", "concurrent", "ctypes", "decimal", "difflib", "email", "http", "json", "logging", "multiprocessing"),
    *("shutil", "socket", "ssl", "subprocess", "tempfile", "tomllib", "traceback", "unittest", "urllib", "xml"),
}
"""Of the standard library; what the interpreter itself, or any program, has imported at once is not among them."""
PACKAGES = {
    *("certifi", "charset_normalizer", "click", "docker", "google", "grpc", "idna", "psutil", "requests"),
    *("structlog", "tomlkit", "urllib3"),
}
SERVED = Served(
    (
        *(
            (name, f"{TOOLKIT}/nvidia-container-runtime{kind}")
            for name, kind in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
        ),
        ("runc", "runc"),
    ),
    "nvidia",
)


class Recorded:
    """A made node, and what the program imported on it."""

    def __init__(self, node: FakeNode, file: Path) -> None:
        self.node = node
        self.file = file
        self.started: list[Run] = []

    def start(self, *arguments: str) -> Run:
        """Start the program in the background."""
        self.started.append(Run([sys.executable, str(STARTED), str(self.file), *arguments]))
        return self.started[-1]

    def do(self, *arguments: str) -> str:
        """Run a command to its end and return what it said."""
        run = self.start(*arguments)
        assert run.finish() == 0, run.output
        return run.output

    def modules(self) -> list[frozenset[str]]:
        """Return what was imported by the end of each stretch of the program's life."""
        return [frozenset(line.split(" ")) for line in self.file.read_text().splitlines()[::2]]

    def amid_a_change(self) -> list[str]:
        """Return what was imported after the first change of the node."""
        return [line for line in self.file.read_text().splitlines()[1::2] if line]


@pytest.fixture
def recorded(node: FakeNode, tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(node, tmp_path / "imported")
    yield made
    for run in made.started:
        run.close()


def shown(modules: frozenset[str]) -> str:
    """Return the modules that count, a line each: our own first."""
    own = sorted(name for name in modules if name.partition(".")[0] == OWN)
    others = {name.partition(".")[0] for name in modules}
    return "".join(f"{name}\n" for name in (*own, *sorted(others & PACKAGES), *sorted(others & HEAVY)))


def check(name: str, modules: frozenset[str]) -> None:
    path = DATA / f"{name}.txt"
    text = shown(modules)
    if os.environ.get("IMPORT_FILES") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    expected = path.read_text().splitlines()
    now = text.splitlines()
    # another Python may do without some of its own
    now += [line for line in expected if line in HEAVY and line not in now]
    difference = list(difflib.unified_diff(sorted(expected), sorted(now), str(path), "now", lineterm="", n=0))
    assert not difference, "\n".join(difference)


@pytest.mark.parametrize("name, arguments", [("version", ["--version"]), ("help", ["run", "--help"])])
def test_what_says_the_same_everywhere_looks_at_no_node(recorded: Recorded, name: str, arguments: list[str]) -> None:
    recorded.do(*arguments)
    check(name, recorded.modules()[0])


@pytest.mark.parametrize("command", ["status", "detect", "plan"])
def test_a_command_that_only_looks(recorded: Recorded, command: str) -> None:
    recorded.node.do("run", "--no-daemon")
    recorded.do(*recorded.node.arguments(command))
    check(command, recorded.modules()[0])


def test_a_command_for_a_pod_without_a_node(recorded: Recorded, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        address = ("--kubernetes-service-host", "127.0.0.1", "--kubernetes-service-port", str(server.port))
        recorded.do("delete-daemonset", "absent", *address, "--service-account-dir", str(server.account))
    check("delete-daemonset", recorded.modules()[0])


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_a_first_install(recorded: Recorded, engine: str) -> None:
    recorded.do(*recorded.node.arguments("run", "--no-daemon", engine=engine))
    check(f"first-{engine}", recorded.modules()[0])


@pytest.mark.parametrize("engine", ["docker", "containerd", "crio"])
def test_a_run_that_finds_nothing_to_do(recorded: Recorded, engine: str) -> None:
    recorded.node.do("run", "--no-daemon", engine=engine)
    said = recorded.do(*recorded.node.arguments("run", "--no-daemon", engine=engine))
    assert NOTHING_TO_DO in said
    check(f"run-{engine}", recorded.modules()[0])


def test_a_run_beside_a_docker_that_answers(recorded: Recorded, dockerd: FakeDockerd) -> None:
    recorded.node.do("run", "--no-daemon", "--socket", SOCKET, "--set-as-default")
    dockerd.put(SERVED)
    said = recorded.do(*recorded.node.arguments("run", "--no-daemon", "--socket", SOCKET, "--set-as-default"))
    assert NOTHING_TO_DO in said
    check("run-docker-that-answers", recorded.modules()[0])


def test_an_idle_process_that_is_woken(recorded: Recorded) -> None:
    recorded.node.do("run", "--no-daemon")
    run = recorded.start(*recorded.node.arguments("run", "--cleanup", "never"))
    run.wait_for(WAITING)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Looking again")
    run.wait_for(WAITING)
    assert run.stop() == 0
    _, woken, leaving = recorded.modules()
    check("woken", woken)
    check("told-to-stop", leaving)


def test_nothing_is_imported_while_the_node_is_changed(recorded: Recorded, dockerd: FakeDockerd) -> None:
    """Half-way through, the program's own files may be gone; `beforehand` has it all, also for the way back."""
    given = ("--no-daemon", "--socket", SOCKET, "--set-as-default")
    recorded.do(*recorded.node.arguments("run", *given))
    recorded.do(*recorded.node.arguments("uninstall", "--socket", SOCKET))
    dockerd.put(Served((), "", "is dead"))
    for engine in ("containerd", "crio"):
        recorded.do(*recorded.node.arguments("run", "--no-daemon", engine=engine))
        recorded.do(*recorded.node.arguments("uninstall", engine=engine))
    assert len(recorded.modules()) == 6
    assert recorded.amid_a_change() == []


def test_nothing_is_imported_amid_the_changes_of_a_run_that_reports_to_the_cluster(
    recorded: Recorded, tmp_path: Path
) -> None:
    """What speaks to them is left out where a run does not begin with it (`preload.OPTIONAL_MODULES`)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    textfile = str(tmp_path / "it.prom")
    told = ("--metrics-textfile", textfile, "--metrics-address", address, "--node-condition", "true")
    with serving(tmp_path) as server:
        run = recorded.start(*recorded.node.arguments("run", *server.flags, *told, engine="containerd"))
        run.wait_for(WAITING)
        del server.cluster.objects[DAEMON_SET_PATH]
        assert run.stop() == 0, run.output
    assert "The node is as it was" in run.output
    assert "toolkit_installer.kubernetes.wanted" in recorded.modules()[0]
    assert len(recorded.modules()) == 2
    assert recorded.amid_a_change() == []


def test_nothing_is_imported_once_the_remains_of_a_killed_run_are_removed(recorded: Recorded) -> None:
    recorded.node.do("run", "--no-daemon", engine="containerd")
    left = recorded.node.place("/usr/local/nvidia/.toolkit-installer/.receipt.json.toolkit-installer.tmp")
    left.write_text("half of it")
    recorded.node.place(f"{TOOLKIT}/nvidia-ctk").unlink()
    recorded.do(*recorded.node.arguments("run", "--no-daemon", engine="containerd"))
    assert not left.exists()
    assert recorded.amid_a_change() == []


def test_a_module_too_many_would_show() -> None:
    modules = frozenset({"toolkit_installer.log", "structlog", "structlog.stdlib", "asyncio.events", "re"})
    assert shown(modules) == "toolkit_installer.log\nstructlog\nasyncio\n"


def test_the_record_has_what_a_start_imports(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, STARTED, tmp_path / "file", "--version"], capture_output=True, check=False)
    assert done.stdout.startswith(b"toolkit-installer ")
    assert " click.core " in (tmp_path / "file").read_text()
