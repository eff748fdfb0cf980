"""The engines that can be configured.

Each is imported when its room is entered for the first time: a docker node needs nothing of containerd's or CRI-O's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from toolkit_installer.engines.api import Engine
from toolkit_installer.settings import EngineName


def _docker() -> Engine:
    from toolkit_installer.engines.docker.engine import Docker  # noqa: PLC0415  # see the module's own words

    return Docker()


def _containerd() -> Engine:
    from toolkit_installer.engines.containerd.engine import Containerd  # noqa: PLC0415  # see above

    return Containerd()


def _crio() -> Engine:
    from toolkit_installer.engines.crio.engine import Crio  # noqa: PLC0415  # see above

    return Crio()


_MAKERS: Mapping[EngineName, Callable[[], Engine]] = {
    EngineName.DOCKER: _docker,
    EngineName.CONTAINERD: _containerd,
    EngineName.CRIO: _crio,
}


class _Rooms(Mapping[EngineName, Engine]):
    """The rooms by name, each made once; to ask whether there is one enters none."""

    def __init__(self) -> None:
        self._made: dict[EngineName, Engine] = {}

    def __getitem__(self, name: EngineName) -> Engine:
        if name not in self._made:
            self._made[name] = _MAKERS[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _MAKERS

    def __iter__(self) -> Iterator[EngineName]:
        return iter(_MAKERS)

    def __len__(self) -> int:
        return len(_MAKERS)


ROOMS: Mapping[EngineName, Engine] = _Rooms()


def room(name: EngineName) -> Engine:
    """Return the engine's room."""
    return ROOMS[name]
