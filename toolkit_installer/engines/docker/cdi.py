"""CDI in dockerd: `features.cdi` of daemon.json, and what a running dockerd makes of it.

Seen on 20.10, 26 and 28: dockerd looks at it when it starts, and no signal changes it; `/info` names the folders of
CDI specifications where it is on, and none where it is off; before 25.0 the key is taken, and means nothing.
"""

from __future__ import annotations

import msgspec

from toolkit_installer.engines.api import Live
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.docker import config
from toolkit_installer.errors import ConfigurationError

_FIRST = 25
"""The first major release of dockerd that knows CDI."""
_FLAG = "--feature"
_NAME = "cdi"


class DockerLive(Live, frozen=True):
    """What a running dockerd says of itself."""

    cdi: bool = False
    """It looks for CDI specifications."""
    rootless: bool = False
    system: str = ""
    """The operating system that it says to run on."""

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        """Raise ConfigurationError for a default runtime that this dockerd loses at a SIGHUP, and dies of. Pure."""
        config.refuse_signal(content or b"", self, seen)


class Wanted(msgspec.Struct, frozen=True):
    """What is to be done about CDI. `write`: `features.cdi` belongs into daemon.json."""

    write: bool = False
    notes: tuple[str, ...] = ()
    restart_why: str = ""


def wanted(live: Live | None, *, asked: bool, restarts: bool) -> Wanted:
    """Return what is to be done. Pure. `restarts`: systemd was named as the way to reload.

    Raises ConfigurationError where dockerd's command line has features, and CDI is not among them: dockerd takes no
    file that names them too.
    """
    if not asked:
        return Wanted()
    arguments = live.process.arguments if live is not None and live.process is not None else ()
    # NAME or NAME=BOOL, one each time (28.1 and later)
    features = [value.partition("=") for value in command_line.values(arguments, _FLAG)]
    given = {name: not equals or value.lower() in ("1", "t", "true") for name, equals, value in features}
    if given:
        if given.get(_NAME):
            return Wanted(
                notes=(f"dockerd was started with {_FLAG} {_NAME}: CDI is on, and daemon.json need not say it",)
            )
        raise ConfigurationError(
            f"dockerd was started with {_FLAG}, so CDI cannot be turned on in this file: dockerd takes no file that "
            "repeats a flag, and would not start again",
            hint=f"nothing was changed; add {_FLAG} {_NAME} to dockerd's command line, or move its features here",
        )
    if not isinstance(live, DockerLive) or live.cdi:
        return Wanted(write=True)
    if live.release is not None and live.release[0] < _FIRST:
        return Wanted(write=True, notes=(f"dockerd {live.version} knows no CDI: {_FIRST}.0 is the first that does",))
    if restarts:
        return Wanted(write=True, restart_why="CDI is turned on by a restart only")
    note = (
        "CDI is on in daemon.json, and dockerd takes that over when it is restarted, not by a signal: restart it when "
        "its containers may stop, or name --restart-mode systemd and --allow-restart"
    )
    return Wanted(write=True, notes=(note,))
