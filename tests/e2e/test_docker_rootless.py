"""A real rootless dockerd: refused, unless it is named by whose it is."""

from __future__ import annotations

import codecs
import json
import os
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import docker as sdk
import pytest

from tests.support import payloads
from tests.support.engines.daemons import PATH, DockerEngine
from toolkit_installer.cli import commands
from toolkit_installer.engines.docker import engine as room
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.node import processes, trust
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, EngineSettings, Program

USER = 12345
PRELOADED = (sdk, *map(codecs.lookup, ("utf-8-sig", "ascii", "idna")))
"""What the program imports late is imported here: another user cannot read where it lies."""


class Rootless(DockerEngine):
    """A dockerd of another user, in a user namespace of its own, as its rootless mode wants it."""

    named = False
    """Its command line names its file. (It finds it by itself where rootlesskit started it.)"""
    programs = ("unshare", "setpriv", "mount", *DockerEngine.programs)

    @property
    def own_config(self) -> Path:
        """Where such a dockerd looks for its file."""
        return self.folder / ".config" / "docker" / "daemon.json"

    def command(self) -> list[str]:
        """Return the command line."""
        places = f"--data-root={self.folder}/data --exec-root={self.folder}/exec --pidfile={self.folder}/docker.pid"
        network = "--bridge=none --iptables=false --ip6tables=false --storage-driver=vfs --group=0"
        file = f"--config-file={self.own_config}" if self.named else ""
        sockets = f"--host=unix://{self.socket} --containerd={self.containerd.socket}"
        # as rootlesskit does: its /run and its /etc are its own
        mounts = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc && mkdir /etc/docker && cd"
        script = f"{mounts} && exec dockerd --rootless {sockets} {places} {network} {file}"
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        home = ["env", f"HOME={self.folder}", f"XDG_RUNTIME_DIR={self.folder}", "XDG_CONFIG_HOME="]
        return [*user, *home, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]

    def start(self) -> None:
        """Start it with its own folder."""
        if not self.containerd.alive():
            self.containerd.start()
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, USER, USER, follow_symlinks=False)
        super().start()


@pytest.fixture
def rootless() -> Iterator[Rootless]:
    if missing := Rootless.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    # pytest's own folders are closed to others
    with tempfile.TemporaryDirectory(prefix="rl") as place:
        Path(place).chmod(0o755)
        with Rootless(Path(place) / "e") as engine:
            engine.own_config.parent.mkdir(parents=True)
            engine.own_config.write_text('{"debug": false}\n')
            engine.start()
            yield engine


def as_user(arguments: list[object], said: Path) -> int:
    """Run the program in a fork, as the user whose dockerd it is; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            with open(1, "w", closefd=False) as out, mock.patch("sys.stdout", out), mock.patch("sys.stderr", out):
                code = commands.main(Program.TOOLKIT_INSTALLER, [str(each) for each in arguments], {"PATH": PATH})
        except BaseException:  # noqa: BLE001  # a fork must not go on as the test
            os.write(2, traceback.format_exc().encode())
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def node() -> Node:
    return Node("/", whole=False)


def test_a_users_docker_behind_the_usual_socket_is_not_heard(
    rootless: Rootless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SOCKET", str(rootless.socket))
    inspection = room.Docker().inspect(node(), EngineTarget(EngineName.DOCKER))
    assert inspection.live is None
    assert f"user {USER}" in inspection.silence
    assert [file.path for file in inspection.files] == [room.CONFIG]


def test_a_users_docker_is_not_heard_where_root_names_its_socket_either(rootless: Rootless) -> None:
    inspection = room.Docker().inspect(
        node(), EngineTarget(EngineName.DOCKER, EngineSettings(socket=str(rootless.socket)))
    )
    assert inspection.live is None
    assert "neither root nor who this installer is" in inspection.silence
    assert [file.path for file in inspection.files] == [room.CONFIG]


def test_a_users_docker_forbids_nothing_and_is_no_docker_of_the_nodes(
    rootless: Rootless, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [pid for pid, name in processes._running(frozenset({"dockerd"}).__contains__) if USER in trust.users_of(pid)]
    assert own
    assert not [each for each in processes.find_by_name(frozenset({"dockerd"})) if each.pid in own]
    monkeypatch.setattr(room, "SOCKET", str(rootless.folder / "absent" / "docker.sock"))
    inspection = room.Docker().inspect(
        node(), EngineTarget(EngineName.DOCKER, EngineSettings(config=str(rootless.folder / "other.json")))
    )
    assert inspection.live is None


def test_its_user_can_install_into_a_rootless_docker_and_take_it_back(rootless: Rootless) -> None:
    rootless.stop()
    rootless.named = True
    rootless.start()
    folder = rootless.folder
    payload = payloads.build(folder / "payload")
    before = rootless.own_config.read_bytes()
    flags: list[object] = [
        *("--runtime", "docker", "--config", rootless.own_config, "--socket", rootless.socket),
        *("--toolkit-install-dir", folder / "nvidia", "--pid-file", folder / "run" / "toolkit.pid"),
    ]
    said = folder / "said"
    code = as_user(["run", "--no-daemon", *flags, "--toolkit-source-root", payload], said)
    assert code == 0, said.read_text()
    assert {"nvidia", "nvidia-cdi", "nvidia-legacy"} <= rootless.handlers().keys()
    assert rootless.default_handler() == "nvidia"
    assert json.loads(rootless.own_config.read_bytes())["debug"] is False
    code = as_user(["uninstall", *flags], said)
    assert code == 0, said.read_text()
    assert rootless.handlers().keys().isdisjoint({"nvidia", "nvidia-cdi", "nvidia-legacy"})
    assert rootless.own_config.read_bytes() == before
