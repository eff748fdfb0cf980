"""What a machine has below its systemd: a network, and a disk that outlives a boot.

Both are namespaces that a sleeping process holds: they end with the process, and that with the tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

from tests.support.built import commands

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "mount")
_HOLD = (
    'mount -t tmpfs -o mode=755 tmpfs "$0" && ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward && echo held'
)
_SECONDS = 60


class HardwareError(Exception):
    """The kernel refused something; the message has the words of the program that asked."""


class Hardware:
    """A network of its own, and a disk that is mounted on `disk` for those who enter, and for nobody else."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.disk.mkdir(parents=True)
        # it ends with the tests even where these are killed and no finalizer runs
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "private"]
        self._holder = subprocess.Popen(
            [*command, "sh", "-c", f"{_HOLD} && exec sleep infinity", self.disk],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "held\n":
            self.__exit__()
            raise HardwareError("no namespaces with a network and a disk of their own could be made")
        return self

    def __exit__(self, *_: object) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            with holder:
                holder.kill()

    @property
    def pid(self) -> int:
        """The process that holds it."""
        assert self._holder is not None
        return self._holder.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before a command so that it runs on this network, and sees this disk."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt")

    def ip(self, *arguments: str) -> None:
        """Run `ip` on its network. Raises HardwareError."""
        commands.output([*self.enter, "ip", *arguments], HardwareError, seconds=_SECONDS)


def connect(hub: Hardware, bridge: str, spoke: Hardware, name: str) -> None:
    """Lay a cable from a bridge of one network, where it is called `name`, to another's eth0. Raises HardwareError."""
    ends = ["peer", "name", "eth0", "netns", f"/proc/{spoke.pid}/ns/net"]
    hub.ip("link", "add", name, "type", "veth", *ends)
    hub.ip("link", "set", name, "master", bridge, "up")
    spoke.ip("link", "set", "eth0", "up")
