"""microk8s: the template of its containerd.toml is edited in place, whichever file was named."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.containerd.distributions.microk8s import MICROK8S
from toolkit_installer.errors import ConfigurationError

CURRENT, REVISION = "/var/snap/microk8s/current/args", "/var/snap/microk8s/8511/args"
TEMPLATE, GENERATED = "containerd-template.toml", "containerd.toml"


@pytest.mark.parametrize("folder", [CURRENT, REVISION, "/mounted"])
def test_the_template_is_the_file_that_is_read_and_edited(folder: str) -> None:
    template = f"{folder}/{TEMPLATE}"
    layout = MICROK8S.layout({template: b'version = 2\nroot = "${SNAP_COMMON}"\n'}.get, template)
    assert layout is not None
    assert (layout.drop_in, layout.source, layout.in_place) == (template, template, True)
    assert (layout.generated, layout.version) == (f"{folder}/{GENERATED}", 2)


@pytest.mark.parametrize("folder", [CURRENT, REVISION])
def test_the_generated_file_leads_to_the_template_beside_it(folder: str) -> None:
    layout = MICROK8S.layout({f"{folder}/{TEMPLATE}": b"version = 3\n"}.get, f"{folder}/{GENERATED}")
    assert layout is not None
    assert layout.drop_in == f"{folder}/{TEMPLATE}"


@pytest.mark.parametrize("config", [f"/etc/containerd/{GENERATED}", f"{CURRENT}/config.toml"])
def test_any_other_file_is_none_of_microk8s(config: str) -> None:
    assert MICROK8S.layout({config: b"version = 2\n"}.get, config) is None


def test_without_its_template_there_is_nothing_to_edit() -> None:
    assert MICROK8S.layout(lambda _: None, f"{CURRENT}/{TEMPLATE}") is None


def test_a_template_of_a_version_that_nobody_knows_is_refused_by_its_path() -> None:
    with pytest.raises(ConfigurationError, match="of version 9") as refused:
        MICROK8S.layout({f"{CURRENT}/{TEMPLATE}": b"version = 9\n"}.get, f"{CURRENT}/{GENERATED}")
    assert refused.value.path == f"{CURRENT}/{TEMPLATE}"


def test_its_containerd_is_told_by_the_snaps_revision_or_by_its_folder() -> None:
    assert MICROK8S.started_with == f"{CURRENT}/{GENERATED}"
    assert MICROK8S.started_by("/snap/microk8s/8511/bin/containerd") == f"{REVISION}/{GENERATED}"
    assert MICROK8S.started_in("/var/snap/microk8s/common/var/lib/containerd") == f"{CURRENT}/{GENERATED}"
    assert MICROK8S.started_by("/usr/bin/containerd") is None
