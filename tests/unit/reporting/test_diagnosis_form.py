"""The table of illnesses, remedies for nodes that are declared elsewhere, and the form of CDI specifications."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.reporting.engine_texts import SPECIFICATION
from toolkit_installer.reporting import diagnosis_form
from toolkit_installer.reporting.diagnosis_form import (
    TITLES,
    Host,
    Illness,
    Topic,
    choose_remedy,
    find_host,
)
from toolkit_installer.settings import EngineName

PROJECT = Path(__file__).parents[3]


def test_each_illness_has_a_title() -> None:
    assert set(TITLES) == set(Illness)


def test_each_illness_is_in_the_documentation() -> None:
    page = (PROJECT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| `([a-z-]+)` \|", page) == [illness.value for illness in Illness]


@pytest.mark.parametrize("indent", [None, 2])
def test_the_paths_of_a_specification_in_json(indent: int | None) -> None:
    nodes = [{"path": "/dev/nvidia0"}, {"hostPath": "/dev/other", "path": "/dev/seen-as"}]
    mount = {"hostPath": "/usr/lib/a", "containerPath": "/usr/lib/b", "options": ["ro", "path: /no"]}
    edits = {"deviceNodes": nodes, "mounts": [mount], "hooks": [{"hookName": "x", "path": "/bin/hook"}]}
    text = json.dumps({"cdiVersion": "0.6.0", "kind": "a.b/c", "containerEdits": edits}, indent=indent)
    paths = [path for _, path in diagnosis_form.parse_paths(text.encode())]
    assert paths == ["/dev/nvidia0", "/dev/other", "/usr/lib/a", "/bin/hook"]


@pytest.mark.parametrize(
    "os_release, signs, distribution, host",
    [
        ("NAME=NixOS\nID=nixos\n", (), "k3s", Host.NIXOS),
        ('ID="talos"', (), "containerd", Host.TALOS),
        (
            "ID=debian",
            ("/etc/kubernetes/kubelet.env", "/etc/kubernetes/kubelet-config.yaml"),
            "containerd",
            Host.KUBESPRAY,
        ),
        ("ID=debian", ("/etc/kubernetes/kubelet.env",), "containerd", Host.PLAIN),
        ("", (), "k3s", Host.K3S),
        ("", (), "rke2", Host.RKE2),
    ],
)
def test_who_declares_a_node(os_release: str, signs: tuple[str, ...], distribution: str, host: Host) -> None:
    assert find_host(os_release, signs, distribution) is host


@pytest.mark.parametrize("topic", list(Topic))
@pytest.mark.parametrize("engine", [EngineName.DOCKER, EngineName.CONTAINERD, EngineName.CRIO])
def test_each_remedy_is_in_the_language_of_the_host(topic: Topic, engine: EngineName) -> None:
    assert choose_remedy(Host.PLAIN, topic, engine, "edit it") == "edit it"
    assert "nixos-rebuild switch" in choose_remedy(Host.NIXOS, topic, engine, "edit it")
    assert "talosctl" in choose_remedy(Host.TALOS, topic, engine, "edit it")
    for host in Host:
        assert choose_remedy(host, topic, engine, "edit it")


def test_the_lines_and_paths_of_a_specification_in_yaml() -> None:
    assert diagnosis_form.parse_paths(SPECIFICATION.encode()) == [
        (7, "/dev/nvidia0"),
        (8, "/dev/other"),
        (15, "/usr/bin/nvidia-cdi-hook"),
        (18, "/usr/lib/libcuda.so.1"),
    ]


@pytest.mark.parametrize(
    "text",
    ["- path: relative\n", "- containerPath: /in/the/container\n", "# path: /in/a/comment\n", "- xpath: /a\n", ""],
)
def test_what_names_no_file_of_the_node_is_no_path_of_a_specification(text: str) -> None:
    assert diagnosis_form.parse_paths(text.encode()) == []


PATHS = st.text("abz.-_0", min_size=1, max_size=6).map("/{}".format)
ENTRIES = st.lists(
    st.fixed_dictionaries({"path": PATHS}, optional={"hostPath": PATHS, "type": st.just("c")})
    | st.fixed_dictionaries({"containerPath": PATHS}, optional={"hostPath": PATHS}),
    max_size=4,
)


@given(ENTRIES, st.sampled_from([None, 1, 4]))
def test_of_each_entry_the_path_on_the_node_is_found(entries: list[dict[str, str]], indent: int | None) -> None:
    chosen = [each.get("hostPath") or each.get("path") for each in entries]
    expected = [path for path in chosen if path is not None]
    edits = {"cdiVersion": "0.6.0", "kind": "a.b/c", "containerEdits": {"mounts": entries}}
    content = json.dumps(edits, indent=indent).encode()
    assert [path for _, path in diagnosis_form.parse_paths(content)] == expected
    as_yaml = "".join(
        f"{'  - ' if number == 0 else '    '}{name}: {value}\n"
        for each in entries
        for number, (name, value) in enumerate(each.items())
    )
    assert [path for _, path in diagnosis_form.parse_paths(f"mounts:\n{as_yaml}".encode())] == expected


@pytest.mark.parametrize(
    "name, content, fault",
    [
        ("a.json", b'{"cdiVersion": "0.6.0", "kind": "a.b/c"}', None),
        ("a.yaml", b"cdiVersion: 0.6.0\nkind: a.b/c\n", None),
        ("a.yaml", b'{"cdiVersion": "0.6.0", "kind": "a.b/c"}', None),
        ("a.yaml", b"cdiVersion: 0.6.0\n# of some kind: none\n", (1, "has no kind")),
        ("a.yaml", b"cdiVersion: 0.6.0\nkind: a.b/c\nx: 'a\tb'\n", None),
    ],
)
def test_a_specification_of_the_right_form_has_no_fault(
    name: str, content: bytes, fault: tuple[int, str] | None
) -> None:
    assert diagnosis_form.find_form_fault(name, content) == fault


@pytest.mark.parametrize(
    "topic, names",
    [
        (Topic.KUBELET_CGROUP, ["/etc/rancher/rke2/config.yaml", "cgroup-driver=systemd"]),
        (Topic.SOCKET, ["/etc/rancher/rke2/config.yaml", "container-runtime-endpoint"]),
        (Topic.ENGINE, ["/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl", "change"]),
        (Topic.ENGINE_CGROUP, ["config-v3.toml.tmpl", "SystemdCgroup = true"]),
        (Topic.PROGRAMS, ["edit it"]),
    ],
)
def test_a_remedy_for_rke2_names_the_file_that_its_topic_is_declared_in(topic: Topic, names: list[str]) -> None:
    remedy = choose_remedy(Host.RKE2, topic, EngineName.CONTAINERD, "edit it")
    assert all(name in remedy for name in names)
