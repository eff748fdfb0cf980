"""What a change of the node may need is imported before the change begins.

A start imports what it needs at once, and leaves the rest: most find nothing to do. But half-way through a change the
program's own files may be gone, with an image that is removed or a disk that fails, and what was to be imported then
would leave the node as it is at that instant. So whoever is about to change something calls `everything` first.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Collection, Iterator

import toolkit_installer
from toolkit_installer import lazy, log
from toolkit_installer.engines import registry
from toolkit_installer.settings import EngineName

_OTHERS = (
    "encodings.ascii",  # of what the kernel tells of open files; Python loads these when they are named
    "encodings.unicode_escape",  # of what others wrote, in a log line
    "encodings.utf_8_sig",  # of the payload's config.toml
    "importlib.util",  # of what starts the idle process, and the one that serves metrics
    "traceback",  # what log.py says of an exception
    "tomlkit.exceptions",  # what config.toml is written with
)
"""What functions import of other packages. A unit test holds this to all functions of the program."""

_OF_CHILDREN = frozenset(
    f"toolkit_installer.{name}"
    for name in (
        "engines.common.cri_canary",
        "engines.common.cri_child",
        "engines.common.cri_pb2",
        "waiting.plugin_log",
        "waiting.plugin_process",
    )
)
"""Programs of their own: the first bring gRPC along, whose threads are not for the process that starts programs."""

_OF_OTHER_COMMANDS = {
    "cli": (
        "capture_workers",
        "compare",
        "completion",
        "files",
        "replay",
        "show_detect",
        "show_diagnose",
        "show_plan",
        "show_status",
    ),
    "fleet": ("archive", "compare", "forecast", "masking", "record", "seams", "values"),
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
OF_OTHER_COMMANDS = frozenset(
    f"toolkit_installer.{room}.{name}" for room, names in _OF_OTHER_COMMANDS.items() for name in names
) | {"toolkit_installer.fleet"}
"""What commands that change nothing are made of: no other module imports any of these."""

CHOSEN_BEFORE = {
    "toolkit_installer.kubernetes.": "toolkit_installer.kubernetes.client",
    "toolkit_installer.reporting.cluster.": "toolkit_installer.kubernetes.client",
    "toolkit_installer.reporting.metrics": "toolkit_installer.reporting.metrics",
    "toolkit_installer.waiting.plugin.": "toolkit_installer.waiting.plugin",
    "toolkit_installer.waiting.child_process.": "toolkit_installer.waiting.child_process",
}
"""What a run asks the cluster with, and whom it tells what it does, are made before it looks at the node (`Instance`).

Where the module on the right was not imported by then, nobody is asked or told, and nothing on the left is used.
"""

_OF_THE_PLUGIN = "toolkit_installer.nri."
"""What the engine asks of a plugin changes nothing of the node."""

_JSON = "toolkit_installer.documents.json_"
"""What the files of the engines in APART are written with, and no other's."""

APART = (EngineName.DOCKER, EngineName.CRIO)
"""The engines of whose packages nothing is imported but for their own sake; containerd's files others look at too."""

_BY_NAME = _OF_CHILDREN | OF_OTHER_COMMANDS
_SUFFIXES = ("py", "pyc")
"""Of a module's file. A package may have been stripped of what its bytecode was made of."""


@functools.cache
def everything(engines: frozenset[EngineName] | None = None) -> None:
    """Import all of this program that a change may need, and what its functions import late. Changes nothing.

    `engines` are those that may have to be asked, None where that is not known: what docker is asked with takes a third
    of a first install, and no other engine needs it.
    """
    log.set_up()
    others = [name for name in APART if engines is not None and name not in engines]
    left_out = tuple(_left_out(others))
    own = [
        name
        for folder in toolkit_installer.__path__
        for name in _modules(folder, toolkit_installer.__name__)
        if name not in _BY_NAME and not f"{name}.".startswith(left_out)
    ]
    asked_with = [name for row in registry.ENGINES if engines is None or row.name in engines for name in row.asked_with]
    with lazy.deferred_patterns():
        for name in (*own, *_OTHERS, *asked_with):
            importlib.import_module(name)
    lazy.load_all()


def _modules(folder: str, package: str) -> Iterator[str]:
    """Yield the names of all modules of a package, which is in this folder, by the files that they are in.

    pkgutil.walk_packages does the same for every kind of package, and takes a thirtieth of a first install for it.
    """
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        stem, _, extension = entry.name.rpartition(".")
        if extension in _SUFFIXES:
            yield package if stem == "__init__" else f"{package}.{stem}"
        elif entry.name.isidentifier() and entry.name != "__pycache__" and entry.is_dir():
            yield from _modules(entry.path, f"{package}.{entry.name}")


def _left_out(others: Collection[EngineName]) -> Iterator[str]:
    """Yield what the names begin with, a dot behind each, of the modules that are not needed: `others` are engines."""
    yield _OF_THE_PLUGIN
    yield from (f"toolkit_installer.engines.{name}." for name in others)
    if len(others) == len(APART):
        yield _JSON
    yield from (part for part, key in CHOSEN_BEFORE.items() if key not in sys.modules)
