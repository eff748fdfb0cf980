"""One taint among a node's, whose list is replaced as a whole: there is no other way to change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit_installer.cluster_settings import Taint

READY_IN = "toolkit-installer/ready-in-boot"
"""The annotation of a node that says in which boot it was ready: a taint that comes later is somebody else's word."""

Object = Mapping[str, Any]


def is_there(node: Object, taint: Taint) -> bool:
    """Tell whether the node has the taint; its value does not count."""
    return any(_is(each, taint) for each in _of(node))


def boot_of(node: Object) -> str | None:
    """Return the boot in which the node was said to be ready, None where it was not."""
    annotations = node.get("metadata", {}).get("annotations") or {}
    boot = annotations.get(READY_IN)
    return boot if isinstance(boot, str) else None


def change(node: Object, taint: Taint, *, there: bool, boot: str | None) -> dict[str, Any] | None:
    """Return the merge patch (RFC 7386) after which the node has the taint or not, and `boot` as its annotation.

    None: it is so already. The patch names the version of the node that it was made for, so that the API server refuses
    it where somebody else has changed the node since, and nobody's taint is lost.
    """
    metadata: dict[str, Any] = {}
    body: dict[str, Any] = {"metadata": metadata}
    if is_there(node, taint) is not there:
        others = [each for each in _of(node) if not _is(each, taint)]
        body["spec"] = {"taints": [*others, *([_body(taint)] if there else [])] or None}
    if boot_of(node) != boot:
        metadata["annotations"] = {READY_IN: boot}
    if not metadata and "spec" not in body:
        return None
    metadata["resourceVersion"] = node.get("metadata", {}).get("resourceVersion")
    return body


def _of(node: Object) -> list[Object]:
    return list(node.get("spec", {}).get("taints") or ())


def _is(found: Object, taint: Taint) -> bool:
    return (found.get("key"), found.get("effect")) == (taint.key, taint.effect)


def _body(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}
