"""Checks the present and the planned configuration with the running containerd's own binary."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import DocumentError, Remove, Set, Table, lookup
from toolkit_installer.engines.api import DesiredFile, DesiredState
from toolkit_installer.engines.common import command_line, reload_method
from toolkit_installer.engines.containerd import config, config_files, templates
from toolkit_installer.engines.containerd.config import TableAdditions
from toolkit_installer.engines.containerd.config_files import ImportedFile
from toolkit_installer.engines.containerd.inspection import (
    CONFIG,
    DROP_IN_ROLE,
    ROOT_ROLE,
    ContainerdInspection,
    DistributionInspection,
)
from toolkit_installer.engines.containerd.layouts import TEMPLATE_ROLES, Layout, NextStart
from toolkit_installer.engines.containerd.tables import FILE_VERSIONS, IMPORTS, build_shape, runtimes_in
from toolkit_installer.engines.containerd.templates import Rendered
from toolkit_installer.engines.ownership import MARKER
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, read_as, root_of
from toolkit_installer.node.reading import Reader

_PROGRAM = "containerd"


def try_out(node: Node, inspection: ContainerdInspection, desired: DesiredState) -> None:
    """Compare what the binary prints for the files before and after the change. Raises ConfigurationError."""
    process = inspection.process
    if inspection.distribution is not None:
        _try_distribution(node, inspection, inspection.distribution, desired)
        return
    if process is None:
        return
    programs, binary = node.programs, process.executable
    by_role = {wanted.role: wanted for wanted in desired.files}
    root, drop_in = (by_role.get(role) or _unchanged_file(inspection, role) for role in (ROOT_ROLE, DROP_IN_ROLE))
    imported = [_without_and_with_us(inspection, each, by_role) for each in inspection.graph]
    place = config_files.find_config_or(process, CONFIG) or root.path  # the named file, if the running one is hidden
    old, new = (_make_imports_absolute(content or b"", place) for content in (root.base, root.target))
    before, words = reload_method.dump_containerd_config(programs, binary, old)
    if before is None:
        if reload_method.dump_containerd_config(programs, binary, b"")[0] is None:
            return  # the binary prints nothing
        raise _would_not_start(reload_method.format_message(words, old), root.path)
    if (missing := _find_missing_import(process, place, old, but=drop_in.path)) is not None:
        raise _would_not_start(reload_method.format_message(missing), root.path)
    given = None
    # the root's pattern would import the drop-in's present content
    imports_drop_in = any(inspection.role_of(each) == DROP_IN_ROLE for each in inspection.graph)
    if (imports_drop_in and drop_in.target != drop_in.file.content) or any(base != target for base, target in imported):
        texts = [root.target or b"", *(target for _, target in imported)]
        texts = [toml_document.edit(text, [Remove(IMPORTS)], marker=MARKER) for text in texts]
        after = reload_method.dump_containerd_files(programs, binary, texts)
    elif drop_in.target is None or drop_in.target == drop_in.base:
        given = new
        after = reload_method.dump_containerd_config(programs, binary, new)
    else:
        after = reload_method.dump_containerd_files(programs, binary, [old, drop_in.target])
    if (wrong := _find_objections(before, after, desired, given)) is not None:
        raise ConfigurationError(
            f"containerd's own binary ({binary}) would not serve the new configuration: {wrong}",
            path=root.path,
            hint="nothing was changed; look at what `containerd config dump` says to this file",
        )


def _unchanged_file(inspection: ContainerdInspection, role: str) -> DesiredFile:
    """Return a file that stays as it is: it has nothing of ours, and the desired state does not include it."""
    file = next(file for file in inspection.files if file.role == role)
    return DesiredFile(file, file.content, file.content)


def _without_and_with_us(
    inspection: ContainerdInspection, each: ImportedFile, desired: Mapping[str, DesiredFile]
) -> tuple[bytes, bytes]:
    """Return an imported file's content without our changes and with them."""
    role = inspection.role_of(each)
    wanted = desired.get(role)
    without, with_us = (wanted.base or b"", wanted.target or b"") if wanted is not None else (each.content,) * 2
    return (with_us, with_us) if role == ROOT_ROLE else (without, with_us)


class _Generated(msgspec.Struct, frozen=True):
    """The files that a distribution generates at its next start, without our additions and with them.

    `start` and `start_with_us` name the templates; the texts are None if the template cannot be rendered.
    """

    start: NextStart
    start_with_us: NextStart
    without: Rendered | None
    with_us: Rendered | None


def _try_distribution(
    node: Node, inspection: ContainerdInspection, distribution: DistributionInspection, desired: DesiredState
) -> None:
    """Check the next generated file, without our additions and with them. Raises ConfigurationError."""
    layout, process = distribution.layout, inspection.process
    if distribution.content is None:
        return
    next_file = _next_generated(inspection, distribution, distribution.content, desired) if layout.templates else None
    if next_file is not None:
        _refuse_broken(next_file, layout)
    elif process is None:
        return
    target = next((wanted for wanted in desired.files if wanted.target != wanted.base), None)
    binary = _binary(node, process, layout) if target is not None or next_file is not None else None
    if binary is None:
        return
    without = next_file.without if next_file is not None else None
    generated = without.text if without is not None else distribution.content
    before, words = reload_method.dump_containerd_config(node.programs, binary, generated)
    if before is None:
        # the binary prints nothing, or fails on the current file, which is generated anew; or the template is wrong
        if next_file is not None and without is not None and not _is_running_with(generated, distribution):
            _refuse_rejected(node, binary, next_file.start, without, words, layout)
        return
    changed = _with_additions(generated, layout, next_file, target) if target is not None else None
    if target is None or changed is None:
        return
    after = reload_method.dump_containerd_config(node.programs, binary, changed)
    # without a running process, this may not be the binary that will read the file
    wrong = _find_objections(before, after, desired, changed) if process is not None or after[0] is None else None
    if wrong is not None:
        raise ConfigurationError(
            f"containerd's own binary ({binary}) would not serve the additions: {wrong}",
            path=target.path,
            hint=f"nothing was changed; look at what `containerd config dump` says to {layout.generated} with them",
        )


def _binary(node: Node, process: Process | None, layout: Layout) -> str | None:
    """Return the containerd binary to run: the running one, else the distribution's own; None if there is none.

    In k3s it is a link to its one binary, which acts by the name that it is called by.
    """
    if process is not None and posixpath.basename(process.executable) == _PROGRAM:
        return process.executable
    near = (process.executable,) if process is not None else layout.runcs
    paths = (posixpath.join(posixpath.dirname(path), _PROGRAM) for path in near)
    found = next((path for path in paths if node.programs.runs(path)), None)
    return found or (process.executable if process is not None else None)


def _next_generated(
    inspection: ContainerdInspection, distribution: DistributionInspection, generated: bytes, desired: DesiredState
) -> _Generated | None:
    """Return what the distribution generates next, None if it reads no template. Raises ConfigurationError."""
    layout = distribution.layout
    release = inspection.live.version if inspection.live is not None else None
    present: dict[str, bytes] = {}
    without: dict[str, bytes] = {}
    with_us: dict[str, bytes] = {}
    for role, path in layout.templates.items():
        wanted = next((each for each in desired.files if each.role == role), None) or _unchanged_file(inspection, role)
        for texts, text in ((present, wanted.file.content), (without, wanted.base), (with_us, wanted.target)):
            if text is not None:
                texts[path] = text
    start, start_with_us = layout.next_start(without, release), layout.next_start(with_us, release)
    if start.template is None or start_with_us.template is None:
        return None
    on_disk = templates.remove_block(present.get(start.template, templates.BASE))
    base = templates.recover_base(generated, on_disk, start.base)
    plugin = FILE_VERSIONS[start.base].plugin
    return _Generated(
        start,
        start_with_us,
        templates.render(without.get(start.template, templates.BASE), base, plugin),
        templates.render(with_us.get(start_with_us.template, templates.BASE), base, plugin),
    )


def _refuse_broken(generated: _Generated, layout: Layout) -> None:
    """Raise ConfigurationError, with the template's line, if containerd could not parse the next generated file."""
    name = layout.name
    for start, rendered, what in (
        (generated.start, generated.without, "makes of it"),
        (generated.start_with_us, generated.with_us, "would make of it with our handlers"),
    ):
        if rendered is None:
            continue
        try:
            version = toml_document.parse(rendered.text).get("version", 1)
        except DocumentError as error:
            why, line = f"is {error.reason}", rendered.template_line(error.line)
        else:
            if version == start.version:
                continue
            why, line = f"is of version {version}, not {start.version}: the version's line stands in a table", 1
        raise ConfigurationError(
            f"what {name} {what} at its next start {why}",
            path=start.template,
            line=line,
            hint=f"nothing was changed; correct the template, or containerd does not start again: {name}'s own may "
            f"have what it adds, see {layout.generated}; if {name} starts with it all the same, restart {name} first",
        )


def _refuse_rejected(node: Node, binary: str, start: NextStart, rendered: Rendered, words: str, layout: Layout) -> None:
    """Raise ConfigurationError, with the template's line, unless the binary fails on an empty configuration too."""
    if reload_method.dump_containerd_config(node.programs, binary, b"")[0] is None:
        return
    raise ConfigurationError(
        f"containerd would refuse what {layout.name} makes of it at its next start: "
        f"{reload_method.format_message(words, rendered.text)}",
        path=start.template,
        line=rendered.template_line(reload_method.find_line(words)),
        hint="nothing was changed; correct the template: any restart would fail",
    )


def _is_running_with(generated: bytes, distribution: DistributionInspection) -> bool:
    """Return whether the next generated file equals the one that containerd was started with, except for our block."""
    return generated.strip() == templates.remove_block(distribution.content or b"").strip()


def _find_objections(
    before: Table, after: tuple[Table | None, str], desired: DesiredState, given: bytes | None
) -> str | None:
    """Return the objections to the desired state in words, None if there are none. `given`: the text that was read."""
    table, words = after
    if table is None:
        return reload_method.format_message(words, given)
    losses = reload_method.compare_containerd_dumps(before, table, dict(desired.served), desired.default)
    return reload_method.format_message("; ".join(losses)) if losses else None


def _with_additions(content: bytes, layout: Layout, next_file: _Generated | None, target: DesiredFile) -> bytes | None:
    """Return the generated file with the target's additions, as the engine will read both together.

    None if that is unknown: the next generated file is of another version, and cannot be rendered.
    """
    version = next_file.start.version if next_file is not None else layout.version
    if next_file is not None and next_file.with_us is not None and target.role in TEMPLATE_ROLES:
        return next_file.with_us.text
    if next_file is not None and next_file.without is None and version != layout.version:
        return None
    plugin = FILE_VERSIONS[version].plugin
    if target.role not in TEMPLATE_ROLES:
        added = toml_document.parse(target.target or b"")
    else:
        present = frozenset(runtimes_in(layout.document(content, ""), plugin))
        added = templates.parse_block(target.target or b"", present)
    default = lookup(added, build_shape(plugin).default)
    made = tuple(runtimes_in(added, plugin).items())
    part = TableAdditions(plugin, made, default if isinstance(default, str) else None)
    return config.add_parts(content, [part])[0]


def find_restart_obstacle(node: Node, process: Process) -> str | None:
    """Return why this containerd would not start again with its present files; None if nothing is known."""
    programs, binary = node.programs, process.executable
    try:
        layout = config_files.find_layout(process)
        made = _generated_next(process, layout) if layout is not None else None
        if layout is not None and made is not None:
            _refuse_generated(node, process, layout, *made)
            return None
        given = config_files.find_config(process)
        place = given or CONFIG
        content = read_as(process, place)
        if content is None and given is None:
            return None  # the daemon does without its usual file; `config dump` does not
        after, words = reload_method.dump_containerd_config(programs, binary, path=place)
        if after is None:
            return words if reload_method.dump_containerd_config(programs, binary, b"")[0] is not None else None
        return _find_missing_import(process, place, content or b"")
    except command_line.HiddenError:
        return None
    except ConfigurationError as error:
        return str(error)


def _generated_next(process: Process, layout: Layout) -> tuple[NextStart, Rendered] | None:
    """Return what a process's distribution generates next, None if that is unknown. Raises NodeError."""
    texts = {path: text for path in layout.templates.values() if (text := read_as(process, path)) is not None}
    generated = read_as(process, layout.source)
    try:
        start = layout.next_start(texts, None)
    except ConfigurationError:
        return None
    if start.template is None or generated is None:
        return None
    text = texts.get(start.template, templates.BASE)
    base = templates.recover_base(generated, templates.remove_block(text), start.base)
    rendered = templates.render(text, base, FILE_VERSIONS[start.base].plugin)
    return None if rendered is None else (start, rendered)


def _refuse_generated(node: Node, process: Process, layout: Layout, start: NextStart, rendered: Rendered) -> None:
    """Raise ConfigurationError if containerd would not start with the next generated file."""
    _refuse_broken(_Generated(start, start, rendered, None), layout)
    binary = _binary(node, process, layout) or process.executable
    after, words = reload_method.dump_containerd_config(node.programs, binary, rendered.text)
    if after is None:
        _refuse_rejected(node, binary, start, rendered, words, layout)


def _would_not_start(words: str, path: str) -> ConfigurationError:
    """Return the error for files with which a running containerd would not start again."""
    return ConfigurationError(
        f"containerd runs, and would not start again with what its files say without us: {words}",
        path=path,
        hint="nothing was changed; correct what it names: any restart of containerd would fail",
    )


def _find_missing_import(process: Process, path: str, content: bytes, but: str | None = None) -> str | None:
    """Return in words which import of the daemon's files is missing, None if none is.

    Some binaries print a configuration all the same: 2.1 and 2.4 do, and the daemon then exits. Raises
    ConfigurationError, NodeError.
    """
    names = frozenset() if but is None else frozenset({but})
    _, missing = config_files.read_imports(Reader(root_of(process)), path, content, names)
    if not missing:
        return None
    importer = "it" if missing[0].importer == path else missing[0].importer
    return f"{importer} imports {missing[0].path}, which is not there"


def _make_imports_absolute(content: bytes, place: str) -> bytes:
    """Return the text with absolute imports, as seen from `place`: the binary reads the text from another path."""
    patterns = config_files.list_imports(content, place)
    if patterns == toml_document.parse(content).get("imports", []):
        return content
    return toml_document.edit(content, [Set(IMPORTS, patterns)], marker=MARKER)
