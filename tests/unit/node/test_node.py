"""Where the files of a node are, and when they cannot be told from here."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node


@pytest.fixture
def link(tmp_path: Path) -> Path:
    link = tmp_path / "config.toml"
    link.symlink_to(tmp_path / "elsewhere" / "config.toml")
    return link


def test_a_link_that_leads_to_no_folder_says_so_rather_than_blame_a_mount(link: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Node("/", whole=False).locate_file(str(link))
    assert refused.value.path == str(link)
    assert refused.value.reason.endswith(f"and there is no {tmp_path}/elsewhere here")
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(f"make {tmp_path}/elsewhere or remove the link")


def test_a_link_to_a_file_that_is_still_to_come_is_followed(link: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert Node("/", whole=False).locate_file(str(link)) == (str(tmp_path / "elsewhere" / "config.toml"), None)


def test_a_link_to_another_mount_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "config.toml"
    link.symlink_to("/proc/self/config.toml")
    with pytest.raises(ConfigurationError, match="on another mount"):
        Node("/", whole=False).locate_file(str(link))


@pytest.mark.parametrize("mounted", [True, False])
def test_programs_are_run_on_the_host_where_it_is_mounted_and_else_here(*, mounted: bool, tmp_path: Path) -> None:
    host_root = "/proc" if mounted else str(tmp_path)
    node = Node.open(None, host_root)
    assert node.programs.root.folder == (host_root if mounted else "/")
    assert node.root.folder == "/"
