"""What a service account's token says of itself: whose it is, and from when to when it is good. Pure.

A token is a JWT (RFC 7519). Nothing here is believed about it but its own times and whose it is: whether it is
accepted is for the API server to say, who alone can check the signature.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

_PARTS = 3
"""Of a signed JWT: header, claims, signature (RFC 7515, 3.1)."""
_LEEWAY_SECONDS = 60.0
"""How far apart the API server lets its clock and a token's times be (go-jose, jwt.DefaultLeeway)."""


class Bearer(msgspec.Struct, frozen=True):
    """Whose token it is, and the seconds since 1970 between which it is good (None: no such limit)."""

    identity: str
    """The subject, and the ids of the ServiceAccount and the pod: those that are made anew are others."""
    begins: float | None = None
    ends: float | None = None

    def good(self, *clocks: float) -> bool:
        """Tell whether the token is good by its own times on all of these clocks."""
        begins = self.begins is None or all(clock >= self.begins - _LEEWAY_SECONDS for clock in clocks)
        return begins and (self.ends is None or all(clock < self.ends for clock in clocks))


def bearer(token: str) -> Bearer | None:
    """Return what a token says of itself; None if that cannot be read, or does not say whose it is.

    The claims of a ServiceAccount's token: `sub`, `exp`, `nbf`, and under `kubernetes.io` the ServiceAccount's and the
    pod's `uid` (k8s.io/kubernetes/pkg/serviceaccount/claims.go). A token that is kept in a Secret has no `exp`, and
    never ends.
    """
    parts = token.split(".")
    if len(parts) != _PARTS:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    if not isinstance(claims, dict):
        return None
    subject, begins, ends = claims.get("sub"), claims.get("nbf"), claims.get("exp")
    if not isinstance(subject, str) or not subject or not (_is_time(begins) and _is_time(ends)):
        return None
    bound = claims.get("kubernetes.io")
    uids = [_uid(bound, name) for name in ("serviceaccount", "pod")]
    return Bearer(" ".join([subject, *uids]).strip(), begins, ends)


def _is_time(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _uid(bound: Any, name: str) -> str:
    """Return the id of the object that the token is bound to, empty where it is bound to none."""
    about = bound.get(name) if isinstance(bound, Mapping) else None
    uid = about.get("uid") if isinstance(about, Mapping) else None
    return uid if isinstance(uid, str) else ""
