"""Which CDI specifications a release reads: one that is too new for it would be skipped, and no container had a GPU.

The first release that reads a version, and the last one before it, by their own go.mod, vendor.mod or release notes.
"""

from __future__ import annotations

import pytest

from toolkit_installer.engines import registry
from toolkit_installer.settings import EngineName

CONTAINERD, DOCKER, CRIO = EngineName.CONTAINERD, EngineName.DOCKER, EngineName.CRIO


@pytest.mark.parametrize(
    "name, release, version",
    [
        *[(CONTAINERD, "1.6.36", None), (CONTAINERD, "v1.7.0", (0, 5)), (CONTAINERD, "1.7.11", (0, 5))],
        *[(CONTAINERD, "1.7.12", (0, 6)), (CONTAINERD, "1.7.15", (0, 6)), (CONTAINERD, "1.7.16", (0, 7))],
        *[(CONTAINERD, "1.7.24~ds1", (0, 7)), (CONTAINERD, "2.0.0", (0, 8)), (CONTAINERD, "2.0.7", (0, 8))],
        *[(CONTAINERD, "2.1.0", (1, 0)), (CONTAINERD, "2.1.4-k3s1", (1, 0)), (CONTAINERD, "2.3.9", (1, 0))],
        *[(CONTAINERD, "2.4.0", (1, 1)), (CONTAINERD, "2.4.1", (1, 1)), (CONTAINERD, "main", None)],
        *[(DOCKER, "24.0.9", None), (DOCKER, "25.0.0", (0, 6)), (DOCKER, "26.0.2", (0, 6))],
        *[(DOCKER, "26.1.0", (0, 7)), (DOCKER, "28.5.2", (0, 7)), (DOCKER, "library-import", None)],
        *[(CRIO, "1.22.5", None), (CRIO, "1.23.0", (0, 3)), (CRIO, "1.25.5", (0, 3)), (CRIO, "1.26.0", (0, 5))],
        *[(CRIO, "1.29.13", (0, 5)), (CRIO, "1.30.0", (0, 7)), (CRIO, "1.33.6", (0, 7)), (CRIO, "1.34.0", (1, 0))],
        (CRIO, "1.34", (1, 0)),
    ],
)
def test_a_release_is_given_no_specification_that_is_newer_than_it_knows(
    name: EngineName, release: str, version: registry.CdiVersion | None
) -> None:
    assert registry.newest_cdi_version(name, release) == version


@pytest.mark.parametrize("name, release", [(CONTAINERD, "1.7"), (DOCKER, "25.0"), (CRIO, "1.23")])
def test_who_has_an_engine_without_cdi_is_told_which_release_has_it(name: EngineName, release: str) -> None:
    assert registry.first_cdi_release(name) == release
