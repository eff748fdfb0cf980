"""What runs a container in the end is what the engine runs its own with."""

from __future__ import annotations

import tomllib

import pytest

from tests.support.distribution_cases import Case
from tests.support.fake_distributions import AGENT
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, FakeNode

K3S_RUNC = "/var/lib/rancher/k3s/data/current/bin/runc"
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


BESIDE = f"""version = 2
[{CRI}.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[{CRI}.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
"""
BUILT_IN = f"""{BESIDE}[{CRI}]
default_runtime_name = "runc"
[{CRI}.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
DEFAULT_WITHOUT_BINARY = f"""{BESIDE}[{CRI}]
default_runtime_name = "plain"
[{CRI}.runtimes.plain]
runtime_type = "io.containerd.runc.v2"
"""
SANDBOXED = f"""{BESIDE}[{CRI}]
default_runtime_name = "kata"
[{CRI}.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
[{CRI}.runtimes.kata.options]
BinaryName = "/opt/kata"
"""
UNNAMED = """version = 1
[plugins.cri.containerd.default_runtime]
runtime_type = "io.containerd.runc.v2"
[plugins.cri.containerd.default_runtime.options]
BinaryName = "/usr/local/sbin/runc"
[plugins.cri.containerd.runtimes.crun.options]
BinaryName = "/usr/bin/crun"
"""
DOCKER_BESIDE = '{"runtimes": {"crun": {"path": "/usr/bin/crun"}}}'
DOCKER_NAMED = '{"default-runtime": "runc", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}'
DOCKER_SANDBOXED = """{"default-runtime": "gvisor", "runtimes": {
  "gvisor": {"runtimeType": "io.containerd.runsc.v1", "options": {"BinaryName": "/opt/runsc"}},
  "crun": {"path": "/usr/bin/crun"}}}"""
DOCKER_SHIM = """{"default-runtime": "plain", "runtimes": {
  "plain": {"runtimeType": "io.containerd.runc.v2"}, "crun": {"path": "/usr/bin/crun"}}}"""


@pytest.mark.parametrize(
    "engine,path,content",
    [
        pytest.param("containerd", CONFIG_TOML, BESIDE, id="containerd, nothing said of runc"),
        pytest.param("containerd", CONFIG_TOML, BUILT_IN, id="containerd, runc named"),
        pytest.param("containerd", CONFIG_TOML, DEFAULT_WITHOUT_BINARY, id="containerd, a default of another name"),
        pytest.param("containerd", CONFIG_TOML, SANDBOXED, id="containerd, a virtual machine as the default"),
        pytest.param("docker", DAEMON_JSON, DOCKER_BESIDE, id="docker, nothing said of runc"),
        pytest.param("docker", DAEMON_JSON, DOCKER_NAMED, id="docker, runc named"),
        pytest.param("docker", DAEMON_JSON, DOCKER_SANDBOXED, id="docker, a sandbox as the default"),
        pytest.param("docker", DAEMON_JSON, DOCKER_SHIM, id="docker, containerd's own shim as the default"),
    ],
)
def test_a_handler_beside_the_engines_own_runc_does_not_take_its_place(
    node: FakeNode, engine: str, path: str, content: str
) -> None:
    node.write(path, content)
    for program in ("/usr/sbin/runc", "/usr/bin/crun"):
        node.write(program, "#!/bin/sh\n", 0o755)
    for _ in range(2):  # the second run sees our own handlers there
        run = node.do("run", "--no-daemon", engine=engine)
        assert run.process.returncode == 0, run.output
        assert installed_runtimes(node)[:2] == ["/usr/sbin/runc", "/usr/bin/crun"]
    assert NOTHING_TO_DO in run.output


@pytest.mark.parametrize("said,expected", [("", K3S_RUNC), ('default_runtime_name = "crun"', "/usr/bin/crun")])
def test_crun_that_k3s_found_by_itself_comes_after_the_runc_that_k3s_brings(
    node: FakeNode, said: str, expected: str
) -> None:
    Case("k3s", "drop-in").put(node)
    table = "plugins.'io.containerd.cri.v1.runtime'.containerd"
    made = node.read(f"{AGENT}/config.toml").decode()
    options = f'runtime_type = "io.containerd.runc.v2"\n[{table}.runtimes.crun.options]\nBinaryName = "/usr/bin/crun"\n'
    node.write(f"{AGENT}/config.toml", f"{made}\n[{table}]\n{said}\n[{table}.runtimes.crun]\n{options}")
    for program in ("/usr/sbin/runc", "/usr/bin/crun", K3S_RUNC):
        node.write(program, "#!/bin/sh\n", 0o755)
    run = node.do("run", "--no-daemon", engine="auto")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node)[0] == expected


def test_the_unnamed_default_of_an_old_containerd_is_what_comes_first(node: FakeNode) -> None:
    node.write(CONFIG_TOML, UNNAMED)
    for program in ("/usr/sbin/runc", "/usr/bin/crun"):
        node.write(program, "#!/bin/sh\n", 0o755)
    run = node.do("run", "--no-daemon", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node)[:2] == ["/usr/local/sbin/runc", "/usr/bin/crun"]


@pytest.mark.parametrize(
    "engine,path,content", [("containerd", CONFIG_TOML, BESIDE), ("docker", DAEMON_JSON, DOCKER_BESIDE)]
)
def test_where_the_engines_own_runc_is_nowhere_the_other_handler_stands_in(
    node: FakeNode, engine: str, path: str, content: str
) -> None:
    node.write(path, content)
    node.write("/usr/bin/crun", "#!/bin/sh\n", 0o755)
    run = node.do("run", "--no-daemon", engine=engine)
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node) == ["/usr/bin/crun", "runc", "crun"]


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


def test_a_toolkit_that_an_earlier_release_gave_crun_first_is_fixed_without_a_reload(node: FakeNode) -> None:
    node.write(CONFIG_TOML, BESIDE)
    for program in ("/usr/sbin/runc", "/usr/bin/crun"):
        node.write(program, "#!/bin/sh\n", 0o755)
    wrong = ("--nvidia-container-runtime.runtimes", "/usr/bin/crun,/usr/sbin/runc,runc,crun")
    assert node.do("run", "--no-daemon", *wrong, engine="containerd").process.returncode == 0
    assert installed_runtimes(node)[0] == "/usr/bin/crun"
    engines_file = node.read(CONFIG_TOML)
    run = node.do("run", "--no-daemon", engine="containerd")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node)[0] == "/usr/sbin/runc"
    assert node.read(CONFIG_TOML) == engines_file


def test_a_runc_that_is_the_nvidia_runtime_in_truth_is_passed_over(node: FakeNode) -> None:
    node.write("/usr/bin/nvidia-container-runtime", "", 0o755)
    node.place("/usr/bin/runc").symlink_to("nvidia-container-runtime")
    node.write("/usr/sbin/crun", "", 0o755)
    run = node.do("run", "--no-daemon")
    assert run.process.returncode == 0, run.output
    assert installed_runtimes(node) == ["/usr/sbin/crun", "runc", "crun"]
