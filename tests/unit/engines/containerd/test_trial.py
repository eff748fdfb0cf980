"""What a containerd would not start again with, though its binary prints its files as if all were well."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from toolkit_installer.engines.common import reload_method
from toolkit_installer.engines.containerd import trial as containerd_trial
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process


def refusal(folder: Path) -> str | None:
    """Return what is said of the config.toml in `folder`, where the binary prints all."""
    config = str(folder / "config.toml")
    process = Process(os.getpid(), "containerd", "/usr/bin/containerd", ("--config", config), 0.0, None)
    with mock.patch.object(reload_method, "dump_containerd_config", return_value=({}, "")):
        return containerd_trial.find_restart_obstacle(Node("/"), process)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.toml").write_text("version = 2\n")
    (tmp_path / "config.toml").write_text(f'version = 2\nimports = ["{tmp_path}/conf.d/*.toml"]\n')
    return tmp_path


def test_what_is_there_is_no_reason_to_refuse(folder: Path) -> None:
    (folder / "conf.d" / "a.toml").symlink_to("b.toml")
    (folder / "conf.d" / "c.toml").symlink_to("../config.toml")
    assert refusal(folder) is None


def test_a_pattern_that_matches_nothing_is_no_reason_to_refuse(folder: Path) -> None:
    (folder / "conf.d" / "b.toml").unlink()
    assert refusal(folder) is None


def test_a_link_that_matches_a_pattern_and_leads_nowhere_is_named(folder: Path) -> None:
    (folder / "conf.d" / "a.toml").symlink_to("nowhere")
    assert refusal(folder) == f"it imports {folder}/conf.d/a.toml, which is not there"


def test_a_literal_path_to_a_link_that_leads_nowhere_is_named(folder: Path) -> None:
    (folder / "config.toml").write_text('version = 2\nimports = ["link.toml"]\n')
    (folder / "link.toml").symlink_to("nowhere")
    assert refusal(folder) == f"it imports {folder}/link.toml, which is not there"


def test_what_an_imported_file_imports_is_named_with_that_file(folder: Path) -> None:
    (folder / "conf.d" / "b.toml").write_text('version = 2\nimports = ["deeper.toml"]\n')
    assert refusal(folder) == f"{folder}/conf.d/b.toml imports {folder}/conf.d/deeper.toml, which is not there"


def test_a_link_that_leads_to_itself_is_named(folder: Path) -> None:
    (folder / "conf.d" / "a.toml").symlink_to("a.toml")
    said = refusal(folder)
    assert said is not None
    assert f"{folder}/conf.d/a.toml" in said
    assert "Too many levels of symbolic links" in said
