"""What some tests need that not every machine has: they say so and are left out; in CI they fail."""

from __future__ import annotations

import os

import pytest

from tests.support.built import go_tools


@pytest.fixture(scope="session")
def kustomize() -> None:
    """Need the program that renders manifests. It is not built here: a minute of it is more than these tests take."""
    if not go_tools.folder_of(go_tools.KUSTOMIZE).exists():
        assert os.environ.get("CI") != "true", "make check, which builds kustomize, comes first"
        pytest.skip("kustomize is not built: make check does that, with Go")


@pytest.fixture(scope="session")
def helm() -> None:
    """Need the program that renders the chart, likewise."""
    if not go_tools.folder_of(go_tools.HELM).exists():
        assert os.environ.get("CI") != "true", "make check, which builds Helm, comes first"
        pytest.skip("Helm is not built: make check does that, with Go")
