"""The machines and the newer engines of the tests: were they wrong, what is tested on them would prove nothing."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.hosts.host import CHECKOUT, Host, HostError
from tests.support.built import releases
from tests.support.built.releases import Release, ReleaseError, Suite
from tests.support.engines import leftovers
from tests.support.engines.daemons import ContainerdEngine, DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINES = {Suite.TRIXIE: ((26,), (1, 7)), Suite.SID: ((28,), (2, 1))}
"""The oldest docker and containerd that a suite has."""
VERSION_3 = 'version = 3\nplugins."io.containerd.cri.v1.runtime".cni.conf_dir = "{}"\n'
VERSION_2 = 'version = 2\nplugins."io.containerd.grpc.v1.cri".cni.conf_dir = "{}"\n'


def control_groups(name: str) -> list[Path]:
    top = Path("/sys/fs/cgroup")
    return [path / name for path in (top, *top.iterdir()) if (path / name).is_dir()]


def alive_in_namespace(namespace: str) -> list[psutil.Process]:
    """Return the live processes in a PID namespace; a zombie is none."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(Path(f"/proc/{process.pid}/ns/pid").readlink()) == namespace:
                found.append(process)
        except OSError:  # it has ended meanwhile, or is a zombie
            continue
    return found


def namespace_of(host: Host) -> str:
    return str(Path(f"/proc/{host.pid}/ns/pid").readlink())


def number(version: str) -> tuple[int, ...]:
    """Return 1.7.24~ds1 as (1, 7, 24)."""
    return tuple(int(part) for part in version.removeprefix("v").split("+")[0].split("~")[0].split("."))


def served(shown: str) -> str:
    """Return the daemon's version out of what `ctr version` prints."""
    return shown.partition("Server:")[2].partition("Version:")[2].split()[0]


def assert_nothing_is_left(host: Host, namespace: str) -> None:
    assert alive_in_namespace(namespace) == []
    assert control_groups(host.name) == []
    assert leftovers.mounts_below(host.folder) == []


def test_a_machine_runs_its_engines_as_their_units_say(host: Host) -> None:
    assert host.run("cat", "/proc/1/comm").stdout == "systemd\n"
    host.run("systemctl", "start", "containerd", "docker")
    for unit, program in (("containerd", "containerd"), ("docker", "dockerd")):
        pid = host.property(unit, "MainPID")
        assert host.run("cat", f"/proc/{pid}/comm").stdout == f"{program}\n"
        assert f"/{unit}.service" in host.run("cat", f"/proc/{pid}/cgroup").stdout
    assert host.run("docker", "info", "--format", "{{.DefaultRuntime}}").stdout == "runc\n"
    assert "containerd successfully booted" in host.journal("containerd")


def test_a_machines_files_are_its_own(host: Host) -> None:
    path = Path("/etc/containerd/config.toml")
    here = path.exists()
    host.path(path).write_text("version = 2\n")
    assert host.run("cat", path).stdout == "version = 2\n"
    host.run("touch", "/usr/bin/made-by-a-test", "/run/made-by-a-test")
    assert path.exists() == here
    assert not Path("/usr/bin/made-by-a-test").exists()
    assert not Path("/run/made-by-a-test").exists()
    with pytest.raises(HostError, match="Read-only file system"):
        host.run("touch", CHECKOUT / "made-by-a-test")
    with pytest.raises(HostError, match="Read-only file system"):
        host.run("tee", "/proc/sys/vm/swappiness", given="1\n")


def test_nothing_of_a_machine_is_left_with_its_engines_running(folder: Path) -> None:
    with Host(folder / "host") as host:
        namespace = namespace_of(host)
        host.run("systemctl", "start", "containerd", "docker")
        assert len(alive_in_namespace(namespace)) > 3
        assert control_groups(host.name)
    assert_nothing_is_left(host, namespace)


def test_nothing_of_a_machine_is_left_when_its_first_process_dies(folder: Path) -> None:
    with Host(folder / "host") as host:
        namespace = namespace_of(host)
        host.run("systemctl", "start", "containerd")
        os.kill(host.pid, signal.SIGKILL)
        started = time.monotonic()
        while alive_in_namespace(namespace) or control_groups(host.name):
            assert time.monotonic() < started + 60
            time.sleep(0.02)
    assert_nothing_is_left(host, namespace)


def test_machines_end_with_tests_that_are_killed(folder: Path) -> None:
    told = folder / "told"
    script = f"""
        import os, pathlib, signal
        from tests.e2e.hosts.host import Host
        host = Host(pathlib.Path({str(folder / "host")!r}))
        host.start()
        host.run("systemctl", "start", "containerd")
        told = os.readlink(f"/proc/{{host.pid}}/ns/pid") + "\\n" + host.name
        pathlib.Path({str(told)!r}).write_text(told)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=CHECKOUT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    namespace, name = told.read_text().splitlines()
    started = time.monotonic()
    while alive_in_namespace(namespace) or control_groups(name):
        assert time.monotonic() < started + 60
        time.sleep(0.02)
    assert leftovers.mounts_below(folder) == []


def test_a_machine_that_cannot_start_says_why_and_leaves_nothing(folder: Path) -> None:
    host = Host(folder / "host", shown=[folder / "not-there"])
    with pytest.raises(HostError, match="not-there"):
        host.start()
    assert control_groups(host.name) == []
    assert leftovers.mounts_below(folder) == []


@pytest.mark.parametrize("suite", list(Suite))
def test_newer_engines_serve_what_their_files_say(
    folder: Path, release: Callable[[Suite], Release], suite: Suite
) -> None:
    fetched = release(suite)
    docker_version, containerd_version = ENGINES[suite]
    with DockerEngine(folder / "d", fetched) as docker:
        docker.config.write_text('{"runtimes": {"other": {"path": "/usr/sbin/runc"}}, "default-runtime": "other"}')
        docker.start()
        assert number(docker.info()["ServerVersion"]) >= docker_version
        assert Path(f"/proc/{docker.pid}/exe").readlink().is_relative_to(fetched.root)
        assert docker.default_handler() == "other"
    with ContainerdEngine(folder / "c", fetched) as containerd:
        (folder / "c").mkdir()
        text = (VERSION_3 if containerd_version >= (2, 0) else VERSION_2).format(folder / "c" / "cni")
        containerd.config.write_text('disabled_plugins = ["io.containerd.internal.v1.opt"]\n' + text)
        containerd.start()
        assert Path(f"/proc/{containerd.pid}/exe").readlink().is_relative_to(fetched.root)
        ctr = [str(fetched.root / "usr/bin/ctr"), "--address", str(containerd.socket), "version"]
        shown = subprocess.run(ctr, capture_output=True, text=True, check=True).stdout
        assert number(served(shown)) >= containerd_version
        assert containerd.default_handler() == "runc"
        assert containerd.handlers().keys() == {"runc"}


def test_a_machine_has_the_engines_of_the_release_that_it_was_given(
    boot: Callable[[Release | None], Host], release: Callable[[Suite], Release]
) -> None:
    host = boot(release(Suite.SID))
    host.run("systemctl", "start", "containerd", "docker")
    asked = host.run("docker", "version", "--format", "{{.Server.Version}}").stdout
    assert number(asked) >= ENGINES[Suite.SID][0]
    assert number(served(host.run("ctr", "version").stdout)) >= ENGINES[Suite.SID][1]


def test_runc_of_a_newer_release_runs_with_a_libc_of_its_own(release: Callable[[Suite], Release]) -> None:
    for suite in Suite:
        runc = release(suite).root / "usr/sbin/runc"
        shown = subprocess.run([runc, "--version"], capture_output=True, text=True, check=True)
        assert number(shown.stdout.split()[2]) > (1, 1, 5)


def test_a_release_is_fetched_once(release: Callable[[Suite], Release], monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = release(Suite.TRIXIE)

    def never(*_: object) -> Path:
        raise AssertionError("fetched although it is there")

    monkeypatch.setattr(releases, "_make", never)
    assert releases.fetch(Suite.TRIXIE) == fetched


def test_a_release_that_two_want_at_once_is_fetched_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def slowly(suite: Suite, work: Path, _final: Path) -> Path:
        made.append(suite)
        runc = work / "made/engines/usr/sbin/runc"
        runc.parent.mkdir(parents=True)
        time.sleep(0.2)  # for the other one to come too early, were it not kept waiting
        runc.write_text("#!/bin/sh\n")
        runc.chmod(0o755)
        return work / "made"

    monkeypatch.setattr(releases, "_make", slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: releases.fetch(Suite.SID, tmp_path), range(2))
    assert first == second
    assert made == [Suite.SID]


def test_a_release_whose_packages_are_not_signed_by_debian_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys.gpg"
    keys.write_bytes(b"")
    monkeypatch.setattr(releases, "_KEYS", keys)
    with pytest.raises(ReleaseError, match=r"NO_PUBKEY|not signed"):
        releases.fetch(Suite.TRIXIE, tmp_path / "cache")
    assert not (tmp_path / "cache" / "trixie").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["trixie.lock"]
