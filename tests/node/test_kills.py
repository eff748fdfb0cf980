"""Killed at random instants: the node works without any further run, and the next one finishes the job.

`KILLS=200` in the environment makes it the full count, of each kind of installation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.node.corpus import Entry, Site, containerd_table, snapshot
from tests.support import payloads, warm_start
from tests.support.quick import Few
from tests.support.warm_start import SCRIPTS

KILLS = int(os.environ.get("KILLS", "25"))
"""How many of each kind."""

ORIGINALS = {
    "docker": b'{\n  "debug": true,\n  "default-runtime": "crun",\n  "runtimes": {"crun": {"path": "/bin/crun"}}\n}',
    "containerd": b"""\
# by hand
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc" # keep
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
""",
}
CONFIG = ".config/nvidia-container-runtime/config.toml"
LEGACY = "nvidia-container-runtime.legacy"


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a whole run makes of a node. Paths and contents name the folder `root`."""

    root: Path
    tree: Mapping[str, Entry]

    def content(self, site: Site, path: Path) -> bytes | None:
        """Return what this stage has at a path of another site, None where it has no file."""
        entry = self.tree.get(str(path.relative_to(site.root)))
        if entry is None or not isinstance(entry.content, bytes):
            return None
        return entry.content.replace(os.fsencode(self.root), os.fsencode(site.root))


@dataclasses.dataclass(frozen=True)
class Images:
    """Payloads: of one image, of the next one, and of one before both that has a handler less."""

    smaller: Path
    older: Path
    newer: Path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    folder = tmp_path_factory.mktemp("images")
    return Images(
        payloads.build(folder / "smaller", version="1.17.0", without=(LEGACY,)),
        payloads.build(folder / "older", version="1.18.0"),
        payloads.build(folder / "newer", version="1.19.1"),
    )


def make(folder: Path, engine: str) -> Site:
    """Make a node with the engine's file and, as a mount would be, the folder of the PID file."""
    site = Site(folder / "node", engine)
    site.build(ORIGINALS[engine])
    site.pid_file.parent.mkdir(parents=True)
    return site


def start(site: Site, payload: Path) -> subprocess.Popen[bytes]:
    """Start an installation that does not wait."""
    command = [str(SCRIPTS / "nvidia-toolkit"), *site.flags(payload), "--no-daemon", "--debug"]
    with log_of(site).open("ab") as log:
        return warm_start.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def install(site: Site, payload: Path) -> int:
    """Run an installation to its end, which must be a good one; return how many lines it logged."""
    already = logged(site)
    process = start(site, payload)
    assert process.wait(60) == 0, log_of(site).read_text()
    return logged(site) - already


def log_of(site: Site) -> Path:
    return site.root.parent / "log"


def logged(site: Site) -> int:
    """Return how many lines the runs on this node have logged so far."""
    return log_of(site).read_bytes().count(b"\n") if log_of(site).exists() else 0


def uninstall(site: Site) -> None:
    """Take everything back, as somebody does who has only the command line."""
    command = [str(SCRIPTS / "toolkit-installer"), "uninstall", str(site.install_dir), "--pid-file", str(site.pid_file)]
    done = warm_start.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def handlers(engine: str, content: bytes, toolkit: Path) -> dict[str, Path]:
    """Return the handlers that a file names and that lie in the toolkit folder, with their executables."""
    if engine == "docker":
        named = {name: entry["path"] for name, entry in json.loads(content).get("runtimes", {}).items()}
    else:
        runtimes = containerd_table(tomllib.loads(content.decode())).get("runtimes", {})
        named = {name: entry.get("options", {}).get("BinaryName", "") for name, entry in runtimes.items()}
    return {name: Path(path) for name, path in named.items() if Path(path).is_relative_to(toolkit)}


def broken(site: Site, stages: Sequence[Stage]) -> list[str]:
    """Return what is wrong with a node on which a run was killed, in words: nothing, that is."""
    content = site.config.read_bytes()
    if content not in {stage.content(site, site.config) for stage in stages}:
        return [f"{site.config} is none of the whole ones: {content!r}"]
    wrong = []
    for name, executable in handlers(site.engine, content, site.toolkit).items():
        if not os.access(executable, os.X_OK):
            wrong.append(f"{name}: {executable} is not executable")
        for path in (executable, Path(f"{executable}.real"), site.toolkit / CONFIG, *needed(site)):
            held = path.read_bytes() if path.is_file() else None
            if held is None or held not in {stage.content(site, path) for stage in stages}:
                wrong.append(f"{name}: {path} is {'missing' if held is None else 'incomplete'}")
        if not os.access(f"{executable}.real", os.X_OK):
            wrong.append(f"{name}: {executable}.real is not executable")
    return wrong


def needed(site: Site) -> list[Path]:
    """Return what the runtimes start or load themselves."""
    library = site.toolkit / "libnvidia-container.so.1"
    tools = ("nvidia-container-cli", "nvidia-container-runtime-hook", "nvidia-ctk")
    programs = [site.toolkit / f"{name}{end}" for name in tools for end in ("", ".real")]
    return [library.resolve(), site.toolkit / "nvidia-cdi-hook", *programs]


def reference(folder: Path, engine: str, chain: tuple[Path, ...]) -> tuple[list[Stage], int]:
    """Install one payload after the other on a node of its own; return what each makes, and the last one's lines."""
    site = make(folder, engine)
    stages = [Stage(site.root, snapshot(site.root))]
    lines = 0
    for payload in chain:
        lines = install(site, payload)
        stages.append(Stage(site.root, snapshot(site.root)))
    return stages, lines


def kill_once(site: Site, payload: Path, lines: int, delay: float) -> bool:
    """Start an installation and kill it `delay` seconds after it logged so many lines; tell whether it was at work.

    Its own progress is the clock: a slow machine is killed as far in as a fast one.
    """
    already = logged(site)
    process = start(site, payload)
    while process.poll() is None and logged(site) - already < lines:
        time.sleep(0.0005)
    time.sleep(delay)
    process.kill()
    return process.wait() != 0


def recover(site: Site, payload: Path, goal: Stage) -> None:
    """Let the next run finish: nothing may be left over, nothing missing."""
    install(site, payload)
    tree = snapshot(site.root)
    assert tree.keys() == goal.tree.keys()
    for path, entry in tree.items():
        assert entry.mode == goal.tree[path].mode, path
        if isinstance(entry.content, bytes) and not path.endswith("receipt.json"):
            assert entry.content == goal.content(site, site.root / path), path


def campaign(folder: Path, engine: str, chain: tuple[Path, ...], count: int) -> None:
    """Kill the installation of the last payload of the chain `count` times, each on a node of its own."""
    stages, lines = reference(folder / "reference", engine, chain)
    source = random.Random(f"{engine} {len(chain)} {count}")  # noqa: S311  # instants that a failure can repeat
    at_work = 0
    for number in range(count):
        site = make(folder / f"kill-{number}", engine)
        before = snapshot(site.root)
        for payload in chain[:-1]:
            install(site, payload)
        far = source.randrange(lines)
        delay = source.uniform(0, 0.003)  # a line stands for several system calls
        at_work += kill_once(site, chain[-1], far, delay)
        assert broken(site, stages[-2:]) == [], f"killed {delay:.4f} s after line {far} of {lines}"
        if number % 4 != 3:  # every fourth is taken back at once, without a run that finishes
            recover(site, chain[-1], stages[-1])
        uninstall(site)
        assert snapshot(site.root) == before
        shutil.rmtree(site.root.parent)
    print(f"{engine}: {count} kills, {at_work} of them at work, 0 broken")  # noqa: T201  # the figure that is asked for
    assert at_work > 0, "every run had ended before it was killed: this shows nothing"


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_killed_first_installation_breaks_no_node(engine: str, tmp_path: Path, images: Images, few: Few) -> None:
    campaign(tmp_path, engine, (images.newer,), len(few(range(-(-KILLS // 2)))))


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_killed_update_breaks_no_node(engine: str, tmp_path: Path, images: Images, few: Few) -> None:
    campaign(tmp_path, engine, (images.older, images.newer), len(few(range(-(-KILLS // 4)), 4)))


@pytest.mark.parametrize(
    "engine, grows", [("docker", True), ("docker", False), ("containerd", True), ("containerd", False)]
)
def test_a_killed_update_that_changes_the_handlers_breaks_no_node(
    engine: str, *, grows: bool, tmp_path: Path, images: Images, few: Few
) -> None:
    chain = (images.smaller, images.newer) if grows else (images.older, images.smaller)
    campaign(tmp_path, engine, chain, len(few(range(-(-KILLS // 8)), 2)))


def test_a_half_written_file_counts_as_broken(tmp_path: Path, images: Images) -> None:
    stages, _ = reference(tmp_path / "reference", "docker", (images.newer,))
    site = Site(tmp_path / "reference" / "node", "docker")
    assert broken(site, stages) == []
    for damage in (site.toolkit / "nvidia-container-runtime.cdi.real", site.toolkit / CONFIG, site.config):
        whole = damage.read_bytes()
        damage.write_bytes(whole[:-1])
        assert broken(site, stages) != []
        damage.write_bytes(whole)
    (site.toolkit / "nvidia-container-runtime").unlink()
    assert broken(site, stages) != []
