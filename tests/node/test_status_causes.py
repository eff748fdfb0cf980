"""The reason that `status` gives is the cause: file, line and column, what of ours is gone, what is no longer true."""

from __future__ import annotations

import os
import signal

import pytest

from tests.node.drift import swap
from tests.support import driver_roots
from tests.support.fake_node import (
    CONFIG_TOML,
    CRIO_DROP_IN,
    CRIO_SITE,
    DAEMON_JSON,
    STORE,
    WAITING,
    FakeNode,
    Run,
    patiently,
)
from toolkit_installer.driver import roots
from toolkit_installer.node.node import Node
from toolkit_installer.settings import AUTO, ToolkitSettings

RECEIPT = f"{STORE}/receipt.json"
JSON = '{\n  "log-level": "info",\n  "labels": ["a"]\n}\n'
CRI = "plugins.'io.containerd.grpc.v1.cri'.containerd"
TOML = f"version = 2\nimports = ['/etc/containerd/more/*.toml']\n[{CRI}.runtimes.runc]\nruntime_type = 'runc.v2'\n"
IMPORT = "/etc/containerd/more/site.toml"
NO_RESTART = ("--restart-mode", "none")


def reasons(node: FakeNode, engine: str = "docker") -> list[str]:
    """Return the lines of `status` between the verdict and the first fact."""
    output = node.do("status", engine=engine).output
    lines = output[output.index("Verdict:") :].splitlines()
    return lines[: next(number for number, line in enumerate(lines) if line.startswith("State:"))]


def installed(node: FakeNode, engine: str, *flags: str) -> None:
    done = node.do("run", "--no-daemon", *NO_RESTART, *flags, engine=engine)
    assert done.process.returncode == 0, done.output


def edit(node: FakeNode, path: str, old: str, new: str) -> None:
    text = swap(old.encode(), new.encode())(node.read(path))
    assert text is not None
    node.write(path, text)


def test_a_trailing_comma_is_named_with_its_place(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    installed(node, "docker")
    edit(node, DAEMON_JSON, '["a"]\n}', '["a"],\n}')
    line = node.read(DAEMON_JSON).decode().splitlines().index('  "labels": ["a"],') + 1
    verdict, cause, remedy, *others = reasons(node)
    assert verdict.split() == ["Verdict:", "BROKEN"]
    assert f'BROKEN: docker: {DAEMON_JSON}:{line}: not valid JSON: a comma before "}}" (column 18)' in cause
    assert "remove the comma" in remedy
    assert not [other for other in others if "changed by somebody else" in other], "a run cannot put that back"


@pytest.mark.parametrize("path", [CONFIG_TOML, IMPORT])
def test_broken_toml_of_containerd_is_named_with_its_place(node: FakeNode, path: str) -> None:
    node.write(CONFIG_TOML, TOML)
    node.write(IMPORT, "version = 2\n[debug]\nlevel = 'info'\n")
    installed(node, "containerd", "--set-as-default=false")
    count = len(node.read(path).splitlines())
    node.write(path, node.read(path) + b"root = = 1\n")
    verdict, cause, _, *others = reasons(node, "containerd")
    assert verdict.split() == ["Verdict:", "BROKEN"]
    assert f"BROKEN: containerd: {path}:{count + 1}: not valid TOML: Invalid value (column 8)" in cause
    assert not [other for other in others if f"{path}: changed" in other]


@pytest.mark.parametrize("path", [CRIO_SITE, CRIO_DROP_IN, "/etc/crio/crio.conf"])
def test_broken_toml_of_crio_is_named_with_its_place(node: FakeNode, path: str) -> None:
    node.write("/etc/crio/crio.conf", "[crio.runtime]\ndefault_runtime = 'runc'\n[crio.runtime.runtimes.runc]\n")
    node.write(CRIO_SITE, "[crio.runtime]\nlog_level = 'info'\n")
    installed(node, "crio")
    node.write(path, node.read(path) + b"[crio.runtime\n")
    verdict, cause, *_ = reasons(node, "crio")
    assert verdict.split() == ["Verdict:", "BROKEN"]
    assert f"BROKEN: crio: {path}:{len(node.read(path).splitlines())}: not valid TOML: " in cause


def test_a_key_that_docker_merges_does_not_make_the_node_broken(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    installed(node, "docker")
    node.write(DAEMON_JSON, '{\n"runtimes": {"nvidia": {"path": "/a"}},\n"runtimes": {"b": {"path": "/b"}}\n}\n')
    (cause,) = [line for line in reasons(node) if "stands twice" in line]
    assert cause.strip().startswith("DEGRADED: docker: ")


def test_a_handler_and_a_default_that_are_gone_are_named(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    installed(node, "docker")
    written = node.read(DAEMON_JSON)
    node.write(DAEMON_JSON, written.replace(b'"default-runtime": "nvidia"', b'"default-runtime": "runc"'))
    said = f"{DAEMON_JSON}: changed by somebody else: the default runtime is no longer nvidia"
    assert [line for line in reasons(node) if line.endswith(said)]
    node.write(DAEMON_JSON, JSON.replace("info", "debug"))
    (line,) = [line for line in reasons(node) if "changed by somebody else" in line]
    assert "the handler nvidia is gone" in line
    assert "the handler nvidia-cdi is gone" in line


def test_a_handler_that_another_program_configured_over_is_named(node: FakeNode) -> None:
    node.write(CONFIG_TOML, TOML)
    installed(node, "containerd", "--set-as-default=false")
    edit(node, CONFIG_TOML, 'toolkit/nvidia-container-runtime"', 'toolkit/other"')
    said = [line for line in reasons(node, "containerd") if "changed by somebody else" in line]
    assert [line for line in said if line.endswith("the handler nvidia was changed")]


def test_a_waiting_run_that_is_stopped_is_said_to_be(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    run = node.waiting()
    os.kill(run.pid, signal.SIGSTOP)
    try:
        said = reasons(node)
    finally:
        os.kill(run.pid, signal.SIGCONT)
    (line,) = [number for number, each in enumerate(said) if f"the running instance (PID {run.pid}) is stopped" in each]
    assert f"`kill -CONT {run.pid}`" in said[line + 1]
    assert run.stop() == 0


@pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
def test_an_nvidia_smi_that_hangs_is_told_from_one_that_fails(node: FakeNode) -> None:
    program = driver_roots.install(node.root)
    found = Node(str(node.root)), ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO), 1.0
    program.write_text("#!/bin/busybox sh\nexec /bin/busybox sleep 60\n")
    seen = roots.find_driver(*found)
    assert (seen.driver, seen.hangs, seen.nothing_there) == (None, True, False)
    program.write_text("#!/bin/busybox sh\nexit 9\n")
    assert not roots.find_driver(*found).hangs


def deleted(run: Run, node: FakeNode) -> None:
    node.place(RECEIPT).unlink()
    patiently(run, "The receipt was deleted")
    run.wait_for(WAITING)


def test_a_deleted_receipt_is_said_to_be_and_a_signal_rebuilds_it(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    run = node.waiting("--ready-file", str(node.root / "ready"))
    deleted(run, node)
    assert 'why=""' not in run.output
    verdict, cause, remedy, *_ = reasons(node)
    assert "DEGRADED" in verdict
    assert f"{RECEIPT} is gone" in cause
    assert f"`toolkit-installer refresh --node-root {node.root}` rebuilds it" in remedy
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for(WAITING)
    assert node.exists(RECEIPT)
    assert not [line for line in reasons(node) if "gone" in line]
    assert run.stop() == 0
    assert node.read(DAEMON_JSON).decode() == JSON


def test_a_repairing_run_rebuilds_a_deleted_receipt_by_itself(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    run = node.waiting("--on-drift", "repair")
    deleted(run, node)
    assert node.exists(RECEIPT)
    assert run.stop() == 0
    assert node.read(DAEMON_JSON).decode() == JSON


def test_a_failure_whose_cause_is_gone_is_forgotten(node: FakeNode) -> None:
    node.write(DAEMON_JSON, JSON)
    run = node.waiting()
    good = node.read(DAEMON_JSON)
    node.write(DAEMON_JSON, good + b"}")
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Could not converge")
    run.wait_for(WAITING)
    assert [line for line in reasons(node) if "could not do its work" in line]
    node.write(DAEMON_JSON, good)
    patiently(run, "Trying again what failed")
    run.wait_for(WAITING)
    assert "last brought the node up to date at" in node.do("status").output
    assert not [line for line in reasons(node) if "could not do its work" in line]
    assert run.stop() == 0
