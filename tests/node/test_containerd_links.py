"""Symlinks among the files that containerd imports: two names of one file are one file, and each is read."""

from __future__ import annotations

import os
import re
import tomllib
from typing import Any

import pytest

from tests.support.containerd_links import CASES, FOLDER, GRPC, ROOT, link, put, text
from tests.support.fake_node import CONFIG_TOML, DROP_IN, NOTHING_TO_DO, FakeNode


def read(node: FakeNode, path: str) -> dict[str, Any]:
    """Return the CRI plugin's table of a file."""
    document = tomllib.loads(node.read(path).decode())
    table: dict[str, Any] = document.get("plugins", {}).get(GRPC, {}).get("containerd", {})
    return table


@pytest.mark.parametrize("name", CASES)
def test_what_is_linked_is_edited_once_where_it_counts_and_given_back_with_its_links(node: FakeNode, name: str) -> None:
    files, _, _, place = CASES[name]
    put(name, node.root)
    before = node.snapshot()
    run = node.do("run", "--no-daemon", engine="containerd")
    assert run.process.returncode == 0, run.output
    changed = [path for path in (CONFIG_TOML, *files) if node.read(path) != before[path].content]
    assert changed == [place]
    assert read(node, place)["runtimes"].keys() >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    stamps = node.stamps()
    again = node.do("run", "--no-daemon", engine="containerd")
    assert NOTHING_TO_DO in again.output, again.output
    assert node.stamps() == stamps
    undone = node.do("uninstall", engine="containerd")
    assert undone.process.returncode == 0, undone.output
    assert node.snapshot() == before


@pytest.mark.parametrize(
    "files, links, path, reason",
    [
        (
            {"/etc/containerd/b.conf": text("b")},
            {"50-a.toml": "../b.conf"},
            f"{FOLDER}/50-a.toml",
            "it leads to /etc/containerd/b.conf, whose name has no .toml",
        ),
        ({}, {"99-nvidia.toml": "../config.toml"}, CONFIG_TOML, "is named as drop-in as well, or a symlink of that"),
        ({}, {"50-a.toml": "50-a.toml"}, f"{FOLDER}/50-a.toml", "Too many levels of symbolic links"),
        ({}, {"99-nvidia.toml": "99-nvidia.toml"}, DROP_IN, "Too many levels of symbolic links"),
        ({}, {"5-a.toml": "6-b.toml", "6-b.toml": "5-a.toml"}, f"{FOLDER}/5-a.toml", "Too many levels of symbolic"),
    ],
)
def test_what_cannot_be_worked_with_is_refused_with_a_reason_that_is_true(
    node: FakeNode, files: dict[str, str], links: dict[str, str], path: str, reason: str
) -> None:
    node.write(CONFIG_TOML, ROOT)
    for name, content in files.items():
        node.write(name, content)
    link(node.root, links)
    before = node.snapshot()
    run = node.do("run", "--no-daemon", engine="containerd")
    assert run.process.returncode == 3, run.output
    assert reason in run.output
    assert re.search(rf"file={re.escape(path)}\b", run.output)
    assert "somebody replaced a folder" not in run.output
    assert {path: each for path, each in node.snapshot().items() if not path.startswith("/run")} == {
        path: each for path, each in before.items() if not path.startswith("/run")
    }


def test_a_name_without_toml_is_refused_as_that(node: FakeNode) -> None:
    node.write(CONFIG_TOML, ROOT.replace("*.toml", "*"))
    node.write(f"{FOLDER}/b.conf", text("b"))
    run = node.do("plan", engine="containerd")
    assert run.process.returncode == 3
    assert "cannot be changed from here: its name has no .toml" in run.output


@pytest.mark.parametrize("target", ["nowhere.toml", "99-nvidia.toml"])
def test_a_link_that_leads_nowhere_is_spoken_of_as_a_file_that_is_missing(node: FakeNode, target: str) -> None:
    node.write(CONFIG_TOML, ROOT)
    link(node.root, {"50-a.toml": target})
    run = node.do("plan", engine="containerd")
    assert run.process.returncode == 0, run.output
    note = f"{CONFIG_TOML} imports {FOLDER}/50-a.toml, which is not seen here: without it containerd does not start"
    assert note in run.output


@pytest.mark.parametrize("target", ["../config.toml", "60.toml", "nowhere"])
def test_a_link_that_comes_while_we_are_installed_keeps_nothing_of_ours_on_the_node(
    node: FakeNode, target: str
) -> None:
    node.write(CONFIG_TOML, ROOT)
    node.place(FOLDER).mkdir()
    before = node.snapshot()
    assert node.do("run", "--no-daemon", engine="containerd").process.returncode == 0
    os.symlink(target, node.place(f"{FOLDER}/60.toml"))
    run = node.do("uninstall", engine="containerd")
    assert run.process.returncode == 0, run.output
    node.place(f"{FOLDER}/60.toml").unlink()
    assert node.snapshot() == before
