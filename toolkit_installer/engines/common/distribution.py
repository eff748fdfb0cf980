"""One way in which an engine comes to a node: what it is known by, and where its files, socket and processes are."""

from __future__ import annotations

import dataclasses

from toolkit_installer.settings import EngineName


def plain(socket: str) -> str:
    """Return a socket's path without its scheme, and with /run for /var/run, which is the same."""
    path = socket.strip().removeprefix("unix://").removeprefix("unix:")
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """One row of the table of distributions. Paths are the node's; `*` stands for any one name."""

    name: str
    engine: EngineName
    sockets: tuple[str, ...]
    """Where its engine serves, or a kubelet reaches it; the first is the engine's own."""
    config: str
    """The file that the engine is started with; a distribution may generate it."""
    units: tuple[str, ...]
    """The systemd services in which its engine runs."""
    configured: str
    """How handlers are registered with it, in words."""
    drop_in: str | None = None
    beside: tuple[str, ...] = ()
    """What else its engine reads in the folder of `config`, as patterns."""
    state: str | None = None
    """The `state` folder of its containerd, in which the bundles of running containers are."""
    binaries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that speak for it; beside those, `config` does."""
    marks: tuple[str, ...] = ()
    """Parts of the executable's path, or of the arguments, of its engine and its kubelet, and of nobody else's."""
    kubelets: frozenset[str] = frozenset()
    """Processes that have a kubelet in them, which uses the first of the sockets unless told otherwise."""
    kubelet_options: str | None = None
    """Their file of options in YAML, named like the kubelet's flags; those in its folder of drop-ins go before it."""
    kubelet_flags: str | None = None
    """The file with the kubelet's flags, where the command line is wiped that names it."""
    kubelet_variables: tuple[tuple[str, str], ...] = ()
    """What is put for a variable in that file."""
    refused: str | None = None
    """Why it is not configured, and what to do; it is all the same if its file is named with --config."""

    @property
    def socket(self) -> str:
        """The engine's own socket."""
        return self.sockets[0]

    def serves(self, socket: str) -> bool:
        """Tell whether that is one of its sockets, in whatever spelling."""
        return plain(socket) in map(plain, self.sockets)
