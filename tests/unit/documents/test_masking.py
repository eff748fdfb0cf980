"""Nothing is shown of somebody's configuration but the values of listed keys, and it reads as before."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.documents import secretive
from toolkit_installer.documents import shown
from toolkit_installer.documents.masking import MASK, DocumentMasker, mask
from toolkit_installer.documents.walk import _Walk

CORPUS = sorted((Path(__file__).parents[2] / "data" / "corpus").glob("*/*.*"))
_PROSE = ("containerd-comment", "template")
CONFIGURATIONS = list(secretive.configurations())


def keyed() -> DocumentMasker:
    """Return what hides as a capture does: each value has a stand-in of its own."""
    return DocumentMasker(
        lambda value: f"hidden!{abs(hash(value)) % 10**9}", lambda value: f"9{abs(hash(value)) % 10**9}"
    )


def test_there_are_two_hundred_configurations_with_secrets() -> None:
    assert len(CONFIGURATIONS) >= 200


@pytest.mark.parametrize("name, text, secret", CONFIGURATIONS, ids=[each[0] for each in CONFIGURATIONS])
def test_a_secret_in_any_position_is_hidden(name: str, text: str, secret: str) -> None:
    for hiding in (DocumentMasker(), keyed()):
        hidden = hiding.document(text)
        assert secret not in hidden
        assert hidden.count("\n") == text.count("\n")
        hiding.settle()
        if not (name.startswith(_PROSE) and secret.isalpha()):  # of a comment, ordinary words are no secrets
            assert secret not in hiding.words(f"unexpected {secret} near {secret!r}: {text}")


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_hidden_file_has_the_same_keys_and_is_masked_as_before(path: Path) -> None:
    text = path.read_bytes().decode()
    hidden = keyed().document(text)
    assert mask(hidden) == mask(text)
    load: Any = json.loads if path.suffix == ".json" else tomllib.loads
    if text.strip():
        assert _keys(load(hidden.removeprefix("\ufeff"))) == _keys(load(text.removeprefix("\ufeff")))


def _keys(value: Any) -> Any:
    """Return the keys of all that is in a document, in the form of the document; values are left out."""
    if isinstance(value, dict):
        return [(name if shown.is_plain_key(name) else None, _keys(item)) for name, item in value.items()]
    return [_keys(item) for item in value] if isinstance(value, list) else None


def test_deep_objects_take_linear_time() -> None:
    sizes = []
    for depth in (1_000, 4_000):
        walk = _Walk('{"a":' * depth, DocumentMasker())
        walk.run()
        sizes.append(sum(len(path) for _, path in walk.brackets))
    assert sizes[1] <= 6 * sizes[0]


@given(st.text(st.sampled_from("ab1P:/@=\"{}[],\n '\\#*-|>;.%$\t\u00a0"), max_size=80))
def test_whatever_a_text_says_its_lines_stay_and_it_is_masked_alike(text: str) -> None:
    hidden = keyed().document(text)
    assert hidden.count("\n") == text.count("\n")
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize(
    "words, hidden",
    [
        (["dockerd", "-H", "fd://", "--config-file=/etc/d.json"], []),
        (["dockerd", "--log-opt", "splunk-token=abcd"], [2]),
        (["dockerd", "--registry-mirror", "https://m/?token=abcd", "--debug"], [2]),
        (["kubelet", "--node-labels", "db-password=abcd", "--config", "/etc/k.yaml"], [2]),
        (["k3s", "server", "--token=abcd", "--data-dir", "/srv"], [2]),
        (["sshpass", "-p", "abcd"], [2]),
        (["sshpass", "-p", "/abcd", "-d", "/abcd+x"], [2, 4]),
        (["containerd-shim-runc-v2", "-namespace", "k8s.io", "-id", "ab12", "-address", "/run/c.sock"], []),
        (["/usr/bin/conmon", "-b", "/run/x", "-r", "/usr/bin/crun", "-p", "/run/pid"], []),
        (["crio", "--runtimes", "nvidia:/usr/bin/n:/run/n,a:/bin/a", "--add-runtime=a=/bin/a"], []),
        (["sshpass", "-p", "abcd/abcd", "-d", "abcd/x="], [2, 4]),
        (["x", "--token", "abcd=", "--key", "abcd=x", "abcd==", "-address", "u:abcd"], [2, 4, 5, 7]),
        (["x", "abcd"], [1]),
    ],
)
def test_of_a_command_line_listed_flags_are_shown(words: list[str], hidden: list[int]) -> None:
    made = DocumentMasker().arguments(words)
    assert [index for index, (old, new) in enumerate(zip(words, made, strict=True)) if old != new] == hidden
    assert "abcd" not in " ".join(made)


@pytest.mark.parametrize(
    "shows",
    [
        'KUBELET_EXTRA_ARGS="--container-runtime-endpoint=unix:///run/x.sock"',
        'Environment="KUBELET_CONFIG_ARGS=--config=/etc/k.yaml"',
        "Environment=K3S_CONFIG_FILE=/etc/k.yaml RKE2_CONFIG_FILE=/etc/r.yaml",
        "ExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS ${MORE} --docker",
        "ExecStart=/usr/bin/dockerd --feature cdi=true --add-runtime nvidia=/usr/bin/n --exec-opt a=b",
        'ExecStart=/usr/bin/k3s agent --config "/etc/my dir/k@1.yaml" --kubelet-arg=container-runtime-endpoint=/run/x',
        'kubelet-arg+: ["container-runtime-endpoint=unix:///run/x.sock"]',
        "containerRuntimeEndpoint: >\n  unix:///run/x.sock",
        "containerRuntimeEndpoint:\n  unix:///run/x.sock",
        "hosts:\n  - - /run/a.sock\n    - /run/b.sock\n  - /run/c.sock",
        '{"runtimes": {"a": {"path": "/opt/my dir/a@1"}}}',
        '{"Runtimes": {"a": {"path": "runc"}}, "OperatingSystem": "Docker Desktop"}',
        '{"Driver": "overlay2", "DockerRootDir": "/srv/docker", "CgroupDriver": "systemd", "CgroupVersion": "2"}',
        "[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'zfs'",
        "[plugins.'io.containerd.runtime.v1.linux']\nruntime = 'runc'\nshim = 'containerd-shim'",
        "[metrics]\naddress = '127.0.0.1:1338'\n[ttrpc]\nuid = 0",
        "[proxy_plugins.stargz]\ntype = 'snapshot'\naddress = '/run/stargz.sock'",
        '[crio.image]\nsignature_policy = "/etc/crio/policy.json"',
        'root = "${SNAP_COMMON}/var/lib/containerd"\nstate = "${SNAP_COMMON}/run/containerd"',
        '[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "${RUNTIME}"',
        "kubelet-arg:\n- cgroup-driver=systemd\n- config=/etc/k.yaml\n- 'root-dir=/srv/kubelet'\nroot: /srv",
        "snapshotter: zfs\npause-image: r.example/pause:3.9\nprivate-registry: /etc/rancher/registries.yaml",
        "ExecStart=/usr/bin/kubelet --root-dir=/srv/kubelet\nExecReload=/bin/kill -s HUP $MAINPID",
        "RequiredBy=a.service b-1@x.service\nAfter=network-online.target containerd.service",
        'ID=rocky\nID_LIKE="rhel centos fedora"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"',
        '{"hook": {"path": "/bin/h", "args": ["nvidia-container-runtime-hook", "prestart"]}, "stages": ["prestart"]}',
    ],
)
def test_what_planning_reads_is_shown_however_it_is_spelled(shows: str) -> None:
    assert mask(shows) == shows


@pytest.mark.parametrize(
    "hides",
    [
        "hooks:\n  path: https://hooks.example/services/abcd",
        '{"labels": ["version=abcd", "namespace=abcd", "name=abcd"]}',
        "env:\n- version=abcd\n- name=abcd",
        "kubelet-arg:\n- node-labels=a=abcd\n- token=abcd",
        'kubelet-arg: ["node-labels=config=abcd", "kubelet-arg=config=abcd"]',
        "After=the password is abcd",
        'root = "${SNAP_COMMON}abcd"',
        "[proxy_plugins.x]\naddress = 'tcp://someone:abcd@r.example'",
    ],
)
def test_a_secret_beside_what_is_shown_is_hidden(hides: str) -> None:
    assert "abcd" not in mask(hides)


def test_what_the_cri_answers_to_planning_is_shown() -> None:
    status = {"name": "cri-o", "version": "1.34.0", "handlers": ["nvidia", "runc"]}
    pod = {
        "identity": "ab12",
        "name": "web",
        "namespace": "x",
        "annotations": {"io.kubernetes.cri-o.RuntimeHandler": "a"},
    }
    assert DocumentMasker().value([status, pod]) == [status, pod]
    assert DocumentMasker().value([{"annotations": {"path": "abcd", "id": "abcd"}}]) == [
        {"annotations": {"path": MASK, "id": MASK}}
    ]


@pytest.mark.parametrize("secret", ['p"a"s"s"w"d', "üñïçødé", "pa ss wo", "a\\b\\c", "p%a&s"])
def test_a_value_is_hidden_however_a_program_spells_it(secret: str) -> None:
    hiding = DocumentMasker()
    hiding.document(json.dumps({"token": secret}))
    hiding.settle()
    for spelled in (secret, json.dumps(secret), json.dumps(json.dumps(secret, ensure_ascii=False)), quote(secret)):
        for said in (hiding.words(f"bad {spelled} here"), hiding.known(f"bad {spelled} here")):
            assert said.replace('"', "").replace("\\", "") == f"bad {MASK} here"


def test_words_that_are_shown_elsewhere_stay_in_sentences() -> None:
    hiding = DocumentMasker()
    hiding.document('{"default-runtime": "nvidia", "note": "nvidia", "labels": ["containerd"], "token": "Xq7vResQ"}')
    hiding.settle()
    said = 'the default runtime "nvidia" of containerd is not there'
    assert hiding.words(said) == said
    assert hiding.known(f"{said}: Xq7vResQ") == f"{said}: {MASK}"


@pytest.mark.parametrize(
    "said", ["it has Xq7vResQ.", "token-Xq7vResQ", "x=/x8Hd9aa+bb=", "no folder '/x8Hd9aa+bb='", "Xq7vResQ-1: no"]
)
def test_our_own_sentences_quote_no_hidden_value(said: str) -> None:
    hiding = DocumentMasker()
    hiding.document('{"token": "Xq7vResQ", "key": "/x8Hd9aa+bb=", "folder": "/srv/data"}')
    hiding.settle()
    assert "Xq7vResQ" not in hiding.known(said)
    assert "/x8Hd9aa+bb=" not in hiding.known(said)
    assert hiding.known("cannot read /srv/data") == "cannot read /srv/data"


@pytest.mark.parametrize(
    "said",
    [
        "http://someone:abcd@r.example/v2/ does not answer",
        'level=error msg="bad token=abcd" row=3',
        "Authorization: Bearer abcd",
        "GET https://r.example/x?sig=abcd failed",
        "-----BEGIN PRIVATE KEY-----\nabcd\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nabcd\n-----END RSA PRIVATE KEY-----",
        "command [mysql --password abcd] failed",
        'args=["--db-token", "abcd"] failed',
        "map[X-Registry-Auth:[abcd]]",
        '{"db_pass": "abcd", "accessKey":"abcd"}',
    ],
)
def test_what_no_file_tells_of_is_hidden_by_its_form(said: str) -> None:
    assert "abcd" not in DocumentMasker().words(said)


def test_the_place_that_an_engine_names_stays() -> None:
    said = 'time="2026-01-01T00:00:00Z" level=warning msg="unknown key" column=5 file=/etc/containerd/config.toml row=3'
    assert DocumentMasker().words(said) == said
