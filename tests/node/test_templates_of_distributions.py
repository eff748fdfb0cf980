"""Which template k3s and RKE2 read next, and what stands in it: the one that is read is edited, or none.

The rule is that of k3s-io/k3s, pkg/agent/containerd/config.go: config-v3.toml.tmpl, else config.toml.tmpl, else the
distribution's own template. Releases before containerd 2.0 know config.toml.tmpl alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.node import faults
from tests.support.distribution_cases import Case
from tests.support.fake_distributions import AGENT, K3s
from tests.support.fake_node import NOTHING_TO_DO, TOOLKIT, FakeNode

NEWEST, OLDER = f"{AGENT}/config-v3.toml.tmpl", f"{AGENT}/config.toml.tmpl"
BASE = '{{ template "base" . }}\n'
GRPC, RUNTIME = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
HANDLERS = {
    "nvidia": f"{TOOLKIT}/nvidia-container-runtime",
    "nvidia-cdi": f"{TOOLKIT}/nvidia-container-runtime.cdi",
    "nvidia-legacy": f"{TOOLKIT}/nvidia-container-runtime.legacy",
}
RUNC = f"[plugins.'{RUNTIME}'.containerd.runtimes.runc]\n  runtime_type = 'io.containerd.runc.v2'\n"
LIVE = ("--socket", "/run/k3s/containerd/containerd.sock", "--reload-budget", "99/1", "--reload-timeout", "5")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a process is given the node's / with chroot: run as root")


def runtime(plugin: str, name: str, executable: str) -> str:
    table = f"plugins.'{plugin}'.containerd.runtimes.{name}"
    kind = '  runtime_type = "io.containerd.runc.v2"\n'
    return f'[{table}]\n{kind}[{table}.options]\n  BinaryName = "{executable}"\n'


def tree(node: FakeNode, *but: str) -> dict[str, Any]:
    return {path: each for path, each in node.snapshot().items() if not path.startswith(("/run", *but))}


def put(node: FakeNode, name: str, **templates: str) -> None:
    """Lay out a case of k3s' with these templates beside what it made: `newest`, `older`."""
    Case("k3s", name).put(node)
    for which, text in templates.items():
        node.write(NEWEST if which == "newest" else OLDER, text)


# --- which one is read ---


@pytest.mark.parametrize("older", [{}, {"older": BASE}], ids=["one template", "two templates"])
def test_a_template_of_newer_releases_is_refused_while_the_release_is_unknown(
    node: FakeNode, older: dict[str, str]
) -> None:
    put(node, "template-created-of-version-2", newest=BASE, **older)
    before = tree(node)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 3
    assert NEWEST in run.output
    assert OLDER in run.output
    assert tree(node) == before


@needs_root
@pytest.mark.parametrize("release, edited", [("v1.7.23-k3s2", OLDER), ("v2.0.5-k3s1", NEWEST), ("v2.1.5-k3s1", NEWEST)])
def test_of_two_templates_a_live_k3s_has_the_one_edited_that_its_release_reads(
    node: FakeNode, tmp_path: Path, release: str, edited: str
) -> None:
    put(node, "template-created-of-version-2", newest=BASE, older=BASE)
    made = K3s(node, release=release)
    with made.inside():
        before = tree(node, f"{AGENT}/config.toml")
        done = faults.run(node, tmp_path, "run", "--no-daemon", *LIVE, engine="containerd")
        assert done.code == 0, done.output
        assert {**made.handlers(), **HANDLERS} == made.handlers()
        changed = [path for path in (NEWEST, OLDER) if node.read(path) != BASE.encode()]
        assert changed == [edited]
        assert NOTHING_TO_DO in faults.run(node, tmp_path, "plan", *LIVE, engine="containerd").output
        undone = faults.run(node, tmp_path, "uninstall", "--reload-timeout", "5", engine="containerd")
        assert undone.code == 0, undone.output
        assert tree(node, f"{AGENT}/config.toml") == before


@needs_root
@pytest.mark.parametrize("name", ["template-created", "drop-in"])
def test_a_live_k3s_that_goes_on_to_its_older_template_serves_the_handlers(
    node: FakeNode, tmp_path: Path, name: str
) -> None:
    put(node, name)
    made = K3s(node, release="v2.1.5-k3s1")
    with made.inside():
        node.write(OLDER, f"{BASE}{runtime(GRPC, 'kata', '/opt/kata')}")
        before = tree(node, f"{AGENT}/config.toml")
        done = faults.run(node, tmp_path, "run", "--no-daemon", *LIVE, engine="containerd")
        assert done.code == 0, done.output
        assert {**made.handlers(), **HANDLERS, "kata": "/opt/kata"} == made.handlers()
        undone = faults.run(node, tmp_path, "uninstall", "--reload-timeout", "5", engine="containerd")
        assert undone.code == 0, undone.output
        assert tree(node, f"{AGENT}/config.toml") == before


def test_a_template_that_was_created_for_us_gives_way_to_the_sites_own(node: FakeNode) -> None:
    put(node, "template-created")
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    theirs = f"{BASE}{runtime(GRPC, 'kata', '/opt/kata')}"
    node.write(OLDER, theirs)
    done = node.do("run", "--no-daemon", engine="auto")
    assert done.process.returncode == 0, done.output
    assert not node.exists(NEWEST)
    assert node.read(OLDER).startswith(theirs.encode())
    assert GRPC.encode() in node.read(OLDER)[len(theirs) :]
    assert node.do("uninstall", engine="auto").process.returncode == 0
    assert node.read(OLDER) == theirs.encode()


@pytest.mark.parametrize("named, there", [("older", "newest"), ("newest", "older")])
def test_a_template_that_was_named_and_is_not_read_is_refused_with_the_one_that_is(
    node: FakeNode, named: str, there: str
) -> None:
    put(node, "template-created", **{there: BASE})
    before = tree(node)
    place = {"newest": NEWEST, "older": OLDER}
    run = node.do("run", "--no-daemon", "--config", place[named], engine="containerd")
    assert run.process.returncode == 3
    assert f"it reads {place[there]}" in run.output
    assert tree(node) == before


def test_an_older_template_that_was_named_is_created_with_the_tables_of_its_own_base(node: FakeNode) -> None:
    put(node, "template-created")
    assert node.do("run", "--no-daemon", "--config", OLDER, engine="containerd").process.returncode == 0
    assert node.read(OLDER).startswith(BASE.encode())
    assert GRPC.encode() in node.read(OLDER)
    assert RUNTIME.encode() not in node.read(OLDER)


# --- an older installer's entries ---


def test_an_older_installers_entries_that_cannot_be_edited_keep_the_toolkit(node: FakeNode) -> None:
    mixed = "version = 3\n{{ if .IsRunningInUserNS }}[debug]{{ end }}\n"
    put(node, "template-created", newest=mixed + runtime(RUNTIME, "nvidia", HANDLERS["nvidia"]))
    before = node.read(NEWEST)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    done = node.do("uninstall", engine="auto")
    assert done.process.returncode == 3
    assert f"{NEWEST}:6 names {HANDLERS['nvidia']}" in done.output
    assert node.read(NEWEST) == before


@pytest.mark.parametrize(
    "case",
    [Case("rke2", "template-of-an-older-installer"), Case("k3s", "extension-of-an-older-installer")],
    ids=str,
)
def test_without_a_receipt_an_older_installers_entries_go_from_a_template(node: FakeNode, case: Case) -> None:
    case.put(node)
    node.write(f"{TOOLKIT}/nvidia-container-runtime", "#!/bin/sh\n", 0o755)
    done = node.do("uninstall", engine="auto")
    assert done.process.returncode == 0, done.output
    assert case.changed(node) == case.left()
    assert not node.exists(TOOLKIT)


# --- a template that k3s could not start with ---

REPEATED = f"\n# Devices\n[plugins.'{RUNTIME}']\n  enable_cdi = true\n"


@pytest.mark.parametrize("name", ["template-created", "drop-in"])
@pytest.mark.parametrize(
    "template, line, why",
    [
        (BASE + REPEATED, 4, "twice"),
        (BASE + "[debug]\n" * 2, 3, "twice"),
        (BASE * 2, 2, "not valid TOML"),
        ("version = 3\n" + BASE, 2, "Cannot overwrite a value"),
        ("[debug]\n" + BASE, 1, "is of version 1, not 3"),
        ("version = 3\n[debug\n", 2, "not valid TOML"),
    ],
    ids=["a table of the base", "its own table", "the base twice", "version", "in a table", "no TOML"],
)
def test_a_template_whose_result_containerd_cannot_read_is_refused_before_any_write(
    node: FakeNode, name: str, template: str, line: int, why: str
) -> None:
    put(node, name, newest=template)
    before = tree(node)
    for command in (("plan",), ("run", "--no-daemon")):
        run = node.do(*command, engine="auto")
        assert run.process.returncode == 3, run.output
        assert f"{NEWEST} line={line} " in run.output
        assert why in run.output
    assert tree(node) == before


def test_a_template_that_is_broken_later_is_left_alone_by_a_run_with_nothing_to_do(node: FakeNode) -> None:
    put(node, "template-created", newest=BASE)
    assert node.do("run", "--no-daemon", engine="auto").process.returncode == 0
    node.write(NEWEST, node.read(NEWEST).replace(BASE.encode(), (BASE + REPEATED).encode()))
    before = tree(node)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 0, run.output
    after = tree(node)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert all(path.startswith("/usr/local/nvidia/.toolkit-installer") for path in changed), "it remembers the edit"


@pytest.mark.parametrize(
    "theirs",
    [
        f"[plugins.'{RUNTIME}'.containerd.runtimes]\nnvidia.runtime_type = 'io.containerd.kata.v2'\n",
        f"[plugins.'{RUNTIME}'.containerd.runtimes]\nnvidia-legacy = {{ runtime_type = 'io.containerd.kata.v2' }}\n",
    ],
    ids=["dotted keys", "inline"],
)
def test_a_table_of_ours_that_the_site_has_in_other_words_is_refused(node: FakeNode, theirs: str) -> None:
    put(node, "template-created", newest=theirs.join((f"version = 3\n\n{RUNC}", "")))
    before = tree(node)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 3, run.output
    assert NEWEST in run.output
    assert tree(node) == before
