"""What a handler's table holds: the same in a config.toml and beside what a distribution made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Set, Table, is_same, lookup
from toolkit_installer.engines.api import DesiredState, EngineFile
from toolkit_installer.engines.containerd import templates
from toolkit_installer.engines.containerd.config import ContainerdSources
from toolkit_installer.engines.containerd.distributions.rancher import DETECTION
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import DROP_IN_ROLE as PLAIN_DROP_IN_ROLE
from toolkit_installer.engines.containerd.inspection import ROOT_ROLE, ContainerdInspection, DistributionInspection
from toolkit_installer.engines.containerd.layouts import (
    DROP_IN_ROLE,
    FILE_ROLE,
    GENERATED_ROLE,
    TEMPLATE_ROLE,
    AdditionMethod,
    Layout,
)
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, build_shape, enable_cdi
from toolkit_installer.engines.target import EngineTarget, Handler, Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.settings import EngineName, EngineSettings

FOLDER = "/opt/nvidia/toolkit"
V1, V2, KATA = "io.containerd.runc.v1", "io.containerd.runc.v2", "io.containerd.kata.v2"
VERSIONS = (1, 2, 3, 4)
OPTIONS = st.dictionaries(
    st.sampled_from(["SystemdCgroup", "NoPivotRoot", "Root", "Deep"]),
    st.sampled_from([True, False, "/run/x", {"a": 1}, {"b": {"c": 2}}]),
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "runtime_type": st.sampled_from([V1, V2, KATA]),
        "options": OPTIONS,
        "container_annotations": st.lists(st.sampled_from(["a.io/*", "b.io/*"]), unique=True),
        "snapshotter": st.sampled_from(["", "nydus"]),
    },
)
RUNTIMES = st.dictionaries(st.sampled_from(["runc", "crun", "kata"]), ENTRIES, max_size=3)
OVERRIDES = st.one_of(OPTIONS, st.fixed_dictionaries({"options": OPTIONS, "snapshotter": st.just("stargz")}))
HANDLERS = st.lists(st.sampled_from(["nvidia", "nvidia-cdi", "gpu"]), min_size=1, unique=True).map(
    lambda names: tuple(Handler(name, f"{FOLDER}/{name}-runtime") for name in names)
)
SETTINGS = st.builds(
    EngineSettings,
    runtime_type=st.sampled_from([None, V2]),
    runtime_config_override=OVERRIDES.map(json.dumps),
    container_annotations=st.sampled_from([(), ("cdi.k8s.io/*", "a.io/*")]),
    config_sources=st.sampled_from([(), ("file",), ("command",), ("file=/x.toml", "command"), ("command", "file")]),
)


def document(version: int, runtimes: Table, default: str | None) -> bytes:
    """Return a file of containerd's with these runtimes."""
    place = build_shape(FILE_VERSIONS[version].plugin)
    changes = [Set(("version",), version), Set((*place.runtimes,), runtimes)]
    if default is not None:
        changes.append(Set(place.default, default))
    return toml_document.edit(b"", changes, marker="theirs")


def file(role: str, path: str, content: bytes | None) -> EngineFile:
    found = None if content is None else Found(path, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile(role, path, found)


def plainly(content: bytes, request: Request, sources: ContainerdSources) -> DesiredState:
    """Return what is made of a config.toml."""
    files = (file(ROOT_ROLE, "/c/config.toml", content), file(PLAIN_DROP_IN_ROLE, "/c/conf.d/99-nvidia.toml", None))
    inspection = ContainerdInspection("/s", files, None, sources=sources)
    return Containerd().build_desired_state(inspection, request, {})


def placed(  # one distribution, as it was found
    content: bytes,
    request: Request,
    sources: ContainerdSources,
    way: AdditionMethod,
    template: bytes | None = None,
    **more: Any,
) -> DesiredState:
    """Return what is added beside the file of the same content that a distribution made."""
    version = toml_document.parse(content).get("version", 1)
    places = {"generated": "/c/config.toml", "drop_in": "/c/d/99-nvidia.toml", "template": "/c/config.toml.tmpl"}
    layout = Layout("k3s", version=version, source="/c/config.toml", method=way, **{**places, **more})
    files = (
        file(GENERATED_ROLE, layout.generated, content),
        file(FILE_ROLE if layout.in_place else DROP_IN_ROLE, layout.drop_in, content if layout.in_place else None),
        file(TEMPLATE_ROLE, layout.template or "", template),
    )
    inspection = ContainerdInspection(
        "/s", files, None, distribution=DistributionInspection(layout, content), sources=sources
    )
    return Containerd().build_desired_state(inspection, request, {})


def target(goals: DesiredState, role: str) -> bytes:
    content = next(goal.target for goal in goals.files if goal.role == role)
    assert content is not None
    return content


def tables(document: Mapping[str, Any], version: int, request: Request) -> dict[str, Any]:
    """Return the handlers' tables."""
    place = build_shape(FILE_VERSIONS[version].plugin)
    return {each.name: lookup(dict(document), (*place.runtimes, each.name)) for each in request.handlers}


def everywhere(content: bytes, request: Request, sources: ContainerdSources) -> list[dict[str, Any]]:
    """Return the handlers' tables, made in each of the ways."""
    version = toml_document.parse(content).get("version", 1)
    drop_in = target(placed(content, request, sources, AdditionMethod.DROP_IN), DROP_IN_ROLE)
    template = target(placed(content, request, sources, AdditionMethod.TEMPLATE), TEMPLATE_ROLE)
    documents = [
        toml_document.parse(target(plainly(content, request, sources), ROOT_ROLE)),
        toml_document.parse(drop_in),
        templates.parse_block(template, frozenset()),
    ]
    return [tables(each, version, request) for each in documents]


def made(version: int, runtimes: Table, *, sources: ContainerdSources | None = None, **asked: Any) -> Table:
    """Return the table of `nvidia`, which is the same in each of the ways."""
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(**asked)),
        (Handler("nvidia", f"{FOLDER}/r"),),
        "nvidia",
        FOLDER,
    )
    first, *others = everywhere(document(version, runtimes, "runc"), request, sources or ContainerdSources())
    assert all(is_same(each, first) for each in others), others
    table = first["nvidia"]
    assert isinstance(table, dict)
    return table


@settings(max_examples=300, deadline=None)
@given(data=st.data(), version=st.sampled_from(VERSIONS), handlers=HANDLERS, asked=SETTINGS)
def test_both_ways_make_the_same_table_of_the_same_settings(
    data: st.DataObject, version: int, handlers: tuple[Handler, ...], asked: EngineSettings
) -> None:
    runtimes = data.draw(RUNTIMES)
    default = data.draw(st.sampled_from([None, *runtimes]))
    content = document(version, runtimes, default)
    other = document(data.draw(st.sampled_from(VERSIONS)), data.draw(RUNTIMES), data.draw(st.sampled_from(["runc"])))
    printed = data.draw(st.sampled_from([None, toml_document.parse(other)]))
    there = data.draw(st.sampled_from([None, other]))
    sources = ContainerdSources(asked.config_sources, printed, {"/x.toml": there})
    plain, *others = everywhere(
        content, Request(EngineTarget(EngineName.CONTAINERD, asked), handlers, None, FOLDER), sources
    )
    for each in others:
        assert is_same(each, plain)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_override_of_the_whole_table_is_no_option_called_options(version: int) -> None:
    override = '{"options": {"SystemdCgroup": false}, "snapshotter": "nydus"}'
    table = made(version, {"runc": {"options": {"SystemdCgroup": True}}}, runtime_config_override=override)
    assert table["options"]["SystemdCgroup"] is False
    assert table["snapshotter"] == "nydus"
    assert "options" not in table["options"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_override_is_merged_into_what_is_nested(version: int) -> None:
    runtimes = {"runc": {"options": {"Deep": {"kept": 1, "changed": 1}}}}
    table = made(version, runtimes, runtime_config_override='{"Deep": {"changed": 2}}')
    assert table["options"]["Deep"] == {"kept": 1, "changed": 2}


@pytest.mark.parametrize("version, left", [(1, V1), (2, V1), (3, V2), (4, V2)])
def test_a_runtime_type_removed_in_2_0_is_in_no_file_of_later_versions(version: int, left: str) -> None:
    assert made(version, {"runc": {"runtime_type": V1}})["runtime_type"] == left


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_version_1_name_the_executable_as_the_oldest_shims_read_it(version: int) -> None:
    assert made(version, {})["options"].get("Runtime") == (f"{FOLDER}/r" if version == 1 else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_default_of_containerd_before_1_3_lends_its_options_too(version: int) -> None:
    place = build_shape(FILE_VERSIONS[version].plugin)
    legacy = {"runtime_type": V2, "options": {"Root": "/legacy"}}
    content = toml_document.edit(
        document(version, {"runc": {"options": {"Root": "/named"}}}, "runc"),
        [Set((*place.default[:-1], "default_runtime"), legacy)],
        marker="theirs",
    )
    request = Request(EngineTarget(EngineName.CONTAINERD), (Handler("nvidia", f"{FOLDER}/r"),), None, FOLDER)
    for each in everywhere(content, request, ContainerdSources()):
        assert each["nvidia"]["options"]["Root"] == "/legacy"


# --- where the settings come from ---

RUNC = {"runc": {"runtime_type": V2, "options": {"Root": "/file"}}}
PRINTED = toml_document.parse(document(3, {"runc": {"runtime_type": V2, "options": {"Root": "/printed"}}}, "runc"))
OTHER = document(2, {"crun": {"runtime_type": V2, "options": {"Root": "/other"}}}, "crun")


@pytest.mark.parametrize(
    "asked, root",
    [
        ((), "/printed"),
        (("file",), "/file"),
        (("command",), "/printed"),
        (("file=/x.toml",), "/other"),
        (("file=/gone.toml", "file"), "/file"),
    ],
)
def test_the_source_that_was_asked_for_lends_the_settings(asked: tuple[str, ...], root: str) -> None:
    sources = ContainerdSources(asked, PRINTED, {"/x.toml": OTHER, "/gone.toml": None})
    assert made(3, RUNC, sources=sources, config_sources=asked)["options"]["Root"] == root


@pytest.mark.parametrize(
    "asked, why",
    [
        (("command",), "no containerd runs whose binary prints its configuration"),
        (("command", "file"), "no containerd runs whose binary prints its configuration"),
        (("file=/gone.toml", "file"), "/gone.toml is not there"),
        (("file=/kata.toml",), "/kata.toml has no runtime of runc's kind that is not ours"),
        (("file", "command"), ""),
        ((), ""),
    ],
)
def test_a_source_that_was_asked_for_and_has_nothing_is_spoken_of_in_both_ways(
    asked: tuple[str, ...], why: str
) -> None:
    content = document(3, RUNC, "runc")
    kata = document(3, {"kata": {"runtime_type": KATA}}, "kata")
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(config_sources=asked)),
        (Handler("nvidia", f"{FOLDER}/r"),),
        None,
        FOLDER,
    )
    sources = ContainerdSources(asked, None, {"/gone.toml": None, "/kata.toml": kata})
    for goals in (
        plainly(content, request, sources),
        placed(content, request, sources, AdditionMethod.DROP_IN),
        placed(content, request, sources, AdditionMethod.TEMPLATE),
    ):
        said = [note for note in goals.notes if "--config-source" in note]
        assert said == ([f"--config-source {asked[0]} is not used: {why}"] if why else [])


def test_a_file_that_was_named_as_a_source_and_cannot_be_read_is_refused_by_its_name() -> None:
    asked = ("file=/x.toml",)
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(config_sources=asked)),
        (Handler("nvidia", f"{FOLDER}/r"),),
        None,
        FOLDER,
    )
    for way in (AdditionMethod.DROP_IN, AdditionMethod.TEMPLATE):
        with pytest.raises(ConfigurationError) as raised:
            placed(
                document(3, RUNC, "runc"), request, ContainerdSources(asked, None, {"/x.toml": b"plugins = 5\n"}), way
            )
        assert raised.value.path == "/x.toml"


# --- nothing that was asked for is dropped without a word ---

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("--runtime-type", {"runtime_type": V2}),
    ("--runtime-config-override", {"runtime_config_override": '{"Root": "/mine"}'}),
    ("--config-source", {"config_sources": ("file",)}),
    ("--nvidia-container-runtime-modes.cdi.annotation-prefixes", {"container_annotations": ("a.io/*",)}),
]
BASE = b'{{ template "base" . }}\n'
THEIRS = (
    BASE + b"{{ if .IsRunningInUserNS }}[debug]{{ end }}\n"  # no TOML, so nothing is taken out of it
    b"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n"
    b"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n"
    b"BinaryName = '/opt/nvidia/toolkit/r'\n"
)


def notes(
    asked: Mapping[str, Any], way: AdditionMethod, *, template: bytes | None, folder: str, **more: Any
) -> list[str]:
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(**asked)), (Handler("nvidia", f"{folder}/r"),), None, folder
    )
    sources = ContainerdSources(asked.get("config_sources", ()))
    return list(placed(document(3, RUNC, "runc"), request, sources, way, template, **more).notes)


@pytest.mark.parametrize("flag, asked", ASKED)
@pytest.mark.parametrize(
    "way, template, folder, why",
    [
        (AdditionMethod.TEMPLATE, BASE, FOLDER, None),
        (
            AdditionMethod.TEMPLATE,
            BASE,
            DETECTION.folder,
            "k3s makes their tables itself if it finds them when it starts",
        ),
        (AdditionMethod.TEMPLATE, b"version = 3\n", DETECTION.folder, None),
        (AdditionMethod.TEMPLATE, THEIRS, FOLDER, "/c/config.toml.tmpl has their tables already"),
        (AdditionMethod.NONE, None, DETECTION.folder, "k3s makes their tables itself"),
        (AdditionMethod.DROP_IN, None, DETECTION.folder, None),
    ],
)
def test_what_cannot_be_put_into_a_table_that_is_somebody_elses_is_said(
    flag: str, asked: dict[str, Any], way: AdditionMethod, template: bytes | None, folder: str, why: str | None
) -> None:
    said = [
        note for note in notes(asked, way, template=template, folder=folder, detection=DETECTION) if "not used" in note
    ]
    assert said == ([] if why is None else [f"{flag} is not used for nvidia: {why}"])


@pytest.mark.parametrize("way", [AdditionMethod.DROP_IN, AdditionMethod.TEMPLATE])
def test_a_table_that_nobody_asked_anything_of_is_not_spoken_of(way: AdditionMethod) -> None:
    assert notes({}, way, template=BASE, folder=DETECTION.folder, detection=DETECTION) == []


@pytest.mark.parametrize("way", [AdditionMethod.TEMPLATE, AdditionMethod.NONE])
def test_a_drop_in_that_was_named_where_none_is_read_is_said_to_be_unused(way: AdditionMethod) -> None:
    said = notes({"drop_in": "/c/d/mine.toml"}, way, template=BASE, folder=DETECTION.folder, detection=DETECTION)
    assert any(note.startswith("/c/d/mine.toml is not used") for note in said)


def test_the_old_kind_of_default_is_written_in_version_1_or_reported_as_unused() -> None:
    asked = EngineSettings(use_legacy_config=True)
    for version in VERSIONS:
        request = Request(
            EngineTarget(EngineName.CONTAINERD, asked), (Handler("nvidia", f"{FOLDER}/r"),), "nvidia", FOLDER
        )
        goals = placed(document(version, RUNC, "runc"), request, ContainerdSources(), AdditionMethod.DROP_IN)
        place = build_shape(FILE_VERSIONS[version].plugin)
        written = lookup(toml_document.parse(target(goals, DROP_IN_ROLE)), (*place.default[:-1], "default_runtime"))
        assert (goals.default is None) == bool(written) == (version == 1)
        assert any("--use-legacy-config is not used" in note for note in goals.notes) == (version != 1)


def test_a_type_that_is_wrong_in_what_a_distribution_made_is_refused_and_no_bug() -> None:
    content = document(3, {"runc": {"options": "none"}}, None)
    request = Request(EngineTarget(EngineName.CONTAINERD), (Handler("nvidia", f"{FOLDER}/r"),), None, FOLDER)
    with pytest.raises(ConfigurationError, match="options must be a table") as raised:
        placed(content, request, ContainerdSources(), AdditionMethod.DROP_IN)
    assert raised.value.path == "/c/config.toml"


# --- CDI in the engine itself ---


@pytest.mark.parametrize(
    "version, said, turned_on",
    [
        (2, {}, True),
        (2, {"enable_cdi": False}, True),
        (2, {"enable_cdi": True}, False),
        (3, {}, False),
        (3, {"enable_cdi": False}, True),
        (3, {"enable_cdi": True}, False),
    ],
    ids=str,
)
def test_beside_a_generated_file_cdi_is_turned_on_where_it_is_off_and_nowhere_else(
    version: int, said: Table, *, turned_on: bool
) -> None:
    request = Request(
        EngineTarget(EngineName.CONTAINERD, EngineSettings(enable_cdi=True)), (Handler("nvidia", "/n"),), None, FOLDER
    )
    content, key = document(version, {"runc": {"runtime_type": V2}}, None), enable_cdi(FILE_VERSIONS[version].plugin)
    content = toml_document.edit(content, [Set(key, value) for value in said.values()], marker="theirs")
    added = toml_document.parse(
        target(placed(content, request, ContainerdSources(), AdditionMethod.DROP_IN), DROP_IN_ROLE)
    )
    assert (lookup(added, key) is True) is turned_on
