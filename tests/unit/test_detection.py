from __future__ import annotations

import pytest

from toolkit_installer.detection import Evidence, Seen, choose, endpoint_of
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.settings import EngineName

DOCKER = Evidence(EngineName.DOCKER, "docker answers")
CONTAINERD = Evidence(EngineName.CONTAINERD, "containerd answers")


@pytest.mark.parametrize(
    "seen,engine",
    [
        (Seen(kubelet=(CONTAINERD,), live=(DOCKER, CONTAINERD)), EngineName.CONTAINERD),
        (Seen(kubelet=(CONTAINERD,), live=(DOCKER,)), EngineName.CONTAINERD),
        (Seen(live=(DOCKER,), files=(DOCKER, CONTAINERD)), EngineName.DOCKER),
        (Seen(live=(CONTAINERD,), files=(DOCKER,)), EngineName.CONTAINERD),
        (Seen(files=(CONTAINERD,)), EngineName.CONTAINERD),
    ],
)
def test_the_kubelets_choice_outweighs_a_live_engine_and_that_one_a_file(seen: Seen, engine: EngineName) -> None:
    assert choose(seen).engine is engine


@pytest.mark.parametrize(
    "seen", [Seen(live=(DOCKER, CONTAINERD)), Seen(files=(DOCKER, CONTAINERD)), Seen(kubelet=(DOCKER, CONTAINERD))]
)
def test_two_engines_of_equal_weight_are_an_error_that_lists_both(seen: Seen) -> None:
    with pytest.raises(ConfigurationError, match="docker answers; containerd answers") as caught:
        choose(seen)
    assert "--runtime" in str(caught.value.hint)


def test_a_node_without_any_engine_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no engine was found"):
        choose(Seen())


@pytest.mark.parametrize(
    "arguments,endpoint",
    [
        (["kubelet", "--container-runtime-endpoint=unix:///run/c.sock"], "unix:///run/c.sock"),
        (["kubelet", "--container-runtime-endpoint", "/run/c.sock", "--v=2"], "/run/c.sock"),
        (["kubelet", "--container-runtime-endpoint"], None),
        (["kubelet"], None),
    ],
)
def test_the_kubelets_endpoint_is_read_in_both_spellings(arguments: list[str], endpoint: str | None) -> None:
    assert endpoint_of(arguments) == endpoint
