"""Which engines are served."""

from __future__ import annotations

import pytest

from toolkit_installer.nri.decision import find_engine_refusal


@pytest.mark.parametrize(
    "name, version",
    [
        ("containerd", "v1.7.30"),
        ("containerd", "1.7.35"),
        ("containerd", "v2.1.0"),
        ("containerd", "2.4.2+unknown"),
        ("containerd", "v2.1.5-k3s1"),
        ("containerd", "v2.2.0-rc.1"),
        ("containerd", "2.10.0~ds1"),
        ("cri-o", "1.34.1"),
        ("cri-o", "1.35.2"),
        ("cri-o", "2.0.0"),
    ],
)
def test_those_that_give_the_devices(name: str, version: str) -> None:
    assert find_engine_refusal(name, version) is None


@pytest.mark.parametrize(
    "name, version",
    [
        ("containerd", "1.6.20~ds1"),
        ("containerd", "v1.7.29"),
        ("containerd", "1.7.24~ds1"),
        ("containerd", "v1.7.27-k3s1"),
        ("containerd", "v1.7.30-rc.0"),
        ("containerd", "v2.0.0"),
        ("containerd", "v2.0.14"),
        ("containerd", "2.0.99-k3s2"),
        ("containerd", "v2.1.0-beta.1"),
        ("cri-o", "1.33.7"),
        ("cri-o", "1.34.0"),
        ("cri-o", "1.34.1-rc.1"),
    ],
)
def test_those_that_leave_them_out_are_refused_with_the_versions_that_do_not(name: str, version: str) -> None:
    reason = find_engine_refusal(name, version)
    assert reason is not None
    assert f"{name} {version}" in reason
    assert ("1.7.30 or 2.1.0" if name == "containerd" else "1.34.1") in reason


@pytest.mark.parametrize("version", ["", "v2", "2.1", "dev", "two.1.0", "2.1.", "1234567890.1.1", "v2.1.0" * 1000])
def test_one_whose_version_cannot_be_read_is_refused(version: str) -> None:
    reason = find_engine_refusal("containerd", version)
    assert reason is not None
    assert "no version that can be read" in reason
    assert len(reason) < 400


@pytest.mark.parametrize("name", ["", "docker", "Containerd", "x" * 1000])
def test_an_engine_that_is_not_known_is_refused(name: str) -> None:
    reason = find_engine_refusal(name, "v2.1.0")
    assert reason is not None
    assert "not known" in reason
    assert len(reason) < 400
