"""What a running containerd's own binary makes of configurations: the one that stands there, and the one to come."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Remove, Set, Table, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState
from toolkit_installer.engines.common import command_line, trial
from toolkit_installer.engines.containerd import config, files, root_file, templates
from toolkit_installer.engines.containerd.config import Part
from toolkit_installer.engines.containerd.files import Imported
from toolkit_installer.engines.containerd.inspection import (
    CONFIG,
    DROP_IN_ROLE,
    ROOT_ROLE,
    ContainerdInspection,
    Placed,
)
from toolkit_installer.engines.containerd.layouts import TEMPLATE_ROLES, Layout
from toolkit_installer.engines.containerd.tables import IMPORTS, runtimes_in, shape
from toolkit_installer.engines.ownership import MARKER
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, read_as, root_of


def try_out(node: Node, inspection: ContainerdInspection, desired: DesiredState) -> None:
    """Let the binary print what it makes of the files, before and after, and compare. Raises ConfigurationError."""
    process = inspection.process
    if process is None:
        return
    if inspection.placed is not None:
        _try_placed(node, process, inspection.placed, desired)
        return
    programs, binary = node.programs, process.executable
    by_role = {wanted.role: wanted for wanted in desired.files}
    root, drop_in = (by_role.get(role) or _unchanged(inspection, role) for role in (ROOT_ROLE, DROP_IN_ROLE))
    imported = [_without_and_with_us(inspection, each, by_role) for each in inspection.graph]
    place = root_file.config_of(process, CONFIG) or root.path  # the one that was named, where it is not seen
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
        texts = [toml_document.edit(text, [Remove(IMPORTS)], marker=MARKER) for text in texts]
        after = trial.containerd_dump_of_all(programs, binary, texts)
    elif drop_in.target is None or drop_in.target == drop_in.base:
        given = new
        after = trial.containerd_dump(programs, binary, new)
    else:
        after = trial.containerd_dump_of_all(programs, binary, [old, drop_in.target])
    if (wrong := _wrong(before, after, desired, given)) is not None:
        raise ConfigurationError(
            f"containerd's own binary ({binary}) would not serve the new configuration: {wrong}",
            path=root.path,
            hint="nothing was changed; look at what `containerd config dump` says to this file",
        )


def _unchanged(inspection: ContainerdInspection, role: str) -> DesiredFile:
    """Return a file that stays as it is: of one that nothing of ours is in, nothing is desired where handlers go."""
    file = next(file for file in inspection.files if file.role == role)
    return DesiredFile(file, file.content, file.content)


def _without_and_with_us(
    inspection: ContainerdInspection, each: Imported, desired: Mapping[str, DesiredFile]
) -> tuple[bytes, bytes]:
    """Return what an imported file says without us and with us."""
    role = inspection.role_of(each)
    wanted = desired.get(role)
    without, with_us = (wanted.base or b"", wanted.target or b"") if wanted is not None else (each.content,) * 2
    return (with_us, with_us) if role == ROOT_ROLE else (without, with_us)


def _try_placed(node: Node, process: Process, placed: Placed, desired: DesiredState) -> None:
    """Compare what the binary makes of the generated file with what it would make of it with the additions."""
    target = next((wanted for wanted in desired.files if wanted.target != wanted.base), None)
    if target is None or placed.content is None:
        return
    changed = _with_additions(placed.content, placed.layout, target)
    before, _ = trial.containerd_dump(node.programs, process.executable, placed.content)
    if before is None:
        return  # it cannot be asked, or fails on what it runs with, which it makes anew
    after = trial.containerd_dump(node.programs, process.executable, changed)
    if (wrong := _wrong(before, after, desired, changed)) is not None:
        made = placed.layout.generated
        raise ConfigurationError(
            f"containerd's own binary ({process.executable}) would not serve the additions: {wrong}",
            path=target.path,
            hint=f"nothing was changed; look at what `containerd config dump` says to {made} with them",
        )


def _wrong(before: Table, after: tuple[Table | None, str], desired: DesiredState, given: bytes | None) -> str | None:
    """Return for people what speaks against the desired state, None if nothing does. `given`: what was read."""
    table, words = after
    if table is None:
        return trial.shown(words, given)
    losses = trial.containerd_losses(before, table, dict(desired.served), desired.default)
    return trial.shown("; ".join(losses)) if losses else None


def _with_additions(content: bytes, layout: Layout, target: DesiredFile) -> bytes:
    """Return the generated file with what the target adds, as the engine will read both together."""
    plugin = layout.plugin
    if target.role not in TEMPLATE_ROLES:
        added = toml_document.parse(target.target or b"")
    else:
        present = frozenset(runtimes_in(layout.document(content, ""), plugin))
        added = templates.meaning(target.target or b"", present)
    default = lookup(added, shape(plugin).default)
    made = tuple(runtimes_in(added, plugin).items())
    part = Part(plugin, made, default if isinstance(default, str) else None)
    return config.with_us(content, [part])[0]


def refusal(node: Node, process: Process) -> str | None:
    """Return why this containerd would not start again with what it would read now; None if nothing is known."""
    programs, binary = node.programs, process.executable
    try:
        given = root_file.told_config(process)
        place = given or CONFIG
        content = read_as(process, place)
        if content is None and given is None:
            return None  # the daemon does without its usual file; `config dump` does not
        after, words = trial.containerd_dump(programs, binary, path=place)
        if after is None:
            return words if trial.containerd_dump(programs, binary, b"")[0] is not None else None
        return _missing(process, place, content or b"")
    except command_line.HiddenError:
        return None
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
    _, missing = files.read_imports(Reader(root_of(process)), path, content, names)
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
