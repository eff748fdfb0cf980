"""README's line for a docker machine, as it stands there: the image, started by docker, configures that very docker."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.e2e.hosts import low_level
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR
from tests.e2e.program import SCRIPTS
from tests.support import driver_roots
from tests.support.built.installer_image import NAME, PROJECT, BuiltImage
from tests.support.engines import images

if TYPE_CHECKING:
    from tests.e2e.file_states import FileState
    from tests.e2e.hosts.host import Host
    from tests.e2e.hosts.machine import Machine

UNIT, CONFIG = "docker", "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
CONTAINER = "toolkit-installer"
WAITING = "Waiting for signal"
STAYING = "--detach --name toolkit-installer --restart unless-stopped"
_SECONDS = 120


def line_of_the_readme() -> str:
    """Return the one command of README's that starts the image by docker."""
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    (command,) = (block for block in blocks if block.startswith("docker run "))
    return command


def running(host: Host, container: str) -> bool:
    return host.run("docker", "inspect", "--format={{.State.Running}}", container).stdout.strip() == "true"


def log_file(host: Host) -> str:
    return host.run("docker", "inspect", "--format={{.LogPath}}", CONTAINER).stdout.strip()


def wait_until(what: Callable[[], bool], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)


def prepare(machine: Machine, built_image: BuiltImage) -> tuple[FileState | None, dict[str, tuple[int, ...]]]:
    """Start docker with the image; return how its file stands, and what lies where the installer writes."""
    host = machine.host
    low_level.make_privileged_containers_possible(host)
    options = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
    host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{options}"\n')
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    folders = machine.written_below("/etc/docker", "/usr/local", "/run/nvidia")
    host.run("mount", "--make-rshared", "/")  # as systemd does when a machine boots
    driver_roots.install(host.path("/"), devices=False)
    host.run("docker", "load", "--input", built_image.archive)
    host.path("/run/busybox.tar").write_bytes(images.archive())
    host.run("docker", "load", "--input", "/run/busybox.tar")
    return before, folders


def test_the_line_of_the_readme_configures_docker_outlives_a_boot_and_is_taken_back(
    machine: Machine, built_image: BuiltImage
) -> None:
    host = machine.host
    before, folders = prepare(machine, built_image)
    sleeper = host.run("docker", "run", "--detach", "--network=none", images.IMAGE).stdout.strip()

    def log() -> str:
        done = host.run("docker", "logs", CONTAINER)
        return done.stdout + done.stderr

    command = line_of_the_readme()
    assert built_image.reference == f"{NAME}:{re.findall(r'toolkit-installer:([0-9.]+)', command)[0]}"
    host.run("sh", "-euc", command)
    wait_until(lambda: WAITING in log(), log)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert machine.exists(f"{INSTALL_DIR}/toolkit/nvidia-container-runtime")
    shown = host.run("docker", "exec", CONTAINER, "toolkit-installer", "status").stdout
    assert "State:   installed" in shown
    assert "docker on /var/run/docker.sock: serves them" in shown
    # without a GPU the wrappers run the machine's own runtime
    said = host.run("docker", "run", "--rm", "--network=none", images.IMAGE, "/bin/busybox", "echo", "a container runs")
    assert "a container runs" in said.stdout

    # the machine goes down and comes up: docker tells its containers to stop, and starts those that are to run
    gpu = host.run("docker", "run", "--detach", "--restart=always", "--runtime=nvidia", "--network=none", images.IMAGE)
    file = host.path(log_file(host))
    host.run("systemctl", "stop", "docker.socket", "docker")
    assert "Leaving the node configured" in file.read_text()
    host.run("systemctl", "start", "docker")
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    wait_until(lambda: running(host, gpu.stdout.strip()), log)
    host.run("docker", "start", sleeper)
    assert running(host, sleeper)

    wait_until(lambda: log().count(WAITING) == 2, log)  # docker has started the installer again, too
    assert "Nothing to do: the node is as it should be" in log()
    host.run("docker", "rm", "--force", gpu.stdout.strip())
    starts = machine.starts(UNIT)
    # as README says how the line becomes the other one
    assert STAYING in command
    options, _, _ = command.replace(STAYING, "--rm").rpartition("\\\n")
    host.run("docker", "rm", "--force", CONTAINER)
    done = host.run("sh", "-euc", f"{options} uninstall", within=200)
    assert "The node is as it was" in done.stdout + done.stderr
    assert machine.state(CONFIG) == before
    assert machine.docker_handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)
    assert machine.starts(UNIT) == starts
    assert running(host, sleeper)
    assert set(machine.written_below("/etc/docker", "/usr/local")) == {
        path for path in folders if not path.startswith("/run/")
    }


REFRESH = ("docker", "exec", CONTAINER, "toolkit-installer", "refresh")


def test_the_commands_of_the_log_and_the_page_work_also_without_docker(
    machine: Machine, built_image: BuiltImage
) -> None:
    host = machine.host
    prepare(machine, built_image)
    host.run("sh", "-euc", line_of_the_readme())
    file = host.path(log_file(host))
    wait_until(lambda: WAITING in file.read_text(), file.read_text)

    # on the machine itself, with no option at all, and without a payload there
    planned = host.run(SCRIPTS / "toolkit-installer", "plan", check=False)
    assert planned.returncode == 4, planned.stderr
    assert "Nothing to do: the node is as it should be" in planned.stdout, planned.stdout + planned.stderr
    assert "--runtime=docker" in planned.stderr
    assert "--set-as-default=false" in planned.stderr

    # somebody's deployment writes its own file, and docker loads it
    host.path(CONFIG).write_text('{"labels": ["rack=a1"], "runtimes": {}, "default-runtime": "runc"}')
    host.run("systemctl", "reload", UNIT)
    assert machine.docker_handlers() == {"runc"}
    wait_until(lambda: "Somebody changed the file" in file.read_text(), file.read_text)
    (named,) = set(re.findall(r"`(docker exec [0-9a-f]{12} toolkit-installer refresh)`", file.read_text()))
    done = host.run("sh", "-euc", named)
    assert "The node is configured" in done.stdout
    assert machine.docker_handlers() == {"runc"} | HANDLERS

    good = host.path(CONFIG).read_text()
    host.path(CONFIG).write_text(good.replace('"rack=a1"', '"rack=a1",', 1))
    failed = host.run(*REFRESH, check=False)
    assert failed.returncode == 3, failed.stdout + failed.stderr
    assert "not valid JSON" in failed.stderr
    assert CONFIG in failed.stderr
    host.path(CONFIG).write_text(good)
    assert "Nothing to do" in host.run(*REFRESH).stdout
    from_outside = host.run(SCRIPTS / "toolkit-installer", "refresh")
    assert "Nothing to do" in from_outside.stdout, from_outside.stderr

    # dockerd dies and does not come back: its containers go on, and nobody can be asked by it
    machine.override(UNIT, "Restart=no")
    host.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", UNIT)
    host.run("systemctl", "stop", "docker.socket")  # which would start it for whoever asks
    assert host.run(*REFRESH, check=False).returncode == 1
    (line,) = re.findall(r"^nsenter .+$", (PROJECT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    shown = host.run("sh", "-euc", line).stdout
    assert shown.startswith("Verdict: BROKEN"), shown
    assert "docker on /var/run/docker.sock: does not answer" in shown
    assert "State:   installed" in shown
