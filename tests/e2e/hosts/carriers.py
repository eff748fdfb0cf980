"""Containers as a DaemonSet's: privileged, among the node's processes, with folders of the node; started by its engine.

What is started is described once, and carried by docker, containerd or CRI-O of a whole machine (host.py)
through what each one's users have: the docker command, and the CRI.
"""

from __future__ import annotations

import abc
import dataclasses
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.e2e.hosts import low_level
from tests.e2e.hosts.host import Host
from tests.support.engines import images
from tests.support.engines.cri_client import CriClient

_CALL_SECONDS = 300
_GRACE_SECONDS = 60
_POLL = 0.05
_NODE = 2
"""NamespaceMode."""
_EXITED = 2
"""ContainerState."""
_PROPAGATION = {"": 0, "rslave": 1, "rshared": 2}
"""MountPropagation, by docker's words for it."""


class CarrierError(AssertionError):
    """The container did not do in time what the test waits for; the message has all that it said."""


class AwayError(CarrierError):
    """The engine went away during a call, as one does that is restarted."""


@dataclasses.dataclass(frozen=True)
class Mount:
    """A file or folder of the node, in the container. `propagation` is docker's word, empty for none."""

    source: str
    target: str
    read_only: bool = False
    propagation: str = ""


@dataclasses.dataclass(frozen=True)
class Description:
    """What is to run. `entry` takes the place of the image's entry point; `arguments` follow that, or the image's.

    It is started through `handler` (empty: the default).
    """

    image: str
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    entry: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    handler: str = ""


class Carrier(abc.ABC):
    """An engine of the machine that runs containers; what is left running is removed at the end."""

    def __init__(self, host: Host) -> None:
        self.host = host
        low_level.make_privileged_containers_possible(host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def load(self, archive: Path | bytes, name: str) -> None:
        """Give the engine an image of this name, from an archive that docker could load."""

    @abc.abstractmethod
    def start(self, wanted: Description) -> str:
        """Start a container and return its ID."""

    @abc.abstractmethod
    def log(self, container: str) -> str:
        """Return all that it said."""

    @abc.abstractmethod
    def running(self, container: str) -> bool:
        """Tell whether it runs."""

    @abc.abstractmethod
    def stop(self, container: str, seconds: int = _GRACE_SECONDS) -> int:
        """Let the engine send it SIGTERM, and SIGKILL after so many seconds; return its exit code."""

    @abc.abstractmethod
    def exit_code(self, container: str) -> int:
        """Return the exit code of one that has ended; of a CRI's, only 0 to 127 are told apart."""

    @abc.abstractmethod
    def remove(self, container: str) -> None:
        """Remove one that has ended, and its pod."""

    @abc.abstractmethod
    def look(self, handler: str, environment: Mapping[str, str], script: str) -> str:
        """Run busybox's shell in a new, ordinary container started through `handler` (empty: the default).

        Return what it printed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Remove what is left, and let the engine go."""

    def wait_for(self, container: str, text: str, within: float = 120.0) -> None:
        """Wait until it has said something. Raises CarrierError where it ends before, or does not in time."""
        deadline = time.monotonic() + within
        while text not in self.log(container):
            if time.monotonic() > deadline or not self.running(container):
                if text in self.log(container):
                    return
                state = "runs" if self.running(container) else "has ended"
                raise CarrierError(f"it {state}, and never said {text!r}; it said:\n{self.log(container)}")
            time.sleep(_POLL)

    def wait_until_ended(self, container: str, within: float = 120.0) -> int:
        """Return its exit code once it has ended. Raises CarrierError where it goes on."""
        deadline = time.monotonic() + within
        while self.running(container):
            if time.monotonic() > deadline:
                raise CarrierError(f"it still runs after {within:g} s; it said:\n{self.log(container)}")
            time.sleep(_POLL)
        return self.exit_code(container)

    def _bring(self, archive: Path | bytes, place: str) -> Path:
        """Copy an archive into the machine."""
        inside = self.host.path(place)
        if isinstance(archive, bytes):
            inside.write_bytes(archive)
        else:
            shutil.copyfile(archive, inside)
        return inside


class Docker(Carrier):
    """docker, by its command."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._started: list[str] = []

    def load(self, archive: Path | bytes, name: str) -> None:
        """See Carrier."""
        inside = self._bring(archive, "/tmp/image.tar")  # noqa: S108  # the machine's own, in memory
        self.host.run("docker", "load", "--input", "/tmp/image.tar", within=300)  # noqa: S108  # as above
        inside.unlink()
        self.host.run("docker", "image", "inspect", name)

    def start(self, wanted: Description) -> str:
        """See Carrier."""
        options = ["--privileged", "--pid=host", "--network=host"]
        options += [f"--env={name}={value}" for name, value in wanted.environment.items()]
        for mount in wanted.mounts:
            modes = [*(["ro"] if mount.read_only else []), *([mount.propagation] if mount.propagation else [])]
            options.append(f"--volume={':'.join([mount.source, mount.target, *([','.join(modes)] if modes else [])])}")
        if wanted.handler:
            options.append(f"--runtime={wanted.handler}")
        first, rest = wanted.entry[:1], wanted.entry[1:]
        options += [f"--entrypoint={word}" for word in first]
        command = ("docker", "run", "--detach", *options, wanted.image, *rest, *wanted.arguments)
        container = self.host.run(*command, within=120).stdout.strip()
        self._started.append(container)
        return container

    def log(self, container: str) -> str:
        """See Carrier."""
        done = self.host.run("docker", "logs", container)
        return done.stdout + done.stderr

    def _state(self, container: str, field: str) -> str:
        return self.host.run("docker", "inspect", f"--format={{{{.State.{field}}}}}", container).stdout.strip()

    def running(self, container: str) -> bool:
        """See Carrier."""
        return self._state(container, "Running") == "true"

    def stop(self, container: str, seconds: int = _GRACE_SECONDS) -> int:
        """See Carrier."""
        self.host.run("docker", "stop", f"--time={seconds}", container, within=2 * _GRACE_SECONDS)
        return self.exit_code(container)

    def exit_code(self, container: str) -> int:
        """See Carrier."""
        return int(self._state(container, "ExitCode"))

    def look(self, handler: str, environment: Mapping[str, str], script: str) -> str:
        """See Carrier."""
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        runtime = [f"--runtime={handler}"] if handler else []
        command = ("docker", "run", "--rm", "--network=none", *runtime, *variables, images.IMAGE)
        return self.host.run(*command, "/bin/busybox", "sh", "-c", script, within=120).stdout

    def remove(self, container: str) -> None:
        """See Carrier."""
        self._started.remove(container)
        self.host.run("docker", "rm", container)

    def close(self) -> None:
        """See Carrier."""
        for container in self._started:
            self.host.run("docker", "rm", "--force", container, check=False)


class Cri(Carrier):
    """containerd or CRI-O, by the CRI."""

    def __init__(self, host: Host, socket: str, archive: str | None = None) -> None:
        """`archive` is where CRI-O pulls images from, whatever their names; None: it is a containerd."""
        super().__init__(host)
        self._archive = archive
        self._logs: dict[str, Path] = {}
        self._pods: dict[str, str] = {}
        self._cri = CriClient(socket, CarrierError, away=AwayError, enter=host.enter, seconds=_CALL_SECONDS)
        self._call = self._cri.call

    def load(self, archive: Path | bytes, name: str) -> None:
        """See Carrier."""
        if self._archive is not None:
            self._bring(archive, self._archive)
            self._call("ImageService/PullImage", {1: {1: name}})
            return
        inside = self._bring(archive, "/tmp/image.tar")  # noqa: S108  # the machine's own, in memory
        self.host.run("ctr", "--namespace=k8s.io", "images", "import", "/tmp/image.tar", within=300)  # noqa: S108
        inside.unlink()

    def start(self, wanted: Description) -> str:
        """See Carrier."""
        mounts = [
            {1: each.target, 2: each.source, 3: int(each.read_only), 5: _PROPAGATION[each.propagation]}
            for each in wanted.mounts
        ]
        return self._run(wanted.handler, wanted, {7: mounts}, privileged=True)

    def _run(self, handler: str, wanted: Description, more: dict[int, Any], *, privileged: bool) -> str:
        name = f"pod-{uuid.uuid4().hex[:8]}"
        logs = f"/var/log/pods/{name}"
        self.host.run("mkdir", "-p", logs)
        namespaces = {1: _NODE, 2: _NODE if privileged else 1}
        security = {1: namespaces, 6: int(privileged)}
        pod = {1: {1: name, 2: name, 3: "test"}, 3: logs, 8: {1: f"/pods/{name}", 2: security}}
        sandbox = self._call("RunPodSandbox", {1: pod, 2: handler})["1"]
        config = {
            1: {1: "main"},
            2: {1: wanted.image, 18: wanted.image},
            3: list(wanted.entry),
            4: list(wanted.arguments),
            6: [{1: key, 2: value} for key, value in wanted.environment.items()],
            11: "main.log",
            15: {2: {2: int(privileged), 3: namespaces}},
            **more,
        }
        container = self._call("CreateContainer", {1: sandbox, 2: config, 3: pod})["1"]
        self._pods[container] = sandbox
        self._logs[container] = self.host.path(logs) / "main.log"
        self._call("StartContainer", {1: container})
        return container

    def log(self, container: str) -> str:
        """See Carrier."""
        path = self._logs[container]
        lines = path.read_text().splitlines() if path.exists() else []
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)  # time, stream, whether it is a whole line

    def _status(self, container: str) -> dict[str, str]:
        deadline = time.monotonic() + _CALL_SECONDS
        while True:
            try:
                return self._call("ContainerStatus", {1: container}, 1)
            except AwayError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)  # it is being restarted

    def running(self, container: str) -> bool:
        """See Carrier."""
        return ord(self._status(container).get("3", "\0")) < _EXITED

    def stop(self, container: str, seconds: int = _GRACE_SECONDS) -> int:
        """See Carrier. It is asked again where the engine went away meanwhile, as one that is restarted by it does."""
        deadline = time.monotonic() + 2 * _GRACE_SECONDS
        while True:
            try:
                self._call("StopContainer", {1: container, 2: seconds})
                if not self.running(container):
                    return self.exit_code(container)
            except CarrierError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL)

    def exit_code(self, container: str) -> int:
        """See Carrier."""
        return ord(self._status(container).get("7", "\0")[0])

    def look(self, handler: str, environment: Mapping[str, str], script: str) -> str:
        """See Carrier."""
        wanted = Description(images.IMAGE, environment, (), tuple(images.COMMAND))
        container = self._run(handler, wanted, {}, privileged=False)
        answer = self._call("ExecSync", {1: container, 2: ["/bin/busybox", "sh", "-c", script], 3: 30})
        self.stop(container)
        self.remove(container)
        return answer.get("1", "")

    def remove(self, container: str) -> None:
        """See Carrier."""
        sandbox = self._pods.pop(container)
        self._call("StopPodSandbox", {1: sandbox})
        self._call("RemovePodSandbox", {1: sandbox})

    def close(self) -> None:
        """See Carrier. What still runs ends with the machine."""
        self._cri.close()
