"""The engines' adapters, each imported on first use: a docker node needs no code of containerd's."""

from __future__ import annotations

import functools
import importlib

from toolkit_installer.engines.api import Engine
from toolkit_installer.engines.registry import get_row
from toolkit_installer.settings import EngineName


@functools.cache
def get_adapter(name: EngineName) -> Engine:
    """Return the engine's adapter, the same object on every call."""
    module, _, kind = get_row(name).adapter.partition(":")
    made: Engine = getattr(importlib.import_module(module), kind)()
    return made
