"""What dockerd does not take; that it really does not is in the end-to-end tests."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.engines.docker import config as docker_config
from toolkit_installer.engines.docker import config as docker_rules
from toolkit_installer.engines.docker.config import DockerLiveState
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
        docker_rules.refuse_flag_conflicts(b'{\n\n"%s": 1}' % key.encode(), ["/usr/bin/dockerd", *arguments])
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "flag, key",
    [
        ("add-runtime", "runtimes"),
        ("authorization-plugin", "authorization-plugins"),
        ("cdi-spec-dir", "cdi-spec-dirs"),
        ("default-address-pool", "default-address-pools"),
        ("default-network-opt", "default-network-opts"),
        ("default-ulimit", "default-ulimits"),
        ("dns", "dns"),
        ("dns-opt", "dns-opts"),
        ("dns-search", "dns-search"),
        ("exec-opt", "exec-opts"),
        ("feature", "features"),
        ("host", "hosts"),
        ("label", "labels"),
        ("log-opt", "log-opts"),
        ("node-generic-resource", "node-generic-resources"),
        ("registry-mirror", "registry-mirrors"),
        ("storage-opt", "storage-opts"),
    ],
)
def test_a_flag_that_may_be_repeated_is_found_by_the_key_of_all_its_values(flag: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'"{key}" stands here too'):
        docker_rules.refuse_flag_conflicts(b'{"%s": ["x"]}' % key.encode(), ["dockerd", f"--{flag}=x"])


@pytest.mark.parametrize(
    "arguments", [[], ["--config-file", "debug"], ["--label", "debug"], ["--debugging"], ["debug"]]
)
def test_a_flag_of_another_name_is_no_conflict(arguments: list[str]) -> None:
    docker_rules.refuse_flag_conflicts(b'{"debug": true, "hosts": []}', ["dockerd", *arguments])


@pytest.mark.parametrize("words", [["--config-file", "/x"], ["--config-file=/x"]])
def test_the_candidate_takes_the_place_of_the_daemons_own_file(words: list[str]) -> None:
    assert docker_rules.list_other_flags(["dockerd", "-H", "fd://", *words, "--debug"]) == ["-H", "fd://", "--debug"]


ALIASES = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
NAMES = st.sampled_from([*ALIASES, "nvidia", "crun"])
OLD = ["20.10.24+dfsg1", "19.03.15", "23.0.6", "24.0.9", "", "dev", "0.0.0-20260101"]
NEW = ["25.0.0", "26.1.5+dfsg1", "28.5.2+dfsg4", "100.1"]


def panics(content: bytes) -> bool:
    """Tell whether a dockerd 20.10 that has its aliases still panics when it is signalled on a text that names both."""
    document = json.loads(content)
    runtimes = {"runc", *document["runtimes"]}
    default = document["default-runtime"]
    # one that it knows neither by itself nor from the file makes it reject the file
    return default in ALIASES and default not in runtimes


@given(
    st.one_of(st.none(), st.dictionaries(NAMES, st.just({"path": "/usr/bin/x"}))),
    st.one_of(st.none(), st.just(""), st.just("runc"), NAMES),
    st.sampled_from(OLD),
)
def test_no_text_on_which_an_old_dockerd_panics_is_one_that_it_may_be_signalled_on(
    runtimes: dict[str, object] | None, default: str | None, version: str
) -> None:
    content = json.dumps({"runtimes": runtimes, "default-runtime": default}).encode()
    release = DockerLiveState(version, {}, None).release
    lost = docker_rules.find_deadly_default(content, release)
    assert (lost is not None) == panics(docker_config.make_explicit(content))
    assert lost in (None, default)


@pytest.mark.parametrize("version", NEW)
@pytest.mark.parametrize("alias", ALIASES)
def test_a_dockerd_that_keeps_its_aliases_may_be_signalled_with_one_for_its_default(version: str, alias: str) -> None:
    DockerLiveState(version, {}, None).refuse_signal(json.dumps({"default-runtime": alias}).encode())


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"default-runtime": "runc"}', b'{"runtimes": {}}'])
def test_an_old_dockerd_may_be_signalled_on_a_file_without_an_alias(content: bytes | None) -> None:
    DockerLiveState("20.10.24", {}, None).refuse_signal(content)


@pytest.mark.parametrize("version", OLD)
def test_a_default_that_ends_dockerd_at_a_signal_is_refused_with_its_line(version: str) -> None:
    content = b'{\n"debug": true,\n"default-runtime": "io.containerd.runc.v2"}'
    with pytest.raises(ConfigurationError, match=r"'io\.containerd\.runc\.v2'") as caught:
        DockerLiveState(version, {}, None).refuse_signal(b'{"default-runtime":"io.containerd.runc.v2"}', content)
    assert caught.value.line == 3
    assert "--restart-mode systemd --allow-restart" in str(caught.value.hint)
    assert "--restart-mode none" in str(caught.value.hint)


@pytest.mark.parametrize(
    "content, starts",
    [
        (b'{"a": 1,}', False),
        (b"[]", False),
        (b"\xef\xbb\xbf{}", True),
        (b"", True),
        (b'{"runtimes": {"a": {"path": "/a"}}, "runtimes": {"b": {"path": "/b"}}, "default-runtime": "a"}', True),
        (b'{"Runtimes": {"a": {"path": "/a"}}, "default-runtime": "a"}', True),
        (b'{"runtimes": [], "default-runtime": "a"}', False),
        (b'{"runtimes": {"a": 1}}', False),
        (b'{"runtimes": {"runc": {"path": "/a"}}}', False),
        (b'{"default-runtime": "gone"}', False),
        (b'{"default-runtime": "io.containerd.runc.v2"}', True),
        (b'{"default-runtime": 1}', False),
        (b"[" * 100_000, False),
    ],
)
def test_a_file_that_is_refused_may_be_one_that_dockerd_starts_with(content: bytes, *, starts: bool) -> None:
    assert docker_rules.is_accepted(content) is starts
