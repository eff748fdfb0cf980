"""Which containers get which devices, and which engines are served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.nri.decision import (
    DOMAIN,
    MAX_ANNOTATION_BYTES,
    ContainerRequest,
    DevicesRefused,
    Granted,
    Policy,
    Withheld,
    decide,
    find_engine_refusal,
)

POD, BARE, MAIN = f"{DOMAIN}/pod", DOMAIN, f"{DOMAIN}/container.main"
STRICT = Policy(frozenset({"gpu-operator", "kube-system"}), frozenset({"example.com/mgmt"}))
LENIENT = STRICT._replace(lenient=True)
EVERY_GPU = "management.nvidia.com/gpu=all"


def asked(annotations: dict[str, str], namespace: str = "default") -> ContainerRequest:
    return ContainerRequest(namespace, "train", "main", annotations)


@pytest.mark.parametrize("policy", [STRICT, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize(
    "annotations, devices",
    [
        ({}, ()),
        ({"nvidia.com/other": "nvidia.com/gpu=0"}, ()),
        ({f"{DOMAIN}/container.other": "nvidia.com/gpu=0"}, ()),
        ({BARE: "nvidia.com/gpu=0"}, ("nvidia.com/gpu=0",)),
        ({POD: "nvidia.com/gpu=0,nvidia.com/gpu=1"}, ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        ({MAIN: "nvidia.com/gpu=2", POD: "nvidia.com/gpu=0", BARE: "nvidia.com/gpu=1"}, ("nvidia.com/gpu=2",)),
        ({POD: "nvidia.com/gpu=0", BARE: "nvidia.com/gpu=1"}, ("nvidia.com/gpu=0",)),
        ({MAIN: "nvidia.com/gpu=2", BARE: EVERY_GPU}, ("nvidia.com/gpu=2",)),
    ],
)
def test_the_annotation_that_is_closest_to_the_container_counts(
    policy: Policy, annotations: dict[str, str], devices: tuple[str, ...]
) -> None:
    assert decide(asked(annotations), policy) == Granted(devices)


@pytest.mark.parametrize("kind", ["management.nvidia.com/gpu", "example.com/mgmt"])
@pytest.mark.parametrize("among", ["{}=all", "nvidia.com/gpu=0,{}=all", " {}=0", "{}=0;x", "x{}=0"])
def test_management_devices_are_for_the_given_namespaces_alone(kind: str, among: str) -> None:
    value = among.format(kind)
    verdict = decide(asked({BARE: value}), STRICT)
    assert isinstance(verdict, DevicesRefused)
    for words in (BARE, kind, "gpu-operator, kube-system", "in default", "--nri-management-cdi-device-namespaces"):
        assert words in verdict.reason
    assert isinstance(decide(asked({BARE: value}), LENIENT), Withheld)


@pytest.mark.parametrize("policy", [STRICT, LENIENT], ids=["strict", "lenient"])
@pytest.mark.parametrize("namespace", ["gpu-operator", "kube-system"])
def test_there_they_are_given(namespace: str, policy: Policy) -> None:
    assert decide(asked({POD: EVERY_GPU}, namespace), policy) == Granted((EVERY_GPU,))


def test_nobody_has_them_without_a_namespace_that_was_given() -> None:
    assert isinstance(decide(asked({POD: EVERY_GPU}, ""), Policy(frozenset())), DevicesRefused)


@given(
    st.sampled_from([BARE, POD, MAIN]),
    st.text(max_size=20),
    st.text(max_size=20),
    st.text().filter(lambda namespace: namespace not in STRICT.namespaces),
)
def test_whatever_is_around_it_it_is_not_given_elsewhere(key: str, before: str, after: str, namespace: str) -> None:
    request = asked({key: f"{before}management.nvidia.com/gpu{after}"}, namespace)
    assert isinstance(decide(request, STRICT), DevicesRefused)
    assert isinstance(decide(request, LENIENT), Withheld)


@pytest.mark.parametrize("name", ["0", "nvidia.com/gpu", "gpu=0", "nvidia.com/gpu=", "a b/c=d", "nvidia.com/gpu=0/1"])
def test_what_is_no_name_is_refused_with_what_one_looks_like(name: str) -> None:
    verdict = decide(asked({BARE: f"nvidia.com/gpu=0,{name}"}), STRICT)
    assert isinstance(verdict, DevicesRefused)
    assert repr(name) in verdict.reason
    assert "nvidia.com/gpu=0" in verdict.reason


@pytest.mark.parametrize(
    "value, devices",
    [
        ("", ()),
        ("  ", ()),
        (" nvidia.com/gpu=0 , nvidia.com/gpu=1", ("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
        ("nvidia.com/gpu=0,nvidia.com/gpu=0", ("nvidia.com/gpu=0",)),
        ("nvidia.com/gpu=GPU-8b5c:1", ("nvidia.com/gpu=GPU-8b5c:1",)),
    ],
)
def test_a_slip_of_the_pen_is_understood(value: str, devices: tuple[str, ...]) -> None:
    assert decide(asked({BARE: value}), STRICT) == Granted(devices)


@given(st.text(max_size=60).filter(lambda text: "management.nvidia.com/gpu" not in text))
def test_under_the_old_names_the_engine_is_told_what_the_peer_tells_it(value: str) -> None:
    assert decide(asked({BARE: value}), LENIENT) == Granted(tuple(value.split(",")))


@pytest.mark.parametrize("policy", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_an_annotation_that_is_too_long_is_refused(policy: Policy) -> None:
    verdict = decide(asked({BARE: "nvidia.com/gpu=0," * (MAX_ANNOTATION_BYTES // 17 + 1)}), policy)
    assert isinstance(verdict, DevicesRefused)
    assert len(verdict.reason) < 200


@pytest.mark.parametrize("policy", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_as_many_commas_as_kubernetes_takes_are_refused_unread(policy: Policy) -> None:
    verdict = decide(asked({BARE: "," * 262_000}), policy)
    assert verdict == DevicesRefused(f"the annotation {BARE} has more than 65536 bytes")


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
