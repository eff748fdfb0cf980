"""What stands in for a runtime: whatever else is registered, the default runtime's program comes first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents.changes import Set, Table, apply_changes
from toolkit_installer.engines import ownership
from toolkit_installer.engines.containerd import config as containerd_sources
from toolkit_installer.engines.containerd import tables as containerd_tables
from toolkit_installer.engines.docker import config as docker_config
from toolkit_installer.engines.ownership import Shape

CONTAINERD = containerd_tables.build_shape(containerd_tables.GRPC)
NAMES = st.sampled_from(["runc", "crun", "kata", "own"])
PATHS = st.sampled_from(["/usr/sbin/runc", "/usr/bin/crun", "/opt/own", None])
KINDS = st.sampled_from([None, "io.containerd.runc.v2", "io.containerd.kata.v2"])


def entry(shape: Shape, kind: str | None, path: str | None) -> dict[str, Any]:
    if shape is CONTAINERD:
        options = {"options": {"BinaryName": path}} if path else {}
        return options | ({"runtime_type": kind} if kind else {})
    if kind is None:
        return {"path": path or "runc"}
    return {"runtimeType": kind} | ({"options": {"BinaryName": path}} if path else {})


@pytest.mark.parametrize("shape", [CONTAINERD, docker_config.SHAPE], ids=["containerd", "docker"])
@given(made=st.dictionaries(NAMES, st.tuples(KINDS, PATHS)), default=st.none() | NAMES)
def test_the_first_is_what_runs_the_engines_ordinary_containers(
    shape: Shape, made: dict[str, tuple[str | None, str | None]], default: str | None
) -> None:
    base: Table = {}
    for name, (kind, path) in made.items():
        base = apply_changes(base, (Set((*shape.runtimes, name), entry(shape, kind, path)),))
    if default is not None:
        base = apply_changes(base, (Set(shape.default, default),))

    found = ownership.list_low_level_runtimes(base, shape, built_in="the engine's own")

    ordinary = [name for name in (default, "runc") if name in made and made[name][0] != "io.containerd.kata.v2"]
    said = shape.executable(entry(shape, *made[ordinary[0]])) if ordinary else None
    assert found[0] == (said or "the engine's own")
    assert len(set(found)) == len(found)


def test_the_unnamed_default_of_containerd_before_2_counts_only_if_it_has_a_type() -> None:
    options = {"BinaryName": "/opt/own"}
    table = containerd_tables.table_of(containerd_tables.SHORT)
    for kind, first in (("io.containerd.runc.v2", "/opt/own"), ("", "runc")):
        base = apply_changes({}, (Set((*table, "default_runtime"), {"runtime_type": kind, "options": options}),))
        assert containerd_sources.list_low_level_runtimes(base, containerd_tables.SHORT)[0] == first
