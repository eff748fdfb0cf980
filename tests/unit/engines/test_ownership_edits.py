"""For random documents and edits: install, the operator's edit, cleanup means the same as the operator's edit alone."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.random_edits import (
    DOCKER_EDITS,
    NAMES,
    SCALARS,
    alone,
    containerd_documents,
    containerd_edits,
    docker_documents,
    without_kept,
)
from toolkit_installer.documents import json_document, toml_document
from toolkit_installer.documents.changes import Change, Remove, Set, is_same
from toolkit_installer.engines.api import EngineFile, Inspection, RecordedFile
from toolkit_installer.engines.common.losses import lost_sections
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE, ROOT_ROLE, ContainerdInspection
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, table_of
from toolkit_installer.engines.docker import config as docker_rules
from toolkit_installer.engines.docker.engine import ROLE, Docker
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.receipt.file_records import digest_of
from toolkit_installer.settings import EngineName

FOLDER = "/usr/local/nvidia/toolkit"
HANDLERS = tuple(
    Handler(name, f"{FOLDER}/nvidia-container-runtime{end}")
    for name, end in zip(NAMES, ("", ".cdi", ".legacy"), strict=True)
)
RUNS = settings(max_examples=200, derandomize=True)


def file(role: str, content: bytes | None) -> EngineFile:
    path = f"/etc/{role}"
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile(role, path, found)


# --- docker ---


def taken(content: bytes | None) -> bool:
    """Tell whether dockerd would take the file."""
    try:
        docker_rules.refuse(content or b"")
    except ConfigurationError:
        return False
    return True


DANGLING = b'{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia"}}, "default-runtime": "nvidia"}'
"""Whoever removes our handler from this file removes the default runtime as well: dockerd would not start with it."""


@RUNS
@given(base=docker_documents(), changes=DOCKER_EDITS, as_default=st.booleans(), again=st.booleans())
@example(base=DANGLING, changes=[Remove(("runtimes", "nvidia"))], as_default=False, again=False)
def test_docker_means_what_the_edit_alone_would_mean(
    base: bytes, changes: list[Change], *, as_default: bool, again: bool
) -> None:
    docker = Docker()
    request = Request(EngineTarget(EngineName.DOCKER), HANDLERS, "nvidia" if as_default else None, FOLDER)
    (goal,) = docker.build_desired_state(Inspection("/s", (file(ROLE, base),), None), request, {}).files
    assert goal.base == base
    assert goal.target is not None
    edited = json_document.edit(goal.target, changes)
    memory = RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)
    if again and (as_default or not leads_nowhere(edited)):  # the handlers are put back before the cleanup
        present = file(ROLE, edited)
        inspection, memories = Inspection("/s", (present,), None), {present.path: memory}
        if taken(docker.remove_ours(present, memory, FOLDER).base):
            (goal,) = docker.build_desired_state(inspection, request, memories).files
            assert goal.target is not None
            memory = RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)
            edited = goal.target
        else:
            with pytest.raises(ConfigurationError):
                docker.build_desired_state(inspection, request, memories)
    left = docker.remove_ours(file(ROLE, edited), memory, FOLDER).base
    assert left is not None
    wanted = alone(json_document.parse(base), ("runtimes",), ("default-runtime",), changes, as_default=as_default)
    assert is_same(json_document.parse(left), wanted)


def leads_nowhere(content: bytes) -> bool:
    """Tell whether dockerd would not start with the file: a run refuses it then."""
    document = json_document.parse(content)
    return document.get("default-runtime", "runc") not in ("runc", *document.get("runtimes", {}))


@RUNS
@given(base=docker_documents(), value=SCALARS, as_default=st.booleans())
def test_docker_has_the_bytes_that_an_edit_of_another_line_alone_would_make(
    base: bytes, value: Any, *, as_default: bool
) -> None:
    docker = Docker()
    keys = [key for key in json_document.parse(base) if key not in ("runtimes", "default-runtime")]
    request = Request(EngineTarget(EngineName.DOCKER), HANDLERS, "nvidia" if as_default else None, FOLDER)
    (goal,) = docker.build_desired_state(Inspection("/s", (file(ROLE, base),), None), request, {}).files
    assert goal.target is not None
    memory = RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)
    for key in keys:
        edited, wanted = (json_document.edit(text, [Set((key,), value)]) for text in (goal.target, base))
        assert docker.remove_ours(file(ROLE, edited), memory, FOLDER).base == wanted


# --- containerd ---


@RUNS
@given(data=st.data(), as_default=st.booleans(), again=st.booleans())
def test_containerd_means_what_the_edit_alone_would_mean(data: st.DataObject, *, as_default: bool, again: bool) -> None:
    base, version = data.draw(containerd_documents())
    table = table_of(FILE_VERSIONS[version].plugin)
    runtimes, default = (*table, "runtimes"), (*table, "default_runtime_name")
    changes = data.draw(containerd_edits(version))
    containerd = Containerd()
    request = Request(EngineTarget(EngineName.CONTAINERD), HANDLERS, "nvidia" if as_default else None, FOLDER)

    def goal_of(content: bytes, memories: dict[str, RecordedFile]) -> tuple[bytes, RecordedFile]:
        files = (file(ROOT_ROLE, content), file(DROP_IN_ROLE, None))
        (goal, _) = containerd.build_desired_state(ContainerdInspection("/s", files, None), request, memories).files
        assert goal.target is not None
        return goal.target, RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)

    text, memory = goal_of(base, {})
    assert memory.before == base
    edited = toml_document.edit(text, changes, marker="the operator's")
    before = toml_document.parse(base)
    # an edit that empties the last table leaves only the beginning of the text: the file counts as cut off
    cut_off = len(edited) < len(text) and text.startswith(edited)
    if cut_off and lost_sections(before, toml_document.parse(edited)):
        assert containerd.remove_ours(file(ROOT_ROLE, edited), memory, FOLDER).base == base
        return
    if again:  # the handlers are put back before the cleanup
        try:
            edited, memory = goal_of(edited, {f"/etc/{ROOT_ROLE}": memory})
        except ConfigurationError as refused:  # the edit names a default runtime that no file has
            if as_default or "its CRI does not start" not in refused.reason:
                raise
    left = containerd.remove_ours(file(ROOT_ROLE, edited), memory, FOLDER).base
    assert left is not None
    wanted = alone(before, runtimes, default, changes, as_default=as_default)
    assert is_same(without_kept(toml_document.parse(left), before, runtimes), without_kept(wanted, before, runtimes))


@RUNS
@given(made=containerd_documents(), value=SCALARS, as_default=st.booleans())
def test_containerd_has_the_bytes_that_an_edit_of_another_line_alone_would_make(
    made: tuple[bytes, int], value: Any, *, as_default: bool
) -> None:
    base, _ = made
    containerd = Containerd()
    request = Request(EngineTarget(EngineName.CONTAINERD), HANDLERS, "nvidia" if as_default else None, FOLDER)
    files = (file(ROOT_ROLE, base), file(DROP_IN_ROLE, None))
    (goal, _) = containerd.build_desired_state(ContainerdInspection("/s", files, None), request, {}).files
    assert goal.target is not None
    memory = RecordedFile(goal.base, frozenset({digest_of(goal.target)}), goal.ownership)
    for path in (("debug", "level"), ("plugins", "io.other", "a")):
        edited, wanted = (toml_document.edit(text, [Set(path, value)], marker="theirs") for text in (goal.target, base))
        left = containerd.remove_ours(file(ROOT_ROLE, edited), memory, FOLDER).base
        assert left == wanted, difference(wanted, left)


def difference(wanted: bytes, left: bytes | None) -> str:
    expected, found = ((text or b"").decode().splitlines(keepends=True) for text in (wanted, left))
    return "".join(difflib.unified_diff(expected, found, "wanted", "left"))
