"""What is done about CDI, by what a running dockerd says of itself and was started with."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.docker.config import CdiSwitch, DockerLiveState, decide_cdi_switch
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.processes import Process


def live(version: str = "26.1.5+dfsg1", *, cdi: bool = False, flags: tuple[str, ...] = ()) -> DockerLiveState:
    process = Process(4711, "dockerd", "/usr/bin/dockerd", ("/usr/bin/dockerd", *flags), 1.0, "docker.service")
    return DockerLiveState(version, {}, "runc", process, cdi=cdi)


def test_cdi_is_left_alone_where_nobody_asks_for_it() -> None:
    assert decide_cdi_switch(live(), asked=False, restarts=True) == CdiSwitch()


def test_a_dockerd_that_has_cdi_on_needs_no_restart() -> None:
    assert decide_cdi_switch(live("28.5.2", cdi=True), asked=True, restarts=False) == CdiSwitch(write=True)
    assert decide_cdi_switch(None, asked=True, restarts=False) == CdiSwitch(write=True)


def test_a_restart_for_cdi_is_only_asked_for_unless_systemd_was_named() -> None:
    told = decide_cdi_switch(live(), asked=True, restarts=False)
    assert told.write is True
    assert not told.restart_why
    assert "when it is restarted" in told.notes[0]
    assert decide_cdi_switch(live(), asked=True, restarts=True) == CdiSwitch(
        write=True, restart_why="CDI is turned on by a restart only"
    )


def test_a_dockerd_without_cdi_is_not_restarted_for_it() -> None:
    told = decide_cdi_switch(live("20.10.24+dfsg1"), asked=True, restarts=True)
    assert told.write is True  # the file is right for the dockerd that comes after it
    assert not told.restart_why
    assert "20.10.24+dfsg1 knows no CDI" in told.notes[0]


@pytest.mark.parametrize(
    "flags", [("--feature", "cdi"), ("--feature=cdi=true",), ("--feature", "buildkit", "--feature", "cdi=1")]
)
def test_cdi_that_the_command_line_turns_on_is_not_repeated_in_the_file(flags: tuple[str, ...]) -> None:
    told = decide_cdi_switch(live(cdi=True, flags=flags), asked=True, restarts=False)
    assert not told.write
    assert "--feature cdi" in told.notes[0]


@pytest.mark.parametrize("flags", [("--feature", "buildkit"), ("--feature=cdi=false",)])
def test_command_line_features_without_cdi_are_refused_before_dockerd_does(
    flags: tuple[str, ...],
) -> None:
    with pytest.raises(ConfigurationError, match="takes no file that repeats a flag"):
        decide_cdi_switch(live(flags=flags), asked=True, restarts=False)
    assert decide_cdi_switch(live(flags=flags), asked=False, restarts=False) == CdiSwitch()
