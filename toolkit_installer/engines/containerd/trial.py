"""What a running containerd's own binary makes of configurations: the one that stands there, and the one to come."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Remove, Set
from toolkit_installer.engines.api import Goal, Goals
from toolkit_installer.engines.common import trial
from toolkit_installer.engines.containerd import files, started
from toolkit_installer.engines.containerd.tables import IMPORTS, MARKER
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, read_as, root_of

DEFAULT_CONFIG = "/etc/containerd/config.toml"
"""What a containerd without --config reads."""


def try_out(  # the files, what they import, and who is asked
    node: Node,
    process: Process,
    root: Goal,
    drop_in: Goal,
    goals: Goals,
    imported: Sequence[tuple[bytes, bytes]],
) -> None:
    """Let the binary print what it makes of the files, before and after, and compare. Raises ConfigurationError.

    `imported`: what the root imports, without us and with us, in the order in which it is read.
    """
    programs, binary = node.programs, process.executable
    # the file that was named, where its own command line is wiped
    place = started.config_or(process, root.path if process.hidden else DEFAULT_CONFIG)
    old, new = (_absolute(content or b"", place) for content in (root.base, root.target))
    before, words = trial.containerd_dump(programs, binary, old)
    if before is None:
        if trial.containerd_dump(programs, binary, b"")[0] is None:
            return  # it cannot be asked
        raise _would_not_start(trial.shown(words, old), root.path)
    if (missing := _missing(process, place, old, but=drop_in.path)) is not None:
        raise _would_not_start(trial.shown(missing), root.path)
    given = None
    if any(base != target for base, target in imported):
        texts = [root.target or b"", *(target for _, target in imported)]
        after, words = trial.containerd_dump_of_all(programs, binary, list(map(_without_imports, texts)))
    elif drop_in.target is None or drop_in.target == drop_in.base:
        given = new
        after, words = trial.containerd_dump(programs, binary, new)
    else:
        after, words = trial.containerd_dump_of_all(programs, binary, [old, drop_in.target])
    losses = trial.containerd_losses(before, after, dict(goals.served), goals.default) if after is not None else []
    if after is None or losses:
        wrong = trial.shown(words, given) if after is None else trial.shown("; ".join(losses))
        raise ConfigurationError(
            f"containerd's own binary ({binary}) would not serve the new configuration: {wrong}",
            path=root.path,
            hint="nothing was changed; look at what `containerd config dump` says to this file",
        )


def refusal(node: Node, process: Process) -> str | None:
    """Return why this containerd would not start again with what it would read now; None if nothing is known."""
    programs, binary = node.programs, process.executable
    try:
        if not started.is_known(process):
            return None
        given = started.told_config(process)
        place = given or DEFAULT_CONFIG
        content = read_as(process, place)
        if content is None and given is None:
            return None  # the daemon does without its usual file; `config dump` does not
        after, words = trial.containerd_dump_of(programs, binary, place)
        if after is None:
            return words if trial.containerd_dump(programs, binary, b"")[0] is not None else None
        return _missing(process, place, content or b"")
    except ConfigurationError as error:
        return str(error)


def _would_not_start(words: str, path: str) -> ConfigurationError:
    """Return the error that says so in `words` for people."""
    return ConfigurationError(
        f"containerd runs, and would not start again with what its files say without us: {words}",
        path=path,
        hint="nothing was changed; correct what it names: any restart of containerd would fail",
    )


def _missing(process: Process, path: str, content: bytes, but: str | None = None) -> str | None:
    """Return in words which file the daemon's files name and do not find. Some binaries dump as if it were there.

    2.1 and 2.4 do, and the daemon then exits. Raises ConfigurationError, NodeError.
    """
    names = frozenset() if but is None else frozenset({but})
    missing = files.read(Reader(root_of(process)), path, content, names).missing
    if not missing:
        return None
    importer = "it" if missing[0].importer == path else missing[0].importer
    return f"{importer} imports {missing[0].path}, which is not there"


def _absolute(content: bytes, place: str) -> bytes:
    """Return the text with its imports as they are meant in `place`: the binary reads it from elsewhere."""
    patterns = files.imports(content, place)
    if patterns == toml_document.parse(content).get("imports", []):
        return content
    return toml_document.edit(content, [Set(IMPORTS, patterns)], marker=MARKER)


def _without_imports(content: bytes) -> bytes:
    return toml_document.edit(content, [Remove(IMPORTS)], marker=MARKER)
