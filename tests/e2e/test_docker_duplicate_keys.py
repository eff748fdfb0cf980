"""A daemon.json that has a key twice, on the real daemons: what they serve, and that the remedy loses nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.support.built.releases import Release, Suite
from tests.support.engines.daemons import DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.program import Installer

TWICE = """{
  "runtimes": {"one": {"path": "/bin/one"}, "both": {"path": "/bin/first"}},
  "default-runtime": "one",
  "runtimes": {"two": {"path": "/bin/two"}, "both": {"path": "/bin/last"}},
  "Runtimes": {}%s
}
"""
AGAIN = ',\n  "default-runtime": "two"'
SERVED = {"one": "/bin/one", "two": "/bin/two", "both": "/bin/last", "runc": "runc"}


@pytest.mark.parametrize("suite", [None, *Suite], ids=str)
def test_dockerd_serves_both_objects_and_the_installer_refuses_the_file(
    suite: Suite | None, release: Callable[[Suite], Release], folder: Path, installer: Installer, payload: Path
) -> None:
    with DockerEngine(folder / "engine", release(suite) if suite is not None else None) as docker:
        docker.config.write_text(TWICE % AGAIN)
        docker.start()
        assert SERVED.items() <= docker.handlers().items()
        assert docker.default_handler() == "two"

        flags = [
            *("--runtime", "docker", "--config", docker.config, "--socket", docker.socket),
            *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
            *("--pid-file", folder / "pid" / "toolkit.pid"),
        ]
        before = state_of(docker.config)
        run = installer.start("toolkit-installer", "run", "--no-daemon", *flags)
        assert run.finish() == 3, run.output
        assert "stands twice in one object, on lines 2 and 4" in run.output
        assert "merge the two objects into one" in run.output
        assert state_of(docker.config) == before
        assert docker.starts == 1
