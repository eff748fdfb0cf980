"""The node's time zone, from its own files, and times as text."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import machine
from toolkit_installer.node.node import Node

ZONE = Path("/usr/share/zoneinfo/Asia/Tokyo")
SUMMER = dt.datetime(2026, 7, 1)  # noqa: DTZ001  # the zone is what is tested


@pytest.fixture
def localtime(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc/localtime"


def test_a_node_without_a_time_zone_has_utc(tmp_path: Path) -> None:
    assert machine.read_time_zone(Node(str(tmp_path))) == ("UTC", dt.UTC)


@pytest.mark.skipif(not ZONE.exists(), reason="no zone database on this machine")
@pytest.mark.parametrize("linked", [True, False])
def test_a_time_zone_is_named_after_its_link_or_else_its_file(tmp_path: Path, localtime: Path, *, linked: bool) -> None:
    if linked:
        place = tmp_path / str(ZONE).lstrip("/")
        place.parent.mkdir(parents=True)
        place.write_bytes(ZONE.read_bytes())
        localtime.symlink_to(ZONE)
    else:
        localtime.write_bytes(ZONE.read_bytes())
    name, zone = machine.read_time_zone(Node(str(tmp_path)))
    assert name == ("Asia/Tokyo" if linked else "/etc/localtime")
    assert zone.utcoffset(SUMMER) == dt.timedelta(hours=9)


@pytest.mark.parametrize("content", [b"", b"TZif", b"TZif2" + bytes(39), b"Europe/Berlin\n"])
def test_a_file_that_is_no_time_zone_is_refused(tmp_path: Path, localtime: Path, content: bytes) -> None:
    localtime.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is no time zone"):
        machine.read_time_zone(Node(str(tmp_path)))


def test_times_are_shown_in_utc() -> None:
    assert machine.text(0) == "1970-01-01T00:00:00Z"
    assert machine.text(1_782_864_000.9) == "2026-07-01T00:00:00Z"
