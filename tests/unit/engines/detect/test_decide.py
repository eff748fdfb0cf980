from __future__ import annotations

import io
import itertools
import os
from pathlib import Path

import pytest

from toolkit_installer.engines.detect import decide, kubelet
from toolkit_installer.engines.detect.decide import Evidence, EvidenceKind, choose_engines
from toolkit_installer.engines.detect.unit_files import (
    BY_NAME,
    TABLE,
    find_engine_by_socket,
    find_marked_row,
    find_socket_rows,
)
from toolkit_installer.engines.registry import find_usual_distribution, names, normalize_socket
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, inspect_process
from toolkit_installer.settings import EngineName, EngineSettings, Settings


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.open(str(tmp_path), "/host")


def says(kind: str, name: str | None, *, lesser: bool = False) -> Evidence:
    row = BY_NAME[name] if name is not None else None
    return Evidence(EvidenceKind(kind), row, f"{kind} says {name}", lesser=lesser)


@pytest.mark.parametrize(
    "seen,decided",
    [
        ([says("kubelet", "containerd"), says("live", "docker"), says("live", "containerd")], "containerd"),
        ([says("kubelet", "containerd"), says("live", "docker")], "containerd"),
        ([says("kubelet", "docker"), says("live", "docker"), says("live", "containerd")], "docker"),
        ([says("kubelet", "crio"), says("live", "containerd"), says("unit", "docker")], "crio"),
        ([says("live", "docker"), says("file", "docker"), says("file", "containerd")], "docker"),
        ([says("live", "containerd"), says("unit", "docker"), says("file", "docker")], "containerd"),
        ([says("unit", "docker"), says("binary", "containerd")], "docker"),
        ([says("binary", "containerd"), says("file", "docker")], "containerd"),
        ([says("file", "containerd")], "containerd"),
        ([says("unit", "docker"), says("unit", "containerd", lesser=True)], "docker"),
        ([says("unit", "containerd", lesser=True)], "containerd"),
        ([says("live", "containerd", lesser=True), says("live", "docker")], "docker"),
        ([says("live", "docker-snap"), says("live", "containerd")], "containerd"),
        ([says("file", "docker-rootless"), says("file", "docker")], "docker"),
    ],
)
def test_the_strongest_kind_decides_and_docker_outweighs_its_own_containerd(seen: list[Evidence], decided: str) -> None:
    found = choose_engines(seen).row
    assert found is BY_NAME[decided]


@pytest.mark.parametrize("engine", names())
def test_an_engine_that_has_no_socket_yet_is_asked_where_it_will_have_one(node: Node, engine: EngineName) -> None:
    assert find_usual_distribution(engine).socket in decide._list_sockets(node, engine, EngineSettings())


def started(*arguments: str) -> Process:
    return Process(1, "containerd", "/opt/bin/containerd", ("containerd", *arguments), 0.0, None)


@pytest.mark.parametrize("asked", [None, "/etc/site/containerd.toml"], ids=["not-named", "named"])
@pytest.mark.parametrize(
    "arguments,config",
    [
        (("--config=/srv/site/containerd.toml",), None),
        (("-c", "/srv/site/containerd.toml"), None),
        (("--address=/run/x.sock",), BY_NAME["k0s"].config),
        (None, BY_NAME["k0s"].config),
    ],
    ids=["its-own", "its-own-in-two-words", "none", "not-running"],
)
def test_a_distributions_process_outweighs_its_file_and_a_named_one_outweighs_both(
    node: Node, arguments: tuple[str, ...] | None, config: str | None, asked: str | None
) -> None:
    row = BY_NAME["k0s"]
    process = started(*arguments) if arguments is not None else None
    seen = (Evidence(EvidenceKind.LIVE if process else EvidenceKind.UNIT, row, "it is seen", row.socket, process),)
    settings = Settings(engine=EngineSettings(config=asked))
    (target,) = decide.detect_engines(node, settings, seen)
    assert (target.distribution, target.found_config) == (row, config)
    # None: the engine's own adapter looks at what its process was started with
    assert target.config == (config if asked is None else asked)


def test_the_file_of_another_distributions_process_is_not_this_ones(node: Node) -> None:
    row = BY_NAME["k0s"]
    other = Evidence(EvidenceKind.FILE, BY_NAME["containerd"], "it is there", None, started("--config=/srv/x.toml"))
    (target,) = decide.detect_engines(
        node, Settings(), (Evidence(EvidenceKind.LIVE, row, "it answers", row.socket), other)
    )
    assert target.config == row.config


@pytest.mark.parametrize("kind", list(EvidenceKind))
def test_two_engines_of_equal_weight_are_an_error_that_lists_both(kind: EvidenceKind) -> None:
    with pytest.raises(ConfigurationError, match=f"{kind} says docker; {kind} says containerd") as caught:
        choose_engines([says(kind, "docker"), says(kind, "containerd"), says("file", "docker")])
    assert "--runtime" in str(caught.value.hint)


def test_two_distributions_of_the_same_engine_are_ambiguous_too() -> None:
    with pytest.raises(ConfigurationError, match="live says crio; live says containerd"):
        choose_engines([says("live", "crio"), says("live", "containerd")])


def test_what_is_decided_does_not_depend_on_the_order_in_which_it_was_seen() -> None:
    seen = [says("live", "docker"), says("live", "containerd", lesser=True), says("unit", "crio"), says("file", "k3s")]
    assert {choose_engines(order).row for order in itertools.permutations(seen)} == {BY_NAME["docker"]}


def test_a_node_without_any_engine_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no engine was found"):
        choose_engines([])


@pytest.mark.parametrize("name", [row.name for row in TABLE if row.refused])
def test_what_is_not_supported_is_refused_by_name_with_what_to_do(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is not supported") as caught:
        choose_engines([says("live", name)])
    assert caught.value.hint == BY_NAME[name].refused


def test_a_kubelet_on_an_unknown_engine_is_not_outvoted_by_a_live_one() -> None:
    with pytest.raises(ConfigurationError, match="not known: kubelet says None"):
        choose_engines([says("kubelet", None), says("live", "docker")])


@pytest.mark.parametrize(
    "arguments,endpoint",
    [
        (("kubelet", "--container-runtime-endpoint=unix:///run/c.sock"), "unix:///run/c.sock"),
        (("kubelet", "--container-runtime-endpoint", "/run/c.sock", "--v=2"), "/run/c.sock"),
        (("kubelet", "--container-runtime-endpoint=/a", "--container-runtime-endpoint", "/b"), "/b"),
        (("kubelet", "--container-runtime-endpoint"), None),
        (("kubelet",), None),
    ],
)
def test_the_kubelets_endpoint_is_read_in_both_spellings(arguments: tuple[str, ...], endpoint: str | None) -> None:
    assert kubelet.parse_endpoint(arguments) == endpoint


@pytest.mark.parametrize(
    "text,value",
    [
        ("kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/a.sock\n", "unix:///run/a.sock"),
        ('containerRuntimeEndpoint: "unix:///run/a.sock"  # why\n', "unix:///run/a.sock"),
        ("containerRuntimeEndpoint: 'unix:///run/a.sock'\r\n", "unix:///run/a.sock"),
        ('{"kind":"K","containerRuntimeEndpoint":"unix:///run/a.sock","x":1}', "unix:///run/a.sock"),
        ('{\n  "containerRuntimeEndpoint": "unix:///run/a.sock"\n}', "unix:///run/a.sock"),
        ("# containerRuntimeEndpoint: unix:///run/a.sock\n", None),
        ("x: 1 # containerRuntimeEndpoint: unix:///run/a.sock\n", None),
        ('containerRuntimeEndpoint: ""\n', None),
        ("containerRuntimeEndpoint: >-\n  unix:///run/a.sock\n", "unix:///run/a.sock"),
        ("containerRuntimeEndpoint:\nmaxPods: 20\n", None),
        ("imageServiceEndpoint: unix:///run/a.sock\n", None),
        ("", None),
    ],
)
def test_the_endpoint_in_the_kubelets_file_is_found_however_it_is_written(text: str, value: str | None) -> None:
    assert kubelet.parse_plain_value(text, "containerRuntimeEndpoint") == value


@pytest.mark.parametrize(
    "words,name",
    [
        (
            "/var/lib/rancher/k3s/data/0c3f/bin/containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "k3s",
        ),
        ("/data/k3s/data/0c3f/bin/containerd -a /run/k3s/containerd/containerd.sock", "k3s"),
        ("/var/lib/rancher/rke2/data/v1.33/bin/containerd -a /run/k3s/containerd/containerd.sock", "rke2"),
        ("/var/lib/k0s/bin/containerd --config=/etc/k0s/containerd.toml", "k0s"),
        ("/snap/microk8s/6089/bin/containerd --config /var/snap/microk8s/6089/args/containerd.toml", "microk8s"),
        ("/snap/docker/2915/bin/dockerd --config-file=/var/snap/docker/2915/config/daemon.json", "docker-snap"),
        ("/usr/bin/containerd", None),
        ("/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock", None),
    ],
)
def test_a_process_tells_whose_engine_it_is(words: str, name: str | None) -> None:
    found = find_marked_row(words)
    assert (found.name if found is not None else None) == name


def test_names_are_given_once_and_every_row_says_where_its_engine_is() -> None:
    assert len(BY_NAME) == len(TABLE)
    for row in TABLE:
        assert row.sockets, row.name
        assert row.config.startswith("/"), row.name
        assert all(unit.endswith(".service") for unit in row.units), row.name
        assert all(path.startswith("/") for path in (*row.sockets, *row.binaries, *row.files)), row.name
        assert find_socket_rows(row.socket), row.name


def test_the_same_socket_is_known_under_all_its_spellings() -> None:
    spellings = ("unix:///var/run/docker.sock", "/run/docker.sock", "unix:/run/docker.sock", "/var/run/docker.sock ")
    assert {normalize_socket(spelling) for spelling in spellings} == {"/run/docker.sock"}
    assert [row.name for row in find_socket_rows("unix:///run/docker.sock")] == ["docker"]
    assert find_engine_by_socket("unix:///elsewhere/crio.sock") is EngineName.CRIO
    assert find_engine_by_socket("unix:///elsewhere/other.sock") is None


def test_the_files_of_a_kubelets_folder_are_told_by_their_whole_paths(tmp_path: Path) -> None:
    for name in ("20-b.conf", "10-a.conf", "notes.txt"):
        (tmp_path / name).touch()
    me = inspect_process(os.getpid())
    assert me is not None
    assert kubelet._listed(me, f"{tmp_path}/", ".conf") == [f"{tmp_path}/10-a.conf", f"{tmp_path}/20-b.conf"]


@pytest.mark.parametrize(
    "name, recognised, said",
    [("containerd", False, False), ("containerd", True, True), ("k3s", False, True), ("k3s", True, True)],
)
def test_the_log_names_a_recognised_engine_unless_it_was_given_or_is_the_usual_one(
    logged: io.StringIO, name: str, *, recognised: bool, said: bool
) -> None:
    row = BY_NAME[name]
    target = EngineTarget(row.engine, detected=recognised, distribution=row, why="its socket answers")
    assert decide._logged(target) is target
    assert ("event=engine-recognised" in logged.getvalue()) is said
    assert (f"distribution={name}" in logged.getvalue()) is said


def test_an_engine_of_no_distribution_is_nothing_to_be_said(logged: io.StringIO) -> None:
    decide._logged(EngineTarget(EngineName.DOCKER, detected=True))
    assert logged.getvalue() == ""
