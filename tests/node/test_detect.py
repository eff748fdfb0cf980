"""What is recognised on a made node: kubelets and engines that run there, and what lies there when nothing runs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.engines import cri_socket
from tests.node.engines.live import FakeDockerd
from tests.support import fake_processes
from tests.support.distribution_cases import Case
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, SCRIPTS, FakeNode
from toolkit_installer.engines.detect.unit_files import TABLE

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
KUBELET = ("--config=/var/lib/kubelet/config.yaml",)
NO_CRI = 'disabled_plugins = ["cri"]\n'
CRI = "version = 2\n"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a process is given the node's / with chroot: run as root")


@pytest.fixture
def bare(node: FakeNode) -> FakeNode:
    """A node whose /var/run is /run, as on every real one."""
    (node.root / "var").mkdir()
    (node.root / "var" / "run").symlink_to("/run")
    return node


@contextlib.contextmanager
def containerd(node: FakeNode, socket: str = CONTAINERD_SOCKET, version: str = "1.7.24") -> Iterator[None]:
    with cri_socket.answering(node.place(socket), version):
        yield


@contextlib.contextmanager
def kubelet(node: FakeNode, *arguments: str, name: str = "kubelet") -> Iterator[None]:
    with fake_processes.process(node.root, name, *arguments):
        yield


def detected(node: FakeNode, *more: str, runtime: str = "auto", code: int = 0) -> dict[str, Any]:
    command = ["detect", "--json", "--runtime", runtime, "--node-root", str(node.root), "--reload-timeout", "5", *more]
    run = node._started([str(SCRIPTS / "toolkit-installer"), *command])
    assert run.finish() == code, run.output
    facts: dict[str, Any] = json.loads(run.output[run.output.index("{") : run.output.rindex("\n}") + 2])
    assert (facts["error"] is None) == bool(facts["decided"]) == (code == 0)
    return facts


def only(facts: dict[str, Any]) -> tuple[str, str]:
    (decided,) = facts["decided"]
    return decided["engine"], decided["distribution"]


def words(facts: dict[str, Any]) -> str:
    return "\n".join(f"{each['kind']} {each['words']}" for each in facts["evidence"])


# --- the kubelet ---


@needs_root
@pytest.mark.parametrize(
    "arguments,config",
    [
        ((f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}",), ""),
        (("--container-runtime-endpoint", CONTAINERD_SOCKET), ""),
        (KUBELET, f"kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}\n"),
        (KUBELET, f'{{"containerRuntimeEndpoint":"unix://{CONTAINERD_SOCKET}"}}'),
    ],
    ids=["flag", "flag-of-two-words", "yaml", "json"],
)
def test_docker_and_containerd_under_a_kubelet_of_containerd_is_a_containerd_node(
    bare: FakeNode, arguments: tuple[str, ...], config: str
) -> None:
    bare.write(DAEMON_JSON, "{}")
    bare.write(CONFIG_TOML, CRI)
    bare.write("/var/lib/kubelet/config.yaml", config)
    with FakeDockerd(bare), containerd(bare), kubelet(bare, *arguments):
        facts = detected(bare)
    assert only(facts) == ("containerd", "containerd")
    assert facts["decided"][0]["socket"] == CONTAINERD_SOCKET
    assert f"uses {CONTAINERD_SOCKET}" in facts["decided"][0]["why"]
    assert "live docker 28.0 answers on /var/run/docker.sock" in words(facts)


@needs_root
@pytest.mark.parametrize("socket", ["/var/run/cri-dockerd.sock", "/run/cri-dockerd.sock", "/var/run/dockershim.sock"])
def test_a_kubelet_that_reaches_docker_through_a_shim_makes_a_docker_node(bare: FakeNode, socket: str) -> None:
    bare.write(CONFIG_TOML, CRI)
    with FakeDockerd(bare), containerd(bare), kubelet(bare, f"--container-runtime-endpoint=unix://{socket}"):
        facts = detected(bare)
    assert only(facts) == ("docker", "docker")
    assert facts["decided"][0]["socket"] == "/var/run/docker.sock"


@needs_root
@pytest.mark.parametrize("options", ["docker: true\n", "container-runtime-endpoint: unix:///run/crio/crio.sock\n"])
def test_options_of_a_k3s_that_is_gone_name_no_engine(bare: FakeNode, options: str) -> None:
    bare.write("/etc/rancher/k3s/config.yaml", options)
    bare.write(CONFIG_TOML, CRI)
    with containerd(bare):
        facts = detected(bare)
    assert only(facts) == ("containerd", "containerd")


@needs_root
def test_a_kubelets_relative_path_is_relative_to_where_it_works(bare: FakeNode) -> None:
    bare.write("/etc/kubelet.yaml", f"containerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}\n")
    with FakeDockerd(bare), containerd(bare), kubelet(bare, "--config=etc/kubelet.yaml"):
        facts = detected(bare)
    assert only(facts) == ("containerd", "containerd")


@needs_root
def test_a_kubelet_drop_in_outweighs_its_file(bare: FakeNode) -> None:
    bare.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n")
    bare.write("/etc/kubelet.d/10-a.conf", "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n")
    bare.write("/etc/kubelet.d/20-b.conf", f"containerRuntimeEndpoint: unix://{CONTAINERD_SOCKET}\n")
    bare.write("/etc/kubelet.d/30-c.conf", "maxPods: 20\n")
    bare.write("/etc/kubelet.d/40-d.yaml", "containerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n")
    with kubelet(bare, *KUBELET, "--config-dir", "/etc/kubelet.d"):
        assert only(detected(bare)) == ("containerd", "containerd")


@needs_root
def test_a_kubelet_on_a_containerd_of_its_own_tells_where_that_one_serves(bare: FakeNode) -> None:
    socket = "/run/site/containerd/containerd.sock"
    with containerd(bare), containerd(bare, socket, "2.1.4"), kubelet(bare, f"--container-runtime-endpoint={socket}"):
        facts = detected(bare)
    assert facts["decided"][0]["socket"] == socket
    assert facts["decided"][0]["version"] == "2.1.4"


@needs_root
def test_a_kubelet_on_something_unknown_is_refused_and_named(bare: FakeNode) -> None:
    with FakeDockerd(bare), kubelet(bare, "--container-runtime-endpoint=unix:///run/other.sock"):
        facts = detected(bare, code=3)
    assert "/run/other.sock" in facts["error"]["reason"]


@needs_root
def test_a_kubelet_of_another_node_or_of_a_container_says_nothing_here(bare: FakeNode) -> None:
    other = bare.root.parent / "other"
    other.mkdir()
    with (
        FakeDockerd(bare),
        fake_processes.process(other, "kubelet", f"--container-runtime-endpoint={CONTAINERD_SOCKET}"),
    ):
        facts = detected(bare)
    assert only(facts) == ("docker", "docker")
    assert "kubelet" not in words(facts)


@needs_root
def test_a_runtime_that_contradicts_the_kubelet_is_refused_with_what_was_seen(bare: FakeNode) -> None:
    bare.write(DAEMON_JSON, "{}")
    with FakeDockerd(bare), containerd(bare), kubelet(bare, f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}"):
        facts = detected(bare, runtime="docker", code=3)
        assert "--runtime docker contradicts" in facts["error"]["reason"]
        assert f"uses {CONTAINERD_SOCKET}" in facts["error"]["reason"]
        for word in (("--socket", "/run/docker.sock"), ("--config", DAEMON_JSON)):  # the user's own word
            assert only(detected(bare, *word, runtime="docker")) == ("docker", "docker")
        both = detected(bare, runtime="docker,containerd")
        assert [each["engine"] for each in both["decided"]] == ["docker", "containerd"]
        before = bare.snapshot()
        run = bare.do("run", "--no-daemon", engine="docker")
        assert run.process.returncode == 3
        assert "contradicts what is on the node" in run.output
        assert bare.read(DAEMON_JSON) == b"{}"
        assert before.keys() >= {path for path in bare.snapshot() if not path.startswith("/run")}


K3S = "/run/k3s/containerd/containerd.sock"
MICROK8S = "/var/snap/microk8s/common/run/containerd.sock"


@needs_root
@pytest.mark.parametrize(
    "name,arguments,files,distribution",
    [
        ("k3s-server", ("/usr/local/bin/k3s server",), {}, "k3s"),
        ("k3s-agent", ("/usr/local/bin/k3s agent",), {"/etc/rancher/k3s/config.yaml": "token: x\n"}, "k3s"),
        ("k3s-server", ("server", "--docker"), {}, "docker"),
        ("k3s-server", ("server",), {"/etc/rancher/k3s/config.yaml": "docker: true\n"}, "docker"),
        (
            "k3s-server",
            ("server",),
            {"/etc/rancher/k3s/config.yaml": f"container-runtime-endpoint: unix://{CONTAINERD_SOCKET}\n"},
            "containerd",
        ),
        (
            "kubelet",
            (
                "--kubeconfig=/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
                f"--container-runtime-endpoint=unix://{K3S}",
            ),
            {},
            "rke2",
        ),
        (
            "kubelet",
            ("--config=/var/lib/k0s/kubelet-config.yaml",),
            {"/var/lib/k0s/kubelet-config.yaml": "containerRuntimeEndpoint: unix:///run/k0s/containerd.sock\n"},
            "k0s",
        ),
        (
            "kubelite",
            ("--kubelet-args-file=/var/snap/microk8s/current/args/kubelet",),
            {
                "/var/snap/microk8s/current/args/kubelet": "--v=2\n"
                "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n"
            },
            "microk8s",
        ),
        ("kubelite", ("--start-control-plane=true",), {}, "microk8s"),
    ],
)
def test_a_kubelet_within_a_distribution_outweighs_a_docker_that_answers(
    bare: FakeNode, name: str, arguments: tuple[str, ...], files: dict[str, str], distribution: str
) -> None:
    for path, content in files.items():
        bare.write(path, content)
    with FakeDockerd(bare), kubelet(bare, *arguments, name=name):
        facts = detected(bare)
    assert facts["decided"][0]["distribution"] == distribution


@needs_root
def test_k3s_is_found_behind_its_socket_although_rke2_would_serve_on_the_same(bare: FakeNode) -> None:
    bare.write("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "version = 3\n")
    with containerd(bare, K3S):
        facts = detected(bare)
    assert only(facts) == ("containerd", "rke2")
    assert facts["decided"][0]["files"][1]["path"].startswith("/var/lib/rancher/rke2/agent/etc/containerd/config-v3")


# --- k3s and RKE2 that were told to use another engine, and do not run now ---

K3S_YAML, RKE2_YAML = "/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml"
ENDPOINT = f"container-runtime-endpoint: unix://{CONTAINERD_SOCKET}\n"
UNIT = "[Service]\nEnvironmentFile=-/etc/default/k3s\nExecStart=/usr/local/bin/k3s \\\n  server \\\n"
CRIO_SOCKET = "/var/run/crio/crio.sock"


def stopped(node: FakeNode, name: str = "k3s") -> None:
    """Put what such a distribution leaves on a node beside its options."""
    node.write(f"/etc/systemd/system/{name}.service", "[Service]\n")
    Case(name, "template-created").put(node)


@pytest.mark.parametrize(
    "files, distribution",
    [
        ({K3S_YAML: ENDPOINT}, "containerd"),
        ({K3S_YAML: f'token: x\ncontainer-runtime-endpoint: "{CONTAINERD_SOCKET}" # ours\n'}, "containerd"),
        ({K3S_YAML: f"container-runtime-endpoint:\n  unix://{CONTAINERD_SOCKET}\n"}, "containerd"),
        ({f"{K3S_YAML}.d/10-cri.yaml": ENDPOINT}, "containerd"),
        ({K3S_YAML: f"container-runtime-endpoint: {CRIO_SOCKET}\n", f"{K3S_YAML}.d/9.yml": ENDPOINT}, "containerd"),
        ({K3S_YAML: f"kubelet-arg:\n- container-runtime-endpoint=unix://{CRIO_SOCKET}\n"}, "crio"),
        ({K3S_YAML: f"container-runtime-endpoint: unix://{CRIO_SOCKET}\n"}, "crio"),
        ({K3S_YAML: "docker: true\n"}, "docker"),
        ({K3S_YAML: f"docker: yes\n{ENDPOINT}"}, "docker"),
        ({K3S_YAML: "docker: true\n", f"{K3S_YAML}.d/a.yaml": "docker: false\n"}, "k3s"),
        ({K3S_YAML: 'container-runtime-endpoint: ""\nnode-name: x\n'}, "k3s"),
        ({K3S_YAML: "container-runtime-endpoint:\nnode-name: x\n"}, "k3s"),
        ({K3S_YAML: f"# {ENDPOINT}"}, "k3s"),
        (
            {"/etc/systemd/system/k3s.service": f"{UNIT}  '--container-runtime-endpoint={CONTAINERD_SOCKET}'\n"},
            "containerd",
        ),
        ({"/etc/systemd/system/k3s.service": f"{UNIT}  --docker\n"}, "docker"),
        (
            {
                "/etc/systemd/system/k3s.service": f"{UNIT}  $K3S_ARGS\n",
                "/etc/default/k3s": f'# why\nK3S_ARGS="--container-runtime-endpoint {CONTAINERD_SOCKET}"\n',
            },
            "containerd",
        ),
        (
            {
                "/etc/systemd/system/k3s.service": UNIT,
                "/etc/systemd/system/k3s.service.d/site.conf": "[Service]\nEnvironment=K3S_CONFIG_FILE=/srv/k3s.yaml\n",
                "/srv/k3s.yaml": ENDPOINT,
                K3S_YAML: f"container-runtime-endpoint: {CRIO_SOCKET}\n",
            },
            "containerd",
        ),
    ],
)
def test_what_a_k3s_that_is_down_was_told_to_use_decides(
    bare: FakeNode, files: dict[str, str], distribution: str
) -> None:
    stopped(bare)
    for path, content in files.items():
        bare.write(path, content)
    assert detected(bare)["decided"][0]["distribution"] == distribution


@pytest.mark.parametrize(
    "path, text, distribution",
    [
        ("/etc/systemd/system/k0sworker.service", f"ExecStart=/x --cri-socket=remote:unix://{CRIO_SOCKET}\n", "crio"),
        (
            "/etc/systemd/system/k0sworker.service",
            "ExecStart=/x --cri-socket docker:unix:///run/docker.sock\n",
            "docker",
        ),
        ("/etc/systemd/system/k0sworker.service", "ExecStart=/x worker\n", "k0s"),
        (
            "/var/snap/microk8s/current/args/kubelet",
            f"--container-runtime-endpoint={CONTAINERD_SOCKET}\n",
            "containerd",
        ),
        (
            "/var/snap/microk8s/current/args/kubelet",
            "--container-runtime-endpoint=${SNAP_COMMON}/run/containerd.sock\n",
            "microk8s",
        ),
    ],
)
def test_what_a_k0s_or_microk8s_that_is_down_was_told_to_use_decides(
    bare: FakeNode, path: str, text: str, distribution: str
) -> None:
    if "microk8s" in path:
        Case("microk8s", "template").put(bare)
    else:
        Case("k0s", "version-3").put(bare)
    bare.write(path, text)
    assert detected(bare)["decided"][0]["distribution"] == distribution


def test_an_rke2_that_is_down_is_told_by_its_own_files(bare: FakeNode) -> None:
    stopped(bare, "rke2")
    assert only(detected(bare)) == ("containerd", "rke2")
    bare.write(RKE2_YAML, "container-runtime-endpoint: unix:///run/site/containerd.sock\n")
    facts = detected(bare)
    assert only(facts) == ("containerd", "containerd")
    assert facts["decided"][0]["socket"] == "/run/site/containerd.sock"
    assert facts["decided"][0]["files"][0]["path"] == CONFIG_TOML


@pytest.mark.parametrize("runtime", ["auto", "containerd"])
def test_another_containerd_of_k3s_is_edited_and_k3s_own_files_are_not(bare: FakeNode, runtime: str) -> None:
    stopped(bare)
    bare.write(K3S_YAML, ENDPOINT)
    bare.write(CONFIG_TOML, CRI)
    before = bare.snapshot()
    run = bare.do("run", "--no-daemon", engine=runtime)
    assert run.process.returncode == 0, run.output
    changed = {path for path, each in bare.snapshot().items() if before.get(path) != each}
    assert CONFIG_TOML in changed
    assert not any("rancher" in path for path in changed)
    assert bare.do("uninstall", engine=runtime).process.returncode == 0
    after = {path: each for path, each in bare.snapshot().items() if not path.startswith("/run")}
    assert after == {path: each for path, each in before.items() if not path.startswith("/run")}


def test_what_a_k3s_that_is_down_uses_outweighs_another_engine_that_answers(bare: FakeNode) -> None:
    stopped(bare)
    bare.write(K3S_YAML, ENDPOINT)
    with FakeDockerd(bare):
        assert only(detected(bare)) == ("containerd", "containerd")
        facts = detected(bare, runtime="docker", code=3)
    assert f"k3s is configured to use {CONTAINERD_SOCKET}" in facts["error"]["reason"]


def test_an_engine_that_nobody_knows_in_k3s_options_is_refused_and_named(bare: FakeNode) -> None:
    stopped(bare)
    bare.write(K3S_YAML, "container-runtime-endpoint: unix:///run/other.sock\n")
    assert "/run/other.sock" in detected(bare, code=3)["error"]["reason"]


# --- what answers ---


def test_docker_alone_is_recognised_by_its_answer(bare: FakeNode) -> None:
    with FakeDockerd(bare):
        facts = detected(bare)
    assert only(facts) == ("docker", "docker")
    assert facts["decided"][0]["version"] == "28.0"
    assert facts["decided"][0]["files"] == [{"role": "daemon.json", "path": DAEMON_JSON, "exists": False}]


def test_what_answers_outweighs_what_is_only_installed(bare: FakeNode) -> None:
    bare.write(DAEMON_JSON, "{}")
    bare.write("/usr/lib/systemd/system/docker.service", "[Service]\n")
    bare.write("/usr/bin/dockerd", "", 0o755)
    with containerd(bare):
        assert only(detected(bare)) == ("containerd", "containerd")


def test_two_that_answer_are_ambiguous_and_both_are_listed(bare: FakeNode) -> None:
    bare.write(CONFIG_TOML, CRI)
    with FakeDockerd(bare), containerd(bare):
        facts = detected(bare, code=3)
        assert "docker 28.0 answers on /var/run/docker.sock" in facts["error"]["reason"]
        assert f"containerd 1.7.24 answers on {CONTAINERD_SOCKET}" in facts["error"]["reason"]
        assert only(detected(bare, runtime="docker")) == ("docker", "docker")
        assert only(detected(bare, runtime="containerd")) == ("containerd", "containerd")


def test_a_runtime_that_is_not_on_the_node_is_refused_where_another_one_answers(bare: FakeNode) -> None:
    with containerd(bare):
        facts = detected(bare, runtime="docker", code=3)
    assert f"answers on {CONTAINERD_SOCKET}" in facts["error"]["reason"]


# --- what lies there ---


@pytest.mark.parametrize("config", [None, NO_CRI, 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'])
def test_the_containerd_that_docker_brought_does_not_make_a_stopped_docker_ambiguous(
    bare: FakeNode, config: str | None
) -> None:
    for unit in ("docker", "containerd"):
        bare.write(f"/lib/systemd/system/{unit}.service", "[Service]\n")
    if config is not None:
        bare.write(CONFIG_TOML, config)
    facts = detected(bare)
    assert only(facts) == ("docker", "docker")
    assert "unit containerd has the unit /lib/systemd/system/containerd.service" in words(facts)


def test_a_containerd_with_a_cri_and_a_docker_that_are_both_stopped_are_ambiguous(
    bare: FakeNode,
) -> None:
    for unit in ("docker", "containerd"):
        bare.write(f"/lib/systemd/system/{unit}.service", "[Service]\n")
    bare.write(CONFIG_TOML, CRI)
    assert "more than one engine" in detected(bare, code=3)["error"]["reason"]


@pytest.mark.parametrize("row", [row for row in TABLE if row.units], ids=lambda row: row.name)
def test_every_row_is_recognised_by_each_of_its_probes(bare: FakeNode, row: Any) -> None:
    probes = [f"/etc/systemd/system/{unit}" for unit in row.units]
    probes += [*row.binaries, row.config.replace("*", "somebody"), *(path.replace("*", "x") for path in row.files)]
    for probe in probes:
        bare.write(probe, "")
        facts = detected(bare, code=3 if row.refused else 0)
        assert {each["distribution"] for each in facts["evidence"]} == {row.name}, probe
        assert probe in words(facts)
        bare.place(probe).unlink()


def test_a_node_without_anything_says_so(bare: FakeNode) -> None:
    facts = detected(bare, code=3)
    assert facts["evidence"] == []
    assert "no engine was found" in facts["error"]["reason"]


@pytest.mark.parametrize(
    "path,hint",
    [
        ("/home/ada/.config/docker/daemon.json", "--config /home/USER/.config/docker/daemon.json"),
        ("/etc/systemd/system/snap.docker.dockerd.service", "install docker from its own packages"),
        ("/opt/docker-desktop/bin/com.docker.backend", "use its own settings"),
    ],
)
def test_a_docker_that_cannot_be_configured_is_refused_by_name_with_what_to_do(
    bare: FakeNode, path: str, hint: str
) -> None:
    bare.write(path, "{}", 0o755)
    for runtime in ("auto", "docker"):
        facts = detected(bare, runtime=runtime, code=3)
        assert hint in facts["error"]["hint"]
    bare.write("/usr/bin/dockerd", "", 0o755)
    bare.write(DAEMON_JSON, "{}")
    assert only(detected(bare)) == ("docker", "docker")


def test_rootless_docker_is_configured_once_its_file_is_named(bare: FakeNode) -> None:
    path = "/home/ada/.config/docker/daemon.json"
    bare.write(path, "{}")
    facts = detected(bare, "--config", path, runtime="docker")
    assert facts["decided"][0]["files"] == [{"role": "daemon.json", "path": path, "exists": True}]


def test_the_words_for_people_say_the_same(bare: FakeNode) -> None:
    with FakeDockerd(bare):
        run = bare._started([str(SCRIPTS / "toolkit-installer"), "detect", "--node-root", str(bare.root)])
        assert run.finish() == 0
    assert "live    docker 28.0 answers on /var/run/docker.sock" in run.output
    assert "Decided: docker 28.0, as docker has it" in run.output
    assert "File:   /etc/docker/daemon.json (daemon.json, absent)" in run.output


def test_nothing_is_written_by_looking(bare: FakeNode) -> None:
    bare.write(DAEMON_JSON, "{}")
    before = bare.stamps()
    detected(bare)
    detected(bare, runtime="docker")
    assert bare.stamps() == before
