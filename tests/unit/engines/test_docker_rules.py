"""What dockerd does not take; that it really does not is in the end-to-end tests."""

from __future__ import annotations

import pytest

from toolkit_installer.engines import docker_rules
from toolkit_installer.errors import ConfigurationError


@pytest.mark.parametrize(
    "content, line, what",
    [
        (b'{\n "runtimes": {\n "runc": {"path": "/usr/bin/crun"}}}', 3, "dockerd's own runtime"),
        (b'{\n"default-runtime": "gone"}', 2, "'gone'"),
        (b'{"runtimes": {"crun": {"path": "crun"}},\n\n"default-runtime": "kata"}', 3, "'kata'"),
    ],
)
def test_a_file_that_dockerd_rejects_is_found_with_its_line(content: bytes, line: int, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as caught:
        docker_rules.refuse(content)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b'{"runtimes": null, "default-runtime": ""}',
        b'{"runtimes": {"crun": {"path": "crun"}}, "default-runtime": "crun"}',
        b'{"default-runtime": "runc"}',
        b'{"default-runtime": "io.containerd.runsc.v1"}',
        b'{"default-runtime": "/usr/local/bin/containerd-shim-x"}',
    ],
)
def test_a_file_that_dockerd_takes_is_not_refused(content: bytes) -> None:
    docker_rules.refuse(content)


@pytest.mark.parametrize(
    "arguments, key",
    [
        (["--debug"], "debug"),
        (["-D"], "debug"),
        (["--debug=false"], "debug"),
        (["-H", "fd://"], "hosts"),
        (["-Hfd://"], "hosts"),
        (["--containerd=/x", "--host=unix:///x"], "hosts"),
        (["--insecure-registry", "a:5000"], "insecure-registries"),
        (["--log-driver", "syslog"], "log-driver"),
    ],
)
def test_a_key_that_is_a_flag_too_is_found_with_its_line(arguments: list[str], key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'"{key}" stands here too') as caught:
        docker_rules.refuse_conflicts(b'{\n\n"%s": 1}' % key.encode(), ["/usr/bin/dockerd", *arguments])
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "arguments", [[], ["--config-file", "debug"], ["--label", "debug"], ["--debugging"], ["debug"]]
)
def test_a_flag_of_another_name_is_no_conflict(arguments: list[str]) -> None:
    docker_rules.refuse_conflicts(b'{"debug": true, "hosts": []}', ["dockerd", *arguments])


@pytest.mark.parametrize("given", [["--config-file", "/x"], ["--config-file=/x"]])
def test_the_candidate_takes_the_place_of_the_daemons_own_file(given: list[str]) -> None:
    assert docker_rules.flags(["dockerd", "-H", "fd://", *given, "--debug"]) == ["-H", "fd://", "--debug"]
