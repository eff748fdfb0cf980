"""Another run with other settings: nothing of the earlier ones stays behind."""

from __future__ import annotations

from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, TOOLKIT, FakeNode

CONTAINERD = b"version = 2 # ours\n"


def done(node: FakeNode, *more: str, engine: str = "docker") -> None:
    run = node.do("run", "--no-daemon", *more, engine=engine)
    assert run.process.returncode == 0, run.output


def test_the_engine_that_is_no_longer_meant_gets_its_bytes_back(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    node.write(CONFIG_TOML, CONTAINERD, 0o640)
    before = node.snapshot()
    done(node)
    done(node, engine="containerd")
    assert node.read(DAEMON_JSON) == DOCKER
    assert b"nvidia" in node.read(CONFIG_TOML)
    assert node.broken_runtimes() == []
    assert node.do("uninstall").process.returncode == 0
    assert node.snapshot() == before


def test_another_file_of_the_same_engine_does_not_leave_handlers_in_the_first(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    node.write("/opt/docker/daemon.json", DOCKER)
    before = node.snapshot()
    done(node)
    done(node, "--config", "/opt/docker/daemon.json")
    assert node.read(DAEMON_JSON) == DOCKER
    assert b"nvidia" in node.read("/opt/docker/daemon.json")
    assert node.do("uninstall").process.returncode == 0
    assert node.snapshot() == before


def test_a_renamed_handler_replaces_the_first(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done(node)
    done(node, "--runtime-name", "gpu")
    assert node.docker()["default-runtime"] == "gpu"
    assert node.docker()["runtimes"].keys() == {"gpu", "nvidia-cdi", "nvidia-legacy"}
    assert node.do("uninstall").process.returncode == 0
    assert node.snapshot() == before


def test_a_default_that_is_no_longer_asked_for_is_the_operators_again(node: FakeNode) -> None:
    original = b'{"default-runtime": "crun", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}'
    node.write(DAEMON_JSON, original)
    done(node)
    done(node, "--set-as-default=false")
    assert node.docker()["default-runtime"] == "crun"
    done(node)
    assert node.docker()["default-runtime"] == "nvidia"
    assert node.do("uninstall").process.returncode == 0
    assert node.read(DAEMON_JSON) == original


def test_a_run_that_configures_no_engine_leaves_and_remembers_what_is_configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done(node)
    configured = node.read(DAEMON_JSON)
    done(node, "--no-runtime-config", "--driver-root", "/")
    assert node.read(DAEMON_JSON) == configured
    assert b'"@/sbin/ldconfig' in node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml")
    assert node.do("uninstall").process.returncode == 0
    assert node.snapshot() == before


def test_another_install_folder_is_refused_while_the_first_installation_stands(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done(node)
    configured = node.snapshot()
    refused = node.do("run", "--no-daemon", "--root", "/opt/nvidia")
    assert refused.process.returncode == 3
    assert "toolkit-installer uninstall /usr/local/nvidia" in refused.output
    assert node.snapshot() == configured
    assert node.do("uninstall").process.returncode == 0
    done(node, "--root", "/opt/nvidia")
    assert node.do("uninstall", "--root", "/opt/nvidia").process.returncode == 0
    assert node.snapshot() == before
