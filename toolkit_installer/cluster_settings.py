"""What was asked for that is about the cluster: whom it is asked of, and what it is told. Pure."""

from __future__ import annotations

import msgspec

CONDITION = "nvidia.com/ContainerToolkitReady"
"""The type of the node's condition, unless another one is asked for."""


class ClusterSettings(msgspec.Struct, frozen=True):
    """Where the Kubernetes API server is asked about which DaemonSet and node, before anything is cleaned up."""

    daemon_set: str
    node: str
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class DeletionSettings(msgspec.Struct, frozen=True):
    """Which DaemonSet is to be deleted, and where the Kubernetes API server is told so."""

    daemon_set: str
    """Its name; it is in the namespace of the pod that this runs in."""
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class Taint(msgspec.Struct, frozen=True):
    """A taint of a node. Two are the same taint if key and effect are (core/v1, Taint.MatchTaint)."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class ReportSettings(msgspec.Struct, frozen=True):
    """What the cluster is told of the node, and where."""

    node: str
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""
    daemon_set: str | None = None
    """Whose pod this is; None where nobody said."""
    condition: str | None = None
    """The type of the condition that is kept on the node."""
    taint: Taint | None = None
    """The taint that is taken away once the node is ready."""
    retaint: bool = False
    """Put the taint back whenever the node is not ready."""
    labels: bool = False
    events: bool = False
