"""What real containerds make of what distributions make of our additions: all they had, our handlers, nothing else."""

from __future__ import annotations

import copy
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import payloads
from tests.support.built.releases import Release, Suite
from tests.support.distribution_cases import Case
from tests.support.fake_distributions import AGENT, K3s
from tests.support.fake_node import TOOLKIT, FakeNode

HANDLERS = {
    "nvidia": f"{TOOLKIT}/nvidia-container-runtime",
    "nvidia-cdi": f"{TOOLKIT}/nvidia-container-runtime.cdi",
    "nvidia-legacy": f"{TOOLKIT}/nvidia-container-runtime.legacy",
}
PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
MICROK8S_FILLS_IN = {
    "${SNAPSHOTTER}": "overlayfs",
    "${RUNTIME}": "runc",
    "${RUNTIME_TYPE}": "io.containerd.runc.v2",
    "${SNAP_DATA}": "/var/snap/microk8s/6089",
}
K3S = [
    Case("k3s", name)
    for name in (
        "drop-in",
        "drop-in-beside-others",
        "drop-in-of-version-2",
        "template-created",
        "template-created-of-version-2",
    )
]
"""Those without a template of the administrator's: only k3s itself fills in all of those."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    for folder in ("etc", "run", "usr/local"):
        (tmp_path / "node" / folder).mkdir(parents=True)
    (tmp_path / "payload").mkdir()
    made = FakeNode(tmp_path / "node", payloads.build(tmp_path / "payload"))
    yield made
    made.close()


def dumped(containerd: Path, config: Path) -> dict[str, Any]:
    command = [str(containerd), "--config", str(config), "config", "dump"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


def table(dump: dict[str, Any]) -> dict[str, Any]:
    found = (dump["plugins"].get(plugin, {}).get("containerd") for plugin in PLUGINS)
    return next(each for each in found if each)


def without_ours(dump: dict[str, Any]) -> dict[str, Any]:
    rest = copy.deepcopy(dump)
    for name in HANDLERS:
        table(rest)["runtimes"].pop(name, None)
    table(rest).pop("default_runtime_name")
    rest.pop("imports", None)
    return rest


def compared(before: dict[str, Any], after: dict[str, Any], default: str) -> None:
    runtimes = table(after)["runtimes"]
    assert {name: runtimes[name]["options"]["BinaryName"] for name in HANDLERS} == HANDLERS
    assert table(after)["default_runtime_name"] == default
    assert without_ours(after) == without_ours(before)


def made_by_k3s(node: FakeNode, made: K3s) -> Path:
    """Let k3s make its file, whose imports lead to where the node's folder is here; return it."""
    made.made()
    config = node.place(f"{AGENT}/config.toml")
    config.write_text(config.read_text().replace(f'"{AGENT}', f'"{node.place(AGENT)}'))
    return config


@pytest.mark.parametrize("case", K3S, ids=str)
def test_what_k3s_makes_of_our_additions_has_all_that_it_had_and_our_handlers(
    case: Case, node: FakeNode, release: Callable[[Suite], Release]
) -> None:
    case.put(node)
    old = case.name == "template-created-of-version-2"
    made = K3s(node, release="v1.7.13-k3s1" if old else None)
    suite = Suite.TRIXIE if old else Suite.SID
    containerd = release(suite).root / "usr/bin/containerd"
    before = dumped(containerd, made_by_k3s(node, made))
    case.put(node)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    after = dumped(containerd, made_by_k3s(node, made))
    compared(before, after, "nvidia" if case.name.startswith("drop-in") else "runc")


def test_what_microk8s_fills_in_has_all_that_it_had_and_our_handlers(
    node: FakeNode, release: Callable[[Suite], Release], tmp_path: Path
) -> None:
    case = Case("microk8s", "template")
    case.put(node)
    dumps = []
    for _ in range(2):
        text = node.read("/var/snap/microk8s/6089/args/containerd-template.toml").decode()
        for word, value in MICROK8S_FILLS_IN.items():
            text = text.replace(word, value)
        (tmp_path / "containerd.toml").write_text(text)
        dumps.append(dumped(release(Suite.TRIXIE).root / "usr/bin/containerd", tmp_path / "containerd.toml"))
        assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    before, after = dumps
    compared(before, after, "nvidia")


REPEATED = {
    2: {
        "cri": '[plugins."io.containerd.grpc.v1.cri"]\n  enable_selinux = true\n',
        "runc": '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "x"\n',
        "registry": '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/certs.d"\n',
    },
    3: {
        "cri": "[plugins.'io.containerd.cri.v1.runtime']\n  enable_cdi = true\n",
        "runc": "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n  cgroup_writable = true\n",
        "registry": "[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '/etc/certs.d'\n",
    },
}
OWN = "[debug]\n  level = 'info'\n"


@pytest.mark.parametrize("repeated", ["", "cri", "runc", "registry"])
@pytest.mark.parametrize("version, suite, older", [(2, Suite.TRIXIE, True), (3, Suite.SID, False)])
def test_a_template_is_refused_if_containerd_does_not_start_with_what_k3s_generates(  # what is tried, and on what
    node: FakeNode, release: Callable[[Suite], Release], version: int, suite: Suite, repeated: str, *, older: bool
) -> None:
    Case("k3s", "template-created-of-version-2" if older else "template-created").put(node)
    made = K3s(node, release="v1.7.13-k3s1" if older else None)
    name = "config.toml.tmpl" if older else "config-v3.toml.tmpl"
    theirs = f'{{{{ template "base" . }}}}\n\n{OWN}\n{REPEATED[version].get(repeated, "")}'
    node.write(f"{AGENT}/{name}", theirs)
    config = node.root.parent / "config.toml"
    config.write_text(made._rendered(*made.read_next()))
    command = [str(release(suite).root / "usr/bin/containerd"), "--config", str(config), "config", "dump"]
    starts = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    assert starts == (not repeated)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == (0 if starts else 3), run.output
    if not starts:
        assert f"{AGENT}/{name} line={theirs[: theirs.index('[plugins')].count(chr(10)) + 1}" in run.output
        assert node.read(f"{AGENT}/{name}") == theirs.encode()
