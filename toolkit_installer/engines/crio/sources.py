"""Where the settings of CRI-O's default runtime are read from, as `--config-source` asks. Reads, never writes.

`command` asks the running CRI-O by the node's own program (`crio status config`), which asks on the socket as we do
where that program cannot; else the program prints what it makes of its files (`crio config`). `file` is all that CRI-O
reads, by our own reading; `file=PATH` is that file alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, lookup
from toolkit_installer.engines.api import Live
from toolkit_installer.engines.crio import config as crio_config
from toolkit_installer.engines.crio.places import CrioLive
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.settings import EngineSettings

_FILE = "file"
_SECONDS = 20.0
_NAME = "crio"


class Source(msgspec.Struct, frozen=True):
    """A configuration to take settings from. `name` says in words whose it is."""

    name: str
    content: bytes


class Sources(msgspec.Struct, frozen=True):
    """The first of the sources that could be read (None: our own reading), and why others could not.

    `failed`: none of those that were asked for could.
    """

    source: Source | None = None
    heard: tuple[str, ...] = ()
    failed: bool = False


def read_first(
    node: Node, settings: EngineSettings, live: Live | None, status: Sequence[str], config: Sequence[str]
) -> Sources:
    """Return the first of the sources that says what runtimes there are.

    `status` and `config` are the flags with which `crio status` and `crio config` find the socket and the files.
    Without any source named it is `file`: what CRI-O runs with may not be what it starts with next. Raises
    ConfigurationError for a file that is none, NodeError.
    """
    heard: list[str] = []
    for word in settings.config_sources:
        if word == _FILE:
            return Sources(heard=tuple(heard))
        kind, _, path = word.partition("=")
        found: Source | list[str]
        if kind == _FILE:
            canonical, file = node.locate_file(path)
            found = Source(canonical, file.content) if file is not None else [f"{path} does not exist"]
        else:
            found = _command(node, settings, live, status, config)
        if isinstance(found, Source):
            return Sources(found, tuple(heard))
        heard += found
    return Sources(heard=tuple(heard), failed=bool(heard))


def _command(
    node: Node, settings: EngineSettings, live: Live | None, status: Sequence[str], config: Sequence[str]
) -> Source | list[str]:
    """Return what CRI-O says, or in words why it does not."""
    told = live.config if isinstance(live, CrioLive) else None
    binary = _binary(node, settings, live)
    if binary is None:
        return Source("what CRI-O says on its socket", told) if told else [f"no {_NAME} was found on the node"]
    first = _said(node, [binary, "status", *status, "config"])
    if isinstance(first, Source):
        return first
    if told is not None:
        return Source("what CRI-O says on its socket", told)
    second = _said(node, [binary, *config, "config"], complete=False)
    return second if isinstance(second, Source) else [first, second]


def _binary(node: Node, settings: EngineSettings, live: Live | None) -> str | None:
    """Return the program that was named, else the one that runs, else the one in the node's PATH."""
    if settings.executable is not None:
        return settings.executable
    process = live.process if live is not None else None
    return process.executable if process is not None else node.programs.find_program(_NAME)


def _said(node: Node, command: Sequence[str], *, complete: bool = True) -> Source | str:
    """Return the configuration that a program prints, or in words why there is none.

    `complete`: it has what is built in, and so some runtime. `crio config` leaves that out.
    """
    words = f"`{' '.join(command)}`"
    try:
        done = node.programs.run(command, seconds=_SECONDS)
    except ProgramError as error:
        return f"{words}: {error.reason}"
    if done.status != 0:
        last = done.errors.splitlines()[-1:]
        return ": ".join([f"{words} ended with {done.status}", *last])
    try:
        named = lookup(toml_document.parse(done.output), crio_config.RUNTIMES)
    except DocumentError as error:
        return f"{words} prints no configuration: {error.reason}"
    if complete and not isinstance(named, dict):
        return f"{words} names no runtimes"
    return Source(words, done.output)
