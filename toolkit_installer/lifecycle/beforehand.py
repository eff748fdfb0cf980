"""What a change of the node may need is imported before the change begins.

A start imports what it needs at once, and leaves the rest: most find nothing to do. But half-way through a change the
program's own files may be gone, with an image that is removed or a disk that fails, and what was to be imported then
would leave the node as it is at that instant. So whoever is about to change something calls `everything` first.
"""

from __future__ import annotations

import importlib

from toolkit_installer import log
from toolkit_installer.engines import registry
from toolkit_installer.engines.adapters import adapter_of

_MODULES = (
    "encodings.ascii",  # of what the kernel tells of open files; Python loads it when it is named
    "traceback",  # what log.py says of an exception
    "toolkit_installer.documents.secrets",
    "toolkit_installer.driver.cdi",
    "toolkit_installer.engines.common.trial",
    "toolkit_installer.engines.containerd.distributions.rancher_layout",
    "toolkit_installer.engines.containerd.started",
    "toolkit_installer.lifecycle.apply",
    "toolkit_installer.lifecycle.revert.request",
    "toolkit_installer.lifecycle.revert.uninstall",
    "toolkit_installer.lifecycle.versions",
    "toolkit_installer.toolkit.toml_put",
)


def everything() -> None:
    """Import what a change, or its way back, imports late. Changes nothing."""
    log.set_up()
    for name in registry.names():
        adapter_of(name)  # it is imported by being asked for
    for module in _MODULES:
        importlib.import_module(module)
