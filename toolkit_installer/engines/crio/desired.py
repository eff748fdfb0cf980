"""The desired content of CRI-O's files, from their current content, the request and the receipt's records. Pure."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from toolkit_installer.documents import json_document, shown, toml_document
from toolkit_installer.documents.changes import Change, Set, Table, is_same, lookup
from toolkit_installer.engines.api import (
    HOOK_ROLE,
    DesiredFile,
    DesiredState,
    EngineFile,
    Inspection,
    LiveState,
    RecordedFile,
)
from toolkit_installer.engines.common import losses
from toolkit_installer.engines.crio import config
from toolkit_installer.engines.crio.places import CrioSources, read_flag
from toolkit_installer.engines.ownership import MARKER, Ownership, find_chosen_default, revert_content
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError, UsageError, located
from toolkit_installer.settings import ConfigMode

ROOT_ROLE = "crio.conf"
DROP_IN_ROLE = "drop-in"
OTHER_ROLE = "crio.conf.d/"
"""The prefix of the role of each further file that CRI-O reads; its path relative to the folder follows."""

_HOOK_ENDING = ".json"
_OLDER_NAMES = frozenset({"99-nvidia.conf", "99-nvidia.toml"})
"""The names that older installers give to a drop-in that is entirely theirs, in any folder."""


class CrioInspection(Inspection, frozen=True):
    """The state of CRI-O on the node. `unread` says in words why it would not read our drop-in.

    `hooks_dir` is the node's path of the hooks folder; empty if it is the same here.
    """

    sources: CrioSources = CrioSources()
    unread: str = ""
    hooks_dir: str = ""


def build_desired_state(
    inspection: CrioInspection, request: Request, records: Mapping[str, RecordedFile]
) -> DesiredState:
    """Return the desired state of all files. `inspection.files` are in CRI-O's order, the hook's file last.

    Raises ConfigurationError, UsageError.
    """
    unknown = find_unrecorded(inspection, request.toolkit_folder)
    bases = [
        remove_ours(file, records.get(file.path, RecordedFile(ownership=unknown[file.path])), request.toolkit_folder)
        for file in inspection.files
    ]
    for wanted in bases:
        if wanted.role != HOOK_ROLE:
            losses.refuse_replaced(
                wanted, records.get(wanted.path, RecordedFile()), toml_document.parse, request.toolkit_folder
            )
    base = known = _with_flags(inspection.live, bases)
    missing = find_missing_default(bases, inspection.live)
    if missing is not None and (request.default is None or not request.handlers):
        raise missing
    served: dict[str, str] = {}
    default = None
    if not request.handlers:
        desired = bases
    elif request.settings.config_mode is ConfigMode.HOOK:
        desired = _with_hook(inspection, request, bases, known)
    else:
        _refuse_flags(inspection.live, request)
        base = _base_configuration(inspection, request, known)
        desired = _with_handlers(inspection, request, bases, base)
        served = request.served
        default = request.default
        _refuse_overrides(merge_targets(inspection.live, desired), desired, served, default)
    low_level = config.list_low_level_runtimes(base, inspection.live.handlers if inspection.live is not None else {})
    if records and default is None:
        desired = [_with_chosen_default(wanted, records.get(wanted.path, RecordedFile()), served) for wanted in desired]
    # write ours before removing others' leftovers: CRI-O does not start with a default that no file defines
    ordered = tuple(sorted(desired, key=lambda wanted: wanted.role != DROP_IN_ROLE))
    faults = (str(missing),) if missing is not None else ()
    notes = _notes(inspection, known, served, default)
    return DesiredState(ordered, served, default, low_level, notes, faults=faults)


def _with_flags(live: LiveState | None, desired: Sequence[DesiredFile]) -> Table:
    """Return CRI-O's configuration from the files' targets and its command line. Raises ConfigurationError."""
    known = merge_targets(live, desired)
    flag = read_flag(live, "--default-runtime")  # it precedes all files
    return config.merge_files(known, [{"crio": {"runtime": {"default_runtime": flag}}}]) if flag else known


def find_missing_default(bases: Sequence[DesiredFile], live: LiveState | None) -> ConfigurationError | None:
    """Return why CRI-O would not start with these files: its default runtime has no table; None if it has one.

    An unknown release may have a built-in table, and a running CRI-O also has those of its command line. Raises
    ConfigurationError.
    """
    known = _with_flags(live, bases)
    name = lookup(known, config.DEFAULT)
    own = config.LOW_LEVEL if live is None or live.release is None else tuple(live.handlers)
    if not isinstance(name, str) or name in config.runtimes_in(known) or name in own:
        return None
    for wanted in reversed([each for each in bases if each.role != HOOK_ROLE]):
        if wanted.base is not None and lookup(config.parse_checked(wanted.base), config.DEFAULT) == name:
            return ConfigurationError(
                f"default_runtime is {shown.quote_name(name)}, and no file that CRI-O reads has a table for it: CRI-O "
                "does not start",
                path=wanted.path,
                line=toml_document.line_of(wanted.base, config.DEFAULT),
                hint=f"add [crio.runtime.runtimes.{shown.named(name)}], or name another default_runtime",
            )
    return None


def find_unrecorded(inspection: Inspection, toolkit_folder: str) -> dict[str, Ownership]:
    """Return our values that are identified by path without a receipt. Raises ConfigurationError."""
    texts = {file.path: file.content or b"" for file in inspection.files if file.role != HOOK_ROLE}
    gone: set[str] = set()
    kept: set[str] = set()
    for path, content in texts.items():
        with located(path):
            inside, others = config.split_runtime_names(content, toolkit_folder)
        gone |= inside
        kept |= others
    found = {path: config.find_unrecorded(content, gone - kept) for path, content in texts.items()}
    return {file.path: found.get(file.path, Ownership()) for file in inspection.files}


def remove_ours(file: EngineFile, recorded: RecordedFile, toolkit_folder: str) -> DesiredFile:
    """Return a file without our values: its target is its base. Raises ConfigurationError."""

    def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        text, left = config.remove_ours_from_text(
            content, recorded.ownership, toolkit_folder, recorded.before, recorded.handlers
        )
        chosen = find_chosen_default(toml_document.parse(content), config.SHAPE, recorded.ownership, recorded.handlers)
        changes: list[Change] = [] if chosen is None else [Set(config.DEFAULT, chosen)]
        if losses.is_cut_off(content, recorded, partial(toml_document.edit, marker=MARKER), changes):
            return recorded.before, (losses.CUT_OFF,)
        own = file.role == DROP_IN_ROLE or posixpath.basename(file.path) in _OLDER_NAMES
        made = recorded.before is None and (recorded.written or (own and text != content))
        if made and config.has_no_content(text):
            return None, left  # created for us, or by an older installer, and holds nothing else
        return text, left

    with located(file.path):
        if file.role == HOOK_ROLE:
            base, left = config.remove_our_hook(file.content, recorded.before, recorded.written, toolkit_folder)
        else:
            base, left = revert_content(file.content, recorded.before, recorded.written, without_ours)
    return DesiredFile(file, base=base, target=base, left=left, metadata=recorded.metadata)


def merge_targets(live: LiveState | None, desired: Sequence[DesiredFile]) -> Table:
    """Return CRI-O's configuration from the files' targets, which are in its order. Raises ConfigurationError."""
    documents = []
    for wanted in desired:
        if wanted.role != HOOK_ROLE and wanted.target is not None:
            with located(wanted.path):
                documents.append(config.parse_checked(wanted.target))
    return config.merge_files(config.build_built_in(live.release if live is not None else None), documents)


def find_by_role(desired: Sequence[DesiredFile], role: str) -> DesiredFile:
    """Return the desired file with that role."""
    return next(wanted for wanted in desired if wanted.role == role)


def _replaced(desired: Sequence[DesiredFile], new: DesiredFile) -> list[DesiredFile]:
    return [new if wanted.role == new.role else wanted for wanted in desired]


def _base_configuration(inspection: CrioInspection, request: Request, known: Table) -> Table:
    """Return the configuration with the settings for our handlers: the requested source, else `known`, all the files.

    Raises ConfigurationError.
    """
    sources = inspection.sources
    if sources.failed:
        raise ConfigurationError(
            f"none of the sources of CRI-O's settings can be read: {'; '.join(sources.failures)}",
            hint="--config-source file reads its files, and needs no CRI-O",
        )
    if sources.source is None:
        return known
    with located(sources.source.name):
        document = config.parse_checked(sources.source.content)
    built_in = config.build_built_in(inspection.live.release if inspection.live is not None else None)
    return config.build_base_configuration(document, built_in, known, request.toolkit_folder)


def _with_chosen_default(wanted: DesiredFile, recorded: RecordedFile, served: Mapping[str, str]) -> DesiredFile:
    """Return the file with our handler as the default if an administrator made it the default since.

    That value is not ours, and is removed with the handler. Raises DocumentError.
    """
    if wanted.role == HOOK_ROLE or wanted.target is None or wanted.file.content is None:
        return wanted
    present = toml_document.parse(wanted.file.content)
    chosen = find_chosen_default(present, config.SHAPE, recorded.ownership, served)
    if chosen is None:
        return wanted
    text, _ = config.edit(wanted.target, [Set(config.DEFAULT, chosen)])
    return wanted.with_target(text, toml_document.parse, wanted.ownership)


def _in_drop_in(
    inspection: CrioInspection, desired: Sequence[DesiredFile], edit: Callable[[bytes], tuple[bytes, Ownership]]
) -> list[DesiredFile]:
    """Return the files with the drop-in edited. Raises ConfigurationError if CRI-O would never read the drop-in."""
    drop_in = find_by_role(desired, DROP_IN_ROLE)
    if inspection.unread:
        raise ConfigurationError(
            inspection.unread,
            path=drop_in.path,
            hint="name a file in that folder with --drop-in-config; where only single folders of the node are mounted, "
            "mount it and name the file as it is seen there",
        )
    with located(drop_in.path):
        text, ownership = edit(drop_in.base or b"")
    return _replaced(desired, drop_in.with_target(text, toml_document.parse, ownership))


def _with_handlers(
    inspection: CrioInspection, request: Request, desired: Sequence[DesiredFile], known: Table
) -> list[DesiredFile]:
    taken = [handler.name for handler in request.handlers if handler.name in config.LOW_LEVEL]
    if taken:
        raise UsageError(
            f"--runtime-name {taken[0]!r} cannot be used: it is CRI-O's own runtime",
            hint="choose another name, such as nvidia",
        )
    made = config.build_entries(known, request.handlers)
    return _in_drop_in(inspection, desired, lambda base: config.add_handlers(base, made, request.default))


def _with_hook(
    inspection: CrioInspection, request: Request, desired: Sequence[DesiredFile], known: Table
) -> list[DesiredFile]:
    """Return the files with the hook's file; the drop-in only adds its folder, if CRI-O does not use that yet."""
    if not request.settings.hook_filename.endswith(_HOOK_ENDING):
        raise UsageError(
            f"--hook-filename {request.settings.hook_filename!r} cannot be used: of its folders of hooks CRI-O reads "
            f"only the files whose names end in {_HOOK_ENDING}",
            hint=f"choose a name such as oci-nvidia-hook{_HOOK_ENDING}",
        )
    hook = find_by_role(desired, HOOK_ROLE)
    target = config.build_hook(request.toolkit_folder)
    present = hook.file.content
    with contextlib.suppress(ConfigurationError):  # a broken file is replaced
        if present is not None and is_same(json_document.parse(present), json_document.parse(target)):
            target = present
    result = _replaced(desired, msgspec.structs.replace(hook, target=target))
    folder = inspection.hooks_dir or request.settings.hooks_dir
    flag = read_flag(inspection.live, "--hooks-dir")
    folders = flag.split(",") if flag is not None else config.list_hooks_dirs(known)
    if folder in folders:
        return result
    if flag is not None:
        raise ConfigurationError(
            f"CRI-O was started with --hooks-dir {flag}, so that it looks for hooks nowhere else",
            path=folder,
            hint="name one of these folders with --hooks-dir, or add this one to CRI-O's command line",
        )
    added: list[Change] = [Set(config.HOOKS_DIR, [*config.list_hooks_dirs(known), folder])]
    return _in_drop_in(inspection, result, lambda base: config.edit(base, added))


def _refuse_flags(live: LiveState | None, request: Request) -> None:
    """Raise ConfigurationError if CRI-O's command line overrides our file's values: it precedes all files."""
    flag = read_flag(live, "--default-runtime")
    if flag is not None and request.default is not None and flag != request.default:
        raise ConfigurationError(
            f"CRI-O was started with --default-runtime {flag}, which goes before every file",
            hint="move it into crio.conf and restart CRI-O, or use --set-as-default=false",
        )
    runtimes = {each.partition(":")[0] for each in (read_flag(live, "--runtimes") or "").split(",")}
    for handler in request.handlers:
        if handler.name in runtimes:
            raise ConfigurationError(
                f"CRI-O was started with --runtimes {handler.name}:…, which goes before every file",
                hint="take it from CRI-O's command line and restart it, or choose another --runtime-name",
            )


def _refuse_overrides(
    read: Table, desired: Sequence[DesiredFile], served: Mapping[str, str], default: str | None
) -> None:
    """Raise ConfigurationError if a file that CRI-O reads after ours overrides our values."""
    for path in config.find_differences(read, served, default):
        for wanted in reversed(desired):
            if wanted.role in (HOOK_ROLE, DROP_IN_ROLE) or wanted.target is None:
                continue
            if lookup(toml_document.parse(wanted.target), path):
                drop_in = find_by_role(desired, DROP_IN_ROLE)
                raise ConfigurationError(
                    f"sets {'.'.join(path)}, and CRI-O reads it after {drop_in.path}",
                    path=wanted.path,
                    line=toml_document.line_of(wanted.target, path),
                    hint="take it out there, rename that file so that it sorts before ours, or name another "
                    "--drop-in-config",
                )


def _notes(inspection: CrioInspection, known: Table, served: Mapping[str, str], default: str | None) -> tuple[str, ...]:
    notes = [
        f"{file.path} cannot be read from here: what it says is not known"
        for file in inspection.files
        if file.role.startswith(OTHER_ROLE) and file.found is None
    ]
    source = inspection.sources.source
    if source is not None and served:
        notes.append(f"the handlers have the settings of the default runtime in {source.name}")
    if default is not None:
        notes += [
            f"the runtime {name} inherits the default runtime's executable: it is the NVIDIA runtime now"
            for name, entry in config.runtimes_in(known).items()
            if entry.get(config.INHERITS) is True
        ]
    return tuple(notes)
