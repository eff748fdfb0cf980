"""CRI-O for tests, as daemons.py has the others: in a folder of its own, with nothing left behind."""

from __future__ import annotations

import http.client
import json
import tomllib
from pathlib import Path
from typing import Any

from tests.support.engines.daemons import Engine, EngineError, UnixConnection, cri_status

_CACHE = Path("/var/lib/containers/cache/blob-info-cache-v1.sqlite")
"""What the first pull makes; no option tells it where."""
_ACCEPT_ALL = {"default": [{"type": "insecureAcceptAnything"}]}


class CrioEngine(Engine):
    """CRI-O. `config` and the files in `drop_ins` are the caller's to write before the start.

    `config` has to name `hooks_dir`, a default runtime with its `runtime_root`, and images.PAUSE as `pause_image`: what
    is built in is the machine's, or a registry's.

    `programs_in` has crio and pinns. It pulls images from the archive `images`, as from a registry. Control
    groups are CRI-O's own to make, as there is no systemd to ask.
    """

    programs = ("conmon", "crun", "runc", "setpriv")

    def __init__(self, folder: Path, programs_in: Path, *, nri: bool = False) -> None:
        """`nri`: with the socket nri/nri.sock in the folder."""
        super().__init__(folder, "crio", programs_in=programs_in)
        self.config = folder / "crio.conf"
        self.drop_ins = folder / "crio.conf.d"
        self.images = folder / "images.tar"
        self._pinns = programs_in / "pinns"
        self._made_outside: list[Path] = []
        self._nri = nri

    def command(self) -> list[str]:
        """Return the command line: where everything is that is not the configuration's business."""
        places = {
            "--config": self.config,
            "--config-dir": self.drop_ins,
            "--listen": self.socket,
            "--root": self.folder / "root",
            "--runroot": self.folder / "runroot",
            "--log-dir": self.folder / "pod-logs",
            "--version-file": self.folder / "version",
            "--version-file-persist": self.folder / "version-persist",
            "--clean-shutdown-file": self.folder / "clean-shutdown",
            "--container-exits-dir": self.folder / "exits",
            "--container-attach-socket-dir": self.folder / "attach",
            "--namespaces-dir": self.folder / "namespaces",
            "--pinns-path": self._pinns,
            "--signature-policy": self._policy,
            "--signature-policy-dir": self.folder / "policies",
            "--cni-config-dir": self.folder / "cni",
            "--cni-plugin-dir": self.folder / "cni-plugins",
            "--default-transport": f"docker-archive:{self.images}:",
        }
        settings = {
            "--cgroup-manager": "cgroupfs",
            "--conmon-cgroup": "pod",
            "--apparmor-profile": "unconfined",
            "--storage-driver": "overlay",
            "--stream-port": "0",
            "--pause-command": "",  # what the image says
            "--ctr-stop-timeout": "30",
            **self._nri_settings(),
            "--disable-hostport-mapping": "true",  # so are iptables
        }
        return ["crio", *(f"{flag}={value}" for flag, value in {**places, **settings}.items())]

    def _nri_settings(self) -> dict[str, object]:
        if not self._nri:
            return {"--enable-nri": "false"}  # its socket is the machine's
        nri = self.folder / "nri"
        return {
            "--enable-nri": "true",
            "--nri-listen": nri / "nri.sock",
            "--nri-plugin-dir": nri / "plugins",
            "--nri-plugin-config-dir": nri / "conf.d",
        }

    @property
    def _policy(self) -> Path:
        return self.folder / "policy.json"

    def start(self) -> None:
        """Start CRI-O and wait until it answers. Raises EngineError with the end of its log."""
        self.drop_ins.mkdir(parents=True, exist_ok=True)
        self.config.touch()  # one that is named has to be there
        self._made_outside += [path for path in (_CACHE, *_CACHE.parents[:2]) if not path.exists()]
        self._policy.write_text(json.dumps(_ACCEPT_ALL))
        super().start()

    def shut_down(self) -> None:
        """Stop CRI-O, and remove what it made outside of its folder."""
        try:
            self.stop()
        finally:
            for path in self._made_outside:
                if path == _CACHE:
                    path.unlink(missing_ok=True)
                elif path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            self._made_outside.clear()

    def info(self) -> dict[str, Any]:
        """Return the CRI's verbose Status as cri_program.py prints it."""
        return cri_status(self.name, self.socket)

    def running_config(self) -> dict[str, Any]:
        """Return what it runs with, what is built in included: the table `crio`. Raises EngineError."""
        return running_config(self.socket)

    def runtimes(self) -> dict[str, dict[str, Any]]:
        """Return the tables of the runtimes that it runs with."""
        runtimes: dict[str, dict[str, Any]] = self.running_config()["runtime"]["runtimes"]
        return runtimes

    def handlers(self) -> dict[str, str]:
        """Return each handler that the CRI lists, and its executable, empty where CRI-O does not know it yet."""
        listed = [name for name in self.info()["handlers"] if name]
        runtimes = self.runtimes()
        return {name: str(runtimes.get(name, {}).get("runtime_path", "")) for name in listed}

    def default_handler(self) -> str:
        """Return the default runtime that it runs with."""
        return str(self.running_config()["runtime"]["default_runtime"])


def running_config(path: Path) -> dict[str, Any]:
    """Return what the CRI-O behind a socket runs with: the table `crio`. Raises EngineError."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/config")
        table: dict[str, Any] = tomllib.loads(connection.getresponse().read().decode())["crio"]
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise EngineError(f"CRI-O does not say its configuration: {error!r}") from error
    finally:
        connection.close()
    return table
