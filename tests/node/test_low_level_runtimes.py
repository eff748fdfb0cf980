"""What runs a container in the end is what the engine runs its own with."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, FakeNode

CRI = 'plugins."io.containerd.grpc.v1.cri".containerd'
CONTAINERD = f"""version = 2
[{CRI}]
default_runtime_name = "crun"
[{CRI}.runtimes.runc.options]
BinaryName = "/usr/local/sbin/runc"
[{CRI}.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
[{CRI}.runtimes.kata.options]
BinaryName = "/opt/kata"
[{CRI}.runtimes.crun.options]
BinaryName = "/usr/local/bin/crun"
"""
DOCKER = """{"default-runtime": "crun", "runtimes": {
  "sysbox": {"path": "/usr/bin/sysbox-runc"}, "crun": {"path": "/usr/local/bin/crun"}}}"""


@pytest.mark.parametrize(
    "engine,path,content,expected",
    [
        ("docker", DAEMON_JSON, DOCKER, ["/usr/local/bin/crun", "runc", "crun"]),
        ("docker", DAEMON_JSON, "{}", ["runc", "crun"]),
        ("containerd", CONFIG_TOML, CONTAINERD, ["/usr/local/bin/crun", "/usr/local/sbin/runc", "runc", "crun"]),
        ("containerd", CONFIG_TOML, "version = 2\n", ["runc", "crun"]),
    ],
)
def test_the_engines_own_runtimes_come_first_by_path(
    node: FakeNode, engine: str, path: str, content: str, expected: list[str]
) -> None:
    node.write(path, content)
    for _ in range(2):  # the second run sees our own handlers there, and must not take them for the engine's
        run = node.do("run", "--no-daemon", engine=engine)
        assert run.process.returncode == 0, run.output
        config = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
        assert config["nvidia-container-runtime"]["runtimes"] == expected
        wrapper = node.read(f"{TOOLKIT}/nvidia-container-runtime").decode()
        assert [wrapper.index(f"'{runtime}'") for runtime in expected] == sorted(
            wrapper.index(f"'{runtime}'") for runtime in expected
        )


def test_the_runtimes_that_the_user_names_win(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    run = node.do("run", "--no-daemon", "--nvidia-container-runtime.runtimes", "/opt/mine")
    assert run.process.returncode == 0, run.output
    config = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
    assert config["nvidia-container-runtime"]["runtimes"] == ["/opt/mine"]


def installed_runtimes(node: FakeNode) -> list[str]:
    config = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
    runtimes: list[str] = config["nvidia-container-runtime"]["runtimes"]
    return runtimes


@pytest.mark.parametrize(
    "engine, path, content", [("docker", DAEMON_JSON, "{}"), ("containerd", CONFIG_TOML, "version = 2\n")]
)
def test_a_node_that_has_only_crun_runs_it_by_path(node: FakeNode, engine: str, path: str, content: str) -> None:
    node.write(path, content)
    node.write("/usr/bin/crun", "#!/bin/sh\n", 0o755)
    run = node.do("run", "--no-daemon", engine=engine)
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node) == ["/usr/bin/crun", "runc", "crun"]
    assert NOTHING_TO_DO in node.do("run", "--no-daemon", engine=engine).output


def test_names_in_the_engines_file_become_paths_of_the_node_in_their_order(node: FakeNode) -> None:
    node.write(
        DAEMON_JSON, '{"default-runtime": "own", "runtimes": {"own": {"path": "crun"}, "crun": {"path": "gone"}}}'
    )
    node.write("/usr/local/bin/crun", "", 0o755)
    node.write("/usr/sbin/crun", "", 0o644)  # no program
    node.write("/opt/runc", "", 0o755)
    node.place("/usr/bin").mkdir()
    node.place("/usr/bin/runc").symlink_to("/opt/runc")
    run = node.do("run", "--no-daemon")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node) == ["/usr/local/bin/crun", "gone", "/usr/bin/runc", "runc", "crun"]
    wrapper = node.read(f"{TOOLKIT}/nvidia-container-runtime").decode()
    assert "'/usr/local/bin/crun' 'gone' '/usr/bin/runc' 'runc' 'crun'" in wrapper


def test_a_runc_that_is_the_nvidia_runtime_in_truth_is_passed_over(node: FakeNode) -> None:
    node.write("/usr/bin/nvidia-container-runtime", "", 0o755)
    node.place("/usr/bin/runc").symlink_to("nvidia-container-runtime")
    node.write("/usr/sbin/crun", "", 0o755)
    run = node.do("run", "--no-daemon")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node) == ["/usr/sbin/crun", "runc", "crun"]
