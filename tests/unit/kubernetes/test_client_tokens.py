"""What a token says of itself is read, whatever it is, and believed of nothing but its times."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import ACCOUNT, token
from toolkit_installer.kubernetes.client import Bearer, parse_bearer


def made(claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2lnbmF0dXJl"


def test_whose_it_is_and_how_long_it_is_good() -> None:
    found = parse_bearer(token(exp=1_800_003_607, nbf=1_800_000_000, iat=1_800_000_000))
    assert found == Bearer(f"{ACCOUNT} 1 2", 1_800_000_000, 1_800_003_607)


def test_one_that_a_secret_keeps_never_ends() -> None:
    found = parse_bearer(made({"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:a:b"}))
    assert found == Bearer("system:serviceaccount:a:b")
    assert found.good(0.0, 1e12)


@pytest.mark.parametrize("changed", ["sub", "serviceaccount", "pod"])
def test_another_one_is_another_identity(changed: str) -> None:
    bound = {"serviceaccount": {"uid": "1"}, "pod": {"uid": "2"}}
    other = {"sub": "b", "kubernetes.io": bound} if changed == "sub" else None
    first = made({"sub": "a", "kubernetes.io": bound})
    second = made(other or {"sub": "a", "kubernetes.io": bound | {changed: {"uid": "9"}}})
    found, again = parse_bearer(first), parse_bearer(second)
    assert found is not None
    assert again is not None
    assert found.identity != again.identity


@pytest.mark.parametrize(
    "clocks, good",
    [((100, 100), True), ((39, 100), False), ((40, 100), True), ((100, 200), False), ((200, 100), False)],
)
def test_it_is_good_on_all_clocks_or_not_at_all(clocks: tuple[float, float], *, good: bool) -> None:
    assert Bearer("a", 100, 200).good(*clocks) is good


@pytest.mark.parametrize(
    "text",
    [
        *("", "opaque", "a.b", "a.b.c", "a.b.c.d", "..", made([1]), made({}), made({"sub": ""}), made({"sub": 1})),
        *(made({"sub": "a", "exp": "soon"}), made({"sub": "a", "exp": True}), made({"sub": "a", "nbf": [1]})),
        f"e30.{base64.urlsafe_b64encode(b'[' * 100_000).decode()}.x",
    ],
)
def test_one_that_does_not_say_is_nobodys(text: str) -> None:
    assert parse_bearer(text) is None


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
claims = st.dictionaries(
    st.sampled_from(["sub", "exp", "nbf", "kubernetes.io"]),
    values | st.dictionaries(st.sampled_from(["serviceaccount", "pod"]), values | st.just({"uid": "1"}), max_size=2),
)


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: made(raw.hex())) | claims.map(made))
def test_whatever_it_is_nothing_is_raised(text: str) -> None:
    found = parse_bearer(text)
    assert found is None or found.good(1.0, 2.0) in (True, False)
