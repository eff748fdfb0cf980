"""Random configurations and edits through the whole program: what cleanup leaves is what the edit alone would leave."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node.drift import Templates, parsed
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, STORE, TOOLKIT
from tests.support.random_edits import (
    DOCKER_EDITS,
    alone,
    containerd_documents,
    containerd_edits,
    docker_documents,
    without_kept,
)
from toolkit_installer.documents import json_document, toml_document
from toolkit_installer.documents.changes import Change, is_same
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, table_of

RUNS = settings(max_examples=12, derandomize=True)
AGAIN = pytest.mark.parametrize("again", [False, True], ids=["cleanup", "run-and-cleanup"])


def drift(  # one story
    templates: Templates, path: str, base: bytes, changes: list[Change], *, again: bool, refused: bool = False
) -> bytes:
    """Install on `base`, edit, run once more if `again`, clean up; return what is left.

    `refused`: the engine would not take the edited file, with us or without, so that run changes nothing.
    """
    node = templates.installed(path, base)
    assert node.broken_runtimes() == []
    installed = node.read(path)
    if path == DAEMON_JSON:
        edited = json_document.edit(installed, changes)
    else:
        edited = toml_document.edit(installed, changes, marker="the operator's")
    node.place(path).write_bytes(edited)
    if again:
        done = templates.run(node, path, "run", "--no-daemon")
        assert done.code == (3 if refused else 0), done.output
        if refused:
            assert node.read(path) == edited
        else:
            assert node.named_runtimes().keys() >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    done = templates.run(node, path, "uninstall")
    assert done.code == 0, done.output
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)
    left = node.read(path)
    shutil.rmtree(node.root)
    return left


@AGAIN
@RUNS
@given(base=docker_documents(), changes=DOCKER_EDITS)
def test_docker_is_left_as_the_edit_alone_would_leave_it(
    templates: Templates, base: bytes, changes: list[Change], *, again: bool
) -> None:
    wanted = alone(json_document.parse(base), ("runtimes",), ("default-runtime",), changes, as_default=True)
    dangling = wanted.get("default-runtime", "runc") not in {"runc", *(wanted.get("runtimes") or {})}
    left = drift(templates, DAEMON_JSON, base, changes, again=again, refused=dangling)
    assert is_same(json_document.parse(left), wanted)


@AGAIN
@RUNS
@given(data=st.data())
def test_containerd_is_left_as_the_edit_alone_would_leave_it(
    templates: Templates, data: st.DataObject, *, again: bool
) -> None:
    base, version = data.draw(containerd_documents())
    changes = data.draw(containerd_edits(version))
    left = drift(templates, CONFIG_TOML, base, changes, again=again)
    before = parsed(CONFIG_TOML, base)
    table = table_of(FILE_VERSIONS[version].plugin)
    runtimes, default = (*table, "runtimes"), (*table, "default_runtime_name")
    wanted = alone(before, runtimes, default, changes, as_default=True)
    assert is_same(without_kept(parsed(CONFIG_TOML, left), before, runtimes), without_kept(wanted, before, runtimes))
