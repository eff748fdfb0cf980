"""Preload of the modules that a change of the node may need, before the change begins.

A start imports only what most runs need: most find nothing to do. But half-way through a change the program's own files
may vanish, with an image that is removed or a disk that fails, and a failed import would leave the node half changed.
So every caller that is about to change something first imports the rest here.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Collection, Iterator

import toolkit_installer
from toolkit_installer import log
from toolkit_installer.engines import registry
from toolkit_installer.settings import EngineName

_LATE_IMPORTS = (
    "encodings.ascii",  # decodes the kernel's entries for open files; Python loads codecs on first use
    "encodings.unicode_escape",  # escapes other programs' text in a log line
    "encodings.utf_8_sig",  # decodes the payload's config.toml
    "importlib.util",  # used to start the idle process, and the metrics process
    "traceback",  # formats an exception in log.py
    "tomlkit.exceptions",  # used to write config.toml
)
"""Modules of other packages that functions import late. A unit test holds this to all functions of the program."""

_CHILD_MODULES = frozenset(
    f"toolkit_installer.{name}"
    for name in (
        "engines.common.cri_canary",
        "engines.common.cri_child",
        "engines.common.cri_pb2",
        "waiting.plugin_process",
    )
)
"""Modules of child processes: the first import gRPC, whose threads must stay out of a process that starts programs."""

_READ_ONLY_NAMES = {
    "cli": (
        "capture_workers",
        "compare",
        "completion",
        "files",
        "replay",
        "show_detect",
        "show_plan",
        "show_status",
    ),
    "fleet": ("archive", "capture", "compare", "forecast", "masking", "values"),
    "kubernetes": ("deletion",),
    "reporting": (
        "diagnosis",
        "diagnosis_form",
        "engine_faults",
        "findings",
        "status",
        "status_verdict",
        "support_bundle",
    ),
    "run": ("dry_run", "refresh"),
}
READ_ONLY_MODULES = frozenset(
    f"toolkit_installer.{room}.{name}" for room, names in _READ_ONLY_NAMES.items() for name in names
) | {"toolkit_installer.fleet"}
"""Modules of commands that change nothing: no other module imports any of these."""

OPTIONAL_MODULES = {
    "toolkit_installer.kubernetes.": "toolkit_installer.kubernetes.client",
    "toolkit_installer.reporting.cluster.": "toolkit_installer.kubernetes.client",
    "toolkit_installer.reporting.metrics": "toolkit_installer.reporting.metrics",
    "toolkit_installer.waiting.plugin.": "toolkit_installer.waiting.plugin",
    "toolkit_installer.waiting.child_process.": "toolkit_installer.waiting.child_process",
}
"""Modules that query the cluster or report to it: `Instance` imports those it needs before it inspects the node.

If the module on the right was not imported by then, the run neither queries nor reports, and does not need the modules
that begin with the prefix on the left.
"""

_PLUGIN_PREFIX = "toolkit_installer.nri."
"""The modules that answer the engine's requests to a plugin: they change nothing on the node."""

_JSON_PREFIX = "toolkit_installer.documents.json_"
"""The module that writes the files of docker and CRI-O, and of no other engine."""

SEPARATE_ENGINES = tuple(row.name for row in registry.ENGINES if row.imported_alone)
"""The engines whose packages are imported for that engine alone; containerd's files are inspected for others too."""

_EXCLUDED_MODULES = _CHILD_MODULES | READ_ONLY_MODULES
_SUFFIXES = ("py", "pyc")
"""File name extensions of modules. A package may contain bytecode alone, without its sources."""


@functools.cache
def import_all(engines: frozenset[EngineName] | None = None) -> None:
    """Import every module of this program that a change may need, and the late imports of functions. Changes nothing.

    `engines` are the engines that may have to be queried, None if unknown: docker's client takes a third of a first
    install, and no other engine needs it.
    """
    log.set_up()
    others = [name for name in SEPARATE_ENGINES if engines is not None and name not in engines]
    left_out = tuple(_unneeded_prefixes(others))
    own = [
        name
        for folder in toolkit_installer.__path__
        for name in _modules(folder, toolkit_installer.__name__)
        if name not in _EXCLUDED_MODULES and not f"{name}.".startswith(left_out)
    ]
    client_modules = [
        name for row in registry.ENGINES if engines is None or row.name in engines for name in row.client_modules
    ]
    for name in (*own, *_LATE_IMPORTS, *client_modules):
        importlib.import_module(name)


def _modules(folder: str, package: str) -> Iterator[str]:
    """Yield the names of all modules of the package in `folder`, by their file names.

    pkgutil.walk_packages handles every kind of package, but takes a thirtieth of a first install.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        stem, _, extension = entry.name.rpartition(".")
        if extension in _SUFFIXES:
            yield package if stem == "__init__" else f"{package}.{stem}"
        elif entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir():
            yield from _modules(entry.path, f"{package}.{entry.name}")


def _unneeded_prefixes(others: Collection[EngineName]) -> Iterator[str]:
    """Yield the name prefixes, each ending in a dot, of modules that are not needed: `others` are unused engines."""
    yield _PLUGIN_PREFIX
    yield from (f"toolkit_installer.engines.{name}." for name in others)
    if len(others) == len(SEPARATE_ENGINES):
        yield _JSON_PREFIX
    yield from (part for part, key in OPTIONAL_MODULES.items() if key not in sys.modules)
