"""k0s: which file it manages, and where its drop-in goes."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.containerd.distributions.k0s import K0S
from toolkit_installer.errors import ConfigurationError

ROOT, GENERATED = "/etc/k0s/containerd.toml", "/run/k0s/containerd-cri.toml"
MANAGED = b"# k0s_managed=true\nversion = 3\n"


@pytest.mark.parametrize("config", [ROOT, GENERATED], ids=["its own", "the generated one"])
def test_the_drop_in_is_beside_the_managed_file_whichever_was_started_with(config: str) -> None:
    layout = K0S.layout({ROOT: MANAGED, GENERATED: b"version = 2\n"}.get, config)
    assert layout is not None
    assert (layout.generated, layout.source, layout.version) == (ROOT, GENERATED, 3)
    assert layout.drop_in == "/etc/k0s/containerd.d/99-nvidia.toml"
    assert layout.reloads_itself


def test_a_managed_file_elsewhere_has_its_drop_ins_there() -> None:
    layout = K0S.layout({"/srv/c.toml": b"\n" + MANAGED}.get, "/srv/c.toml")
    assert layout is not None
    assert layout.drop_in == "/srv/containerd.d/99-nvidia.toml"


@pytest.mark.parametrize("content", [b"version = 3\n", b"version = 3\n# k0s_managed=true\n", b""])
def test_a_file_that_an_operator_wrote_is_none_of_k0s(content: bytes) -> None:
    assert K0S.layout({ROOT: content}.get, ROOT) is None


def test_a_file_that_is_not_there_is_refused_where_k0s_will_write_it_alone() -> None:
    for config in (ROOT, GENERATED):
        with pytest.raises(ConfigurationError, match="k0s has not made it yet") as refused:
            K0S.layout(lambda _: None, config)
        assert refused.value.path == ROOT
    assert K0S.layout(lambda _: None, "/etc/containerd/config.toml") is None


def test_a_version_that_nobody_knows_is_refused_with_the_managed_file() -> None:
    with pytest.raises(ConfigurationError, match="of version 9") as refused:
        K0S.layout({ROOT: MANAGED.replace(b"3", b"9")}.get, GENERATED)
    assert refused.value.path == ROOT


def test_its_containerd_is_told_by_its_program_and_by_its_folder() -> None:
    assert K0S.started_by("/var/lib/k0s/bin/containerd") == ROOT
    assert K0S.started_in("/var/lib/k0s/containerd") == ROOT
    assert K0S.started_in("/var/lib/k0s/containerd/below") is None
    assert K0S.started_by("/usr/bin/containerd") is None
