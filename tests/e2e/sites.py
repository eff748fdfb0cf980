"""A node with containers on it: a live engine, what starts it again, and the installer with what it is to install.

The payload's runtime is a stand-in that becomes the real runc, and so is the low-level runtime that the wrapper takes
where no driver is loaded: whichever the node has, each step of a container's life goes through the installed wrapper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.e2e.stepping import Stepped
from tests.support import payloads
from tests.support.engines.containers import DockerContainers, PodContainers
from tests.support.engines.daemons import ContainerdEngine, DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.program import Installer
    from tests.support.engines.containers import Containers
    from tests.support.engines.daemons import Engine

_POLL = 0.02
_STAND_IN = """\
#!/bin/sh
# {version}
printf '%s\\n' "$*" >>'{journal}'
exec runc "$@"
"""


class Supervisor:
    """Starts a daemon again that ended, as systemd's `Restart=always` does; not while `paused`."""

    def __init__(self, engine: Engine) -> None:
        self.paused = threading.Event()
        self._engine = engine
        self._end = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End. The engine is told to end with it: its death signal comes when the thread ends that started it."""
        self._end.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        while not self._end.wait(_POLL):
            try:
                if not self.paused.is_set() and not self._engine.alive():
                    self._engine.start()
            except Exception as error:  # noqa: BLE001  # raised again where the test sees it
                self._failure = error
                return


@dataclasses.dataclass
class Site:
    """The node. `flags` are those of every run."""

    folder: Path
    engine: Engine
    containers: Containers
    supervisor: Supervisor
    installer: Installer
    flags: list[object]

    @property
    def install_dir(self) -> Path:
        """Where the toolkit's folder is, and the receipt's."""
        return self.folder / "nvidia"

    @property
    def toolkit(self) -> Path:
        """The toolkit's folder."""
        return self.install_dir / "toolkit"

    @property
    def journal(self) -> Path:
        """What was asked of the runtime through the wrapper, one command line a line."""
        return self.folder / "journal"

    def asked_of_the_runtime(self) -> set[str]:
        """Return runc's commands among what was asked of the runtime."""
        words = {word for line in self.journal.read_text().splitlines() for word in line.split()}
        return words & {"create", "start", "exec", "kill", "delete"}

    def payload(self, version: str) -> Path:
        """Return the root of a payload whose runtimes make a note and become runc."""
        root = payloads.build(self.folder / f"payload-{version}", version=version)
        for path in root.glob("usr/bin/nvidia-container-runtime*"):
            if path.name != "nvidia-container-runtime-hook":
                path.write_text(_STAND_IN.format(version=version, journal=self.journal))
        return root

    def install(self, *more: object) -> str:
        """Install and leave; return what was said."""
        return self._run("run", "--no-daemon", *more)

    def uninstall(self, *more: object) -> str:
        """Take it back; return what was said."""
        return self._run("uninstall", *more)

    def plan(self, *more: object) -> str:
        """Return what a run would do."""
        return self._run("plan", *more)

    def _run(self, command: str, *more: object) -> str:
        run = self.installer.start("toolkit-installer", command, *self.flags, *more)
        assert run.finish() == 0, run.output
        return run.output

    def stepped(self, command: str, *more: object) -> Stepped:
        """Start a command that stops after each change."""
        return Stepped(self.folder, "toolkit-installer", command, *self.flags, *more)

    def end(self, name: str) -> None:
        """Stop and delete a container."""
        assert self.containers.stop(name) == 0
        self.containers.delete(name)

    def await_reload(self, starts: int) -> None:
        """Wait until the engine has taken a signal. containerd dies of it: it has been started more often then."""
        if isinstance(self.engine, ContainerdEngine):
            wait_for(lambda: self.engine.starts > starts)
        wait_for(self.engine.answers)

    def serves_us(self) -> bool:
        """Tell whether the live engine has handlers in the toolkit's folder."""
        return any(path.startswith(f"{self.toolkit}/") for path in self.engine.handlers().values())


@contextlib.contextmanager
def site(folder: Path, engine: Engine, containers: Containers, installer: Installer) -> Iterator[Site]:
    """Yield a node on which nothing is installed yet."""
    with containers, Supervisor(engine) as supervisor:
        made = Site(folder, engine, containers, supervisor, installer, [])
        low_level = folder / "low-level-runtime"
        low_level.write_text(_STAND_IN.format(version="the node's own", journal=made.journal))
        low_level.chmod(0o755)
        made.flags = [
            *("--runtime", engine.name, "--config", engine.config, "--socket", engine.socket),
            *("--restart-mode", "signal", "--nvidia-container-runtime.runtimes", low_level),
            *("--toolkit-install-dir", made.install_dir, "--pid-file", folder / "pid" / "toolkit.pid"),
            *("--toolkit-source-root", made.payload("1.19.0")),
        ]
        yield made


@contextlib.contextmanager
def with_containers(folder: Path, engine: Engine, cgroup: str, installer: Installer) -> Iterator[Site]:
    """Yield a node on a live engine whose containers are in the control group."""
    if isinstance(engine, DockerEngine):
        containers: Containers = DockerContainers(engine, cgroup)
    elif isinstance(engine, ContainerdEngine):
        # there is no systemd to ask for a control group
        engine.config.write_text(engine.config.read_text().replace("SystemdCgroup = true", "SystemdCgroup = false"))
        engine.restart()
        containers = PodContainers(engine, cgroup)
    else:
        raise TypeError(engine)
    with site(folder, engine, containers, installer) as made:
        yield made


def wait_for(condition: Callable[[], bool], *, within: float = 60.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(_POLL)
