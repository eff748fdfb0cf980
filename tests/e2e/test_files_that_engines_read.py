"""`--config` and the file that a real daemon reads: a typing error is found first, and a relative path is followed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.program import WAITING, Installer
from tests.support.engines.daemons import ContainerdEngine, DockerEngine, Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = {
    "docker": '{\n  "log-level": "info"\n}\n',
    "containerd": 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  restrict_oom_score_adj = true\n',
}
KINDS: dict[str, type[DockerEngine | ContainerdEngine]] = {"docker": DockerEngine, "containerd": ContainerdEngine}


@pytest.fixture(params=KINDS)
def stopped(request: pytest.FixtureRequest, folder: Path) -> Iterator[DockerEngine | ContainerdEngine]:
    """Yield an engine that has its file and does not run yet."""
    kind = KINDS[request.param]
    if missing := kind.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with kind(folder / "engine") as engine:
        engine.folder.mkdir(mode=0o700, exist_ok=True)
        engine.config.write_text(TEXTS[request.param])
        yield engine


def flags(engine: Engine, folder: Path, payload: Path) -> list[object]:
    return [
        *("--runtime", engine.name, "--socket", engine.socket, "--pid-file", folder / "pid" / "toolkit.pid"),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
    ]


@pytest.mark.parametrize("typo", ["engine/wrong-name", "engnie/{name}"], ids=["file", "folder"])
@pytest.mark.parametrize("there", [True, False], ids=["which is there", "which is not there"])
def test_a_file_that_the_daemon_does_not_read_is_refused_with_both_names(
    stopped: DockerEngine | ContainerdEngine,
    installer: Installer,
    folder: Path,
    payload: Path,
    typo: str,
    *,
    there: bool,
) -> None:
    engine = stopped
    engine.start()
    pid, before = engine.pid, state_of(engine.config)
    wrong = folder / typo.format(name=engine.config.name)
    if there:
        wrong.parent.mkdir(exist_ok=True)
        wrong.write_text(engine.config.read_text())
    kept = state_of(wrong) if there else None
    for command in ("plan", "run"):
        mode = ("--restart-mode", "none") if engine.name == "containerd" else ()
        done = installer.start("toolkit-installer", command, *flags(engine, folder, payload), "--config", wrong, *mode)
        assert done.finish() == 3, done.output
        assert str(wrong) in done.output
        assert str(engine.config) in done.output
    assert (state_of(wrong) if wrong.exists() else None) == kept
    assert wrong.parent.exists() == (there or wrong.parent == engine.folder)
    assert state_of(engine.config) == before
    assert not (folder / "nvidia").exists()
    assert engine.alive()
    assert engine.pid == pid


def test_a_daemon_that_was_given_a_relative_path_is_configured_where_it_reads(
    stopped: DockerEngine | ContainerdEngine,
    installer: Installer,
    folder: Path,
    payload: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = stopped
    relative = [word.replace(str(engine.config), engine.config.name) for word in engine.command()]
    assert relative != engine.command()
    engine.enter = ("env", "--chdir", str(engine.folder))
    monkeypatch.setattr(engine, "command", lambda: relative)
    before = state_of(engine.config)
    engine.start()
    mode = ("--restart-mode", "none") if engine.name == "containerd" else ("--restart-mode", "signal")
    given = [*flags(engine, folder, payload), *mode]
    if engine.name == "containerd":
        given += ["--drop-in-config", engine.folder / "conf.d" / "99-nvidia.toml"]
    run = installer.start("toolkit-installer", "run", *given)
    run.wait_for(WAITING)
    assert state_of(engine.config) != before
    if engine.name == "containerd":
        engine.restart()
    assert "nvidia" in engine.handlers()
    assert run.terminate() == 0, run.output
    assert state_of(engine.config) == before
    # by its absolute path it is the same file
    again = installer.start("toolkit-installer", "plan", *given, "--config", engine.config)
    assert again.finish() == 0, again.output


def test_a_file_that_containerd_imports_is_one_that_it_reads(installer: Installer, folder: Path, payload: Path) -> None:
    with ContainerdEngine(folder / "engine") as engine:
        (engine.folder / "conf.d").mkdir(parents=True)
        engine.config.write_text(f'version = 2\nimports = ["{engine.folder}/conf.d/*.toml"]\n')
        for name in ("conf.d/own.toml", "other.toml"):
            (engine.folder / name).write_text(TEXTS["containerd"])
        engine.start()
        codes = {}
        for name in ("conf.d/own.toml", "other.toml"):
            named = ("--config", engine.folder / name, "--restart-mode", "none")
            done = installer.start("toolkit-installer", "plan", *flags(engine, folder, payload), *named)
            codes[name] = done.finish()
            assert (str(engine.config) in done.output) == (name == "other.toml"), done.output
        assert codes == {"conf.d/own.toml": 0, "other.toml": 3}
