"""The list of the distributions that generate their containerd's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer.engines.containerd.distributions.k0s import K0S
from toolkit_installer.engines.containerd.distributions.microk8s import MICROK8S
from toolkit_installer.engines.containerd.distributions.rancher import K3S, RKE2
from toolkit_installer.engines.containerd.layouts import GeneratingDistribution, ReadContent

if TYPE_CHECKING:
    from toolkit_installer.engines.containerd.layouts import Layout

DISTRIBUTIONS: tuple[GeneratingDistribution, ...] = (K3S, RKE2, K0S, MICROK8S)
"""Ordered: a distribution comes before those that it could be mistaken for."""


def layout_of(read: ReadContent, config: str) -> Layout | None:
    """Return the layout of the distribution whose containerd is started with `config`, None if it is no distribution's.

    Raises ConfigurationError for a distribution whose files cannot be determined yet.
    """
    layouts = (distribution.layout(read, config) for distribution in DISTRIBUTIONS)
    return next((layout for layout in layouts if layout is not None), None)
