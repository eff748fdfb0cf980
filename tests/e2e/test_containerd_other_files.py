"""Files that somebody else made, beside a live containerd: they win, take runtimes away, or are of another version."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.sites import Supervisor
from tests.support.built import go_tools
from tests.support.built.releases import Release, Suite
from tests.support.engines.daemons import ContainerdEngine, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.program import Installer, Program
    from tests.support.built.go_tools import Tool

GRPC, RUNTIME = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
PEERS = "/usr/bin/nvidia-container-runtime"
ROOT = f"""version = 2
imports = ["@/conf.d/*.toml"]
[plugins."{GRPC}"]
  sandbox_image = "pause:site"
  [plugins."{GRPC}".registry]
    config_path = "@/certs.d"
  [plugins."{GRPC}".containerd]
    default_runtime_name = "runc"
    [plugins."{GRPC}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."{GRPC}".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


class Site:
    """A live containerd of a release, with a config.toml, and the installer for it."""

    def __init__(self, folder: Path, release: Release, installer: Installer, payload: Path) -> None:
        self.engine = ContainerdEngine(folder / "engine", release)
        self.engine.folder.mkdir(mode=0o700)
        self.drop_in = self.engine.folder / "conf.d" / "99-nvidia.toml"
        self.write(self.engine.config, ROOT)
        self._installer = installer
        self._own = ["--toolkit-install-dir", folder / "nvidia", "--pid-file", folder / "pid" / "toolkit.pid"]
        self._flags = [
            *("--runtime", "containerd", "--config", self.engine.config, "--socket", self.engine.socket),
            *("--drop-in-config", self.drop_in, "--toolkit-source-root", payload),
        ]
        self.toolkit = folder / "nvidia" / "toolkit"

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("@", str(self.engine.folder)))

    def do(self, command: str, *more: str) -> Program:
        flags = [] if command == "status" else self._flags
        run = self._installer.start("toolkit-installer", command, *flags, *self._own, *more)
        run.finish(within=120)
        return run

    def configure_by_nvidia_ctk(self, programs: Path, *more: str) -> None:
        containerd = shutil.which("containerd", path=self.engine.path)
        command = [
            *(str(programs / "nvidia-ctk"), "runtime", "configure", "--runtime=containerd"),
            *(f"--config={self.engine.config}", f"--drop-in-config={self.drop_in}"),
            *(f"--executable-path={containerd}", *more),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.fixture
def on(
    release: Callable[[Suite], Release], folder: Path, installer: Installer, payload: Path
) -> Iterator[Callable[[Suite], Site]]:
    """Yield what makes a site on the containerd of a suite."""
    with contextlib.ExitStack() as stack:

        def made(suite: Suite) -> Site:
            site = Site(folder, release(suite), installer, payload)
            stack.enter_context(site.engine)
            return site

        yield made


@pytest.mark.parametrize("suite", Suite, ids=str)
def test_what_nvidia_ctk_writes_over_ours_is_taken_over_and_given_back(
    suite: Suite, on: Callable[[Suite], Site], go_tool: Callable[[Tool], Path]
) -> None:
    site = on(suite)
    engine, signal = site.engine, ("--restart-mode", "signal")
    engine.start()
    with Supervisor(engine) as supervisor:
        assert site.do("run", "--no-daemon", *signal).finish() == 0
        ours = engine.handlers()
        site.configure_by_nvidia_ctk(go_tool(go_tools.TOOLKIT))
        supervisor.paused.set()
        engine.restart()
        supervisor.paused.clear()
        assert engine.handlers()["nvidia"] == PEERS

        run = site.do("run", "--no-daemon", *signal)
        assert run.finish() == 0, run.output
        assert engine.handlers() == ours
        starts = engine.starts
        gone = site.do("uninstall")
        assert gone.finish() == 0, gone.output
        assert engine.handlers() == {"nvidia": PEERS, "runc": ""}
        assert engine.starts == starts + 1
    assert not site.toolkit.exists()


def test_our_handlers_that_nvidia_ctk_copied_go_at_once_at_an_uninstall(
    on: Callable[[Suite], Site], go_tool: Callable[[Tool], Path]
) -> None:
    site = on(Suite.TRIXIE)
    engine = site.engine
    engine.start()
    with Supervisor(engine) as supervisor:
        assert site.do("run", "--no-daemon", "--restart-mode", "signal").finish() == 0
        site.configure_by_nvidia_ctk(go_tool(go_tools.TOOLKIT))
        supervisor.paused.set()
        engine.restart()
        supervisor.paused.clear()
        assert str(site.toolkit) in site.drop_in.read_text()
        starts = engine.starts
        gone = site.do("uninstall")
        assert gone.finish() == 0, gone.output
        assert f"event=copied-handlers file={site.drop_in}" in gone.output
        assert engine.handlers() == {"nvidia": PEERS, "runc": ""}
        assert engine.starts == starts + 1
    assert not site.toolkit.exists()


def test_an_engine_is_not_restarted_where_another_file_keeps_our_handlers(on: Callable[[Suite], Site]) -> None:
    site = on(Suite.TRIXIE)
    engine = site.engine
    engine.start()
    with Supervisor(engine) as supervisor:
        assert site.do("run", "--no-daemon", "--restart-mode", "signal").finish() == 0
        # no receipt may name a file without .toml in its name, so it is not edited
        copied = engine.folder / "conf.d" / "site.conf"
        site.write(copied, engine.config.read_text().partition("\n")[2].partition("\n")[2])
        copied.write_text(f"version = 2\n{copied.read_text()}")
        site.write(engine.config, engine.config.read_text().replace("*.toml", "*"))
        supervisor.paused.set()
        engine.restart()
        supervisor.paused.clear()
        starts = engine.starts
        gone = site.do("uninstall")
        assert gone.finish() == 5, gone.output
        assert f"{copied}:" in gone.output
        assert "it was not restarted" in gone.output
        assert engine.starts == starts
        assert site.toolkit.exists()


def test_a_drop_in_of_nvidia_ctk_that_was_there_before_comes_back_whole(
    on: Callable[[Suite], Site], go_tool: Callable[[Tool], Path]
) -> None:
    site = on(Suite.TRIXIE)
    site.configure_by_nvidia_ctk(go_tool(go_tools.TOOLKIT), "--set-as-default")
    before = [state_of(path) for path in (site.engine.config, site.drop_in)]
    site.engine.start()
    with Supervisor(site.engine):
        assert site.do("run", "--no-daemon", "--restart-mode", "signal").finish() == 0
        assert site.engine.handlers()["nvidia"] == str(site.toolkit / "nvidia-container-runtime")
        assert site.do("uninstall").finish() == 0
        assert site.engine.handlers() == {"nvidia": PEERS, "runc": ""}
        assert site.engine.default_handler() == "nvidia"
    assert [state_of(path) for path in (site.engine.config, site.drop_in)] == before


def started_without_runc(site: Site) -> Path:
    """Start a containerd 1.7 of which an import takes the runtime runc away, and return that file."""
    spin = site.engine.folder / "conf.d" / "spin.toml"
    site.write(
        spin, f'version = 2\n[plugins."{GRPC}".containerd.runtimes.spin]\nruntime_type = "io.containerd.spin.v2"\n'
    )
    site.engine.answers_within = 5
    with pytest.raises(EngineError, match="no answer"):
        site.engine.start()
    return spin


def test_an_import_that_takes_the_default_runtime_away_is_refused_on_1_7(on: Callable[[Suite], Site]) -> None:
    site = on(Suite.TRIXIE)
    spin = started_without_runc(site)
    assert site.engine.alive()  # containerd goes on without its CRI
    before = state_of(spin)
    for command in (("plan",), ("run", "--no-daemon")):
        refused = site.do(*command, "--set-as-default=false", "--restart-mode", "none")
        assert refused.finish() == 3, refused.output
        assert f"file={spin} line=2" in refused.output
        assert f"takes the default runtime 'runc' away, which {site.engine.config}:" in refused.output
    assert state_of(spin) == before
    assert not site.toolkit.exists()


def test_plan_run_and_status_say_that_2_1_does_not_read_the_root(on: Callable[[Suite], Site]) -> None:
    site = on(Suite.SID)
    site.write(
        site.drop_in,
        f'version = 3\n[plugins."{RUNTIME}".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n',
    )
    root = f'{ROOT}[plugins."{GRPC}".containerd.runtimes.site]\nruntime_type = "io.containerd.runc.v2"\n'
    site.write(site.engine.config, root)
    site.engine.start()
    assert site.engine.handlers().keys() == {"nvidia", "runc"}  # "site" of the root is not read
    words = f"{site.engine.config}:3: is of version 2, and {site.drop_in} of version 3: containerd 2.1 does not read"
    for command in (("plan",), ("run", "--no-daemon"), ("status",)):
        said = site.do(*command, *(("--restart-mode", "none") if command != ("status",) else ()))
        assert said.finish() == 0, said.output
        assert words in said.output, said.output
        assert "(containerd, registry, sandbox_image)" in said.output
    told = json.loads(site.do("status", "--json").output)
    assert [words in fault["what"] for engine in told["engines"] for fault in engine["faults"]] == [True]


def findings_of(site: Site) -> dict[str, dict[str, Any]]:
    """Return what `diagnose` finds in the engine's files, by illness, and require that it wrote nothing."""
    before = {path: state_of(path) for path in site.engine.folder.rglob("*.toml")}
    said = site.do("diagnose", "--json")
    assert said.finish() == 0, said.output
    assert {path: state_of(path) for path in site.engine.folder.rglob("*.toml")} == before
    found = json.loads(said.output)["findings"]
    return {each["illness"]: each for each in found if each["path"].startswith(str(site.engine.folder))}


def test_diagnose_names_the_import_that_keeps_the_cri_of_1_7_down(on: Callable[[Suite], Site]) -> None:
    site = on(Suite.TRIXIE)
    spin = started_without_runc(site)
    found = findings_of(site)["replaced-runtimes"]
    assert (found["path"], found["line"]) == (str(spin), 2)
    assert "loses the runtime runc and the settings registry, sandbox_image" in found["what"]
    assert found["causes"] == "every pod of this node fails"
    # what it says to do ends it
    site.write(spin, spin.read_text() + site.engine.config.read_text().partition("[plugins")[2].join(("[plugins", "")))
    site.engine.stop()
    site.engine.start()
    assert "replaced-runtimes" not in findings_of(site)


def test_diagnose_names_what_2_1_does_not_read(on: Callable[[Suite], Site]) -> None:
    site = on(Suite.SID)
    site.write(
        site.drop_in,
        f'version = 3\n[plugins."{RUNTIME}".containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n',
    )
    site.engine.start()
    found = findings_of(site)["mixed-versions"]
    assert (found["path"], found["line"]) == (str(site.engine.config), 3)
    assert "(containerd, registry, sandbox_image)" in found["what"]
    site.drop_in.unlink()
    site.engine.restart()
    assert "mixed-versions" not in findings_of(site)


@pytest.mark.parametrize("suite", Suite, ids=str)
def test_diagnose_says_that_a_running_engine_would_not_start_again(suite: Suite, on: Callable[[Suite], Site]) -> None:
    site = on(suite)
    site.engine.start()
    assert findings_of(site) == {}
    whole = site.engine.config.read_text()
    site.write(site.engine.config, f"{whole}[plugins\n")
    found = findings_of(site)["broken-file"]
    assert found["path"] == str(site.engine.config)
    assert found["line"] == whole.count("\n") + 1
