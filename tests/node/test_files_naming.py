"""What an uninstall may not leave behind: an engine's file that names a binary which is gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fake_node import (
    CONFIG_TOML,
    CRIO_FOLDER,
    DAEMON_JSON,
    DROP_IN,
    SCRIPTS,
    STORE,
    TOOLKIT,
    FakeNode,
    Run,
)

CRI = "io.containerd.grpc.v1.cri"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
OPERATORS = json.dumps({"default-runtime": "gpu", "runtimes": {"gpu": {"path": RUNTIME}}}, indent=2) + "\n"
CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "{RUNTIME}"
"""
CRIO = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{RUNTIME}"\nruntime_type = "oci"\n'
HOOK = json.dumps({"version": "1.0.0", "hook": {"path": f"{TOOLKIT}/nvidia-container-runtime-hook"}})

NAMING = [
    pytest.param(DAEMON_JSON, OPERATORS, 5, id="daemon.json"),
    pytest.param(CONFIG_TOML, CONTAINERD, 5, id="config.toml"),
    pytest.param("/etc/containerd/conf.d/50-other.toml", CONTAINERD, 5, id="a drop-in of containerd's"),
    pytest.param(f"{CRIO_FOLDER}/50-other.conf", CRIO, 2, id="a drop-in of CRI-O's"),
    pytest.param("/etc/crio/crio.conf", CRIO, 2, id="crio.conf"),
    pytest.param("/usr/share/containers/oci/hooks.d/other.json", HOOK, 1, id="a hook"),
    pytest.param("/etc/k0s/containerd.d/other.toml", CONTAINERD, 5, id="a drop-in of k0s'"),
    pytest.param(
        "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
        '{{ template "base" . }}\n' + CONTAINERD,
        6,
        id="a template of k3s'",
    ),
    pytest.param("/etc/containers/containers.conf", f'[engine.runtimes]\nnvidia = ["{RUNTIME}"]\n', 2, id="podman's"),
    pytest.param(DAEMON_JSON, OPERATORS.replace("/", "\\/"), 5, id="a path with escapes"),
    pytest.param(DAEMON_JSON, OPERATORS.replace("}\n}", "},,\n}"), 5, id="a file that is broken"),
    pytest.param(CONFIG_TOML, 'imports = ["/opt/site.toml"]\nversion = 2\n', None, id="an imported file"),
    pytest.param("/etc/systemd/system/docker.service", "[Service]\n", None, id="a file that a unit names"),
]


def last(run: Run) -> str:
    return run.output.strip().splitlines()[-1]


@pytest.mark.parametrize("path, text, line", NAMING)
@pytest.mark.parametrize("way", ["uninstall", "TERM"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_names_the_toolkit_keeps_it_and_is_named_with_file_and_line(  # all that is tried
    node: FakeNode, path: str, text: str, line: int | None, way: str, when: str
) -> None:
    place, line = (path, line) if line is not None else other(node, path)
    if when == "before":
        node.write(path, text)
    arguments = ("--no-runtime-config",)
    if way == "uninstall":
        assert node.do("run", "--no-daemon", *arguments).finish() == 0
        node.write(path, text)
        run = node.do("uninstall")
        code = run.finish()
    else:
        run = node.waiting(*arguments)
        node.write(path, text)
        code = run.stop()
    assert code == 3, run.output
    assert f"{place}:{line}" in last(run)
    assert "stays" in last(run)
    assert "The node is as it was" not in run.output
    assert node.read(path) == text.encode()
    assert os.access(node.place(RUNTIME), os.X_OK)
    # it is not taken for an older installer's by then, either
    again = node.do("uninstall")
    assert again.finish() == 3
    assert node.read(path) == text.encode()
    # once it is gone, so is the toolkit
    node.place(place).unlink()
    assert node.do("uninstall").finish() == 0
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)


def other(node: FakeNode, path: str) -> tuple[str, int]:
    """Let the file at `path` name another one, which names the toolkit; return that one, and the line."""
    if path == CONFIG_TOML:
        node.write("/opt/site.toml", CONTAINERD)
        return "/opt/site.toml", 5
    node.write("/opt/docker.json", OPERATORS)
    node.write(
        f"{path}.d/10-site.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd --config-file /opt/docker.json\n"
    )
    node.write(path, "[Service]\n")
    return "/opt/docker.json", 5


@pytest.mark.parametrize(
    "path, text",
    [
        (DAEMON_JSON, json.dumps({"debug": True, "data-root": f"{TOOLKIT}-of-another/x"})),
        (CONFIG_TOML, f'version = 2\n# BinaryName = "{RUNTIME}"\n'),
        (CONFIG_TOML, f'version = 2\noom_score = 0 # not "{RUNTIME}"\n'),
        ("/etc/motd", RUNTIME),
    ],
)
def test_what_only_looks_like_it_keeps_nothing(node: FakeNode, path: str, text: str) -> None:
    node.write(path, text)
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    assert node.do("uninstall").finish() == 0
    assert not node.exists(TOOLKIT)


def test_a_symlink_into_the_toolkit_counts_as_naming_it(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    (node.root / "usr/bin").mkdir()
    node.place("/usr/bin/nvidia-container-runtime").symlink_to(RUNTIME)
    node.write(DAEMON_JSON, OPERATORS.replace(RUNTIME, "/usr/bin/nvidia-container-runtime"))
    run = node.do("uninstall")
    assert run.finish() == 3
    assert f"{DAEMON_JSON}:5" in last(run)
    assert node.exists(RUNTIME)


def test_another_engine_that_an_older_installer_configured_keeps_the_toolkit(node: FakeNode) -> None:
    node.write(CONFIG_TOML, CONTAINERD)
    assert node.do("run", "--no-daemon", engine="docker").finish() == 0
    run = node.do("uninstall", engine="docker")
    assert run.finish() == 3
    assert f"{CONFIG_TOML}:5" in last(run)
    assert node.broken_runtimes() == []
    assert node.read(CONFIG_TOML) == CONTAINERD.encode()
    # this installer replaces such entries on an engine that it is to configure, and never restores them
    assert node.do("run", "--no-daemon", engine="containerd").finish() == 0
    assert node.do("uninstall").finish() == 0
    assert TOOLKIT.encode() not in node.read(CONFIG_TOML)
    assert not node.exists(TOOLKIT)


def test_an_uninstall_that_fails_keeps_its_record_whole(node: FakeNode) -> None:
    node.write(DAEMON_JSON, '{"debug": true}\n')
    assert node.do("run", "--no-daemon", engine="docker").finish() == 0
    node.write(CONFIG_TOML, CONTAINERD)
    before = recorded(node)
    originals = {path.name: path.read_bytes() for path in node.place(f"{STORE}/originals").iterdir()}
    for _ in range(2):
        assert node.do("uninstall", engine="docker").finish() == 3
        now = recorded(node)
        assert [each["path"] for each in now["engines"][0]["files"]] == [DAEMON_JSON]
        assert now["engines"][0]["files"][0]["before"] == before["engines"][0]["files"][0]["before"]
        assert now["toolkit_files"] == before["toolkit_files"]
        assert {path.name: path.read_bytes() for path in node.place(f"{STORE}/originals").iterdir()} == originals
        assert node.read(DAEMON_JSON) == b'{"debug": true}\n'
    node.place(CONFIG_TOML).unlink()
    assert node.do("uninstall", engine="docker").finish() == 0
    assert node.read(DAEMON_JSON) == b'{"debug": true}\n'


def recorded(node: FakeNode) -> dict[str, Any]:
    """Return what the receipt says."""
    found: dict[str, Any] = json.loads(node.read(f"{STORE}/receipt.json"))
    return found


def test_a_lost_receipt_and_one_engine_named_leave_the_other_engines_binaries(node: FakeNode) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0
    for name in os.listdir(node.place(STORE)):
        place = node.place(f"{STORE}/{name}")
        if place.is_dir():
            for copy in place.iterdir():
                copy.unlink()
            place.rmdir()
        else:
            place.unlink()
    run = node.do("uninstall", engine="docker")
    assert run.finish() == 3
    assert re.search(rf"{CONFIG_TOML}|{DROP_IN}", last(run))
    assert node.broken_runtimes() == []
    assert json.loads(node.read(DAEMON_JSON)) == {}
    assert node.do("uninstall", engine="containerd").finish() == 0
    assert not node.exists(TOOLKIT)


def test_a_first_install_that_fails_leaves_what_an_engine_named_before(node: FakeNode) -> None:
    node.write(CONFIG_TOML, CONTAINERD)
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    assert node.do("uninstall").finish() == 3
    assert node.broken_runtimes() == []


MORE = [
    ("/lib/systemd/system/docker.service", f"[Service]\nExecStart=/usr/bin/dockerd --add-runtime=nvidia={RUNTIME}\n"),
    (
        "/etc/systemd/system/docker.service.d/10.conf",
        f"[Service]\nExecStart=/usr/bin/dockerd --add-runtime nvidia={RUNTIME}",
    ),
    ("/etc/default/docker", f'DOCKER_OPTS="--add-runtime=nvidia={RUNTIME}"\n'),
    (f"{CRIO_FOLDER}/sub/10.conf", CRIO),
    ("/usr/share/containers/containers.conf.d/10.conf", f'[engine.runtimes]\nnvidia = ["{RUNTIME}"]\n'),
]


@pytest.mark.parametrize("path, text", MORE, ids=[path for path, _ in MORE])
def test_files_that_engines_come_to_read_in_other_ways_count_as_well(node: FakeNode, path: str, text: str) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.write(path, text)
    check_counts(node, path)


def test_a_large_file_counts_to_its_end(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.write(DAEMON_JSON, " " * (5 << 20) + OPERATORS)
    check_counts(node, DAEMON_JSON)


def check_counts(node: FakeNode, path: str) -> None:
    """Require that a cleanup leaves the toolkit, and names the file."""
    run = node.do("uninstall")
    assert run.finish() == 3, run.output
    assert path in last(run)
    assert node.exists(RUNTIME)


FOLLOWED = [
    (
        "/etc/systemd/system/docker.service",
        "ExecStart=/usr/bin/dockerd --config-file   /opt/d.json\n",
        "/opt/d.json",
        OPERATORS,
    ),
    ("/etc/default/docker", 'DOCKER_OPTS="--config-file=/opt/d.json"\n', "/opt/d.json", OPERATORS),
    ("/etc/systemd/system/crio.service", "ExecStart=/usr/bin/crio --config-dir /opt/crio.d\n", "/opt/crio.d/x", CRIO),
    ("/etc/systemd/system/crio.service", "ExecStart=/usr/bin/crio --hooks-dir=/opt/h\n", "/opt/h/x.json", HOOK),
    (DAEMON_JSON, '{"cdi-spec-dirs": ["\\/opt\\/cdi"]}', "/opt/cdi/x.yaml", f"hook: {RUNTIME}\n"),
    ("/etc/crio/crio.conf", '[crio.runtime]\nhooks_dir = [\n"/etc/none", # [x]\n"/opt/h"]\n', "/opt/h/x.json", HOOK),
    (
        CONFIG_TOML,
        f'version = 2\n[plugins."{CRI}".containerd.runtimes.x]\nbase_runtime_spec = "/opt/base.json"\n',
        "/opt/base.json",
        HOOK,
    ),
    (CONFIG_TOML, 'version = 2\nimports = ["/opt/x.toml"]\n[[[broken\n', "/opt/x.toml", CONTAINERD),
]


@pytest.mark.parametrize("path, text, named, content", FOLLOWED)
def test_what_is_named_by_a_file_that_engines_read_counts_as_well(
    node: FakeNode, path: str, text: str, named: str, content: str
) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.write(path, text)
    node.write(named, content)
    run = node.do("uninstall")
    assert run.finish() == 3, run.output
    assert named in last(run)
    assert node.exists(RUNTIME)


def test_a_thousand_other_files_hide_nothing(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    for number in range(1100):
        node.write(f"/etc/containers/oci/hooks.d/{number}.json", "{}")
    node.write(DAEMON_JSON, OPERATORS)
    assert node.do("uninstall").finish() == 3


def test_a_template_of_empty_lines_is_read_in_no_time(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.write("/etc/containerd/conf.d/x.toml", "\n" * 200_000 + "{{ x }}\n")
    assert node.do("uninstall").finish() == 0


def test_a_runtime_named_without_a_folder_that_leads_into_the_toolkit_counts(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    (node.root / "usr/bin").mkdir()
    node.place("/usr/bin/nvidia-container-runtime").symlink_to(RUNTIME)
    node.write(DAEMON_JSON, OPERATORS.replace(RUNTIME, "nvidia-container-runtime"))
    assert node.do("uninstall").finish() == 3


@pytest.mark.parametrize(
    "link, named",
    [("nvrun", "nvrun"), ("runc", "runc"), ("containerd-shim-nv-v1", "io.containerd.nv.v1")],
)
def test_a_link_in_the_path_that_leads_into_the_toolkit_counts_whatever_it_is_called(
    node: FakeNode, link: str, named: str
) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.place("/usr/local/bin").mkdir(exist_ok=True)
    node.place(f"/usr/local/bin/{link}").symlink_to(RUNTIME)
    node.write(CONFIG_TOML, f'version = 2\n[plugins.x]\na = "{named}"\n')
    run = node.do("uninstall")
    assert run.finish() == 3
    assert f"{CONFIG_TOML}:3 names {named}" in run.output
    node.write(CONFIG_TOML, 'version = 2\n[plugins.x]\na = "other"\n')
    assert node.do("uninstall").finish() == 0


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"hook": RUNTIME}).replace("/", "\\/"),
        json.dumps({"hook": "/opt/nv/toolkit/nvidia-container-runtime"}),
        json.dumps({"hook": RUNTIME.replace("/local/", "/../usr/local/")}),
    ],
)
def test_a_cdi_specification_keeps_the_toolkit_however_it_names_it(node: FakeNode, text: str) -> None:
    assert node.do("run", "--no-daemon", "--no-runtime-config").finish() == 0
    node.place("/opt").mkdir()
    node.place("/opt/nv").symlink_to("/usr/local/nvidia")
    node.write("/etc/cdi/x.json", text)
    node.do("uninstall").finish()
    assert node.exists(RUNTIME)


# --- each engine for itself ---


BROKEN = "[[[ = broken"


def test_a_broken_file_of_one_engine_keeps_no_other_engine_from_being_reverted(node: FakeNode) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0
    for path in (CONFIG_TOML, DAEMON_JSON):
        whole = node.read(path)
        node.write(path, whole + BROKEN.encode())
        run = node.do("uninstall")
        assert run.finish() == 3
        assert path in run.output
        assert not dangling(node)
        node.write(path, whole)
    assert node.do("uninstall").finish() == 0
    assert node.read(DAEMON_JSON) == b"{}\n"
    assert node.read(CONFIG_TOML) == b"version = 2\n"


@pytest.mark.parametrize("spoil", ["broken", "folder", "pipe"])
def test_whichever_engine_cannot_be_reverted_the_other_one_is(node: FakeNode, spoil: str) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    for spoilt, other_one, before in (
        (DAEMON_JSON, CONFIG_TOML, b"version = 2\n"),
        (CONFIG_TOML, DAEMON_JSON, b"{}\n"),
    ):
        assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0
        whole = node.read(spoilt)
        node.place(spoilt).unlink()
        if spoil == "folder":
            node.place(spoilt).mkdir()
        elif spoil == "pipe":
            os.mkfifo(node.place(spoilt))
        else:
            node.write(spoilt, whole + BROKEN.encode())
        run = node.do("uninstall")
        assert run.finish() == 3
        assert node.read(other_one) == before
        with contextlib.suppress(IsADirectoryError):
            node.place(spoilt).unlink()
        if spoil == "folder":
            node.place(spoilt).rmdir()
        node.write(spoilt, whole)
        assert node.do("uninstall").finish() == 0


def test_reverting_one_engine_does_not_make_files_next_to_anothers_a_killed_runs(node: FakeNode) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0
    for path in (DAEMON_JSON, CONFIG_TOML):
        planted = node.place(path).with_name(f".{path.rpartition('/')[2]}.toolkit-installer.swap")
        planted.write_text('{"planted": true}')
        run = node.do("uninstall")
        assert run.finish() == 3
        assert "in the way" in run.output
        assert b"planted" not in node.read(path)
        planted.unlink()
        assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0


@pytest.mark.parametrize("spoil", ["loop", "no folder"])
def test_a_path_that_leads_nowhere_keeps_no_other_engine_from_being_reverted(node: FakeNode, spoil: str) -> None:
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    assert node.do("run", "--no-daemon", engine="docker,containerd").finish() == 0
    place = node.place(DAEMON_JSON)
    place.unlink()
    if spoil == "loop":
        place.symlink_to(place.name)
    else:
        place.parent.rmdir()
        place.parent.write_text("")
    node.do("uninstall").finish()
    assert node.read(CONFIG_TOML) == b"version = 2\n"


@pytest.mark.parametrize("path", [DAEMON_JSON, CONFIG_TOML, "/etc/crio/crio.conf"])
def test_a_broken_file_that_has_nothing_to_do_with_us_is_a_warning(node: FakeNode, path: str) -> None:
    node.write(path, BROKEN)
    run = node._started([str(SCRIPTS / "toolkit-installer"), "uninstall", "--node-root", str(node.root)])
    assert run.finish() == 0, run.output
    assert "level=warning" in run.output
    assert "Nothing is installed" in run.output


def test_a_file_with_a_name_of_its_own_is_given_back_by_a_plain_uninstall(node: FakeNode) -> None:
    own = "/etc/docker/dockerd.cfg"
    node.write(own, '{"debug": true}\n')
    assert node.do("run", "--no-daemon", "--config", own).finish() == 0
    assert RUNTIME.encode() in node.read(own)
    run = node.do("uninstall")
    assert run.finish() == 0, run.output
    assert node.read(own) == b'{"debug": true}\n'
    assert not node.exists(TOOLKIT)


# --- whatever comes before whatever ---

STEPS = st.lists(
    st.sampled_from(
        [
            "run docker",
            "run containerd",
            "run both",
            "run alone",
            "uninstall",
            "uninstall docker",
            "uninstall containerd",
            "operator docker",
            "operator containerd",
            "other drop-in",
            "other crio",
            "empty docker",
            "empty containerd",
            "lose receipt",
            "kill",
        ]
    ),
    min_size=2,
    max_size=6,
)
_EDITS = {
    "operator docker": (DAEMON_JSON, OPERATORS),
    "operator containerd": (CONFIG_TOML, CONTAINERD),
    "other drop-in": ("/etc/containerd/conf.d/50-other.toml", CONTAINERD),
    "other crio": (f"{CRIO_FOLDER}/50-other.conf", CRIO),
    "empty docker": (DAEMON_JSON, "{}\n"),
    "empty containerd": (CONFIG_TOML, "version = 2\n"),
}
_RUNS = {"run docker": ("docker",), "run containerd": ("containerd",), "run both": ("docker,containerd",)}


def dangling(node: FakeNode) -> set[tuple[str, str]]:
    """Return which file of which engine names which binary of the toolkit's that is not there."""
    found = set()
    for folder in ("etc", "usr/share"):
        for place in (node.root / folder).rglob("*"):
            if place.is_file():
                for name in re.findall(rb"/usr/local/nvidia/toolkit/[\w.-]+", place.read_bytes()):
                    if not os.access(node.place(name.decode()), os.X_OK):
                        found.add((str(place.relative_to(node.root)), name.decode()))
    return found


def step(node: FakeNode, what: str) -> None:
    if what in _EDITS:
        node.write(*_EDITS[what])
    elif what in _RUNS or what == "run alone":
        more = ("--no-runtime-config",) if what == "run alone" else ()
        node.do("run", "--no-daemon", *more, engine=_RUNS.get(what, ("docker",))[0]).finish()
    elif what == "kill":
        run = node.start(engine="docker")
        with contextlib.suppress(AssertionError):
            run.wait_for("Installed the toolkit")
        run.process.kill()
        run.finish()
    elif what == "lose receipt":
        with contextlib.suppress(FileNotFoundError):
            node.place(f"{STORE}/receipt.json").unlink()
    else:
        node.do("uninstall", engine=what.partition(" ")[2] or "docker,containerd,crio").finish()


@given(steps=STEPS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_no_engines_file_ever_names_a_binary_that_is_gone(steps: list[str], payload: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "node"
        for name in ("etc/docker", "etc/containerd", "etc/crio", "run", "usr/local"):
            (root / name).mkdir(parents=True)
        node = FakeNode(root, payload)
        try:
            for number, what in enumerate(steps):
                before = dangling(node)
                step(node, what)
                made = dangling(node) - before
                if what in _EDITS:
                    continue  # that one is the operator's own doing
                assert not made, (steps[: number + 1], made)
        finally:
            node.close()
