"""Made distributions that live: k3s, RKE2 and microk8s make their files anew when they start, k0s watches its own.

The rules are those of their code. k3s: config.toml is made of config-v3.toml.tmpl, else of config.toml.tmpl, whose base
is of version 2, else of its own template; before containerd 2.0 only the second is known; the toolkit in its
usual folder, else in /usr/bin, is registered; it does not start with a default runtime that it did not find, and its
containerd not on a table that is there twice; the imported drop-ins are merged. microk8s: containerd.toml is made of
the template. k0s: a change in containerd.d is merged a while later, and containerd is started again by k0s itself.
"""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from unittest import mock

from tests.support import fake_processes
from tests.support.distribution_cases import Case
from tests.support.fake_node import TOOLKIT, FakeNode
from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.engines.containerd import engine as containerd_engine
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram, ProgramError, Programs
from toolkit_installer.node.services import Services

AGENT = "/var/lib/rancher/k3s/agent/etc/containerd"
_DATABASE = "io.containerd.metadata.v1.bolt/meta.db"
_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_SYSTEMCTL = "/bin/systemctl"
_TEMPLATES = {"config-v3.toml.tmpl": 3, "config.toml.tmpl": 2}
"""Those that k3s looks for since February 2025, in its order, with the versions of their bases."""
_CONDITION = re.compile(
    r'\{\{ if not \(index \.ExtraRuntimes "([^"]+)"\)\.BinaryName \}\}\n(.*?)\{\{ end \}\}\n', re.DOTALL
)
_COMMENT = re.compile(r"\{\{-? /\*.*?\*/ ?-?\}\}\n?", re.DOTALL)
_LATER = 3
"""How many questions are answered before k0s has noticed a change."""


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return two documents merged table by table."""
    both = {
        key: merged(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
        for key, value in other.items()
    }
    return {**one, **both}


class _Made:
    """An engine whose state lies in a file beside the node; its process is played, with the node's own `/`."""

    unit: str | None
    release: str
    arguments: tuple[str, ...]

    opens: tuple[str, ...] = ()
    """The files that it has open, by which it is known where it has wiped its command line."""

    def __init__(
        self, node: FakeNode, *, unit: str | None = None, release: str | None = None, wiped: bool = False
    ) -> None:
        self.node = node
        self.unit = unit or self.unit
        self.release = release or self.release
        self.wiped = wiped
        self.place = node.root.parent / "distribution.json"
        self.state: dict[str, Any] = {"starts": 0, "restarted": [], "document": None, "down": ""}

    def read(self) -> dict[str, Any]:
        """Return its state."""
        state: dict[str, Any] = json.loads(self.place.read_text())
        return state

    def write(self, **changed: Any) -> None:
        """Change its state."""
        self.place.write_text(json.dumps({**self.read(), **changed}))

    def handlers(self) -> dict[str, str]:
        """Return what it serves, by name."""
        table = self._table(self.read()["document"])
        return {name: each.get("options", {}).get("BinaryName", "") for name, each in table.get("runtimes", {}).items()}

    def default(self) -> str:
        """Return the runtime that it uses where none is named."""
        return str(self._table(self.read()["document"]).get("default_runtime_name", "runc"))

    @staticmethod
    def _table(document: dict[str, Any]) -> dict[str, Any]:
        table = document.get("plugins", {}).get(_CRI[document["version"]], {}).get("containerd", {})
        assert isinstance(table, dict)
        return table

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be what the program meets."""
        self.place.write_text(json.dumps(self.state))
        self.start()
        with (
            fake_processes.process(
                self.node.root,
                "containerd",
                *self.arguments,
                wiped="containerd" if self.wiped else None,
                opens=self.opens if self.wiped else (),
            ) as self.pid,
            mock.patch.object(containerd_engine, "query_cri", self._ask),
            mock.patch.object(Services, "knows", return_value=True),
            mock.patch.object(Services, "property", self._property),
            mock.patch.object(Programs, "find_program", lambda _, name: _SYSTEMCTL if name == "systemctl" else None),
            mock.patch.object(Programs, "run", self._run),
        ):
            yield

    def start(self) -> None:
        """Read its files anew."""
        try:
            self.write(document=self.made(), down="", starts=self.read()["starts"] + 1)
        except ValueError as error:
            self.write(down=f"does not start: {error}", starts=self.read()["starts"] + 1)

    def made(self) -> dict[str, Any]:
        """Return what its containerd reads. Raises ValueError where it does not start."""
        raise NotImplementedError

    def _ask(self, *_: object) -> LiveState:
        state = self.read()
        if state["down"]:
            raise EngineSilentError(f"the made engine {state['down']}")
        arguments = ("containerd",) if self.wiped else self.arguments
        process = Process(
            self.pid, "containerd", "/usr/bin/containerd", arguments, float(state["starts"]), self.unit, self.wiped
        )
        handlers: dict[str, str | None] = dict(self.handlers())
        return LiveState(self.release, handlers, self.default(), process)

    def _property(self, unit: str, name: str) -> str | None:
        return ("active" if unit == "k3s-agent.service" else "inactive") if name == "ActiveState" else None

    def _run(self, command: list[str], **_: object) -> CompletedProgram:
        if command[:2] == [_SYSTEMCTL, "restart"]:
            self.write(restarted=[*self.read()["restarted"], command[2]])
            self.start()
        elif command[0] != _SYSTEMCTL:
            raise ProgramError(f"the node has no {command[0]}")
        return CompletedProgram(0, b"", "")


class K3s(_Made):
    """A k3s whose own configuration is that of the case that was put on the node."""

    unit: str | None = "k3s.service"
    release = "v2.1.5-k3s1"
    agent = AGENT
    arguments = ("-c", f"{AGENT}/config.toml", "-a", "/run/k3s/containerd/containerd.sock")
    opens = (f"/var/lib/rancher/k3s/agent/containerd/{_DATABASE}",)
    runtimes: Mapping[str, str] = {"nvidia": "nvidia-container-runtime"}
    """What it looks for when it starts, by the handler that it registers then."""

    def __init__(
        self, node: FakeNode, *, unit: str | None = None, release: str | None = None, wiped: bool = False
    ) -> None:
        super().__init__(node, unit=unit, release=release, wiped=wiped)
        self.base = node.read(f"{self.agent}/config.toml").decode()
        self.option = ""
        """Its own option `default-runtime`, in the words of what it makes."""

    def found(self) -> dict[str, str]:
        """Return the toolkit's runtimes that k3s finds when it starts: in the toolkit's folder, else as a package's."""
        places = {name: [f"{TOOLKIT}/{program}", f"/usr/bin/{program}"] for name, program in self.runtimes.items()}
        there = {name: next(filter(self.node.exists, paths), None) for name, paths in places.items()}
        return {name: path for name, path in there.items() if path is not None}

    def made(self) -> dict[str, Any]:
        text = self._rendered(*self.read_next())
        self.node.write(f"{self.agent}/config.toml", text)
        document = tomllib.loads(text)
        for pattern in document.get("imports", []):
            folder = self.node.place(str(PurePosixPath(pattern).parent))
            for place in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
                document = merged(document, tomllib.loads(place.read_text()))
        return document

    def read_next(self) -> tuple[str, int]:
        """Return the template that it starts with, and the version of the base that this one may have in it."""
        known = {"config.toml.tmpl": 2} if self.release.startswith("v1.") else _TEMPLATES
        name = next((name for name in known if self.node.exists(f"{self.agent}/{name}")), None)
        if name is None:
            return '{{ template "base" . }}\n', max(known.values())
        return self.node.read(f"{self.agent}/{name}").decode(), known[name]

    def _base(self, version: int) -> str:
        own = tomllib.loads(self.base)
        if own.get("version", 1) == version:
            return self.base
        name = ("drop-in" if "imports" in own else "template-created") + ("" if version == 3 else "-of-version-2")
        return Case("k3s", name).read(f"{AGENT}/config.toml").decode()

    def _rendered(self, template: str, version: int) -> str:
        found = self.found()
        if self.option and self.option not in found:
            raise ValueError(f"default runtime {self.option} was not found")
        extra = "".join(
            f"\n[plugins.'{_CRI[version]}'.containerd.runtimes.'{name}']\n  runtime_type = \"io.containerd.runc.v2\"\n"
            f"[plugins.'{_CRI[version]}'.containerd.runtimes.'{name}'.options]\n  BinaryName = \"{path}\"\n"
            for name, path in found.items()
        )
        if self.option:
            extra += f"\n[plugins.'{_CRI[version]}'.containerd]\n  default_runtime_name = \"{self.option}\"\n"
        text = template.replace('{{ template "base" . }}', self._base(version) + extra)
        text = _CONDITION.sub(lambda match: "" if match[1] in found else match[2], text)
        return _COMMENT.sub("", text)


class NewerK3s(K3s):
    """A k3s since 2025, which also looks for the runtime of CDI alone."""

    runtimes: Mapping[str, str] = {**K3s.runtimes, "nvidia-cdi": "nvidia-container-runtime.cdi"}


class Rke2(NewerK3s):
    """An RKE2: k3s' containerd and templates in a data folder of its own."""

    unit = "rke2-server.service"
    agent = AGENT.replace("/k3s/", "/rke2/")
    arguments = ("-c", f"{agent}/config.toml", "-a", "/run/k3s/containerd/containerd.sock")
    opens = (f"/var/lib/rancher/rke2/agent/containerd/{_DATABASE}",)


class Microk8s(_Made):
    """A microk8s, whose start makes containerd's file of its template."""

    unit = "snap.microk8s.daemon-containerd.service"
    release = "v1.7.27"
    folder = "/var/snap/microk8s/6089/args"
    arguments = ("--config", f"{folder}/containerd.toml", "--address", "/var/snap/microk8s/common/run/containerd.sock")
    opens = (f"/var/snap/microk8s/common/var/lib/containerd/{_DATABASE}",)
    filled_in: Mapping[str, str] = {
        "SNAPSHOTTER": "overlayfs",
        "RUNTIME": "runc",
        "RUNTIME_TYPE": "io.containerd.runc.v2",
        "SNAP_DATA": "/var/snap/microk8s/current",
    }

    def made(self) -> dict[str, Any]:
        text = self.node.read(f"{self.folder}/containerd-template.toml").decode()
        for name, value in self.filled_in.items():
            text = text.replace(f"${{{name}}}", value)
        self.node.write(f"{self.folder}/containerd.toml", text)
        return tomllib.loads(text)


class K0s(_Made):
    """A k0s of version 3, which has a default of its own and merges what is in containerd.d."""

    unit = "k0sworker.service"
    release = "v2.1.4"
    arguments = ("--root=/var/lib/k0s/containerd", "--config=/etc/k0s/containerd.toml")

    def made(self) -> dict[str, Any]:
        runc = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "", "SystemdCgroup": False}}
        document: dict[str, Any] = {
            "version": 3,
            "plugins": {_CRI[3]: {"containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc}}}},
        }
        for content in self._dropped():
            document = merged(document, tomllib.loads(content))
        return document

    def _dropped(self) -> list[str]:
        folder = self.node.place("/etc/k0s/containerd.d")
        return [place.read_text() for place in sorted(folder.glob("*.toml"))] if folder.is_dir() else []

    def _ask(self, *_: object) -> LiveState:
        state = self.read()
        if self.made() != state["document"]:
            noticed = state.get("noticed", 0) + 1
            self.write(noticed=noticed % _LATER)
            if noticed == _LATER:
                self.start()
        return super()._ask()
